"""One log that is followed through all that happens to logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commwatch.jobs.logs import tail as log_tail
from commwatch.jobs.logs.files import find_logs, pattern_of, short_host, stat_log
from commwatch.jobs.logs.lines_of_file import LONGEST_LINE, whole_lines
from commwatch.jobs.logs.position import Position
from commwatch.jobs.logs.tail import CATCH_UP_BYTES, MOST_BEHIND_BYTES, UNFINISHED_SECONDS, LogTail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "nccl.log"
    file.touch()
    return file


def tail_of(path: Path, position: Position | None = None) -> LogTail:
    found = stat_log(str(path))
    assert found is not None
    return LogTail(found, position or Position())


def read(tail: LogTail, now: float = 0.0) -> bytes:
    """All that is to be read now."""
    parts = []
    while (piece := tail.read(now)) is not None:
        parts.append(piece.body)
        tail.advance(piece.used, piece.skips)
    return b"".join(parts)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_what_is_added_is_read_once(path: Path) -> None:
    """Whole lines only; the rest of a line is waited for."""
    tail = tail_of(path)
    append(path, b"one\ntwo\nthr")
    assert read(tail) == b"one\ntwo\n"
    assert read(tail) == b""
    append(path, b"ee\n")
    assert read(tail) == b"three\n"


def test_a_line_that_is_never_ended_is_taken_after_a_while(path: Path) -> None:
    """The last words of a process that died; what comes behind them later is not taken for a line."""
    tail = tail_of(path)
    append(path, b"last words")
    assert read(tail, 0.0) == b""
    assert read(tail, UNFINISHED_SECONDS - 1) == b""
    assert read(tail, UNFINISHED_SECONDS) == b"last words"
    append(path, b" and more\nnext\n")
    assert read(tail, UNFINISHED_SECONDS + 1) == b"next\n"


def test_a_line_that_still_grows_is_waited_for(path: Path) -> None:
    """The time begins again with each growth."""
    tail = tail_of(path)
    append(path, b"a")
    read(tail, 0.0)
    append(path, b"b")
    assert read(tail, UNFINISHED_SECONDS) == b""
    append(path, b"c\n")
    assert read(tail, UNFINISHED_SECONDS + 1) == b"abc\n"


@pytest.mark.parametrize("new", [b"new\n", b"another first line\nsecond\n"], ids=["shorter", "longer"])
def test_a_file_that_was_written_anew_is_read_from_its_beginning(path: Path, new: bytes) -> None:
    """As NCCL opens its log, and as copytruncate leaves one; the bytes before the position tell, not the length."""
    tail = tail_of(path)
    append(path, b"old line\n")
    read(tail)
    path.write_bytes(new)
    assert read(tail) == new


def test_a_renamed_file_is_read_to_its_end(path: Path) -> None:
    """Through the descriptor that is open; the new file of that name is another one."""
    tail = tail_of(path)
    append(path, b"one\n")
    read(tail)
    renamed = path.rename(path.with_suffix(".log.1"))
    path.write_bytes(b"of the new file\n")
    append(renamed, b"two\n")
    assert read(tail) == b"two\n"
    tail.close()
    with pytest.raises(FileNotFoundError):
        tail.read(0.0)


def test_another_process_goes_on_from_a_position(path: Path) -> None:
    """Offset and sum are all that it needs; in a file of other content it begins again."""
    tail = tail_of(path)
    append(path, b"one\n")
    read(tail)
    append(path, b"two\n")
    assert read(tail_of(path, tail.position)) == b"two\n"
    path.write_bytes(b"uno\ndos\n")
    assert read(tail_of(path, tail.position)) == b"uno\ndos\n"


@pytest.mark.parametrize(("there", "read_later"), [(b"old\n", b"new\n"), (b"old, unfinished", b""), (b"", b"new\n")])
def test_at_the_end_begins_behind_what_is_there(path: Path, there: bytes, read_later: bytes) -> None:
    """The rest of a line that was begun before is old too."""
    append(path, there)
    tail = tail_of(path)
    tail.start_at_end()
    append(path, b"new\n")
    assert read(tail) == read_later


def test_a_line_without_end_costs_little(path: Path) -> None:
    """Its beginning is looked at once, and the line after it is read."""
    tail = tail_of(path)
    append(path, b"x" * (10 * log_tail.PIECE_BYTES) + b"\nnext\n")
    assert read(tail) == b"x" * LONGEST_LINE + b"next\n"


def test_far_behind_only_the_last_part_is_read(path: Path) -> None:
    """And it is known how much was passed over; the file has a hole, so it takes no room."""
    tail = tail_of(path)
    size = MOST_BEHIND_BYTES + CATCH_UP_BYTES
    with path.open("wb") as file:
        file.truncate(size)
    append(path, b"\nlast\n")
    assert read(tail).endswith(b"last\n")
    assert tail.take_skipped() == size + 6 - CATCH_UP_BYTES
    assert tail.take_skipped() == 0


def test_a_copy_is_known_by_what_stands_before_the_position(path: Path) -> None:
    """So that a log that is copied away does not count again."""
    tail = tail_of(path)
    append(path, b"one\ntwo\n")
    read(tail)
    copy = path.with_suffix(".log.1")
    copy.write_bytes(b"one\ntwo\nthree\n")
    assert tail_of(copy).holds_before(tail.position)
    assert not tail_of(copy).holds_before(Position())
    copy.write_bytes(b"uno\ndos\ntres\n")
    assert not tail_of(copy).holds_before(tail.position)


def test_carriage_returns_end_lines_too() -> None:
    """A progress bar is one line of many thousand characters otherwise."""
    assert whole_lines(b"1%\r2%\r3", skips=False) == (b"1%\r2%\r", 0, 6, False)
    assert whole_lines(b"rest\rnew\n", skips=True) == (b"new\n", 5, 9, False)
    assert whole_lines(b"rest", skips=True) == (b"", 4, 4, True)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("/log/nccl.%h.%p", "/log/nccl.gpu7.[0-9]*"),
        ("/log/100%%.%h", "/log/100%.gpu7"),
        ("/log/%%h.log", "/log/%h.log"),
        ("/log/job-*/out.log", "/log/job-*/out.log"),
    ],
)
def test_names_are_taken_as_nccl_writes_them(name: str, pattern: str) -> None:
    """With shell patterns besides."""
    assert pattern_of(name, "gpu7") == pattern


def test_a_host_is_called_by_its_first_part() -> None:
    """NCCL cuts host names at the first dot."""
    assert short_host("GPU7.example.org") == "gpu7"


def test_files_folders_and_patterns_are_found(tmp_path: Path) -> None:
    """Each file once, by whatever name; no pipe, no hidden file, nothing that rotation has packed."""
    for name in ("a.log", "a.log.1", "a.log.2.gz", ".hidden", "nccl.gpu7.12", "nccl.gpu8.13"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "below").mkdir()
    (tmp_path / "link.log").symlink_to("a.log")
    (tmp_path / "broken.log").symlink_to("nothing")

    def names(name: str) -> set[str]:
        found, failed = find_logs(f"{tmp_path}/{name}", "gpu7")
        assert failed is None
        return {Path(one.path).name for one in found}

    assert names("") == {"a.log", "a.log.1", "nccl.gpu7.12", "nccl.gpu8.13"}
    assert names("*.log") in ({"a.log"}, {"link.log"})
    assert names("nccl.%h.%p") == {"nccl.gpu7.12"}
    assert names("link.log") == {"link.log"}
    assert names("missing.log") == set()
    assert names("pipe") == set()

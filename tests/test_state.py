"""The state directory: atomic, locked, and not stopped by a damaged file."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.errors import StateError
from commwatch.state.directory import StateDirectory
from commwatch.state.records import Count, Timestamp, encode, read_record
from support.state_files import SPECIAL_FILES, change, special_file


class Record(msgspec.Struct):
    """A record of these tests."""

    value: int
    at: Timestamp = 0.0
    events: Count = 0


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """A record comes back after a restart."""
    StateDirectory(tmp_path).save("record", Record(3))

    assert StateDirectory(tmp_path).load("record", Record) == Record(3)
    assert StateDirectory(tmp_path).load("other", Record) is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b'{"value": "three"}', b"\xff\xfe", b"[]", b'{"x": "\xff"}', b'{"x": ' + b"[" * 10**5,
        b'{"value": 18446744073709551617}', b'{"value": -18446744073709551617}', b'{"value": 1' + b"0" * 400 + b"}",
        b'{"value": 1, "at": 1e18}', b'{"value": 1, "at": -1}', b'{"value": 1, "events": -1}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    """The daemon goes on without it, and the file is kept for whoever wants to look."""
    (tmp_path / "record.json").write_bytes(content)

    assert StateDirectory(tmp_path).load("record", Record) is None
    assert not (tmp_path / "record.json").exists()
    (aside,) = tmp_path.glob("record.damaged-*")
    assert aside.read_bytes() == content


def test_a_file_larger_than_memory_is_set_aside(tmp_path: Path) -> None:
    """It is not read to its end, by a command neither."""
    with (tmp_path / "record.json").open("wb") as stream:
        stream.write(b'{"value": 1}')
        stream.truncate(2**43)

    with pytest.raises(StateError, match="more than 67108864 bytes"):
        read_record(tmp_path / "record.json", Record)
    assert StateDirectory(tmp_path).load("record", Record) is None
    assert list(tmp_path.glob("record.damaged-*"))


@pytest.mark.parametrize("value", [2**64, -(2**64), 0])
def test_the_largest_counters_are_believed(tmp_path: Path, value: int) -> None:
    """A counter of 64 bits may have any value."""
    StateDirectory(tmp_path).save("record", Record(value))

    assert StateDirectory(tmp_path).load("record", Record) == Record(value)


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"value": 1, "at": 1e18}'])
def test_what_others_cannot_read_of_it_stays_where_it_is(tmp_path: Path, content: bytes) -> None:
    """A command sets no file of the daemon aside; it says which one cannot be read."""
    file = tmp_path / "record.json"
    assert read_record(file, Record) is None
    file.write_bytes(content)

    with pytest.raises(StateError, match=r"record\.json cannot be read: "):
        read_record(file, Record)
    assert file.read_bytes() == content


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    """Two daemons must not write the same state; the error says what to do."""
    first, second = StateDirectory(tmp_path), StateDirectory(tmp_path)
    first.open()
    try:
        with pytest.raises(StateError, match=r"another commwatch daemon uses it.*--path\.state"):
            second.open()
    finally:
        second.close()
        first.close()


def test_a_path_that_cannot_be_a_directory_is_a_clear_error(tmp_path: Path) -> None:
    """The error names the directory and the flag."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StateError, match=r"file/state: .*--path\.state"):
        StateDirectory(tmp_path / "file" / "state").open()


def _full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "the disk is full")


def test_a_failed_write_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is replaced whole or not at all."""
    state = StateDirectory(tmp_path)
    state.save("record", Record(1))
    monkeypatch.setattr(os, "fsync", _full_disk)
    with pytest.raises(OSError, match="full"):
        state.save("record", Record(2))

    assert state.load("record", Record) == Record(1)
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_record_is_written_unless_its_file_has_it(tmp_path: Path) -> None:
    """Also where the file was removed, damaged or replaced since, or could not be written."""
    state, file = StateDirectory(tmp_path), tmp_path / "record.json"
    inodes = []
    for value in (1, 1, 2):
        state.save("record", Record(value))
        inodes.append(file.stat().st_ino)
    assert (inodes[0] == inodes[1], inodes[1] == inodes[2]) == (True, False)

    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match="directory"):
        state.save("record", Record(3))
    file.rmdir()
    state.save("record", Record(3))
    content = file.read_bytes()
    for found in (None, b"", content[:-9], content + b"\n", encode(Record(2))):
        file.unlink() if found is None else file.write_bytes(found)
        state.save("record", Record(3))
        assert file.read_bytes() == content


def test_a_file_says_whether_it_is_what_was_written(tmp_path: Path) -> None:
    """A changed number is damage, and so is a changed check sum; people read the file as any other."""
    state, file = StateDirectory(tmp_path), tmp_path / "record.json"
    state.save("record", Record(3, 1.0, 17))
    written = file.read_bytes()
    assert msgspec.json.decode(written, type=Record) == Record(3, 1.0, 17)
    assert written.splitlines()[1].startswith(b'  "sha256": "')

    for old, new in ((b"17", b"18"), (b'"sha256": "', b'"sha256": "x'), (b"\n}", b"\n }"), (b"3,", b"3, ")):
        file.write_bytes(written.replace(old, new))
        with pytest.raises(StateError, match="its check sum does not fit"):
            read_record(file, Record)


def test_a_file_without_a_check_sum_is_believed(tmp_path: Path) -> None:
    """Version 0.1.0 wrote none: an upgrade throws away neither inventory nor baselines. Nor does a change by hand."""
    state, file = StateDirectory(tmp_path), tmp_path / "record.json"
    file.write_bytes(b'{"value": 4}')
    assert state.load("record", Record) == Record(4)

    state.save("record", Record(5))
    change(file, "5", "6")
    assert state.load("record", Record) == Record(6)


@pytest.mark.parametrize("kind", SPECIAL_FILES)
def test_what_is_no_file_is_set_aside(tmp_path: Path, kind: str) -> None:
    """Nobody waits for a pipe, follows a link or reads a device: the daemon goes on, with one warning."""
    file, state = tmp_path / "record.json", StateDirectory(tmp_path)
    with special_file(file, kind), capture_logs() as events:
        with pytest.raises(StateError, match=r"record\.json cannot be read: "):
            read_record(file, Record)
        assert state.load("record", Record) is None
        state.save("record", Record(1))
        assert state.load("record", Record) == Record(1)

    assert [event["event"] for event in events] == ["a state file is damaged and set aside"]
    (aside,) = tmp_path.glob("record.damaged-*")
    shutil.rmtree(aside) if aside.is_dir() and not aside.is_symlink() else aside.unlink()


@pytest.mark.parametrize("kind", [kind for kind in SPECIAL_FILES if kind != "sparse"])
def test_a_lock_that_nobody_can_lock_is_named(tmp_path: Path, kind: str) -> None:
    """The daemon cannot work without it, and says so at once; the file that a link leads to is not touched."""
    target = tmp_path / "target"
    with special_file(tmp_path / "lock", kind, target), pytest.raises(StateError, match=r"lock is no regular file.*"):
        StateDirectory(tmp_path).open()
    assert not target.exists()


def test_a_record_that_cannot_be_used_is_set_aside(tmp_path: Path) -> None:
    """With one warning, however late it shows; what is built without it is what the daemon goes on with."""
    state = StateDirectory(tmp_path)
    state.save("record", Record(3))

    def use(record: Record | None) -> int:
        return 0 if record is None else 1 // (record.value - 3)

    with capture_logs() as events:
        assert state.restore("record", Record, use) == 0
    assert [event["event"] for event in events] == ["a state file is damaged and set aside"]
    assert state.restore("record", Record, use) == 0


def test_what_is_written_goes_through_no_file_of_another_hand(tmp_path: Path) -> None:
    """A link in the place of the record, or of any name that could be foreseen, leads nowhere."""
    target = tmp_path / "target"
    target.write_text("precious")
    target.chmod(0o600)
    for name in ("record.json", "record.new", f".record.json.{os.getpid()}"):
        (tmp_path / name).symlink_to(target)

    StateDirectory(tmp_path).save("record", Record(1))

    assert (target.read_text(), target.stat().st_mode & 0o777) == ("precious", 0o600)
    assert StateDirectory(tmp_path).load("record", Record) == Record(1)


def test_what_a_killed_writer_left_is_swept_up_at_the_start(tmp_path: Path) -> None:
    """What is being written now stays, and what is not ours."""
    left, now = tmp_path / ".commwatch-0123456789abcdef.new", tmp_path / ".commwatch-fedcba9876543210.new"
    foreign = tmp_path / ".commwatch-settings.new"
    for file in (left, now, foreign):
        file.write_bytes(b"{")
    for file in (left, foreign):
        os.utime(file, (0.0, 0.0))
    state = StateDirectory(tmp_path)
    state.open()
    state.close()
    assert not left.exists()
    assert now.exists()
    assert foreign.exists()

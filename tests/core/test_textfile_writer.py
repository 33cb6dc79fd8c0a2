"""When the textfile is written, moved and taken away, and what is said where it cannot be."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Duration, Textfile
from commwatch.service import textfile_writer
from commwatch.service.textfile_writer import TextfileWriter
from commwatch_exporters.metrics_page import MetricsPage
from support.pages import snapshot_of

STATE = ("commwatch_gpu_state", ("0", "0000:17:00.0"))


class Kept:
    """A writer, its settings, and a value that changes from one page to the next."""

    def __init__(self, file: Path | None, page: Callable[[], bytes] | None = None) -> None:
        self.settings = Textfile(path=str(file or ""), interval=Duration(15))
        self.value = 0
        self.writer = TextfileWriter(page or MetricsPage(lambda: snapshot_of({STATE: self.value})).textfile)

    def write(self) -> None:
        """A turn of the writer and the end of what it began."""
        asyncio.run(self.writer.write(self.settings))
        if self.writer._thread is not None:
            self.writer._thread.join()


def state_in(file: Path) -> int:
    return int(file.read_text().split()[-1])


def test_each_turn_writes_what_is_now(tmp_path: Path) -> None:
    """The scheduler gives it its turn at the interval of the settings."""
    file = tmp_path / "commwatch.prom"
    kept = Kept(file)
    found = []
    for _ in range(3):
        kept.value += 1
        kept.write()
        found.append(state_in(file))

    assert found == [1, 2, 3]


def test_nothing_is_written_where_nothing_is_wanted(tmp_path: Path) -> None:
    """The default; no thread is made."""
    kept = Kept(None)
    kept.write()
    asyncio.run(kept.writer.stop())

    assert kept.writer._thread is None
    assert not os.listdir(tmp_path)


def test_nothing_is_written_after_a_stop(tmp_path: Path) -> None:
    """It is taken away, else node_exporter would show its numbers forever; a reload then plans it once more."""
    kept = Kept(tmp_path / "commwatch.prom")
    kept.write()
    asyncio.run(kept.writer.stop())
    kept.write()

    assert not os.listdir(tmp_path)


def test_a_changed_path_moves_it(tmp_path: Path) -> None:
    """After a reload; an empty one takes it away."""
    kept = Kept(tmp_path / "a.prom")
    kept.write()
    kept.settings = Textfile(path=str(tmp_path / "b.prom"))
    kept.write()
    assert os.listdir(tmp_path) == ["b.prom"]

    kept.settings = Textfile()
    kept.write()
    assert not os.listdir(tmp_path)


def test_what_is_wrong_is_said_once_and_tried_again(tmp_path: Path) -> None:
    """A directory that is missing, then is a file, then is there."""
    folder = tmp_path / "textfile_collector"
    kept = Kept(folder / "commwatch.prom")
    with capture_logs() as logged:
        for _ in range(3):
            kept.write()
        folder.write_text("")
        kept.write()
        kept.write()
        folder.unlink()
        folder.mkdir()
        kept.write()
        kept.write()

    assert [(one["event"], one.get("error")) for one in logged] == [
        ("the textfile is not written; it is tried again at each interval", "No such file or directory"),
        ("the textfile is not written; it is tried again at each interval", "Not a directory"),
        ("the textfile is written again", None),
    ]
    assert (folder / "commwatch.prom").exists()


def test_a_directory_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a file server that is gone: turns and the stop return, no second thread is made, one line says it."""
    hang = threading.Event()
    monkeypatch.setattr(textfile_writer, "replace_file", lambda file, page, mode: hang.wait())
    monkeypatch.setattr(textfile_writer, "_STOP_SECONDS", 0.01)
    kept = Kept(tmp_path / "commwatch.prom")
    with capture_logs() as logged:
        for _ in range(4):
            asyncio.run(kept.writer.write(kept.settings))
        assert sum(one.name == "textfile" for one in threading.enumerate()) == 1
        asyncio.run(kept.writer.stop())
    hang.set()
    assert kept.writer._thread is not None
    kept.writer._thread.join()  # it logs, and would do so into the next test

    assert [one["error"] for one in logged] == ["the last write has not come back"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """Whenever it is read, there is one of the pages; and nothing else that ends in .prom."""
    file = tmp_path / "commwatch.prom"
    pages = [bytes([letter]) * 200_000 for letter in b"abcdefghijklmnopqrst"]
    turns = iter(pages * 5)
    kept = Kept(file, lambda: next(turns))
    kept.write()
    seen: set[bytes] = set()
    names: set[str] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(file.read_bytes())
            names.update(one for one in os.listdir(tmp_path) if one.endswith(".prom"))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in pages * 4:
        kept.write()
    over.set()
    reader.join()

    assert seen <= set(pages)
    assert names == {"commwatch.prom"}
    assert os.listdir(tmp_path) == ["commwatch.prom"]


def test_everyone_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    """The unit's umask is 0027, and node_exporter runs as another user."""
    before = os.umask(0o077)
    try:
        Kept(tmp_path / "commwatch.prom").write()
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "commwatch.prom").stat().st_mode) == 0o644


def test_a_link_in_the_way_of_the_temporary_file_leads_nowhere(tmp_path: Path) -> None:
    """Whoever may write into the directory must not choose what we write to."""
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / f".commwatch.prom.{os.getpid()}").symlink_to(other)

    Kept(tmp_path / "commwatch.prom", lambda: b"page").write()

    assert other.read_text() == "precious"
    assert (tmp_path / "commwatch.prom").read_bytes() == b"page"


def test_what_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    """Here a directory has the file's name."""
    (tmp_path / "commwatch.prom").mkdir()

    with capture_logs() as logs:
        Kept(tmp_path / "commwatch.prom").write()

    assert [entry["error"] for entry in logs] == ["Is a directory"]
    assert os.listdir(tmp_path) == ["commwatch.prom"]

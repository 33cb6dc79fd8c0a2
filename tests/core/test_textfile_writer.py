"""When the textfile is written, moved and taken away, and what is said where it cannot be."""

from __future__ import annotations

import asyncio
import os
import threading
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

    def __init__(self, file: Path | None) -> None:
        self.settings = Textfile(path=str(file or ""), interval=Duration(15))
        self.value = 0
        page = MetricsPage(lambda: snapshot_of({STATE: self.value}))
        self.writer = TextfileWriter(page.textfile)

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

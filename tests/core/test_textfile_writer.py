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
from commwatch.service.root import seconds_between_beats
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
        self.writer = TextfileWriter(lambda: self.settings, page.textfile)

    def beat(self, now: float) -> None:
        """A beat and the end of what it began."""
        self.writer.beat(now)
        if self.writer._thread is not None:
            self.writer._thread.join()


def state_in(file: Path) -> int:
    return int(file.read_text().split()[-1])


def test_it_is_written_at_once_and_then_at_its_interval(tmp_path: Path) -> None:
    """15 s; a beat in between does nothing."""
    file = tmp_path / "commwatch.prom"
    kept = Kept(file)
    found = []
    for now in (100.0, 101.0, 114.9, 115.0, 116.0, 130.5):
        kept.value += 1
        kept.beat(now)
        found.append(state_in(file))

    assert found == [1, 1, 1, 4, 4, 6]


@pytest.mark.parametrize("interval", [1.0, 2.0, 5.0, 7.0, 15.0, 30.0])
def test_it_keeps_its_interval_with_the_heartbeat(tmp_path: Path, interval: float) -> None:
    """A beat comes some milliseconds after its time, now more and now less: none that is due is left for the next."""
    file = tmp_path / "commwatch.prom"
    kept = Kept(file)
    kept.settings = Textfile(path=str(file), interval=Duration(interval))
    between = seconds_between_beats(kept.settings)
    written = []
    for number in range(round(10 * interval / between)):
        now = 1000.0 + number * between
        before = kept.writer._thread
        kept.beat(now + 0.01 / (1 + number))
        if kept.writer._thread is not before:
            written.append(now)

    assert written == [1000.0 + interval * number for number in range(10)]


def test_nothing_is_written_where_nothing_is_wanted(tmp_path: Path) -> None:
    """The default; no thread is made."""
    kept = Kept(None)
    kept.beat(100.0)
    asyncio.run(kept.writer.stop())

    assert kept.writer._thread is None
    assert not os.listdir(tmp_path)


def test_a_stop_takes_it_away(tmp_path: Path) -> None:
    """Else node_exporter would tell its numbers forever."""
    kept = Kept(tmp_path / "commwatch.prom")
    kept.beat(100.0)
    asyncio.run(kept.writer.stop())

    assert not os.listdir(tmp_path)


def test_a_changed_path_moves_it(tmp_path: Path) -> None:
    """After a reload; an empty one takes it away."""
    kept = Kept(tmp_path / "a.prom")
    kept.beat(100.0)
    kept.settings = Textfile(path=str(tmp_path / "b.prom"))
    kept.beat(101.0)
    kept.beat(102.0)
    assert os.listdir(tmp_path) == ["b.prom"]

    kept.settings = Textfile()
    kept.beat(103.0)
    assert not os.listdir(tmp_path)


def test_what_is_wrong_is_said_once_and_tried_again(tmp_path: Path) -> None:
    """A directory that is missing, then is a file, then is there."""
    folder = tmp_path / "textfile_collector"
    kept = Kept(folder / "commwatch.prom")
    with capture_logs() as logged:
        for now in (0.0, 15.0, 30.0):
            kept.beat(now)
        folder.write_text("")
        kept.beat(45.0)
        kept.beat(60.0)
        folder.unlink()
        folder.mkdir()
        kept.beat(75.0)
        kept.beat(90.0)

    assert [(one["event"], one.get("error")) for one in logged] == [
        ("the textfile is not written; it is tried again at each interval", "No such file or directory"),
        ("the textfile is not written; it is tried again at each interval", "Not a directory"),
        ("the textfile is written again", None),
    ]
    assert (folder / "commwatch.prom").exists()


def test_a_directory_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a file server that is gone: beats and the stop return, no second thread is made, one line says it."""
    hang = threading.Event()
    monkeypatch.setattr(textfile_writer, "replace_file", lambda file, page, mode: hang.wait())
    monkeypatch.setattr(textfile_writer, "_STOP_SECONDS", 0.01)
    kept = Kept(tmp_path / "commwatch.prom")
    with capture_logs() as logged:
        for now in (0.0, 15.0, 16.0, 30.0):
            kept.writer.beat(now)
        assert sum(one.name == "textfile" for one in threading.enumerate()) == 1
        asyncio.run(kept.writer.stop())
    hang.set()
    assert kept.writer._thread is not None
    kept.writer._thread.join()  # it logs, and would do so into the next test

    assert [one["error"] for one in logged] == ["the last write has not come back"]

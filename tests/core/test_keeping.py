"""When the daemon saves what must survive a crash: soon after an event, else rarely, one save at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.node.run import Collected
from commwatch.readings import HardwareEvent
from commwatch.service.engine import Engine
from commwatch.service.judgement import Judgement
from commwatch.service.keeping import CHANGED_SECONDS, SOON_SECONDS, Keeping
from commwatch.state.directory import StateDirectory
from support.core import SteppedScheduler
from support.fed_daemon import FedDaemon


class Counts(msgspec.Struct):
    events: int = 0
    looks: int = 0


class Disk(StateDirectory):
    """A state directory that holds up each write for as long as it is told to, and knows how many go on at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.free = threading.Event()
        self.free.set()
        self.writing = self.most = 0
        self.written: list[Counts] = []
        self.full = False

    def write(self, name: str, content: bytes) -> None:
        self.writing += 1
        self.most = max(self.most, self.writing)
        self.free.wait()
        self.writing -= 1
        if self.full:
            raise OSError(28, "No space left on device")
        self.written.append(msgspec.json.decode(content, type=Counts))


class Node:
    """Counts, kept on a disk."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.counts, self.now = Disk(folder), Counts(), 0.0
        self.others = 0
        """How often the rest was saved."""
        self.missed: list[str] = []
        self.scheduler = SteppedScheduler(lambda: self.now, self.missed.append)
        self.keeping = Keeping(self.disk, cast(Engine, self), self.scheduler, lambda: self.now)

    @property
    def version(self) -> int:
        return self.counts.events

    def save_others(self) -> None:
        self.others += 1

    async def at(self, now: float, hung: int = 0) -> list[int]:
        """Let time pass up to a moment; what was saved by then."""
        self.now = now
        await self.scheduler.run_due(hung)
        return self.saved

    def records(self) -> dict[str, msgspec.Struct]:
        self.counts.looks += 1
        return {"counts": self.counts}

    def happens(self) -> None:
        self.counts.events += 1
        self.keeping.notice()

    @property
    def saved(self) -> list[int]:
        """Events in each record that was written."""
        return [one.events for one in self.disk.written]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def in_loop(run: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        await run()

    asyncio.run(main())


async def reached(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_an_event_is_saved_at_once_and_not_more_often_than_each_second(node: Node) -> None:
    """The event alone brings the save forward; what happens without one waits for its turn."""

    async def run() -> None:
        node.keeping.start()
        node.keeping.notice()
        assert await node.at(10.0) == []
        node.happens()
        assert await node.at(10.0) == [1]
        node.happens()
        assert await node.at(10.0 + SOON_SECONDS - 0.1) == [1]
        assert await node.at(10.0 + SOON_SECONDS) == [1, 2]

    in_loop(run)


def test_what_happened_before_the_start_is_saved_at_once(node: Node) -> None:
    """The first look of an engine finds what has happened since the last one's end, before anything is planned."""

    async def run() -> None:
        node.happens()
        assert await node.at(10.0) == []
        node.keeping.start()
        assert await node.at(10.0) == [1]

    in_loop(run)


def test_all_is_saved_in_its_turn(node: Node) -> None:
    """Also what is of no event, and what belongs to others."""

    async def run() -> None:
        node.keeping.start()
        assert await node.at(CHANGED_SECONDS - 5.0) == []
        for number in range(1, 4):
            assert await node.at(number * CHANGED_SECONDS + 1.0) == [0] * number
            assert (node.counts.looks, node.others) == (number, number)

    in_loop(run)


def test_a_slow_disk_holds_up_nobody_and_loses_no_event(node: Node) -> None:
    """The loop goes on, one write is under way at a time, and what happens meanwhile is saved by the next one."""

    async def run() -> None:
        node.keeping.start()
        node.disk.free.clear()
        node.happens()
        assert await node.at(10.0, hung=1) == []
        await reached(lambda: node.disk.writing)
        for _ in range(3):
            node.happens()
            await node.at(15.0, hung=1)
        assert node.saved == []
        node.disk.free.set()
        await reached(lambda: node.saved == [1])
        assert await node.at(15.0) == [1]
        assert await node.at(15.0 + SOON_SECONDS) == [1, 4]

    in_loop(run)

    assert (node.missed, node.disk.most) == ([], 1)


def test_the_last_save_is_the_newest(node: Node) -> None:
    """A save that was under way as the daemon stops comes to its end before, and is not written over the last one."""

    async def run() -> None:
        node.keeping.start()
        node.disk.free.clear()
        node.happens()
        await node.at(10.0, hung=1)
        await reached(lambda: node.disk.writing)
        node.keeping.stop()
        node.happens()
        last = asyncio.create_task(node.keeping.save())
        await asyncio.sleep(0.01)
        node.disk.free.set()
        await last
        node.happens()
        await node.at(1000.0)

    in_loop(run)

    assert (node.saved, node.disk.most) == ([1, 2], 1)


def test_a_full_disk_is_told_once_and_tried_again(node: Node) -> None:
    """Nothing of it is forgotten meanwhile."""
    with capture_logs() as logs:
        node.disk.full = True
        in_loop(node.keeping.save)
        in_loop(node.keeping.save)
        node.disk.full = False
        in_loop(node.keeping.save)

    assert [(one["log_level"], one["what"]) for one in logs] == [("error", "counts")]
    assert node.saved == [0]


@pytest.mark.parametrize("error", [RuntimeError("a defect"), OSError(5, "Input/output error")])
def test_saving_outlives_a_failure(node: Node, error: Exception) -> None:
    """The next event is saved."""
    whole = node.disk.write

    def fail_once(name: str, content: bytes) -> None:
        node.disk.write = whole  # type: ignore[method-assign]  # as a disk that fails once
        raise error

    async def run() -> None:
        node.keeping.start()
        node.disk.write = fail_once  # type: ignore[method-assign]  # likewise
        node.happens()
        assert await node.at(10.0) == []
        node.happens()
        assert await node.at(20.0) == [2]

    with capture_logs():
        in_loop(run)


def test_what_disagrees_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before agrees; the defect is told, and all else is saved."""
    daemon = FedDaemon(tmp_path, monkeypatch)

    def disagree(record: object) -> None:
        raise ValueError("it does not agree")

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr("commwatch.service.engine.check", disagree)
        daemon.save()

    assert [one["log_level"] for one in logs] == ["error"]
    assert [file.name for file in tmp_path.glob("*.json")] == ["inventory.json"]
    daemon.save()
    assert (tmp_path / "judgement.json").exists()


def test_an_event_is_kept_though_the_configuration_is_read_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next look of the daemon at itself."""
    daemon = FedDaemon(tmp_path, monkeypatch)
    daemon.engine.look()
    xid = HardwareEvent("xid", "0000:3b:00.0", "79", "nvml", 1.0)
    daemon.feed("nvml_events", Collected({}, [], 0.0, events=[xid]))
    asyncio.run(daemon.engine.stop())
    daemon.restart()
    daemon.feed("nvml_events")

    totals = daemon.series("gpu_xid_events_total")
    assert {labels[1:]: value for labels, value in totals.items() if value} == {("0000:3b:00.0", "79"): 1}


def test_an_event_is_not_saved_before_the_rules_have_seen_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save evaluates them where something was kept since they were evaluated."""
    daemon = FedDaemon(tmp_path, monkeypatch)
    daemon.feed("nvml_events")
    daemon.engine.look()
    xid = HardwareEvent("xid", "0000:3b:00.0", "79", "nvml", 1.0)
    daemon.feed("nvml_events", Collected({}, [], 0.0, events=[xid]))
    asyncio.run(daemon.engine.save())

    saved = daemon.state.load("judgement", Judgement)
    assert saved is not None
    assert [(one.metric, one.last) for one in saved.history.counters] == [("commwatch_gpu_xid_events_total", 1)]

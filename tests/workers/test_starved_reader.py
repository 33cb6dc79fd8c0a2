"""Readers on a starved machine: an answer that does not come is waited for, and a hang is found once that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from commwatch.config.simulated import SimulationPlan
from commwatch.node.run import Collected, Keeper
from commwatch.node.starvation import Starvation
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.wire import WorkerPlan
from support.starved import Machine
from support.waiting import PATIENCE_SECONDS

GPU3 = "0000:3b:00.0"
HANG = "- {fault: driver_hang, gpu: 3}\n"
STARVED, ASLEEP = "R", "D"
"""It could run and has used no CPU since; it sleeps in a driver."""


class Node(Keeper):
    """A reader of a simulated driver on a machine whose state the test sets."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(folder / "proc")
        self.restarts: list[str] = []
        self.starvation = Starvation(folder / "proc")
        self._faults = folder / "faults.yaml"
        self.set_faults("[]\n")
        plan = SimulationPlan("h100x8", str(self._faults), time.time() - 100, str(folder / "sysfs"), "")
        self.reader = Reader(
            ReaderSettings(WorkerPlan("nvml", ("nvml",), sysfs=plan.sysfs, simulation=plan, rest_when_unavailable=True),
                           deadline=0.6, start_deadline=30),
            self, starvation=self.starvation,
        )  # fmt: skip

    def worker_restarted(self, worker: str, reason: str) -> None:
        self.restarts.append(reason)

    def set_faults(self, text: str) -> None:
        new = self._faults.with_suffix(".new")
        new.write_text(text)
        new.replace(self._faults)

    def are(self, state: str) -> None:
        """All processes of the reader are in a state."""
        for pid in self.reader.pids():
            self.machine.process(pid, state=state)

    async def gaps(self, *, wanted: bool) -> list[tuple[str, str]]:
        """What is absent, once something is, or nothing is any more."""
        while bool((collected := await self.collect()).absences) is not wanted:
            await asyncio.sleep(0.02)
        return [(one.device, one.reason) for one in collected.absences]

    async def collect(self) -> Collected:
        return await self.reader.now("nvml_nvlink")


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Node]:
    """A node that leaves no process behind; its reader has read everything once."""
    one = Node(folder)
    try:
        await one.gaps(wanted=False)
        yield one
    finally:
        one.set_faults("[]\n")
        for pid in one.reader.pids():
            os.kill(pid, signal.SIGKILL)
        while one.reader.pids():
            await asyncio.sleep(0.01)
        await one.reader.stop()


def in_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))


def test_a_starved_process_is_waited_for_and_no_device_is_blamed(tmp_path: Path) -> None:
    """Neither is it counted as stuck, nor replaced; its answer is taken when it comes."""

    async def body() -> None:
        async with node(tmp_path) as one:
            pids = one.reader.pids()
            one.are(STARVED)
            one.set_faults(HANG)
            assert await one.gaps(wanted=True) == [("", "starved")]
            for _ in range(2):
                assert [gap.reason for gap in (await one.collect()).absences] == ["starved"]
            assert one.starvation.words == "the node is starved of CPU"
            assert one.reader.suspects == frozenset()
            one.set_faults("[]\n")
            await one.gaps(wanted=False)
            assert (one.reader.pids(), one.reader.stuck_count) == (pids, 0)
            assert one.restarts == []

    in_loop(body)


@pytest.mark.parametrize("states", [(ASLEEP,), (STARVED, ASLEEP)], ids=["at once", "after starvation"])
def test_a_hang_is_found_at_the_deadline_after_the_starvation(tmp_path: Path, states: tuple[str, ...]) -> None:
    """One that began meanwhile as well, and one on a node that is not starved as ever."""

    async def body() -> None:
        async with node(tmp_path) as one:
            one.are(states[0])
            one.set_faults(HANG)
            found = await one.gaps(wanted=True)
            if len(states) > 1:
                assert found == [("", "starved")]
                one.are(states[1])
            while found == [("", "starved")]:  # one deadline, or where the machine of the tests is slow: several
                found = await one.gaps(wanted=True)
            assert found == [(GPU3, "deadline")]
            assert (one.reader.suspects, one.reader.stuck_count) == (frozenset({GPU3}), 1)

    in_loop(body)


def test_a_starved_process_that_is_to_end_is_waited_for(tmp_path: Path) -> None:
    """It needs CPU for it; one that is not starved and does not end is stuck."""

    async def body() -> None:
        async with node(tmp_path) as one:
            (pid,) = one.reader.pids()
            os.kill(pid, signal.SIGSTOP)
            one.are(STARVED)
            released = asyncio.create_task(one.reader.release(0.05))
            await asyncio.sleep(0.3)
            assert not released.done()
            os.kill(pid, signal.SIGCONT)
            assert await released
            assert one.reader.stuck_count == 0

            await one.gaps(wanted=False)
            (pid,) = one.reader.pids()
            os.kill(pid, signal.SIGSTOP)
            one.are("T")
            assert not await one.reader.release(0.05)
            assert one.reader.stuck_count == 1
            os.kill(pid, signal.SIGCONT)

    in_loop(body)

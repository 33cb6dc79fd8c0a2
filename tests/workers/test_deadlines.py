"""The deadline of a worker: what begins it, and what it names."""

from __future__ import annotations

import asyncio

import pytest

from commwatch.workers.wire import MOST_EARLY, Bounds, Order, ProgressMark
from commwatch.workers.worker import Hung
from support.core import in_loop
from support.hostile_worker import encoded, hostile
from support.passes import in_one_pass

SHORT, LONG = 0.01, 600.0
CHECKS = 4
"""Within a deadline."""


class MovingMark(ProgressMark):
    """The mark of a process that touches another device at each check, until it hangs at one."""

    def __init__(self, devices: int) -> None:
        super().__init__(ProgressMark.create().descriptor)
        self.checks, self._devices = 0, devices

    def get(self) -> str:
        self.checks += 1
        return f"gpu{min(self.checks, self._devices)}"


@in_one_pass("devices", [1, 2, 20])
def test_the_deadline_begins_again_with_each_device(devices: int) -> None:
    """A driver of many devices may take many deadlines; the last one touched is the suspect."""

    async def body() -> None:
        mark = MovingMark(devices)
        async with hostile(Bounds(), deadline=SHORT, mark=mark) as one:
            assert await one.worker.over == Hung(f"gpu{devices}", "run")
            assert mark.checks == devices + CHECKS - 1

    in_loop(body)


@pytest.mark.parametrize(
    ("deadline", "start_deadline", "reads"), [(SHORT, LONG, True), (LONG, SHORT, False)], ids=["then", "first"]
)
def test_a_process_that_has_read_nothing_yet_has_its_start_deadline(
    deadline: float, start_deadline: float, reads: bool
) -> None:
    """It opens its source first; after the first batch the ordinary one holds."""

    async def body() -> None:
        async with hostile(Bounds(), deadline=deadline, start_deadline=start_deadline) as one:
            if reads:
                await one.gave()
                one.worker.order(Order("run", 1.0, now=True))
            assert await one.worker.over == Hung("", "run")

    in_loop(body)


def test_the_collector_that_has_been_due_for_longest_is_the_one_that_did_not_come() -> None:
    """A batch of another one begins the deadline again, and what is not to be run is not missed."""

    async def body() -> None:
        async with hostile(Bounds(), deadline=SHORT, start_deadline=LONG) as one:
            for collector in ("second", "third"):
                one.worker.order(Order(collector, LONG, now=True))
            await one.gave()
            one.worker.order(Order("second"))
            assert await one.worker.over == Hung("", "third")

    in_loop(body)


def test_an_order_does_not_put_a_deadline_off() -> None:
    """A process that hangs is found although something is ordered of it again and again."""

    async def body() -> None:
        async with hostile(Bounds(), deadline=0.02) as one:
            while not one.worker.over.done():
                one.worker.order(Order("run", 1.0, now=True))
                await asyncio.sleep(0)
            assert await one.worker.over == Hung("", "run")

    in_loop(body, 5.0)


def test_orders_take_no_batch_away_that_was_allowed_before() -> None:
    """One that is hastened at each of its intervals gives two batches each time, and is not given up."""

    async def body() -> None:
        async with hostile(Bounds()) as one:
            every = 0.01
            for _ in range(3 * MOST_EARLY):
                await asyncio.sleep(every)
                one.worker.order(Order("run", every, now=True))
                await one.say(2 * encoded())
                await asyncio.sleep(0)
            assert not one.worker.over.done()

    in_loop(body, 5.0)

"""What a reader makes of the parts that its worker processes give, with processes that the test plays."""

from __future__ import annotations

import asyncio
import time

from commwatch.readings import HardwareEvent, LogErrors
from support.core import in_loop
from support.played_worker import SHORT, played_reader

GPU, OTHER = "nvml_gpu", "nvml_nvlink"
SUSPECT, HEALTHY = "0000:3b:00.0", "0000:17:00.0"


def test_a_question_is_answered_by_a_run_that_began_after_it() -> None:
    """One that was under way is kept, but it says how things were before."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(GPU, 600.0)
            worker, before = await one.started(1), time.monotonic()
            answer = asyncio.create_task(one.reader.now(GPU))
            await asyncio.sleep(0)
            worker.gives(GPU, HEALTHY, began=before)
            await one.next_run()
            await asyncio.sleep(0)
            assert not answer.done()
            worker.gives(GPU, HEALTHY)
            assert (await answer).began > before

    in_loop(body, 5.0)


def test_a_question_waits_for_the_own_process_of_a_device_too() -> None:
    """Its part that began before the question does not answer it."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(GPU, 600.0)
            main, own = await one.with_suspect(SUSPECT)
            before = time.monotonic()
            answer = asyncio.create_task(one.reader.now(GPU))
            await asyncio.sleep(0)
            own.gives(GPU, SUSPECT, began=before)
            main.gives(GPU, HEALTHY)
            await asyncio.sleep(0.01)
            assert not answer.done()
            own.gives(GPU, SUSPECT)
            assert (await answer).blocks[SUSPECT].time > before

    in_loop(body, 5.0)


def test_a_run_goes_on_without_the_part_of_a_device_that_is_late() -> None:
    """The device is not reported as absent before its deadline, and its part comes with the next run."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(GPU, 600.0)
            main, own = await one.with_suspect(SUSPECT)
            for _ in range(2):
                main.gives(GPU, HEALTHY)
            run = await one.next_run()
            assert (set(run.blocks), run.absences, run.is_part) == ({HEALTHY}, [], True)
            own.gives(GPU, SUSPECT)
            run = await one.next_run()
            assert (set(run.blocks), run.absences, run.is_part) == ({HEALTHY, SUSPECT}, [], False)

    in_loop(body, 5.0)


def test_the_main_process_speaks_for_the_source() -> None:
    """What the process of one suspect says of the source as a whole is of that device alone, and is not shown."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(GPU, 600.0)
            main, own = await one.with_suspect(SUSPECT)
            own.gives(GPU, "", SUSPECT)
            given = time.monotonic()
            main.gives(GPU, "", HEALTHY)
            run = await one.next_run()
            assert set(run.blocks) == {"", SUSPECT, HEALTHY}
            assert run.blocks[SUSPECT].time < given < run.blocks[""].time

    in_loop(body, 5.0)


def test_two_parts_of_a_device_are_joined_with_all_that_happened_in_both() -> None:
    """Its events and the errors of the kernel log."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(GPU, 600.0)
            main, own = await one.with_suspect(SUSPECT)
            for number in (1, 2):
                own.gives(
                    GPU, SUSPECT,
                    events=[HardwareEvent("xid", SUSPECT, str(number), "nvml", 1.0)],
                    log_errors=[LogErrors("other", True, number, "a.log", "text")],
                )  # fmt: skip
            await asyncio.sleep(0.01)
            main.gives(GPU, HEALTHY)
            run = await one.next_run()
            assert [event.code for event in run.events] == ["1", "2"]
            assert [error.count for error in run.log_errors] == [1, 2]

    in_loop(body, 5.0)


def test_the_hang_of_a_devices_own_process_is_its_part_of_the_run() -> None:
    """The values of the device go at once; the others, which are read as before, give the run."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(GPU, 600.0)
            one.own_deadline = SHORT
            main, _ = await one.with_suspect(SUSPECT)
            await one.until(lambda: bool(one.lost))
            assert (one.lost, one.kept) == ([(GPU, SUSPECT, "deadline")], [])
            main.gives(GPU, HEALTHY)
            run = await one.next_run()
            assert set(run.blocks) == {HEALTHY}
            assert [(gap.device, gap.reason) for gap in run.absences] == [(SUSPECT, "deadline")]

    in_loop(body, 5.0)


def test_who_waits_for_a_collector_that_is_not_wanted_any_more_goes_on_beside_an_own_process() -> None:
    """Neither process has to give its part first."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(OTHER, 600.0)
            one.reader.order(GPU, 600.0)
            await one.with_suspect(SUSPECT)
            answer = asyncio.create_task(one.reader.now(GPU))
            await asyncio.sleep(0)
            one.reader.order(GPU, 0.0)
            assert [gap.detail for gap in (await answer).absences] == ["released"]

    in_loop(body, 5.0)


def test_a_collector_that_ends_its_process_goes_last_in_the_next_one_and_the_wait_grows() -> None:
    """The others are read first; the wait starts again only once each of them has given."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(GPU, 600.0)
            one.reader.order(OTHER, 600.0)
            worker = await one.started(1)
            assert worker.ordered[:2] == [GPU, OTHER]
            worker.end()
            await one.until(lambda: len(one.kept) == 2)
            one.ahead += 1.0
            worker = await one.started(2)
            assert worker.ordered[:2] == [OTHER, GPU]
            worker.gives(OTHER, HEALTHY)
            await one.until(lambda: len(one.kept) == 3)
            worker.end()
            await one.until(lambda: len(one.kept) == 5)
            one.ahead += 1.0
            one.reader.hasten(OTHER)
            await one.until(lambda: len(one.kept) == 6)
            assert len(one.workers) == 2
            one.ahead += 1.0
            worker = await one.started(3)
            for collector in (OTHER, GPU):
                worker.gives(collector, HEALTHY)
            await one.until(lambda: [run.absences for run in one.kept[-2:]] == [[], []])
            worker.end()
            await one.until(lambda: bool(one.kept[-1].absences))
            one.ahead += 1.0
            await one.started(4)

    in_loop(body, 5.0)


def test_a_run_under_way_when_its_source_was_found_unavailable_changes_nothing() -> None:
    """The next process waits for as long as without it, and the reason stays."""

    async def body() -> None:
        async with played_reader() as one:
            one.reader.order(GPU, 600.0)
            worker = await one.started(1)
            worker.gives(GPU, unavailable=("unreadable", "no driver"))
            worker.gives(GPU, HEALTHY)
            await one.until(lambda: worker.poll() is not None)
            await one.until(lambda: len(one.kept) > 2)
            assert one.kept[-1].unavailable is not None
            assert len(one.workers) == 1

    in_loop(body, 5.0)

"""What a reader makes of the parts that its worker processes give, with processes that the test plays."""

from __future__ import annotations

import asyncio
import time

from support.core import in_loop
from support.played_worker import played_reader

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

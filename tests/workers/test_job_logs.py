"""The reader of job logs as processes: what one told, the next one goes on from."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from commwatch.config.settings import NcclLogsSection, Sources, section_json
from commwatch.node.run import Collected
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.wire import WorkerPlan
from support.core import Resuming
from support.waiting import PATIENCE_SECONDS

CUDA = "node7:41:77 [0] init.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n"


def counts(collected: Collected) -> list[tuple[str, int]]:
    return [(one.category, one.count) for one in collected.log_errors]


def test_a_process_that_was_killed_is_replaced_without_a_line_lost_or_counted_twice(tmp_path: Path) -> None:
    """Errors, and the place in the logs, come over the wire together; the place goes back with the next plan."""
    log = tmp_path / "job.log"
    log.write_text(CUDA)
    settings = section_json(Sources(nccl_logs=NcclLogsSection(paths=(str(log),))))
    told: dict[str, bytes] = {}
    reader = Reader(
        ReaderSettings(WorkerPlan("jobs", ("nccl_logs",), settings, confined=True), 10, 20),
        Resuming(told),
    )

    async def collect() -> list[tuple[str, int]]:
        collected = await reader.now("nccl_logs")
        if collected.resume is not None:
            told["nccl_logs"] = collected.resume
        assert collected.absences == [] or collected.absences[0].reason == "crashed"
        return counts(collected)

    async def body() -> None:
        try:
            assert await collect() == []
            with log.open("a") as file:
                file.write(CUDA * 2)
            assert await collect() == [("cuda", 2)]
            (pid,) = reader.pids()
            os.kill(pid, signal.SIGKILL)
            with log.open("a") as file:
                file.write(CUDA * 3)
            while (found := await collect()) == []:
                await asyncio.sleep(0.05)
            assert found == [("cuda", 3)]
            assert await collect() == []
        finally:
            await reader.stop()

    asyncio.run(asyncio.wait_for(body(), PATIENCE_SECONDS))

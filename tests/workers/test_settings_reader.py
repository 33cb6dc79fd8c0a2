"""The reader of NCCL settings as processes: one for each audit, and what becomes of one that hangs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from commwatch.jobs.settings.records import AuditOrder, AuditRecord
from commwatch.node.run import Collected
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.wire import WorkerPlan
from support.core import Resuming, in_loop
from support.processes import ProcessTable

START_DEADLINE = 6.0
"""Seconds in which a process starts and looks at any one process; also on a machine that has no time for it."""


def reader(table: ProcessTable, *pids: int) -> Reader:
    order = msgspec.json.encode(AuditOrder(pids))
    settings = ReaderSettings(
        WorkerPlan("settings", ("nccl_settings",), sysfs=str(table.root.parent / "sys"), procfs=str(table.root),
                   confined=True),
        START_DEADLINE, START_DEADLINE,
    )  # fmt: skip
    return Reader(settings, Resuming({"nccl_settings": order}))


async def audit(one: Reader) -> Collected:
    """As the daemon's collection has it run."""
    collected = await one.now("nccl_settings")
    await one.release()
    return collected


def record(collected: Collected) -> AuditRecord:
    assert collected.audit is not None
    return msgspec.json.decode(collected.audit, type=AuditRecord)


def test_a_process_that_cannot_be_read_is_left_out_and_the_others_are_audited(tmp_path: Path) -> None:
    """The first audit names it and gives nothing; the next one counts it as unread. None leaves a healthy process."""
    table = ProcessTable(tmp_path / "proc")
    table.add(11, {"NCCL_BUFFSIZE": "54321"})
    table.add(12)
    environment = table.root / "12/environ"
    environment.unlink()
    os.mkfifo(environment)  # to open it waits, as a look at a process whose memory is held

    async def body() -> None:
        one = reader(table, 11, 12)
        try:
            first = await audit(one)
            assert [(absence.device, absence.reason) for absence in first.absences] == [("12", "deadline")]
            assert first.blocks == {}
            assert len(one.pids()) == 1

            found = record(await audit(one))
            assert (found.read, [(unread.pid, unread.reason) for unread in found.unread]) == (1, [(12, "no_answer")])
            assert [(remark.code, remark.pids) for remark in found.remarks] == [("buffer_small", (11,))]
            assert len(one.pids()) == 1
        finally:
            os.close(os.open(environment, os.O_RDWR))  # whoever waits goes on and ends; where nobody does, nor do we
            while one.pids():
                await asyncio.sleep(0.01)
            await one.stop()

    in_loop(body)

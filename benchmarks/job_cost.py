"""CPU time and memory that running jobs cost: the daemon while none is suspected, and the reader of what they write.

The job has eight ranks. The daemon's share is that of its trackers, at the shipped cadences of a simulated node on
which nothing is suspected. The reader is a real process, asked without the waits between; its memory is that which it
shares with no other, as the daemon has more such processes. Each rank writes, every 10 s, records of NCCL Inspector
(v4.3, made here) and a Flight Recorder dump of 2,000 calls over its last one; the first dumps stand for a run, so that
they are read.

Example:
    python -m benchmarks.job_cost --dumps 60 --records 1024 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from benchmarks.daemon import cpu_seconds  # noqa: E402 - as below
from benchmarks.flight_recorder import calls  # noqa: E402 - as below

from commwatch.config.settings import (  # noqa: E402 - as below
    FlightRecorderSection,
    NcclInspectorSection,
    Sources,
    section_json,
)
from commwatch.jobs.flight_recorder.tracker import FlightRecorderVerdicts  # noqa: E402 - as below
from commwatch.jobs.inspector.tracker import JobInspector  # noqa: E402 - as below
from commwatch.jobs.over_tcp import OverTcp  # noqa: E402 - as below
from commwatch.jobs.stuck import StuckJobs  # noqa: E402 - as below
from commwatch.workers.reader import Reader, ReaderSettings  # noqa: E402 - as below
from commwatch.workers.sources import SOURCES  # noqa: E402 - as below
from commwatch.workers.wire import WorkerPlan  # noqa: E402 - as below
from support.simulated_daemon import simulated  # noqa: E402 - the checkout need not be installed

RANKS, EVERY, HOUR = 8, 10.0, 3600.0
INSPECTOR, DUMPS = "nccl_inspector", "flight_recorder"
TRACKERS = (StuckJobs, OverTcp, JobInspector, FlightRecorderVerdicts)
JOB = (
    "- {fault: nccl_setting, at: 0s, variable: WORLD_SIZE, value: 16}\n"
    "- {fault: job, at: 1m, nvlink_utilization: 0.3, rdma_utilization: 0.4}\n"
)
WINDOW_SECONDS = 60.0
"""For which the reader keeps records; asked without waits it keeps those of all dumps."""
WARM_UP_SECONDS = 720.0
"""After ten minutes of payload a job is judged."""


class Ranks:
    """The ranks of a job, by the files that they write."""

    def __init__(self, folder: Path, records: int) -> None:
        self.inspector, self.dumps = folder / INSPECTOR, folder / DUMPS
        self.inspector.mkdir()
        self.dumps.mkdir()
        self._records = records
        self._dump = calls(2000)
        self._number = 0

    @property
    def sources(self) -> Sources:
        """The section of the configuration that reads them."""
        return Sources(
            nccl_inspector=NcclInspectorSection(paths=(str(self.inspector),)),
            flight_recorder=FlightRecorderSection(paths=(str(self.dumps),)),
        )

    def write(self) -> None:
        """What all ranks write in 10 s."""
        for rank in range(RANKS):
            with (self.inspector / f"node-pid{4000 + rank}.log").open("a") as file:
                file.writelines(self._lines(rank))
            (self.dumps / f"trace_rank_{rank}").write_bytes(self._dump)
        self._number += self._records

    def _lines(self, rank: int) -> list[str]:
        context = {
            "header": {"id": "0x7f8c", "comm_name": "unknown", "rank": rank, "n_ranks": RANKS, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.3", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": int(time.time() * 1e6), "hostname": "node", "pid": 4000 + rank,
            },
            "dump_stats": {"coll_records": self._records, "p2p_records": 0, "coll_dropped_since_last_dump": 0},
        }  # fmt: skip
        records = (
            {
                "coll": "AllReduce", "coll_sn": self._number + one, "coll_msg_size_bytes": 2 << 20,
                "coll_exec_time_us": 4000 + rank, "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 200.0,
                "coll_busbw_gbs": 400.0,
            }
            for one in range(self._records)
        )  # fmt: skip
        lines: list[dict[str, Any]] = [context, *({"coll_perf": one} for one in records)]
        return [json.dumps(one, separators=(",", ":")) + "\n" for one in lines]


class Account:
    """CPU time in some calls, and the processes of others that were opened meanwhile."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.opened = 0
        self._is_inside = False
        sys.addaudithook(self._hear)

    def of(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, put on this account."""

        def counted(*arguments: Any, **named: Any) -> Any:
            self._is_inside, began = True, time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - began
                self._is_inside = False

        return counted

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_inside and event == "open" and re.search(r"proc[^/]*/\d+/", str(arguments[0])):
            self.opened += 1


def of_the_daemon(seconds: float) -> dict[str, float]:
    """The daemon's share while eight GPUs work for a job and nothing is suspected."""
    account = Account()
    with tempfile.TemporaryDirectory() as folder, simulated("h100x8ndr", Path(folder), faults=JOB) as node:
        for tracker in node.engine.pipeline.trackers:
            if isinstance(tracker, TRACKERS):
                tracker.on_batch = account.of(tracker.on_batch)  # type: ignore[method-assign]  # measured
        while node.time < WARM_UP_SECONDS:
            node.step_to(node.time + 2)
        account.seconds, account.opened = 0.0, 0
        while node.time < WARM_UP_SECONDS + seconds:
            node.step_to(node.time + 2)
    return {"cpu_seconds_per_hour": account.seconds * HOUR / seconds, "processes_opened": account.opened}


def own_bytes(pid: int) -> int:
    """Memory that a process shares with no other one."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


async def _of_the_reader(ranks: Ranks, dumps: int) -> dict[str, float]:
    row = SOURCES[INSPECTOR].reader
    plan = WorkerPlan(row.name, (INSPECTOR, DUMPS), section_json(ranks.sources), confined=row.confined)
    reader = Reader(ReaderSettings(plan, 5, 10, bounds=row.bounds))
    used, memory = 0.0, 0
    ranks.write()  # the files are there when it starts
    for _ in range(2):
        await reader.now(INSPECTOR)
        await reader.now(DUMPS)
    [pid] = reader.pids()
    for number in range(dumps):
        ranks.write()
        began = cpu_seconds(pid)
        read = await reader.now(INSPECTOR)
        if number % 3:  # every 15 s
            await reader.now(DUMPS)
        used += cpu_seconds(pid) - began
        if (number + 1) * EVERY == WINDOW_SECONDS:
            memory = own_bytes(pid)
    block = read.blocks[""]
    skipped = block.get("commwatch_nccl_inspector_skipped_bytes_total") or 0
    await reader.stop()
    return {
        "cpu_seconds_per_hour": used * HOUR / (dumps * EVERY), "memory_mebibytes": memory / 2**20,
        "skipped_bytes": skipped,
    }  # fmt: skip


def of_the_reader(dumps: int, records: int) -> dict[str, float]:
    """The process that reads what the ranks write."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_of_the_reader(Ranks(Path(folder), records), dumps))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="of the simulated node (default: 600)")
    parser.add_argument("--dumps", type=int, default=60, help="of each rank (default: 60)")
    parser.add_argument("--records", type=int, default=1024, help="of Inspector in each of its dumps (default: 1024)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    figures = {
        "no suspicion": of_the_daemon(given.seconds), "ranks that write": of_the_reader(given.dumps, given.records)
    }  # fmt: skip
    if given.json:
        print(json.dumps(figures))
        return
    for name, one in figures.items():
        print(f"{name:16}", "  ".join(f"{what} {value:.3g}" for what, value in one.items()))


if __name__ == "__main__":
    main()

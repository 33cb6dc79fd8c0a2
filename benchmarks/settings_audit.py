"""Measures an audit of NCCL settings as the daemon makes it: the process that is started for it, and its time.

The processes that are audited are files that look like ``/proc``, each with 21 variables, nine of them settings.

Example:
    python -m benchmarks.settings_audit --processes 8 2000 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from commwatch.jobs.settings.records import AuditOrder, AuditRecord
from commwatch.node.run import Keeper
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.wire import WorkerPlan

SETTINGS = {
    "NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_P2P_LEVEL": "NVL",
    "NCCL_ALGO": "Ring", "NCCL_BUFFSIZE": "65536", "NCCL_IB_GID_INDEX": "3", "NCCL_IB_TIMEOUT": "22",
    "TORCH_NCCL_BLOCKING_WAIT": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
    **{f"OTHER_{number}": "x" * 50 for number in range(9)},
}  # fmt: skip
FIRST_PID = 1000


def make_processes(root: Path, count: int) -> None:
    """Write what the kernel would show of so many ranks of a job."""
    for rank in range(count):
        folder = root / str(FIRST_PID + rank)
        (folder / "root").mkdir(parents=True)
        environment = {**SETTINGS, "RANK": str(rank)}
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))


def children_cpu_seconds() -> float:
    """CPU time of all processes of ours that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Ordering(Keeper):
    """Has each process audit the same processes."""

    def __init__(self, order: bytes) -> None:
        self._order = order

    def resume_point(self, sources: tuple[str, ...]) -> dict[str, bytes]:
        return {"nccl_settings": self._order}


async def audits(procfs: Path, count: int, runs: int) -> dict[str, float]:
    """Median of some audits of so many processes, each in a process of its own."""
    order = msgspec.json.encode(AuditOrder(tuple(range(FIRST_PID, FIRST_PID + count))))
    settings = ReaderSettings(
        WorkerPlan("settings", ("nccl_settings",), procfs=str(procfs)), 5, 10
    )  # fmt: skip
    reader = Reader(settings, Ordering(order))
    cpu, wall, judged = [], [], []
    for _ in range(runs):
        before, started = children_cpu_seconds(), time.monotonic()
        collected = await reader.now("nccl_settings")
        await reader.release()
        wall.append(time.monotonic() - started)
        cpu.append(children_cpu_seconds() - before)
        record = AuditRecord() if collected.audit is None else msgspec.json.decode(collected.audit, type=AuditRecord)
        judged.append(record.read)
    return {
        "processes": count, "judged": min(judged), "cpu_seconds": round(statistics.median(cpu), 3),
        "wall_seconds": round(statistics.median(wall), 3),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[8, 2000], help="how many (default: 8 2000)")
    parser.add_argument("--runs", type=int, default=5, help="audits of each (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    figures = []
    for count in given.processes:
        with tempfile.TemporaryDirectory() as folder:
            make_processes(Path(folder), count)
            figures.append(asyncio.run(audits(Path(folder), count, given.runs)))
    if given.json:
        print(json.dumps(figures))
        return
    for one in figures:
        print("  ".join(f"{name} {value:g}" for name, value in one.items()))


if __name__ == "__main__":
    main()

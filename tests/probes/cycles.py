"""Plans, launchers and records for the tests of the probes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from commwatch.probes.launch import Launcher
from commwatch.probes.plan import CyclePlan, Measured, RankResult
from commwatch.workers.process_state import process_state

PROCFS = Path("/proc")


def cycle_plan(**changes: Any) -> CyclePlan:
    """A plan of two simulated ranks with generous deadlines."""
    values: dict[str, Any] = {
        "probe": "all_reduce",
        "backend": "simulated",
        "collective": "all_reduce",
        "ranks": 2,
        "devices": ("GPU-a", "GPU-b"),
        "latency_bytes": 8,
        "bandwidth_bytes": 2**20,
        "timed_seconds": 0.1,
        "setup_deadline": 30.0,
        "measure_deadline": 30.0,
    }
    return CyclePlan(**(values | changes))


def scripted(temporary: Path, procfs: Path = PROCFS, **script: Any) -> Launcher:
    """A launcher whose ranks behave as the script says (see ``scripted_rank``)."""
    command = (sys.executable, str(Path(__file__).with_name("scripted_rank.py")), json.dumps(script))
    return Launcher(rank_command=command, temporary=temporary, procfs=procfs)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    return process_state(PROCFS, pid) not in (None, "Z")


def measured(
    finished_at: float, latency: float = 1e-3, bandwidth: float = 1e-2, nccl_version: str = "2.27.5"
) -> Measured:
    """A result of two ranks, as a cycle gives it."""
    rank = RankResult(latency_seconds=(latency,), bandwidth_seconds=(bandwidth,), first_call_seconds=0.1)
    return Measured(
        finished_at=finished_at,
        occupied_seconds=5.0,
        setup_seconds=3.0,
        latency_seconds=latency,
        bandwidth_seconds=bandwidth,
        ranks=(rank, rank),
        nccl_version=nccl_version,
    )

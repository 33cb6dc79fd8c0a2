"""Dumps of Flight Recorders, built call by call; real ones of gloo lie in ``tests/analysis/flight_recorder/gloo``."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from commwatch.jobs.flight_recorder.dump import parse
from commwatch.jobs.flight_recorder.recording import condense
from commwatch.jobs.flight_recorder.verdict import Analysis, RankDump, judge

GLOO = Path(__file__).parents[1] / "analysis/flight_recorder/gloo"
BEGIN = 1_800_000_000.0
"""When the calls of a built dump begin, seconds since 1970."""
TAKEN = BEGIN + 3600


def call(
    operation: str, number: int, *, group: str = "0", size: int = 8, done: bool = True, at: float | None = None,
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """An entry as NCCL's recorder writes it: ``number`` counts the group's collectives, or its sends and receives."""
    is_p2p = operation.rpartition(":")[2].startswith(("send", "recv"))
    return {
        "process_group": (group, "default_pg" if group == "0" else f"group {group}"),
        "pg_id": int(group),
        "profiling_name": operation if ":" in operation else f"nccl:{operation}",
        "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0,
        "is_p2p": is_p2p,
        "state": "completed" if done else "started",
        "retired": done,
        "time_created_ns": int((BEGIN + number if at is None else at) * 1e9),
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "frames": [],
    } | more


def dump(
    calls: Iterable[dict[str, Any]], ranks: Mapping[str, list[int]] | None = None, *, first: int = 0, **more: Any
) -> dict[str, Any]:
    """A dump with these calls; ``ranks`` of its groups, by default those of a default group of four."""
    entries = [one | {"record_id": first + place} for place, one in enumerate(calls)]
    config = {"0": [0, 1, 2, 3]} if ranks is None else ranks
    return {
        "version": "2.10",
        "entries": entries,
        "pg_config": {name: {"name": name, "desc": "", "ranks": str(those)} for name, those in config.items()},
        "pg_status": {str(one["pg_id"]): {"last_enqueued_collective": 1} for one in entries},
    } | more


def pickled(value: Any) -> bytes:
    """In protocol 2, which torch writes."""
    return pickle.dumps(value, protocol=2)


def place(folder: Path, case: str, written: float = 1.9e9) -> Path:
    """Put the dumps of a real job into a folder, as if they had been written then; returns the folder."""
    for rank in range(4):
        target = folder / f"trace_rank_{rank}"
        target.write_bytes((GLOO / case / f"rank_{rank}").read_bytes())
        os.utime(target, (written, written))
    return folder


def judged(dumps: Mapping[int | tuple[int, str], dict[str, Any]], taken: float = TAKEN) -> Analysis:
    """The analysis of dumps by rank; of several of one rank by rank and name."""
    return judge(
        RankDump(key if isinstance(key, int) else key[0], f"dump {key}", taken, condense(parse(pickled(value))))
        for key, value in dumps.items()
    )

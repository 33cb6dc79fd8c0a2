"""Lives of nodes with faults, scored against what was broken, and days of healthy nodes, which may wake nobody.

Example:
    python -m benchmarks.lives --lives 300                      # half of the seeds each, used and kept aside
    TMPDIR=/dev/shm python -m benchmarks.lives --lives 0 --healthy-days 20000 --log days.jsonl   # hours; a line a life
    python -m benchmarks.lives --seed 17 --lives 1              # one life again

Each prints its misses by kind with their seeds. The same seed gives the same life, whatever runs beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from support.lives.healthy import DAYS, QUIET_SECONDS, Silence, healthy_life, silence  # noqa: E402 - the checkout need not be installed
from support.lives.judge import Score  # noqa: E402 - as above
from support.lives.score import BUILT_ON, KEPT_ASIDE, score_of_seed  # noqa: E402 - as above


def healthy(seed: int, *, days: int, quiet: float) -> Silence:
    """Days of one healthy node."""
    with tempfile.TemporaryDirectory() as folder:
        return silence(healthy_life(seed, days), Path(folder), quiet)


def collect_rarely() -> None:
    """A life makes many small objects and few cycles: the collector took a tenth of its time."""
    gc.freeze()
    gc.set_threshold(50_000)


def seeds_of(first: int | None, count: int) -> dict[str, Sequence[int]]:
    """The seeds of each half; those from one on where it is given."""
    if first is not None:
        return {"from the seed given": range(first, first + count)}
    half = count // 2
    return {
        "used while building": range(BUILT_ON.start, BUILT_ON.start + count - half),
        "kept aside": range(KEPT_ASIDE.start, KEPT_ASIDE.start + half),
    }


def play_lives(pool: ProcessPoolExecutor, seeds: Sequence[int], log: Any) -> Score:
    """The score of lives; a line for each goes to the log as soon as it is known."""
    total = Score()
    running = {pool.submit(score_of_seed, seed): seed for seed in seeds}
    for done in as_completed(running):
        found = done.result()
        total.add(found)
        _write(log, {"seed": running[done], **asdict(found)})
    total.misses.sort(key=lambda one: (one.kind, one.what, one.seed))
    return total


def play_healthy(pool: ProcessPoolExecutor, seeds: Sequence[int], days: int, quiet: float, log: Any) -> Silence:
    """Alerts and findings of healthy nodes."""
    total = Silence()
    running = {pool.submit(partial(healthy, days=days, quiet=quiet), seed): seed for seed in seeds}
    for done in as_completed(running):
        found = done.result()
        total.add(found)
        _write(log, {"healthy_seed": running[done], **asdict(found)})
    return total


def _write(log: Any, record: Any) -> None:
    if log is not None:
        print(json.dumps(record), file=log, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play; 1 where there was a miss or a false page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, metavar="N", help="of the first life; default: both halves of the proof")
    parser.add_argument("--lives", type=int, default=300, metavar="N", help="with faults; default 300")
    parser.add_argument("--healthy-days", type=int, default=0, metavar="N", help="node-days without a fault; default 0")
    parser.add_argument("--days", type=int, default=DAYS, metavar="N", help=f"of each healthy node; default {DAYS}")
    parser.add_argument("--quiet-step", type=float, default=QUIET_SECONDS, metavar="SECONDS",
                        help=f"of a healthy node where nothing happens; default {QUIET_SECONDS:g}")  # fmt: skip
    parser.add_argument(
        "--at-once", type=int, default=os.cpu_count() or 1, metavar="N", help="side by side; default: all cores"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--log", type=Path, metavar="FILE", help="add a line of JSON for each life as it ends")
    given = parser.parse_args(arguments)
    log = given.log.open("a", encoding="utf-8") if given.log is not None else None
    document: dict[str, Any] = {}
    is_clean = True
    started = time.monotonic()
    with ProcessPoolExecutor(given.at_once, initializer=collect_rarely) as pool:
        for name, seeds in seeds_of(given.seed, given.lives).items() if given.lives else ():
            total = play_lives(pool, seeds, log)
            is_clean &= not total.misses
            document[name] = {**asdict(total), "share_right": total.share_right}
            if not given.json:
                print(f"{name}: {total.line}", total.table(), *(one.line for one in total.misses), sep="\n", flush=True)
        if given.healthy_days:
            first = given.seed or 0
            quiet = play_healthy(
                pool, range(first, first + -(-given.healthy_days // given.days)), given.days, given.quiet_step, log
            )
            is_clean &= not quiet.pages
            document["healthy"] = asdict(quiet)
            if not given.json:
                print(quiet.line, *quiet.pages, *quiet.findings, sep="\n", flush=True)
    document["seconds"] = time.monotonic() - started
    print(json.dumps(document) if given.json else f"{document['seconds']:.0f} s")
    return int(not is_clean)


if __name__ == "__main__":
    sys.exit(main())

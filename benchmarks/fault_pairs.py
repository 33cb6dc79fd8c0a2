"""Unrelated faults of simulated nodes in pairs and alone: neither of two may change what is found of the other.

Each node has five faults of different parts, which begin within seconds of each other. In each pair of them no finding
may have a cause that the fault alone does not give it, or lose one; none may be lost, and none may come that neither
fault has alone, unless it names causes of both.

Example:
    python -m benchmarks.fault_pairs                          # as the proof: half of the seeds used, half kept aside
    python -m benchmarks.fault_pairs --seed 17 --nodes 1      # one node again

Prints the changes with their seeds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from support.fault_pairs import BUILT_ON, KEPT_ASIDE, Score, score_of_seed  # noqa: E402 - the checkout need not be installed


def seeds_of(first: int | None, count: int) -> Mapping[str, Sequence[int]]:
    """The seeds of each half; those from one on where it is given."""
    if first is not None:
        return {"from the seed given": range(first, first + count)}
    half = count // 2
    return {
        "used while building": range(BUILT_ON.start, BUILT_ON.start + count - half),
        "kept aside": range(KEPT_ASIDE.start, KEPT_ASIDE.start + half),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Play; 1 where there was a change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, metavar="N", help="of the first node; default: both halves of the proof")
    parser.add_argument("--nodes", type=int, default=len(BUILT_ON) + len(KEPT_ASIDE), metavar="N",
                        help="ten pairs each; default %(default)s")  # fmt: skip
    parser.add_argument(
        "--at-once", type=int, default=os.cpu_count() or 1, metavar="N", help="side by side; default: all cores"
    )
    given = parser.parse_args(arguments)
    is_clean = True
    with ProcessPoolExecutor(given.at_once) as pool:
        for name, seeds in seeds_of(given.seed, given.nodes).items():
            total = Score()
            for score in pool.map(score_of_seed, seeds):
                total.add(score)
            is_clean &= not total.misses
            print(f"{name}: {total.line}", *(one.line for one in total.misses), sep="\n", flush=True)
    return int(not is_clean)


if __name__ == "__main__":
    sys.exit(main())

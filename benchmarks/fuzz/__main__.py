"""Fuzz each reader for a while; each in a process of its own, since timers and memory are those of a process.

Example: python -m benchmarks.fuzz --target http --seconds 300 --seed 7
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
from benchmarks.fuzz.run import fuzz, keep
from benchmarks.fuzz.targets import TARGETS


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=60, help="for each target (default 60)")
    parser.add_argument("--seed", type=int, help="of the changes (default: another one each time)")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="targets side by side (default 2)")
    given = parser.parse_args(arguments)
    seed = int.from_bytes(os.urandom(4), "big") if given.seed is None else given.seed
    names = given.target or list(TARGETS)
    if len(names) == 1:
        return _fuzz(names[0], given.seconds, seed)

    def fuzz_apart(name: str) -> int:
        command = [sys.executable, "-m", "benchmarks.fuzz", "--target", name, "--seed", str(seed)]
        return subprocess.run([*command, "--seconds", str(given.seconds)]).returncode

    with ThreadPoolExecutor(given.at_once) as pool:
        return int(any(pool.map(fuzz_apart, names)))


def _fuzz(name: str, seconds: float, seed: int) -> int:
    # What is read wrong would be logged a million times.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        outcome = fuzz(TARGETS[name], seconds, seed, Path(folder))
    print(f"{name:16} {seconds:5.0f} s  seed {seed:<10}  {outcome.tried:8,} inputs  {outcome.kept:5} kept  "
          f"{outcome.lines:5} lines  {len(outcome.found)} found", flush=True)  # fmt: skip
    for line in keep(outcome):
        print(line, flush=True)
    return int(bool(outcome.found))


if __name__ == "__main__":
    sys.exit(main())

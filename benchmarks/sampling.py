"""CPU time of one pass over the NVLink state and traffic counters of a simulated node, real binding between.

"total" is all of it; "own" is without what the simulated library takes to answer: binding, source and readings.

Example:
    python -m benchmarks.sampling --preset h100x8 --passes 500 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import pynvml

from commwatch.sources.nvml.source import NvmlSource
from commwatch_rehearsal.simulation.library import install
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.presets import PRESETS

WARM_UP_PASSES = 20
PAUSE_SECONDS = 0.002  # so that no pass finds everything in the cache, as once a second it would not


class TimedLibrary:
    """The library with a clock around its field values."""

    def __init__(self, library: object) -> None:
        self._library = library
        self._field_values = library.nvmlDeviceGetFieldValues  # type: ignore[attr-defined]  # a library has no types
        self.nanoseconds = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._library, name)

    def nvmlDeviceGetFieldValues(self, *arguments: object) -> object:  # noqa: N802 - the library's name
        start = time.thread_time_ns()
        code = self._field_values(*arguments)
        self.nanoseconds += time.thread_time_ns() - start
        return code


def measure(preset: str, passes: int) -> dict[str, float]:
    """CPU milliseconds per pass, with the library and without it."""
    install(SimulatedNode(preset, None, time.time() - 3600))
    library = pynvml.nvmlLib = TimedLibrary(pynvml.nvmlLib)
    source = NvmlSource()
    source.open(lambda device: None, frozenset(), None)
    totals, owns = [], []
    try:
        for number in range(WARM_UP_PASSES + passes):
            time.sleep(PAUSE_SECONDS)
            library.nanoseconds = 0
            start = time.thread_time_ns()
            batch = source.collect("nvlink")
            total = time.thread_time_ns() - start
            if number >= WARM_UP_PASSES:
                totals.append(total / 1e6)
                owns.append((total - library.nanoseconds) / 1e6)
    finally:
        source.close()
    return {
        "values": sum(len(readings.values) for readings in batch.readings),
        "total_p50_ms": round(statistics.median(totals), 3),
        "total_p99_ms": round(statistics.quantiles(totals, n=100)[98], 3),
        "own_p50_ms": round(statistics.median(owns), 3),
        "own_p99_ms": round(statistics.quantiles(owns, n=100)[98], 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="h100x8", help="node (default: h100x8)")
    parser.add_argument("--passes", type=int, default=500, help="passes to measure (default: 500)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    figures = measure(arguments.preset, arguments.passes)
    if arguments.json:
        print(json.dumps({"preset": arguments.preset, "passes": arguments.passes, **figures}))
        return
    print(f"{arguments.preset}: {figures['values']} values per pass, CPU time over {arguments.passes} passes")
    for name in ("total", "own"):
        print(f"{name:6} p50 {figures[f'{name}_p50_ms']:.3f} ms  p99 {figures[f'{name}_p99_ms']:.3f} ms")


if __name__ == "__main__":
    main()

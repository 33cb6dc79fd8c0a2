"""CPU time of one run of every collector on simulated nodes, in the process of its source; without wire and analysis.

What the simulation takes to bring its driver and files up to date is part of it: a run of a simulated driver answers
from memory, a real one asks hardware.

Example:
    python -m benchmarks.collectors --preset h100x8ndr --runs 100 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from commwatch.config.settings import Config, section_json
from commwatch.config.simulated import SimulationPlan
from commwatch.readings import Batch, SourceUnavailable
from commwatch.workers.child import make_source
from commwatch.workers.sources import SOURCES
from commwatch.workers.wire import WorkerPlan
from commwatch_rehearsal.simulation.library import install
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.presets import PRESETS

WARM_UP_RUNS = 3
GPM_PAUSE_SECONDS = 0.11  # two samples must be 0.1 s apart
PAUSE_SECONDS = 0.002  # so that no run finds everything in the cache, as at its own cadence it would not


def measure(preset: str, runs: int) -> dict[str, dict[str, float]]:
    """Values and CPU milliseconds of a run, by collector; those with nothing to read on this node are left out."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        sysfs, procfs = Path(folder) / "sysfs", Path(folder) / "procfs"
        started_at = time.time() - 3600
        node = SimulatedNode(preset, None, started_at)
        node.write_sysfs(sysfs)
        node.write_procfs(procfs)
        install(node)
        simulation = SimulationPlan(preset, "", started_at, str(sysfs), str(procfs))
        settings = section_json(Config().sources)
        for name, row in SOURCES.items():
            plan = WorkerPlan("", (name,), settings, str(sysfs), str(procfs), simulation=simulation)
            source = make_source(name, plan, node)
            try:
                source.open(lambda device: None, frozenset(), None)
            except SourceUnavailable:
                continue
            for collector in row.collectors:
                pause = GPM_PAUSE_SECONDS if collector.key == "gpm" else PAUSE_SECONDS
                found[collector.name] = _measure(partial(source.collect, collector.key), runs, pause)
            source.close()
    return {name: figures for name, figures in found.items() if figures["values"]}


def _measure(collect: Callable[[], Batch], runs: int, pause: float) -> dict[str, float]:
    times: list[float] = []
    batch = Batch()
    for _ in range(WARM_UP_RUNS + runs):
        time.sleep(pause)
        start = time.thread_time_ns()
        batch = collect()
        times.append((time.thread_time_ns() - start) / 1e6)
    measured = times[WARM_UP_RUNS:]
    return {
        "values": sum(len(readings.values) for readings in batch.readings),
        "p50_ms": round(statistics.median(measured), 3),
        "p99_ms": round(statistics.quantiles(measured, n=100)[98], 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=[*sorted(PRESETS), "all"], default="all", help="node (default: all)")
    parser.add_argument("--runs", type=int, default=50, help="runs of each collector (default: 50)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    presets = sorted(PRESETS) if given.preset == "all" else [given.preset]
    figures = {preset: measure(preset, given.runs) for preset in presets}
    if given.json:
        print(json.dumps({"runs": given.runs, "presets": figures}))
        return
    for preset, collectors in figures.items():
        print(f"{preset}: CPU time of a run, median and 99th percentile of {given.runs}")
        for name, one in collectors.items():
            print(f"  {name:20} {one['values']:6.0f} values  {one['p50_ms']:8.3f} ms  {one['p99_ms']:8.3f} ms")


if __name__ == "__main__":
    main()

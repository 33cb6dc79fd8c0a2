"""CPU time of one look of the rules at a simulated node at work, 10 s after the last one; without metrics and log.

Example:
    python -m benchmarks.findings --preset h100x8ndr --looks 60 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from commwatch.config.thresholds import load_thresholds  # noqa: E402 - as below
from commwatch.findings.codes import EVENTS, WATCHED  # noqa: E402 - as below
from commwatch.findings.history import CounterHistory  # noqa: E402 - as below
from commwatch.findings.rule_engine import RuleEngine  # noqa: E402 - as below
from commwatch.findings.rules import RULE_SETS  # noqa: E402 - as below
from commwatch_rehearsal.simulation.presets import PRESETS  # noqa: E402 - as below
from support.simulated_daemon import whole_node  # noqa: E402 - the checkout need not be installed

WARM_UP_LOOKS = 7
"""Windows of a minute are full then."""
LOOK_SECONDS = 10.0
PAUSE_SECONDS = 0.01  # so that no look finds everything in the cache, as at its own cadence it would not


def measure(preset: str, looks: int) -> dict[str, float]:
    """Series, rules and CPU milliseconds of a look.

    Raises:
        Exception: a rule failed.
    """

    def failed(rule: str, error: Exception) -> None:
        raise error

    engine = RuleEngine(RULE_SETS, load_thresholds(None), CounterHistory(WATCHED, EVENTS), failed)
    times = []
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        whole_node(preset, Path(folder), patch) as node,
    ):
        for _ in range(WARM_UP_LOOKS + looks):
            node.time += LOOK_SECONDS
            node.run()
            snapshot = node.snapshot()
            time.sleep(PAUSE_SECONDS)
            start = time.thread_time_ns()
            engine.evaluate(snapshot, node.time)
            times.append((time.thread_time_ns() - start) / 1e6)
        series = sum(value is not None for block in snapshot.blocks for value in block.values)
    measured = times[WARM_UP_LOOKS:]
    return {
        "series": series,
        "rules": sum(len(rules.rules) for rules in RULE_SETS),
        "p50_ms": round(statistics.median(measured), 3),
        "p99_ms": round(statistics.quantiles(measured, n=100)[98], 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", action="append", choices=list(PRESETS), help="node; repeatable (default: all)")
    parser.add_argument("--looks", type=int, default=60, help="looks to measure (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    found = {preset: measure(preset, options.looks) for preset in options.preset or PRESETS}
    if options.json:
        print(json.dumps(found))
        return
    for preset, figures in found.items():
        print(f"{preset:12}", "  ".join(f"{name} {value:g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()

"""How long ``diagnose``, ``score`` and ``healthcheck`` take, from start to exit, beside a daemon of a simulated node.

Example:
    python -m benchmarks.answers --preset h100x8 --runs 20 --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from commwatch_rehearsal.simulation.presets import PRESETS  # noqa: E402 - the checkout need not be installed
from support.daemon import Daemon, command, running  # noqa: E402 - as above

COMMANDS = (("diagnose",), ("score",), ("healthcheck",))
NODES = {
    "healthy": "[]\n",
    "faulty": "- {fault: slow_gpu, gpu: 1, bandwidth: 0.3, at: 0s}\n- {fault: pcie_width, gpu: 1, lanes: 8, at: 0s}\n",
}
CONFIG = """
inventory: {learn_after: 1s}
probes:
  start_delay: 500ms
  definitions:
    all_reduce: {interval: 5m}
    pairs: {measure: pairs, interval: 5m}
    host_copies: {measure: host_copies, interval: 5m}
"""
CRASHED = range(5, 256)
"""Exit codes that none of these commands has as an answer."""


def measure(preset: str, faults_text: str, runs: int) -> dict[str, dict[str, float]]:
    """By command: median and longest wall time in seconds, over so many runs one after another.

    Raises:
        AssertionError: a command crashed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        faults, config = folder / "faults.yaml", folder / "commwatch.yaml"
        faults.write_text(faults_text)
        config.write_text(CONFIG)
        arguments = ("--simulate", preset, "--simulate.faults", str(faults), "--config.file", str(config))
        with running(folder, *arguments) as daemon:
            if len(PRESETS[preset].gpus) > 1:
                # A diagnosis of a node of which much is known takes longest.
                daemon.until(lambda: has_matrix(daemon, len(PRESETS[preset].gpus)), seconds=120)
            own = (*arguments, "--path.state", str(daemon.state))
            return {" ".join(one): _times(one, own, runs) for one in COMMANDS}


def has_matrix(daemon: Daemon, gpus: int) -> bool:
    """Whether every ordered pair was measured."""
    return daemon.count("pair_bandwidth_bytes_per_second") == gpus * (gpus - 1)


def _times(words: tuple[str, ...], own: tuple[str, ...], runs: int) -> dict[str, float]:
    times = []
    for _ in range(runs):
        started = time.monotonic()
        said = command(*words, *own)
        times.append(time.monotonic() - started)
        assert said.returncode not in CRASHED, said.stderr
        assert said.stdout, said.stderr
    return {"median": round(statistics.median(times), 3), "max": round(max(times), 3)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="h100x8", choices=PRESETS)
    parser.add_argument("--runs", type=int, default=20, help="of each command")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found = {node: measure(given.preset, faults, given.runs) for node, faults in NODES.items()}
    if given.json:
        print(json.dumps(found))
        return
    for node, commands in found.items():
        for words, seconds in commands.items():
            print(f"{node} {given.preset}: {words:12} median {seconds['median']:.2f} s, longest {seconds['max']:.2f} s")


if __name__ == "__main__":
    main()

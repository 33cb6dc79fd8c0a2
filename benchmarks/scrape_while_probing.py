"""Measures the daemon's scrape while its own probe runs, beside scrapes of the same run while none does.

Example: python -m benchmarks.scrape_while_probing --seconds 60 --backend gloo
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.daemon import ROOT, scrape, wait_for_snapshot

PAUSE_SECONDS = 0.1
"""Between two scrapes: ten a second, so that a cycle of half a second is met several times."""


def configuration(backend: str) -> str:
    """One probe as often as it may run; gloo leaves the GPUs of the simulated node alone."""
    backend_line = "" if backend == "simulated" else f", backend: {backend}"
    definition = f"{{measure: all_reduce, interval: 10s{backend_line}}}"
    return f"probes: {{occupancy_limit: 0.1, start_delay: 1s, gate: idle, definitions: {{often: {definition}}}}}\n"


def ranks(daemon: int) -> int:
    """Rank processes of a daemon that live now; whichever of its threads started them."""
    found = 0
    for children in Path(f"/proc/{daemon}/task").glob("*/children"):
        for pid in children.read_text().split():
            try:
                found += b"commwatch.probes.cycle.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:  # it ended between the two looks
                continue
    return found


def collect(daemon: int, port: int, seconds: float) -> dict[bool, list[float]]:
    """Milliseconds of each scrape, by whether ranks lived before and after it; the others count nowhere."""
    times: dict[bool, list[float]] = {False: [], True: []}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    scrape(connection)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        before = ranks(daemon) > 0
        milliseconds, _ = scrape(connection)
        if before == (ranks(daemon) > 0):
            times[before].append(milliseconds)
        time.sleep(PAUSE_SECONDS)
    return times


def measure(backend: str, port: int, seconds: float) -> dict[str, float]:
    """Start a daemon on simulated h100x8, and scrape it ten times a second."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "daemon"), str(ROOT / "exporters")])}
    with tempfile.TemporaryDirectory() as state:
        config = Path(state, "commwatch.yaml")
        config.write_text(configuration(backend))
        started = time.monotonic()
        daemon = subprocess.Popen(
            [sys.executable, "-m", "commwatch", "run", "--simulate", "h100x8", "--path.state", state,
             "--web.listen-address", f"127.0.0.1:{port}", "--log.level", "error", "--config.file", str(config)],
            env=environment,
        )  # fmt: skip
        try:
            wait_for_snapshot(port, started + 30)
            time.sleep(5)  # what happens once is over
            times = collect(daemon.pid, port, seconds)
        finally:
            daemon.terminate()
            daemon.wait(10)
    figures: dict[str, float] = {}
    for probing, name in ((False, "idle"), (True, "probing")):
        ordered = sorted(times[probing])
        figures[f"{name}_scrapes"] = len(ordered)
        if ordered:
            figures[f"{name}_p50_milliseconds"] = statistics.median(ordered)
            figures[f"{name}_p99_milliseconds"] = ordered[int(len(ordered) * 0.99)]
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="how long to scrape (default 120)")
    parser.add_argument("--backend", choices=("simulated", "gloo"), default="simulated", help="of the probe")
    parser.add_argument("--port", type=int, default=28961, help="free port on loopback (default 28961)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    figures = measure(given.backend, given.port, given.seconds)
    if given.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:10.3f}")


if __name__ == "__main__":
    main()

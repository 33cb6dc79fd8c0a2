"""Measures what a neighbour feels: the gaps in a busy loop on one core, alone, beside the daemon, and beside
node_exporter and nvitop-exporter where they are installed; in turns, each scraped once a second. What reads a driver
reads the stand-in (``benchmarks.driver``).

Example: python -m benchmarks.jitter --core 1 --seconds 10 --turns 3
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.daemon import command_of, stand_in

ROOT = Path(__file__).parents[1]
SHORTEST_GAP_NANOSECONDS = 1_000
"""A turn of the loop takes a tenth of it; what is longer was taken by somebody."""
OTHERS = tuple(filter(shutil.which, ("prometheus-node-exporter", "nvitop-exporter")))


def gaps(seconds: float) -> tuple[int, list[int]]:
    """Turns of a busy loop, and those longer than ``SHORTEST_GAP_NANOSECONDS``, in nanoseconds."""
    now, turns, long = time.perf_counter_ns, 0, []
    last = now()
    end = last + int(seconds * 1e9)
    while last < end:
        at = now()
        if at - last > SHORTEST_GAP_NANOSECONDS:
            long.append(at - last)
        last = at
        turns += 1
    return turns, long


def figures(turns: int, long: list[int]) -> dict[str, float]:
    """Longest gap and 99.99th percentile of all turns, microseconds, and the share of the time that gaps took."""
    long.sort(reverse=True)
    rank = int(turns * 1e-4)
    total = sum(long)
    return {
        "longest_microseconds": long[0] / 1e3 if long else 0.0,
        "p9999_microseconds": (long[rank] if rank < len(long) else SHORTEST_GAP_NANOSECONDS) / 1e3,
        "taken_microseconds": total / 1e3,
    }


@contextmanager
def scraped(command: list[str], port: int, extra_environment: dict[str, str]) -> Iterator[None]:
    """A process that is scraped once a second; from when it first answers."""
    environment = {
        **os.environ,
        **extra_environment,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "daemon"), str(ROOT / "exporters")]),
    }
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    over = threading.Event()
    ready = threading.Event()

    def scrape() -> None:
        while not over.wait(1.0 if ready.is_set() else 0.05):
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
                connection.request("GET", "/metrics")
                connection.getresponse().read()
                ready.set()

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        if not ready.wait(30):
            raise TimeoutError(f"{command[0]} did not answer")
        time.sleep(5)
        yield
    finally:
        over.set()
        scraper.join()
        process.terminate()
        process.wait(10)


@contextmanager
def beside(what: str, port: int, core: int) -> Iterator[None]:
    """Whatever runs beside the loop."""
    if what == "alone":
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments, environment = stand_in("h100x8", Path(folder))
        program = what.split(maxsplit=1)[0]
        if program == "commwatch":
            config = Path(folder) / "commwatch.yaml"
            others = sorted(os.sched_getaffinity(0) - {core})
            cpus = f"process: {{cpus: '{','.join(map(str, others))}'}}\n" if what.endswith("cores") else ""
            config.write_text(f"probes: {{enabled: false}}\n{cpus}")
            arguments += ["--config.file", str(config)]
        with scraped(command_of(program, port, arguments, f"{folder}/state"), port, environment):
            yield


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, default=1, help="that the loop keeps busy (default 1)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn (default 10)")
    parser.add_argument("--turns", type=int, default=3, help="of each (default 3)")
    parser.add_argument("--port", type=int, default=28931, help="free port on loopback (default 28931)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--loop", action="store_true", help="run the loop alone, and print what it felt as JSON")
    given = parser.parse_args()
    if given.loop:
        os.sched_setaffinity(0, {given.core})
        print(json.dumps(figures(*gaps(given.seconds))))
        return
    kinds = ["alone", "commwatch", "commwatch on other cores", *OTHERS]
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(given.turns):
        for kind in kinds:
            with beside(kind, given.port, given.core):
                loop = ["-m", "benchmarks.jitter", "--loop", "--core", str(given.core), "--seconds", str(given.seconds)]
                told = subprocess.run([sys.executable, *loop], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
                found[kind].append(json.loads(told))
    medians = {
        kind: {name: statistics.median(one[name] for one in turns) for name in turns[0]}
        for kind, turns in found.items()
    }
    if given.json:
        print(json.dumps(medians))
        return
    for kind, values in medians.items():
        share = values["taken_microseconds"] / given.seconds / 1e4
        print(f"{kind:26}longest gap {values['longest_microseconds'] / 1e3:8.2f} ms   99.99 % "
              f"{values['p9999_microseconds']:8.2f} us   taken {share:6.3f} %")  # fmt: skip


if __name__ == "__main__":
    main()

"""Measures the whole daemon on a stand-in node: CPU, wake-ups, memory, start-up, latency of scrapes.

The driver is a C library with the answers of a simulated node (``benchmarks.driver``, needs a C compiler), the files
are that node's and stand still. ``--simulate`` measures the daemon with the simulation in its processes instead.

Examples: python -m benchmarks.daemon --seconds 60 --json; nobody asks: python -m benchmarks.daemon --every 0; another
exporter beside the same driver: python -m benchmarks.daemon --program nvitop-exporter
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

from benchmarks.driver.build import build

from commwatch_rehearsal.simulation.node import SimulatedNode

ROOT = Path(__file__).parents[1]
BUDGETS = {
    "start_seconds": 1.0,
    "start_cpu_seconds": 1.0,
    "proportional_memory_mebibytes": 75.0,
    "scrape_p50_milliseconds": 3.0,
    "scrape_p99_milliseconds": 8.0,
}

CPU_BUDGETS = {0.0: 10.0, 1.0: 15.0, 15.0: 11.0}
"""CPU seconds an hour, by the seconds between two scrapes; 0: nobody asks."""
_FIRST_SCRAPES = 3
"""Before all is measured, a second apart, and given apart: the first one prepares the text before each value, which
happens once."""
_SETTLES_SECONDS = 4.0
"""What happens once after the start is over by then."""
IDLE_WAKE_UPS = 4.0
"""A second, of all processes together, while nobody asks."""


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in processes(int(child)))]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process: the scheduler's own account in nanoseconds, which misses no short burst."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def wake_ups(pid: int) -> int:
    """How often the threads of a process have waited and gone on: their voluntary context switches."""
    statuses = [(thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    lines = [line for status in statuses for line in status.splitlines() if line.startswith("voluntary_ctxt")]
    return sum(int(line.split()[1]) for line in lines)


def proportional_bytes(pids: list[int]) -> int:
    """PSS of processes together."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def scrape(connection: http.client.HTTPConnection) -> tuple[float, bytes]:
    """Milliseconds and body of one scrape over a kept connection."""
    started = time.perf_counter()
    connection.request("GET", "/metrics")
    body = connection.getresponse().read()
    return (time.perf_counter() - started) * 1e3, body


def wait_for_snapshot(port: int, deadline: float, path: str = "/readyz") -> None:
    """Return when a complete snapshot is served."""
    while time.monotonic() < deadline:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", path)
            if connection.getresponse().status == http.client.OK:
                return
        except OSError:
            time.sleep(0.005)
    raise TimeoutError("the daemon was not ready in time")


def stand_in(preset: str, directory: Path, copies: int = 1) -> tuple[list[str], dict[str, str]]:
    """Make the driver and the files of a node; arguments and environment of a daemon that watches it."""
    build(preset, directory, copies)
    node = SimulatedNode(preset, None, time.time() - 3600)
    node.write_sysfs(directory / "sysfs")
    node.write_procfs(directory / "procfs")
    trees = [f"--path.{name}={directory / name}" for name in ("sysfs", "procfs")]
    return trees, {"LD_LIBRARY_PATH": str(directory)}


def command_of(program: str, port: int, arguments: list[str], state: str) -> list[str]:
    """How a program is started that serves its metrics on a port of loopback.

    Args:
        program: ``commwatch``, ``nvitop-exporter`` or ``prometheus-node-exporter``.
        port: of the endpoint.
        arguments: of ``commwatch run``.
        state: directory for its state.
    """
    if program == "commwatch":
        own = ["--path.state", state, "--web.listen-address", f"127.0.0.1:{port}", "--log.level", "error"]
        return [sys.executable, "-m", "commwatch", "run", *own, *arguments]
    if program == "nvitop-exporter":
        return [program, "--bind-address", "127.0.0.1", "--port", str(port)]
    return [program, f"--web.listen-address=127.0.0.1:{port}"]


def measure(
    program: str, arguments: list[str], extra_environment: dict[str, str], port: int, seconds: int, every: float
) -> dict[str, float]:
    """Start a daemon, scrape it or leave it alone, and stop it.

    Args:
        program: as of ``command_of``.
        arguments: of ``commwatch run``.
        extra_environment: beside the present one.
        port: of the endpoint.
        seconds: how long.
        every: seconds between two scrapes; 0: nobody asks until the end.
    """
    environment = {
        **os.environ,
        **extra_environment,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "daemon"), str(ROOT / "exporters")]),
    }
    with tempfile.TemporaryDirectory() as state:
        started = time.monotonic()
        quiet = None if program == "commwatch" else subprocess.DEVNULL
        command = command_of(program, port, arguments, state)
        daemon = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)
        try:
            wait_for_snapshot(port, started + 30, "/readyz" if program == "commwatch" else "/metrics")
            start_seconds = time.monotonic() - started
            start_cpu = sum(map(cpu_seconds, processes(daemon.pid)))
            time.sleep(_SETTLES_SECONDS)
            pids = processes(daemon.pid)
            connection = http.client.HTTPConnection("127.0.0.1", port)
            first, times, body = [], [], b""
            for _ in range(_FIRST_SCRAPES if every else 0):
                time.sleep(1.0)
                first.append(scrape(connection)[0])
            before = {pid: (cpu_seconds(pid), wake_ups(pid)) for pid in pids}
            begun = time.monotonic()
            for turn in range(int(seconds / every) if every else 0):
                time.sleep(max(0.0, begun + (turn + 1) * every - time.monotonic()))
                milliseconds, body = scrape(connection)
                times.append(milliseconds)
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
            elapsed = time.monotonic() - begun
            used = {pid: (cpu_seconds(pid) - before[pid][0]) / elapsed * 3600 for pid in pids}
            woken = sum(wake_ups(pid) - before[pid][1] for pid in pids) / elapsed
            figures = {
                "start_seconds": start_seconds,
                "start_cpu_seconds": start_cpu,
                "cpu_seconds_per_hour": sum(used.values()),
                "cpu_seconds_per_hour_of_the_daemon": used[daemon.pid],
                "wake_ups_per_second": woken,
                "proportional_memory_mebibytes": proportional_bytes(pids) / 2**20,
                "processes": len(pids),
            }
            if times:
                times.sort()
                figures["first_scrapes_longest_milliseconds"] = max(first)
                figures["scrape_p50_milliseconds"] = statistics.median(times)
                figures["scrape_p99_milliseconds"] = times[int(len(times) * 0.99)]
                figures["page_kilobytes"] = len(body) / 1e3
                figures["series"] = sum(not line.startswith(b"#") for line in body.splitlines())
            return figures
        finally:
            daemon.terminate()
            daemon.wait(10)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="how long (default 60)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two scrapes; 0: none (default 1)")
    parser.add_argument("--preset", default="h100x8", help="node (default: h100x8, which the budgets are of)")
    parser.add_argument("--copies", type=int, default=1, help="times that the driver has its GPUs (default 1)")
    parser.add_argument("--simulate", action="store_true", help="the simulation in place of the stand-in driver")
    programs = ("commwatch", "nvitop-exporter", "prometheus-node-exporter")
    parser.add_argument("--program", choices=programs, default="commwatch", help="what is measured")
    parser.add_argument("--port", type=int, default=28930, help="free port on loopback (default 28930)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "commwatch.yaml")
        config.write_text("probes: {enabled: false}\n", encoding="utf-8")
        node, environment = (
            (["--simulate", given.preset], {})
            if given.simulate
            else stand_in(given.preset, Path(directory), given.copies)
        )
        arguments = ["--config.file", str(config), *node]
        figures = measure(given.program, arguments, environment, given.port, given.seconds, given.every)
    if given.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
        return
    budgets: dict[str, float | None] = {**BUDGETS, "cpu_seconds_per_hour": CPU_BUDGETS.get(given.every)}
    if not given.every:
        budgets["wake_ups_per_second"] = IDLE_WAKE_UPS
    if given.every != 1.0:  # a page that is asked for rarely is not rendered ahead
        budgets |= {name: None for name in budgets if name.startswith("scrape_")}
    if (given.preset, given.copies) != ("h100x8", 1):
        budgets = {}
    for name, value in figures.items():
        budget = budgets.get(name)
        verdict = "" if budget is None else f"  budget {budget:g}: {'met' if value <= budget else 'MISSED'}"
        print(f"{name:32} {value:10.3f}{verdict}")


if __name__ == "__main__":
    main()

"""Measures the start: until the daemon is ready, and in each of its processes the CPU, memory and imports by then.

Readers are forked from the daemon while it is small, so what it had imported by then is theirs without a cost; given is
what each process imports by itself, without what the interpreter brings along. The driver is the stand-in of
``benchmarks.daemon``.

Example: python -m benchmarks.startup --turns 9
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.daemon import ROOT, command_of, cpu_seconds, processes, proportional_bytes, stand_in, wait_for_snapshot

_WATCH = """
import importlib.machinery, json, os, signal, sys, time

class _Count:
    depth = modules = 0
    seconds = 0.0

def _begin():
    _Count.modules, _Count.seconds = 0, 0.0

_execute = importlib.machinery.SourceFileLoader.exec_module

def _counted(self, module):
    _Count.modules += 1
    _Count.depth += 1
    begun = time.thread_time()
    try:
        _execute(self, module)
    finally:
        _Count.depth -= 1
        if not _Count.depth:
            _Count.seconds += time.thread_time() - begun

def _report(*_):
    report = {"imported": _Count.modules, "import_cpu_milliseconds": _Count.seconds * 1e3, "modules": len(sys.modules)}
    whole, part = os.path.join(os.environ["STARTUP_REPORTS"], str(os.getpid())), f".{os.getpid()}"
    with open(whole + part, "w") as file:
        json.dump(report, file)
    os.rename(whole + part, whole)

importlib.machinery.SourceFileLoader.exec_module = _counted
os.register_at_fork(after_in_child=_begin)
signal.signal(signal.SIGUSR2, _report)
"""
"""A ``sitecustomize`` that counts what a process imports, and says so when it is sent SIGUSR2."""
_REPORT_SECONDS = 10.0


def report_of(pid: int, reports: Path) -> dict[str, float]:
    """What a process says that it has imported."""
    os.kill(pid, signal.SIGUSR2)
    file, deadline = reports / str(pid), time.monotonic() + _REPORT_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} did not report its imports")
        time.sleep(0.01)
    report: dict[str, float] = json.loads(file.read_text())
    return report


def measure(arguments: list[str], extra_environment: dict[str, str], port: int) -> dict[str, dict[str, float]]:
    """Start a daemon and stop it once it is ready; figures by process, the seconds until ready with the daemon's."""
    with tempfile.TemporaryDirectory() as directory:
        watch, reports = Path(directory, "watch"), Path(directory, "reports")
        watch.mkdir()
        reports.mkdir()
        (watch / "sitecustomize.py").write_text(_WATCH)
        paths = [str(watch), str(ROOT / "daemon"), str(ROOT / "exporters")]
        environment = {
            **os.environ, **extra_environment, "PYTHONPATH": os.pathsep.join(paths), "STARTUP_REPORTS": str(reports),
        }  # fmt: skip
        started = time.monotonic()
        daemon = subprocess.Popen(command_of("commwatch", port, arguments, directory), env=environment)
        try:
            wait_for_snapshot(port, started + 30)
            ready = time.monotonic() - started
            pids = processes(daemon.pid)
            figures = {}
            used = {pid: cpu_seconds(pid) for pid in pids}
            for pid in pids:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                figures["daemon" if pid == daemon.pid else name] = {
                    "cpu_seconds": used[pid],
                    "proportional_memory_mebibytes": proportional_bytes([pid]) / 2**20,
                    **report_of(pid, reports),
                }
            figures["daemon"]["ready_seconds"] = ready
            return figures
        finally:
            daemon.terminate()
            daemon.wait(10)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9, help="starts of which the medians are given (default 9)")
    parser.add_argument("--preset", default="h100x8", help="node (default: h100x8)")
    parser.add_argument("--port", type=int, default=28962, help="free port on loopback (default 28962)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "commwatch.yaml")
        config.write_text("probes: {enabled: false}\n", encoding="utf-8")
        node, environment = stand_in(given.preset, Path(directory))
        for turn in range(given.turns):
            print(f"start {turn + 1} of {given.turns}", file=sys.stderr)
            for name, figures in measure(["--config.file", str(config), *node], environment, given.port).items():
                for what, value in figures.items():
                    taken[name][what].append(value)
    medians = {
        name: {what: statistics.median(values) for what, values in figures.items()} for name, figures in taken.items()
    }
    if given.json:
        print(json.dumps({name: {what: round(one, 3) for what, one in all_.items()} for name, all_ in medians.items()}))
        return
    for name, figures in medians.items():
        print(name)
        for what, value in figures.items():
            print(f"  {what:32} {value:10.3f}")


if __name__ == "__main__":
    main()

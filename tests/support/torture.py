"""What a daemon is measured by while it is tortured: scrapes, memory, descriptors, and a line of figures at the end."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commwatch.config.settings import DEFAULT_PROBES
from support.daemon import ROOT, Daemon, is_reader, running

DEFAULT_PROBES_OUT = ", ".join(f"{name}: null" for name in DEFAULT_PROBES)
SHARE = float(os.environ.get("COMMWATCH_TORTURE", "1"))
NODE = "a10x2"
FAST = f"""
inventory: {{learn_after: 1500ms}}
probes:
  {{occupancy_limit: 0.1, start_delay: 500ms, gate: idle,
    definitions: {{often: {{measure: all_reduce, interval: 10s}}, {DEFAULT_PROBES_OUT}}}}}
sources:
  nvml: {{deadline: 1s, gpu_interval: 1s, nvlink_interval: 1s, pcie_interval: 1s, processes_interval: 1s}}
  network: {{interval: 500ms}}
  pci: {{interval: 1s}}
  services: {{interval: 1s}}
"""


def times(count: int) -> int:
    """How often, on this day."""
    return max(2, round(count * SHARE))


@contextmanager
def tortured(
    folder: Path, *arguments: str, config: str = FAST, state: Path | None = None, failing: frozenset[str] = frozenset()
) -> Iterator[Daemon]:
    """A daemon on a simulated node with fast collectors and a probe as often as it may, once only these fail."""
    file = folder / "commwatch.yaml"
    file.write_text(config)
    simulated = () if "--no-node" in arguments else ("--simulate", NODE)
    rest = [one for one in arguments if one != "--no-node"]
    with running(folder, "--config.file", str(file), *simulated, *rest, state=state) as daemon:
        daemon.until(lambda: failing_of(daemon) == failing)
        yield daemon


def is_well(daemon: Daemon) -> bool:
    """Whether each collector's last run read everything."""
    return not failing_of(daemon)


def failing_of(daemon: Daemon) -> frozenset[str]:
    """Collectors whose last run did not read everything."""
    return frozenset(labels[0][1] for labels, value in daemon.series("collector_success").items() if value != 1)


@dataclass(frozen=True)
class Footing:
    """What a daemon takes and shows at a moment."""

    memory_mib: float
    """Resident, of its own process."""
    descriptors: int
    """Between two cycles of probes: one under way on two GPUs holds eight more (lock, marks, pipes, meeting place)."""
    threads: int
    children: int
    series: int


def _descriptors_between_cycles(daemon: Daemon) -> list[str]:
    """What the daemon holds open; nothing while a cycle of a probe holds its lock or has a rank."""
    held, readers = [], []
    for descriptor in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held.append(str(descriptor.readlink()))
    for child in daemon.children():
        with suppress(FileNotFoundError):  # it has ended
            readers.append(is_reader(child))
    is_cycle = any(one.endswith("/probe.lock") for one in held) or not all(readers)
    return [] if is_cycle else held


def footing(daemon: Daemon) -> Footing:
    """Count, and scrape once; waits for the end of a cycle of probes."""
    descriptors = len(daemon.until(lambda: _descriptors_between_cycles(daemon)))
    pid = daemon.process.pid
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    page = daemon.get("/metrics")[1]
    return Footing(
        memory_mib=int(status["VmRSS"].split()[0]) / 1024,
        descriptors=descriptors,
        threads=int(status["Threads"]),
        children=len(daemon.children()),
        series=sum(not line.startswith("#") for line in page.splitlines()),
    )


class Scrapes:
    """Ten a second over a kept connection, by a process of their own."""

    def __init__(self, daemon: Daemon) -> None:
        command = [sys.executable, "-m", "support.scraper", daemon.address, str(daemon.process.pid)]
        self._client = subprocess.Popen(command, cwd=ROOT / "tests", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._seen: dict[str, list[Any]] | None = None

    def end(self) -> str:
        """Scrape no more; number, times, and the CPU that the daemon, whatever it did, and the client took meanwhile.

        Beside other work a scrape takes longer by all the time for which no processor was free.

        Raises:
            AssertionError: a scrape was not answered with a whole page.
        """
        if self._seen is None:
            self._seen = json.loads(self._client.communicate()[0])
        took, cpu, wrong = (self._seen[name] for name in ("milliseconds", "cpu_milliseconds", "wrong"))
        assert not wrong, wrong[:3]
        return (
            f"{len(took)} scrapes, p50 {statistics.median(took):.1f} ms, p99 {_p99(took):.1f} ms, "
            f"p99 of CPU {_p99(cpu):.1f} ms"
        )


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


@contextmanager
def scraped(daemon: Daemon) -> Iterator[Scrapes]:
    """Scrape all the while, or until that is ended; each scrape gives a whole page."""
    scrapes = Scrapes(daemon)
    try:
        yield scrapes
    finally:
        scrapes.end()


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process, by the scheduler's own account."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def told(case: str, *figures: object) -> None:
    """A line for docs/engineering/torture.md; ``pytest -rP`` and ``-s`` show it."""
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"\ntorture | {case} | {'; '.join(map(str, figures))} | load {load}")

"""What a daemon is measured by while it is tortured: scrapes, memory, descriptors, and a line of figures at the end."""

from __future__ import annotations

import gzip
import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.daemon import Daemon

EVERY_SECONDS = 0.1


@dataclass(frozen=True)
class Footing:
    """What a daemon takes and shows at a moment."""

    memory_mib: float
    """Resident, of its own process."""
    descriptors: int
    threads: int
    children: int
    series: int


def footing(daemon: Daemon) -> Footing:
    """Count, and scrape once."""
    pid = daemon.process.pid
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    page = daemon.get("/metrics")[1]
    return Footing(
        memory_mib=int(status["VmRSS"].split()[0]) / 1024,
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        threads=int(status["Threads"]),
        children=len(daemon.children()),
        series=sum(not line.startswith("#") for line in page.splitlines()),
    )


@dataclass
class Scrapes:
    """Ten a second over a kept connection."""

    milliseconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Those that were not answered with a whole page."""

    @property
    def p50(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.milliseconds, n=100, method="inclusive")[98]

    @property
    def words(self) -> str:
        """Number and times."""
        return f"{len(self.milliseconds)} scrapes, p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms"


@contextmanager
def scraped(daemon: Daemon) -> Iterator[Scrapes]:
    """Scrape all the while; each scrape gives a whole page."""
    found, stop = Scrapes(), threading.Event()
    connection = http.client.HTTPConnection(daemon.address, timeout=60)

    def scrape() -> None:
        started = time.perf_counter()
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = answer.read()
        found.milliseconds.append((time.perf_counter() - started) * 1e3)
        page = gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body
        if answer.status != http.client.OK or not page.endswith(b"\n") or b"commwatch_build_info" not in page:
            found.wrong.append(f"{answer.status} {page[-80:]!r}")

    def again_and_again() -> None:
        while not stop.wait(EVERY_SECONDS):
            try:
                scrape()
            except OSError as error:
                found.wrong.append(repr(error))
                return

    thread = threading.Thread(target=again_and_again, name="scrapes")
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        connection.close()
    assert not found.wrong, found.wrong[:3]


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process, by the scheduler's own account."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def told(case: str, *figures: object) -> None:
    """A line for docs/engineering/torture.md; ``pytest -rP`` and ``-s`` show it."""
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"\ntorture | {case} | {'; '.join(map(str, figures))} | load {load}")

"""How long an honest scrape takes while others do their worst to the endpoint, what that costs, and what stays of it.

A daemon on the simulated node with TLS and a password, and its probe as often as it may run. The part of Prometheus is
played by one kept connection, ten scrapes a second: before, while hostile clients are there, and after they have gone.
The hostile clients run in a process of their own with the least claim to the CPU: they stand for other machines.

Example: python -m benchmarks.hostile --seconds 60
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks.daemon import ROOT, processes, proportional_bytes
from benchmarks.hostile_clients import besiege
from benchmarks.scrape_client import cpu_seconds
from benchmarks.scrape_while_probing import configuration, ranks

sys.path.insert(0, str(ROOT / "tests"))
from support.certificates import Authority

PASSWORD = "honest"  # noqa: S105 - of a daemon that lives for the time of the benchmark
PAUSE_SECONDS = 0.1
RECOVERY_SECONDS = 10.0


class Honest:
    """A scraper that keeps its connection, and counts how often it lost it."""

    def __init__(self, port: int, authority: Path) -> None:
        trusting = ssl.create_default_context(cafile=str(authority))
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trusting)
        self.authorization = "Basic " + b64encode(f"prometheus:{PASSWORD}".encode()).decode()
        self._headers = {"Authorization": self.authorization, "Accept-Encoding": "gzip"}
        self.lost = 0
        self.refused = 0

    def is_ready(self) -> bool:
        """Whether the daemon has a complete snapshot."""
        try:
            return self._ask("/readyz") == http.client.OK
        except OSError:
            self._connection.close()
            return False

    def _ask(self, path: str) -> int:
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        response.read()
        return response.status

    def scrape(self) -> float:
        """Milliseconds of one scrape, those of a new connection included where the old one is gone."""
        started = time.perf_counter()
        try:
            status = self._ask("/metrics")
        except (OSError, http.client.HTTPException):
            self.lost += 1
            self._connection.close()
            status = self._ask("/metrics")
        self.refused += status != http.client.OK
        return (time.perf_counter() - started) * 1e3


class Watch:
    """Scrapes, and looks at what the daemon takes meanwhile."""

    def __init__(self, daemon: int, honest: Honest) -> None:
        self._daemon = daemon
        self._honest = honest
        self.highest_bytes = 0
        self.probing = 0

    def descriptors(self) -> int:
        """File descriptors of the daemon."""
        return len(os.listdir(f"/proc/{self._daemon}/fd"))

    def memory(self) -> int:
        """PSS of the daemon's own process."""
        return proportional_bytes([self._daemon])

    def scrapes(self, seconds: float) -> list[float]:
        """Milliseconds of each scrape in a span of time."""
        times: list[float] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            times.append(self._honest.scrape())
            self.probing += ranks(self._daemon) > 0
            if len(times) % 20 == 0:
                self.highest_bytes = max(self.highest_bytes, self.memory())
            time.sleep(PAUSE_SECONDS)
        return times


def percentiles(name: str, times: list[float]) -> dict[str, float]:
    """Number, median, 99th percentile and longest of some times."""
    cuts = statistics.quantiles(times, n=100)
    return {f"{name}_scrapes": len(times), f"{name}_p50_milliseconds": cuts[49],
            f"{name}_p99_milliseconds": cuts[98], f"{name}_longest_milliseconds": max(times)}  # fmt: skip


def measure(port: int, seconds: float, backend: str) -> dict[str, float]:
    """Start everything, and stop it again."""
    import bcrypt

    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        authority.issue("node")
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
        web = Path(folder, "web.yml")
        web.write_text(
            "tls_server_config: {cert_file: node.pem, key_file: node.key}\n"
            f"basic_auth_users: {{prometheus: {hashed}}}\n"
        )
        web.chmod(0o600)
        config = Path(folder, "commwatch.yaml")
        config.write_text(configuration(backend))
        daemon = subprocess.Popen(
            [sys.executable, "-m", "commwatch", "run", "--simulate", "h100x8", "--path.state", folder,
             "--web.listen-address", f"127.0.0.1:{port}", "--web.config.file", str(web), "--log.level", "error",
             "--config.file", str(config)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "daemon"), str(ROOT / "exporters")])},
        )  # fmt: skip
        try:
            honest = Honest(port, authority.file)
            while not honest.is_ready():
                if daemon.poll() is not None:
                    raise SystemExit(f"the daemon ended; is port {port} free?")
                time.sleep(0.05)
            return _measure(daemon.pid, honest, port, authority.file, seconds)
        finally:
            daemon.terminate()
            daemon.wait(10)


def _measure(daemon: int, honest: Honest, port: int, authority: Path, seconds: float) -> dict[str, float]:
    time.sleep(5)  # what happens once is over
    watch = Watch(daemon, honest)
    figures = percentiles("before", watch.scrapes(seconds / 2))
    before, descriptors = watch.memory(), watch.descriptors()
    context = multiprocessing.get_context("spawn")
    leave: Event = context.Event()
    hostile = context.Process(target=besiege, args=(port, str(authority), honest.authorization, leave))
    hostile.start()
    time.sleep(3)  # until all are there
    watch.highest_bytes, watch.probing = before, 0
    cpu, started = cpu_seconds(daemon), time.monotonic()
    figures |= percentiles("during", watch.scrapes(seconds))
    figures["during_scrapes_while_a_probe_ran"] = watch.probing
    figures["during_daemon_cpu_share"] = (cpu_seconds(daemon) - cpu) / (time.monotonic() - started)
    figures["during_descriptors"] = watch.descriptors()
    figures["during_highest_memory_mib"] = watch.highest_bytes / 2**20
    left = time.monotonic()
    leave.set()
    hostile.join(10)
    while watch.descriptors() > descriptors and time.monotonic() < left + RECOVERY_SECONDS:
        time.sleep(0.01)
    figures["after_seconds_until_descriptors_are_closed"] = time.monotonic() - left
    figures |= percentiles("after", watch.scrapes(RECOVERY_SECONDS))
    figures |= {"before_memory_mib": before / 2**20, "after_memory_mib": watch.memory() / 2**20,
                "before_descriptors": descriptors, "after_descriptors": watch.descriptors(),
                "processes": len(processes(daemon)), "lost_connections": honest.lost,
                "refused_scrapes": honest.refused}  # fmt: skip
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long they are there (default 60)")
    parser.add_argument("--backend", choices=("simulated", "gloo"), default="simulated", help="of the probe")
    parser.add_argument("--port", type=int, default=28967, help="free port on loopback (default 28967)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    figures = measure(given.port, given.seconds, given.backend)
    if given.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
        return
    for name, value in figures.items():
        print(f"{name:44} {value:10.3f}")


if __name__ == "__main__":
    main()

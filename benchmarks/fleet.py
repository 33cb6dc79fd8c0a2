"""What a fleet costs its Prometheus: a real one scrapes one simulated daemon under many names, with our rules.

The page is fetched from the daemon every 15 s and served to every name, so that the values move as they do on a node.

Example: python -m benchmarks.fleet --nodes 100 --profile core --set core --seconds 120
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from pathlib import Path

from benchmarks.daemon import ROOT, wait_for_snapshot

INTERVAL_SECONDS = 15
LOOKED_BACK = 8
"""Intervals over which Prometheus' work is averaged: most rules run once a minute."""
PORTS = {"daemon": 28940, "names": 28941, "prometheus": 28942}


class Names:
    """Serves the newest page under any path."""

    def __init__(self) -> None:
        self.answer = b""
        self.page = b""

    def take(self, page: bytes) -> None:
        """Serve this page from now on."""
        packed = gzip.compress(page, 4)
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Encoding: gzip\r\n"
            f"Content-Length: {len(packed)}\r\n\r\n"
        )
        self.page, self.answer = page, head.encode() + packed

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()


def fetched(port: int, path: str = "/metrics") -> bytes:
    """What a server answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        return bytes(answer.read())


def total(page: str, name: str) -> float:
    """The sum of a metric's series on Prometheus' own page."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))


def start_prometheus(folder: Path, nodes: int, rules: str) -> subprocess.Popen[bytes]:
    """Start it on so many names, with a set of our rules."""
    if rules != "none":
        subprocess.run(
            [sys.executable, "-m", "commwatch", "rules", "--set", rules, "--output", folder / "rules"],
            check=True, env=environment(),
        )  # fmt: skip
    targets = [
        {"targets": [f"127.0.0.1:{PORTS['names']}"], "labels": {"instance": f"node{number}", "cluster": "example"}}
        for number in range(nodes)
    ]
    settings = {
        "global": {"scrape_interval": f"{INTERVAL_SECONDS}s", "evaluation_interval": f"{INTERVAL_SECONDS}s"},
        "rule_files": [str(folder / "rules/*.yaml")],
        "scrape_configs": [{"job_name": "commwatch", "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address=127.0.0.1:{PORTS['prometheus']}"],
            stdout=log, stderr=log,
        )  # fmt: skip


class Watched:
    """Prometheus' own pages of the last 2 min, and the most memory it ever had."""

    def __init__(self) -> None:
        self.pages: deque[str] = deque(maxlen=LOOKED_BACK + 1)
        self.most_memory = 0.0

    async def look(self, names: Names, seconds: float) -> None:
        """Serve the names the newest page of the daemon, for so long."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            await asyncio.sleep(INTERVAL_SECONDS)
            names.take(await asyncio.to_thread(fetched, PORTS["daemon"]))
            self.pages.append((await asyncio.to_thread(fetched, PORTS["prometheus"])).decode())
            self.most_memory = max(self.most_memory, total(self.pages[-1], "process_resident_memory_bytes"))

    def each(self, name: str) -> float:
        """How far a counter rises in an interval."""
        return (total(self.pages[-1], name) - total(self.pages[0], name)) / max(1, len(self.pages) - 1)


async def watch(nodes: int, seconds: int, take_rules_away: Callable[[], None] | None = None) -> dict[str, float]:
    """Serve the names, and read from Prometheus what that costs it: the most memory, and the work of the last 2 min.

    The time of rules is of groups side by side, each waiting for the others.

    Args:
        nodes: names.
        seconds: how long.
        take_rules_away: makes Prometheus go on without rules; their CPU is the difference. None: it is not measured.
    """
    names, watched = Names(), Watched()
    names.take(await asyncio.to_thread(fetched, PORTS["daemon"]))
    server = await asyncio.start_server(names.serve, "127.0.0.1", PORTS["names"])
    await watched.look(names, seconds)
    found, each = watched.pages[-1], watched.each
    series = total(found, "prometheus_tsdb_head_series")
    answer = {
        "nodes": nodes,
        "series_per_node": sum(not line.startswith(b"#") for line in names.page.splitlines()),
        "page_bytes": len(names.page),
        "page_bytes_gzip": len(names.answer),
        "head_series": series,
        "samples_per_second": series / INTERVAL_SECONDS,
        "rule_seconds_per_interval": each("prometheus_rule_group_duration_seconds_sum"),
        "cpu_seconds_per_interval": each("process_cpu_seconds_total"),
        "memory_mebibytes": watched.most_memory / 2**20,
        "missed_evaluations": total(found, "prometheus_rule_group_iterations_missed_total"),
        "failed_evaluations": total(found, "prometheus_rule_evaluation_failures_total"),
    }
    if take_rules_away is not None:
        take_rules_away()
        await watched.look(names, (LOOKED_BACK + 1) * INTERVAL_SECONDS)
        without = watched.each("process_cpu_seconds_total")
        answer["cpu_seconds_of_rules_per_interval"] = answer["cpu_seconds_per_interval"] - without
    server.close()
    return answer


def environment() -> dict[str, str]:
    """With which our own programs run from the checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "daemon"), str(ROOT / "exporters")])}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="names under which the page is scraped (default 100)")
    parser.add_argument("--seconds", type=int, default=120, help="how long (default 120)")
    parser.add_argument("--preset", default="h100x8ndr", help="the simulated node (default h100x8ndr)")
    parser.add_argument("--profile", default="standard", choices=["core", "standard"], help="metrics.profile")
    parser.add_argument("--set", default="extended", choices=["core", "extended", "none"], help="which alerts")
    parser.add_argument("--apart", action="store_true", help="2 min more without rules: what CPU they take")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "commwatch.yaml").write_text(f"metrics: {{profile: {given.profile}}}\n")
        daemon = subprocess.Popen(
            [sys.executable, "-m", "commwatch", "run", "--simulate", given.preset, "--path.state", folder / "state",
             "--config.file", folder / "commwatch.yaml", "--log.level", "error",
             "--web.listen-address", f"127.0.0.1:{PORTS['daemon']}"],
            env=environment(),
        )  # fmt: skip
        try:
            wait_for_snapshot(PORTS["daemon"], time.monotonic() + 30)
            time.sleep(60)  # the first probes
            prometheus = start_prometheus(folder, given.nodes, given.set)

            def take_rules_away() -> None:
                for rules in (folder / "rules").glob("*.yaml"):
                    rules.unlink()
                prometheus.send_signal(signal.SIGHUP)

            try:
                away = take_rules_away if given.apart else None
                for key, value in asyncio.run(watch(given.nodes, given.seconds, away)).items():
                    print(f"{key:28} {value:14,.2f}")
            finally:
                prometheus.terminate()
                prometheus.wait()
        finally:
            daemon.terminate()
            daemon.wait()


if __name__ == "__main__":
    main()

"""Does an honest scraper keep its share of the endpoint while others take more than theirs? Beside node_exporter.

Each attack is played against a daemon on a simulated node and against node_exporter, where it is installed. Honest
scrapes come from an address of their own, ten a second, in turns over a kept connection and a new one. Guesses begin
before the program does: they stand for those that go on while a daemon is restarted. Ends with 1 where a scrape of
commwatch fails, or their p99 is above 50 ms and above twice that of node_exporter.

Example: python -m benchmarks.shares --seconds 20
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks.daemon import ROOT
from benchmarks.shares_clients import Attack, attack

sys.path.insert(0, str(ROOT / "tests"))
from support.certificates import Authority

PASSWORD = "honest"  # noqa: S105 - of a daemon that lives for the time of the benchmark
HONEST = "127.0.0.9"
PAUSE_SECONDS = 0.1
LIMIT_MILLISECONDS = 50.0
NODE_EXPORTER = "prometheus-node-exporter"
AUTHORIZATION = "Basic " + b64encode(f"prometheus:{PASSWORD}".encode()).decode()

ATTACKS = {
    "guesses of 12 addresses": Attack("guess", 12, 4),
    "guesses of 60 addresses": Attack("guess", 60, 4),
    "places, 4 addresses": Attack("hold", 4, 150, "/healthz"),
    "places, 600 addresses": Attack("hold", 600, 1, "/healthz"),
    "documents": Attack("ask", 1, 4, "/api/v1/snapshot"),
    "handshakes, 1 address": Attack("greet", 1, 256),
    "handshakes, 64 addresses": Attack("greet", 64, 4),
}
IN_PLACE = {"/healthz": "/", "/api/v1/snapshot": "/metrics"}
"""What node_exporter is asked where it has no such path."""


class Honest:
    """A scraper that counts what fails."""

    def __init__(self, port: int, trusting: ssl.SSLContext | None = None, *, kept: bool) -> None:
        self._port = port
        self._trusting = trusting
        self._kept = kept
        self._connection: http.client.HTTPConnection | None = None
        self.milliseconds: list[float] = []
        self.failed: list[str] = []

    def scrape(self) -> None:
        """One scrape; a connection that was lost since the last is opened again, as Prometheus does."""
        started = time.perf_counter()
        try:
            is_new = self._connection is None
            try:
                status = self._status()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if is_new:
                    raise
                self._connection = None
                status = self._status()
            if status != http.client.OK:
                self.failed.append(str(status))
        except (OSError, http.client.HTTPException) as error:
            self.failed.append(type(error).__name__)
            self._connection = None
        self.milliseconds.append((time.perf_counter() - started) * 1e3)
        if not self._kept and self._connection is not None:
            self._connection.close()
            self._connection = None

    def _status(self) -> int:
        if self._connection is None:
            self._connection = _connection(self._port, HONEST, 15, self._trusting)
        headers = {"Authorization": AUTHORIZATION, "Accept-Encoding": "gzip"}
        self._connection.request("GET", "/metrics", headers=headers)
        response = self._connection.getresponse()
        response.read()
        return response.status


def _connection(port: int, address: str, timeout: float, trusting: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if trusting is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout, source_address=(address, 0))
    return http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=timeout, source_address=(address, 0), context=trusting
    )


@contextmanager
def running(
    program: str, port: int, folder: Path, tree: Path, *, passwords: bool, tls: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], ssl.SSLContext | None]]:
    """The program, once it serves, and what its clients trust; None where no TLS is spoken."""
    import bcrypt

    web, trusting = folder / "web.yml", None
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    lines = [f"basic_auth_users: {{prometheus: {hashed}}}\n" if passwords else "basic_auth_users: {}\n"]
    if tls:
        authority = Authority(folder)
        pair = authority.issue("node")
        lines.append(f"tls_server_config: {{cert_file: {pair.certificate}, key_file: {pair.key}}}\n")
        trusting = ssl.create_default_context(cafile=str(authority.file))
    web.write_text("".join(lines))
    web.chmod(0o600)
    options = ["--web.listen-address", f"127.0.0.1:{port}", "--log.level", "error", "--web.config.file", str(web)]
    if program == NODE_EXPORTER:
        command = [program, *options]
    else:
        state = str(folder / "state")
        command = [sys.executable, "-m", "commwatch", "run", "--simulate", "h100x8", "--path.state", state, *options]
    paths = os.pathsep.join([str(tree / "daemon"), str(tree / "exporters")])
    errors = subprocess.DEVNULL if program == NODE_EXPORTER else None  # it logs each client that leaves
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, cwd=folder, stderr=errors)
    try:
        _wait_until_it_serves(process, port, "/" if program == NODE_EXPORTER else "/readyz", trusting)
        yield process, trusting
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_it_serves(
    process: subprocess.Popen[bytes], port: int, path: str, trusting: ssl.SSLContext | None
) -> None:
    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        connection = _connection(port, "127.0.0.8", 5, trusting)
        try:
            connection.request("GET", path, headers={"Authorization": f"Basic {b64encode(b'nobody:x').decode()}"})
            if connection.getresponse().status in (http.client.OK, http.client.UNAUTHORIZED):
                return
        except (OSError, http.client.HTTPException):
            pass  # it is about to listen
        finally:
            connection.close()
        time.sleep(0.02)
    raise SystemExit(f"{process.args!r} does not serve; is port {port} free?")


def measure(program: str, played: Attack, port: int, seconds: float, tree: Path) -> dict[str, float | str]:
    """Play an attack against a program."""
    if program == NODE_EXPORTER:
        played = played._replace(path=IN_PLACE.get(played.path, played.path))
    context = multiprocessing.get_context("spawn")
    leave: Event = context.Event()
    requests = context.Value("q", 0)
    hostile = context.Process(target=attack, args=(played, port, leave, requests))
    guesses = played.kind == "guess"
    with tempfile.TemporaryDirectory() as folder:
        if guesses:
            hostile.start()
            time.sleep(2)  # until all are there
        tls = played.kind == "greet"
        with running(program, port, Path(folder), tree, passwords=guesses, tls=tls) as (_, trusting):
            kept, fresh = (Honest(port, trusting, kept=kept) for kept in (True, False))
            if not guesses:
                time.sleep(3)  # what happens once is over
                hostile.start()
                time.sleep(3)
            before, until = requests.value, time.monotonic() + seconds
            while time.monotonic() < until:
                for scraper in (kept, fresh):
                    scraper.scrape()
                    time.sleep(PAUSE_SECONDS)
            answers = requests.value - before
            leave.set()
            hostile.join(10)
    times = kept.milliseconds + fresh.milliseconds
    failed = kept.failed + fresh.failed
    cuts = statistics.quantiles(times, n=100)
    return {
        "scrapes": len(times), "failed": len(failed), "first_ms": kept.milliseconds[0], "p50_ms": cuts[49],
        "p99_ms": cuts[98], "new_p99_ms": statistics.quantiles(fresh.milliseconds, n=100)[98],
        "longest_ms": max(times), "attackers_answers": answers,
        "why": ", ".join(f"{failed.count(one)} {one}" for one in sorted(set(failed))),
    }  # fmt: skip


def is_fair(own: dict[str, float | str], other: dict[str, float | str] | None) -> bool:
    """Whether no scrape failed, and the slow ones are fast enough."""
    allowed = max(LIMIT_MILLISECONDS, 2 * float(other["p99_ms"]) if other else 0.0)
    return not own["failed"] and float(own["p99_ms"]) <= allowed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of honest scrapes in each attack (default 20)")
    parser.add_argument("--attack", action="append", choices=tuple(ATTACKS), help="only this one; can be given again")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout, to compare with")
    parser.add_argument("--port", type=int, default=28969, help="free port on loopback (default 28969)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    programs = ["commwatch", *filter(shutil.which, (NODE_EXPORTER,))]
    is_all_fair = True
    for name in given.attack or ATTACKS:
        found = {one: measure(one, ATTACKS[name], given.port, given.seconds, given.tree) for one in programs}
        fair = is_fair(found["commwatch"], found.get(NODE_EXPORTER))
        is_all_fair &= fair
        for program, figures in found.items():
            if given.json:
                rounded = {key: round(one, 1) if isinstance(one, float) else one for key, one in figures.items()}
                print(json.dumps({"attack": name, "program": program, **rounded}), flush=True)
            else:
                line = (
                    "{scrapes:4} scrapes, {failed:3} failed, first {first_ms:6.0f} ms, p50 {p50_ms:6.1f}, "
                    "p99 {p99_ms:7.1f}, of new connections {new_p99_ms:7.1f}, longest "
                    "{longest_ms:7.1f} ms; attackers: {attackers_answers} answers  {why}"
                )
                print(f"{name:24} {program:25}", line.format_map(figures), flush=True)
        if not fair:
            print(f"{name}: not fair to the honest scraper", flush=True)
    if not is_all_fair:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Scrapes a daemon ten times a second until its standard input closes, then writes what it saw; a process of its own,
because in that of a test it would wait for the interpreter's lock.

Example: python -m support.scraper 127.0.0.1:28029 4711
"""

from __future__ import annotations

import gzip
import http.client
import json
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

EVERY_SECONDS = 0.1


def cpu_seconds(pid: str) -> float:
    """Of all threads of the daemon and of this one, by the scheduler's own account."""
    used = 0
    for task in (*Path("/proc", pid, "task").iterdir(), Path("/proc/thread-self")):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


def main(address: str, pid: str) -> None:
    """Scrape over a kept connection; each scrape gives a whole page."""
    connection = http.client.HTTPConnection(address, timeout=60)
    took: list[float] = []
    cpu: list[float] = []
    wrong: list[str] = []
    while not select.select([sys.stdin], [], [], EVERY_SECONDS)[0]:
        try:
            before, started = cpu_seconds(pid), time.perf_counter()
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            body = answer.read()
            took.append((time.perf_counter() - started) * 1e3)
            cpu.append((cpu_seconds(pid) - before) * 1e3)
        except OSError as error:
            wrong.append(repr(error))
            break
        page = gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body
        if answer.status != http.client.OK or not page.endswith(b"\n") or b"commwatch_build_info" not in page:
            wrong.append(f"{answer.status} {page[-80:]!r}")
    json.dump({"milliseconds": took, "cpu_milliseconds": cpu, "wrong": wrong}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The client of the scrape benchmarks: one connection that is kept, as Prometheus keeps it."""

from __future__ import annotations

import os
import socket
import statistics
import time
from pathlib import Path

WARM_UP_SCRAPES = 50
PAUSE_SECONDS = 0.002  # so that each scrape meets a server at rest
PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def scrape(client: socket.socket, request: bytes, buffer: memoryview) -> int:
    """One scrape; bytes of the body."""
    client.sendall(request)
    size = client.recv_into(buffer)
    while (end := bytes(buffer[: min(size, 4096)]).find(b"\r\n\r\n")) < 0:
        size += client.recv_into(buffer[size:])
    head = bytes(buffer[:end]).lower()
    length = int(head.partition(b"content-length:")[2].split(None, 1)[0])
    while size < end + 4 + length:
        size += client.recv_into(buffer[size:])
    return length


def connect(address: str) -> socket.socket:
    """A connection to ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used: utime and stime of /proc/PID/stat, in ticks of a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(address: str, scrapes: int, *, gzip: bool, server_pid: int | None) -> dict[str, float]:
    """Times of many scrapes on one connection, and the CPU time that one costs the server; milliseconds."""
    if server_pid is None:
        raise ValueError("the server has not started")
    encoding = "Accept-Encoding: gzip\r\n" if gzip else ""
    request = f"GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: {PROMETHEUS_ACCEPT}\r\n{encoding}\r\n".encode()
    buffer = memoryview(bytearray(4 * 2**20))
    times = []
    with connect(address) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(WARM_UP_SCRAPES):
            scrape(client, request, buffer)
        cpu_before = cpu_seconds(server_pid)
        for _ in range(scrapes):
            time.sleep(PAUSE_SECONDS)
            start = time.perf_counter()
            size = scrape(client, request, buffer)
            times.append((time.perf_counter() - start) * 1e3)
        cpu = cpu_seconds(server_pid) - cpu_before
    percentiles = statistics.quantiles(times, n=100)
    return {
        "p50_ms": round(percentiles[49], 3),
        "p99_ms": round(percentiles[98], 3),
        "maximum_ms": round(max(times), 3),
        "server_cpu_ms": round(cpu / scrapes * 1e3, 3),
        "body_bytes": size,
    }

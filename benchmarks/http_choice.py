"""What an HTTP server costs the daemon: import time, memory and time of a scrape, for ours on h11 and for aiohttp.

Both serve the same rendering of the same snapshots. Needs aiohttp, which commwatch itself does not.

Example:
    python -m benchmarks.http_choice --scrapes 1000 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.scrape_client import WARM_UP_SCRAPES, measure
from benchmarks.scrape_page import Pages

from commwatch_exporters.http_server import Request
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.node_collector import Format
from commwatch_exporters.snapshot import Snapshot

_REQUEST = Request("/metrics", {"accept": Format.OPENMETRICS.content_type})


def pss_kib() -> int:
    """Proportional memory of this process, KiB, from /proc/self/smaps_rollup."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


async def start_h11(snapshot: Callable[[], Snapshot]) -> str:
    """The endpoint that commwatch has."""
    from commwatch_exporters.metrics_page import MetricsPage
    from commwatch_exporters.web import Endpoint

    endpoint = Endpoint(metrics=MetricsPage(snapshot))
    return (await endpoint.start(["127.0.0.1:0"]))[0]


async def start_aiohttp(snapshot: Callable[[], Snapshot]) -> str:
    """The same page from aiohttp, without access log."""
    from aiohttp import web

    page = MetricsPage(snapshot)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=page.answer(_REQUEST).body)

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    return f"{host}:{port}"


SERVERS = {"h11": start_h11, "aiohttp": start_aiohttp}


def serve(server: str, series: int, scrapes: int, parent: Connection) -> None:
    """Start one server, report its cost, and serve until the parent ends the process."""
    pages = Pages(series)
    snapshots = [pages.next() for _ in range(scrapes)]
    MetricsPage(lambda: snapshots[0]).answer(_REQUEST)

    async def run() -> None:
        memory, start = pss_kib(), time.perf_counter()
        address = await SERVERS[server](snapshots.pop)
        parent.send((address, round((time.perf_counter() - start) * 1e3, 1), pss_kib() - memory))
        await asyncio.Event().wait()

    asyncio.run(run())


def main() -> None:
    """Measure both servers and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=3000, help="series on the page (default: 3000)")
    parser.add_argument("--scrapes", type=int, default=1000, help="scrapes of each server (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = {}
    for server in SERVERS:
        ours, theirs = context.Pipe()
        count = arguments.scrapes + WARM_UP_SCRAPES + 1
        process = context.Process(target=serve, args=(server, arguments.series, count, theirs))
        process.start()
        theirs.close()  # then a server that fails ends the wait for its address
        try:
            address, start_ms, memory_kib = ours.recv()
            times = measure(address, arguments.scrapes, gzip=False, server_pid=process.pid)
        finally:
            process.terminate()
            process.join()
        results[server] = {"import_and_start_ms": start_ms, "memory_kib": memory_kib, **times}
    if arguments.json:
        print(json.dumps(results))
        return
    for server, figures in results.items():
        print(
            f"{server:8} start {figures['import_and_start_ms']:5.0f} ms  memory {figures['memory_kib'] / 1024:5.1f} MiB"
            f"  p50 {figures['p50_ms']:.2f} ms  p99 {figures['p99_ms']:.2f} ms"
        )


if __name__ == "__main__":
    main()

"""How long a scrape takes over loopback, from the request to the last byte, while a tenth of the values moves.

The endpoint runs in a process of its own, as in the daemon, and gives a new snapshot to each scrape.

Example:
    python -m benchmarks.scrape --series 3000 --scrapes 2000 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
from contextlib import ExitStack
from multiprocessing.connection import Connection

from benchmarks.scrape_client import WARM_UP_SCRAPES, connect, measure
from benchmarks.scrape_page import Pages

from commwatch_exporters.http_server import Limits
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.web import Endpoint


def serve(series: int, scrapes: int, started: Connection) -> None:
    """Serve until the parent ends the process; the snapshots are made before, so that no scrape pays for them."""
    pages = Pages(series)
    snapshots = [pages.next() for _ in range(scrapes)]

    async def run() -> None:
        endpoint = Endpoint(
            metrics=MetricsPage(snapshots.pop),
            limits=Limits(head_seconds=3600.0),  # so that silent clients stay to the end
        )
        started.send((await endpoint.start(["127.0.0.1:0"]))[0])
        await asyncio.Event().wait()

    asyncio.run(run())


def main() -> None:
    """Measure plain and compressed scrapes and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=3000, help="series on the page (default: 3000)")
    parser.add_argument("--scrapes", type=int, default=1000, help="scrapes of each kind (default: 1000)")
    parser.add_argument("--silent", type=int, default=0, help="clients that connect and say nothing (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results: dict[str, dict[str, float]] = {}
    for name, gzip in (("plain", False), ("gzip", True)):
        ours, theirs = context.Pipe()
        server = context.Process(target=serve, args=(arguments.series, arguments.scrapes + WARM_UP_SCRAPES, theirs))
        server.start()
        theirs.close()  # then a server that fails ends the wait for its address
        try:
            address = ours.recv()
            with ExitStack() as silent:
                for _ in range(arguments.silent):
                    silent.enter_context(connect(address))
                results[name] = measure(address, arguments.scrapes, gzip=gzip, server_pid=server.pid)
        finally:
            server.terminate()
            server.join()
    if arguments.json:
        settings = {"series": arguments.series, "scrapes": arguments.scrapes, "silent": arguments.silent}
        print(json.dumps(settings | results))
        return
    for name, figures in results.items():
        print(
            f"{name:6} p50 {figures['p50_ms']:.2f} ms  p99 {figures['p99_ms']:.2f} ms"
            f"  server CPU {figures['server_cpu_ms']:.2f} ms  {figures['body_bytes']:,} bytes"
        )


if __name__ == "__main__":
    main()

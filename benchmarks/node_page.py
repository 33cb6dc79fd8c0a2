"""What the node's page costs: its size, and the time to render it: ``python -m benchmarks.node_page``."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import zlib
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from commwatch.views.node_page.page import render_node_page
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Block, Snapshot
from support.daemon import running
from support.node_pages import hgx, status

_RUNS = 200
_SCRAPES = 500
_GAP_SECONDS = 0.02


def main() -> None:
    """The page by itself, then scrapes of a daemon that somebody else asks for the page."""
    render()
    print()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), "--simulate", "h100x8ndr") as daemon:
        print("| scrapes | p50 | p99 | pages asked for |\n| --- | --- | --- | --- |")
        for _ in range(2):
            scrape(daemon.address, "alone")
            scrape(daemon.address, "beside readers of the page", readers=True)


def scrape(address: str, name: str, *, readers: bool = False) -> None:
    """Scrape every 20 ms, alone or while the page is asked for as often."""
    pages, stop = 0, threading.Event()

    def read() -> None:
        nonlocal pages
        client = HTTPConnection(address)
        while not stop.wait(_GAP_SECONDS):
            client.request("GET", "/")
            client.getresponse().read()
            pages += 1

    reader = threading.Thread(target=read)
    if readers:
        reader.start()
    client, times = HTTPConnection(address), []
    for _ in range(_SCRAPES):
        started = time.perf_counter()
        client.request("GET", "/metrics")
        client.getresponse().read()
        times.append(time.perf_counter() - started)
        time.sleep(_GAP_SECONDS)
    stop.set()
    if readers:
        reader.join()
    print(f"| {name} | {1e3 * median(times):.2f} ms | {1e3 * quantiles(times, n=100)[-1]:.2f} ms | {pages} |")


def render() -> None:
    """Render the page of 8 GPUs with 144 NVLinks and 8 RDMA ports, each time from a snapshot that is new.

    As in the daemon, it has the same series each time.
    """
    print("| node | page | gzip -1 | render p50 | p99 |\n| --- | --- | --- | --- | --- |")
    for name, faulty in (("healthy", False), ("in trouble", True)):
        said, board, node = status(faulty=faulty), hgx(faulty=faulty), Node()
        times = []
        for _ in range(_RUNS):
            snapshot = Snapshot([Block(block.layout, block.values, block.time) for block in board.blocks])
            started = time.perf_counter()
            node.show(snapshot)
            page = render_node_page(node, said, "/metrics").encode()
            times.append(time.perf_counter() - started)
        packed = zlib.compressobj(1, zlib.DEFLATED, 31)
        size = len(packed.compress(page) + packed.flush())
        late = quantiles(times, n=100)[-1]
        print(f"| {name} | {len(page) / 1e3:.1f} kB | {size / 1e3:.1f} kB | {1e3 * median(times):.2f} ms "
              f"| {1e3 * late:.2f} ms |")  # fmt: skip


if __name__ == "__main__":
    main()

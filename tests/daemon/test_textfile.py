"""A daemon without a port: its numbers reach a real node_exporter through the textfile."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.daemon import command, running
from support.waiting import PATIENCE_SECONDS


@contextmanager
def node_exporter(folder: Path) -> Iterator[Callable[[], str]]:
    """A node_exporter with its textfile collector over a folder; gives what reads its page, empty before it serves."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = subprocess.Popen(
        ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
         f"--collector.textfile.directory={folder}", f"--web.listen-address={address}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def page() -> str:
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECONDS) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            return ""

    try:
        yield page
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.node_exporter
def test_a_daemon_without_a_port_is_seen_through_node_exporter(tmp_path: Path) -> None:
    """All its series, none refused; commands still reach it; a stop takes the file away."""
    file = tmp_path / "textfile" / "commwatch.prom"
    file.parent.mkdir()
    arguments = ("--web.listen-address", "", "--textfile.path", str(file), "--simulate", "a10x2")
    with node_exporter(file.parent) as page, running(tmp_path, *arguments) as daemon:
        assert daemon.address == ""
        assert not listening(daemon.process.pid)
        daemon.until(file.exists)
        written = {one.name for one in text_string_to_metric_families(file.read_text())}
        text = daemon.until(page)

        assert "node_textfile_scrape_error 0\n" in text
        assert f'node_textfile_mtime_seconds{{file="{file}"}}' in text
        told = {one.name for one in text_string_to_metric_families(text)}
        assert "commwatch_gpu_info" in written
        assert written <= told

        state = ("--path.state", str(tmp_path / "state"), "--simulate", "a10x2")
        assert "2 x NVIDIA A10" in command("top", "--once", *state).stdout

        assert daemon.stop() == 0
        assert not os.listdir(file.parent)
        left = page()  # what CommwatchTextfileStale looks for
        assert "node_textfile_scrape_error 0\n" in left
        assert "node_textfile_mtime_seconds{" not in left


def listening(pid: int) -> list[str]:
    """The TCP sockets on which a process listens, as /proc names them."""
    inodes = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(os.readlink(one).removeprefix("socket:[").rstrip("]"))
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]

"""A real Prometheus scrapes the endpoint."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from urllib.parse import quote

import pytest

from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.snapshot import Snapshot
from commwatch_exporters.web import Endpoint
from support.http import ask, serving
from support.pages import snapshot_of, whole_catalogue

CONFIGURATION = """
global: {{scrape_interval: 200ms}}
scrape_configs:
  - job_name: commwatch
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
TRIES = 480
BETWEEN_TRIES_SECONDS = 0.25


async def query(port: int, expression: str) -> dict[str, float]:
    """Values by metric name of an instant query; empty while Prometheus is starting."""
    try:
        found = await ask(port, f"/api/v1/query?query={quote(expression)}")
    except (OSError, asyncio.IncompleteReadError):
        return {}
    if found.status != 200:
        return {}
    result = json.loads(found.body)["data"]["result"]
    return {one["metric"].get("__name__", ""): float(one["value"][1]) for one in result}


@pytest.mark.prometheus
def test_prometheus_takes_every_series(tmp_path: Path) -> None:
    """Every family of the catalogue arrives through negotiation, gzip and parser, scrape after scrape."""
    values = whole_catalogue()
    moving = ("commwatch_clock_steps_total", ())

    def snapshot() -> Snapshot:
        values[moving] = int(values[moving] or 0) + 1
        return snapshot_of(values)

    async def test() -> None:
        endpoint = Endpoint(metrics=MetricsPage(snapshot))
        async with serving(endpoint) as port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                own_port = free.getsockname()[1]
            configuration = tmp_path / "prometheus.yml"
            configuration.write_text(CONFIGURATION.format(port=port), encoding="utf-8")
            process = await asyncio.create_subprocess_exec(
                "prometheus",
                f"--config.file={configuration}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{own_port}",
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                for _ in range(TRIES):
                    found = await query(own_port, moving[0])
                    up = await query(own_port, "up")
                    ours = await query(own_port, 'count({__name__=~"commwatch_.+"})')
                    process_own = await query(own_port, 'count({__name__=~"process_.+"})')
                    # A scrape that this machine had no time for takes all series away until the next one.
                    if found.get(moving[0], 0) >= 3 and up == {"up": 1.0} and ours and process_own:
                        break
                    await asyncio.sleep(BETWEEN_TRIES_SECONDS)
            finally:
                process.kill()
                await process.wait()
            assert up == {"up": 1.0}
            assert ours == {"": len(values)}
            assert process_own == {"": 6.0}

    asyncio.run(test())

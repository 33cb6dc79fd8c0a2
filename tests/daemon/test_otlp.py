"""A daemon that sends its metrics to an OpenTelemetry collector."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'commwatch[otlp]'")

from commwatch import __version__
from support.daemon import running
from support.otlp import attributes, points, receiving


def test_a_collector_gets_what_the_daemon_exposes(tmp_path: Path) -> None:
    """From the start on, at the interval, beside the endpoint."""
    config = tmp_path / "commwatch.yaml"
    with receiving() as receiver:
        config.write_text(json.dumps({"metrics": {"otlp": {"endpoint": receiver.endpoint, "interval": "1s"}}}))
        with running(tmp_path, "--config.file", str(config), "--simulate", "a10x2") as daemon:
            daemon.until(lambda: len(receiver.requests) > 1)
            [build] = points(receiver.metrics["commwatch_build_info"])
            gpus = points(receiver.metrics["commwatch_gpu_state"])

            assert attributes(build)["version"] == __version__
            assert [attributes(one)["hw.id"] for one in gpus] == [attributes(one)["pci_bus_id"] for one in gpus]
            assert len(gpus) == 2

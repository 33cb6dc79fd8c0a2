"""A daemon that sends its metrics to an OpenTelemetry collector."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'commwatch[otlp]'")

from commwatch import __version__
from support.daemon import running
from support.otlp import attributes, points, receiving


def test_a_collector_gets_what_the_daemon_exposes(tmp_path: Path) -> None:
    """As soon as the configuration names it, at the interval, beside the endpoint."""
    config = tmp_path / "commwatch.yaml"
    config.write_text("{}")
    with receiving() as receiver, running(tmp_path, "--config.file", str(config), "--simulate", "a10x2") as daemon:
        config.write_text(json.dumps({"metrics": {"otlp": {"endpoint": receiver.endpoint, "interval": "1s"}}}))
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: len(receiver.requests) > 1)
        [build] = points(receiver.metrics["commwatch_build_info"])
        gpus = points(receiver.metrics["commwatch_gpu_state"])

        assert attributes(build)["version"] == __version__
        assert [attributes(one)["hw.id"] for one in gpus] == [attributes(one)["pci_bus_id"] for one in gpus]
        assert len(gpus) == 2

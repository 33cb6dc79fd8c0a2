"""Xids and SXids of a simulated node, from driver and kernel log to the page, each once."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from support.daemon import Daemon, running

FAULTS = """
- fault: xid
  gpu: 3
  xid: 94
  at: 2s
- fault: sxid
  nvswitch: 0
  sxid: 20034
  severity: Fatal
  link: 12
  at: 2s
"""
CONFIG = "sources: {nvml: {events_interval: 500ms}, kernel_log: {interval: 500ms}}\n"
READING_SECONDS = 1.5
"""A reading that ended so long after an event began after it, however busy this machine is."""


def gpu3(daemon: Daemon) -> dict[str, str]:
    """The labels of the GPU of index 3."""
    address = next(dict(labels)["pci_bus_id"] for name, labels in daemon.samples()
                   if name == "commwatch_gpu_info" and dict(labels)["gpu"] == "3")  # fmt: skip
    return {"gpu": "3", "pci_bus_id": address}


def both_have_looked(daemon: Daemon, labels: dict[str, str]) -> bool:
    """Whether driver and kernel log were read again since the Xid; the page of metrics tells it ten seconds later."""
    happened, now = daemon.value("gpu_last_xid_timestamp_seconds", **labels), time.time()
    words = " ".join(re.sub("<[^>]+>", " ", daemon.get("/")[1]).split())
    rows = re.findall(r"\b(nvml_events|kernel_log) ok ✓ ([0-9.]+) s", words)
    ages = {name: float(age) for name, age in rows}
    return happened is not None and len(ages) == 2 and now - max(ages.values()) > happened + READING_SECONDS


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    file = tmp_path / "faults.yaml"
    file.write_text(FAULTS)
    return file


def test_an_event_is_counted_once_and_over_a_restart(tmp_path: Path, faults: Path) -> None:
    """Driver and kernel log both tell of it, and the log is read from its beginning again by the next daemon."""
    config = tmp_path / "commwatch.yaml"
    config.write_text(CONFIG)
    arguments = ("--simulate", "h100x8", "--simulate.faults", str(faults), "--config.file", str(config))
    with running(tmp_path, *arguments) as daemon:
        labels = gpu3(daemon)
        assert daemon.value("gpu_xid_events_total", **labels, xid="74") == 0
        daemon.until(lambda: both_have_looked(daemon, labels))
        assert daemon.value("gpu_xid_events_total", **labels, xid="94") == 1
        told = {event["code"]: event for event in daemon.events("hardware event")}
        assert sorted(event["code"] for event in daemon.events("hardware event")) == ["20034", "94"]
        assert (told["20034"]["fatal"], told["20034"]["link"]) == ("Fatal", 12)
        assert daemon.stop() == 0
    (kept,) = tmp_path.rglob("hardware_events.json")
    assert json.loads(kept.read_text())["unpaired"] == {}

    with running(tmp_path, *arguments) as daemon:
        daemon.until(lambda: both_have_looked(daemon, labels))
        assert daemon.value("gpu_xid_events_total", **labels, xid="94") == 1
        assert daemon.events("hardware event") == []
        assert daemon.value("kernel_log_losses_total") == 0

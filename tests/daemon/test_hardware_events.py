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
- fault: sxid
  nvswitch: 0
  sxid: 20034
  severity: Fatal
  link: 12
"""
ROUNDING_SECONDS = 0.05
"""Of an age on the page."""
CONFIG = "sources: {nvml: {events_interval: 500ms}, kernel_log: {interval: 500ms}}\n"


def gpu3(daemon: Daemon) -> dict[str, str]:
    """The labels of the GPU of index 3."""
    address = next(dict(labels)["pci_bus_id"] for name, labels in daemon.samples()
                   if name == "commwatch_gpu_info" and dict(labels)["gpu"] == "3")  # fmt: skip
    return {"gpu": "3", "pci_bus_id": address}


class BothLooked:
    """Whether driver and kernel log were read from begin to end since this was made, however long a reading takes.

    The node's page has it; the page of metrics has it ten seconds later.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._made_at = time.time()
        self._ended: dict[str, float] = {}
        """When the first reading that ended since then had ended at the latest; the next one began after it."""
        self._again: set[str] = set()

    def __call__(self) -> bool:
        asked_at = time.time()
        words = " ".join(re.sub("<[^>]+>", " ", self._daemon.get("/")[1]).split())
        answered_at = time.time()
        rows = re.findall(r"\b(nvml_events|kernel_log) ok ✓ ([0-9.]+) s", words)
        for name, age in rows:
            earliest, latest = asked_at - float(age) - ROUNDING_SECONDS, answered_at - float(age) + ROUNDING_SECONDS
            if earliest > self._made_at and earliest > self._ended.setdefault(name, latest):
                self._again.add(name)
        return len(self._again) == 2


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    """Without any, until the test writes them."""
    file = tmp_path / "faults.yaml"
    file.write_text("[]\n")
    return file


def test_an_event_is_counted_once_and_over_a_restart(tmp_path: Path, faults: Path) -> None:
    """Driver and kernel log both report it, and the log is read from its beginning again by the next daemon."""
    config = tmp_path / "commwatch.yaml"
    config.write_text(CONFIG)
    arguments = ("--simulate", "h100x8", "--simulate.faults", str(faults), "--config.file", str(config))
    with running(tmp_path, *arguments) as daemon:
        labels = gpu3(daemon)
        assert daemon.value("gpu_xid_events_total", **labels, xid="74") == 0
        daemon.until(BothLooked(daemon))  # the driver reports events from its first reading on
        new = faults.with_suffix(".new")
        new.write_text(FAULTS)
        new.replace(faults)
        daemon.until(lambda: len(daemon.events("hardware event")) >= 2)  # the line of the SXid comes after the Xid
        daemon.until(BothLooked(daemon))
        assert daemon.value("gpu_xid_events_total", **labels, xid="94") == 1
        told = {event["code"]: event for event in daemon.events("hardware event")}
        assert sorted(event["code"] for event in daemon.events("hardware event")) == ["20034", "94"]
        assert (told["20034"]["fatal"], told["20034"]["link"]) == ("Fatal", 12)
        assert daemon.stop() == 0
    (kept,) = tmp_path.rglob("judgement.json")
    assert json.loads(kept.read_text())["events"]["unpaired"] == {}

    with running(tmp_path, *arguments) as daemon:
        daemon.until(BothLooked(daemon))
        assert daemon.value("gpu_xid_events_total", **labels, xid="94") == 1
        assert daemon.events("hardware event") == []
        assert daemon.value("kernel_log_losses_total") == 0

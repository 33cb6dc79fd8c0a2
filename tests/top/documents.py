"""Documents for the screens: of a rehearsed node with faults, and small ones made by hand."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import msgspec
import pytest

from commwatch.findings.api_documents import (
    FindingsDocument,
    MetricRecord,
    ProbesDocument,
    SeriesRecord,
    SnapshotDocument,
)
from commwatch.probes.plan import Skipped
from commwatch.probes.results.records import ProbeStatus, status_of
from commwatch.views.top.frame import Documents
from commwatch_exporters.catalogue import CATALOGUE
from support.simulated_daemon import SimulatedDaemon, rehearsed

FAULTS = """\
- {fault: nvlink_down, gpu: 3, link: 5, at: 11m}
- {fault: nvlink_crc, gpu: 0, link: 2, rate: 200/s, at: 10m}
- {fault: pcie_width, gpu: 1, lanes: 8, at: 12m}
- {fault: gpu_throttled, gpu: 4, reason: hw_thermal, at: 12m}
- {fault: rdma_port_down, device: mlx5_2, at: 12m}
- {fault: slow_pair, gpu: 0, peer: 1, bandwidth: 0.3, direction: to_peer, at: 1m}
"""
BUSY = "gpu_busy: a GPU is in use; the daemon's log says which"
_PROBES = ("all_reduce", "pairs")


def faulty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Documents, Documents]:
    """What a daemon said before faults of most kinds, and a quarter of an hour after its node had booted."""
    with rehearsed("h100x8ndr", folder, monkeypatch, faults=FAULTS) as daemon:
        daemon.until(9)
        daemon.probe(*_PROBES)
        before = _documents(daemon)
        daemon.until(15)
        daemon.probe(*_PROBES)
        daemon.until(16)
        daemon.until(16.1, step=2.0)  # only readings that follow closely give rates
        return before, _documents(daemon)


def healthy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Documents:
    """What a daemon says of a node with nothing wrong."""
    with rehearsed("a100x4", folder, monkeypatch) as daemon:
        daemon.until(3)
        daemon.probe(*_PROBES)
        daemon.until(4)
        return _documents(daemon)


def _documents(daemon: SimulatedDaemon) -> Documents:
    daemon.engine.probing.status = partial(_statuses, daemon)  # type: ignore[method-assign]  # at times of its own
    answers = daemon.answers
    said = Documents(answers.findings(), answers.probes(), answers.snapshot())
    return with_version(said, "1.2.3")


def _statuses(daemon: SimulatedDaemon, now: float) -> list[ProbeStatus]:
    next_run, skip = now + 720, Skipped(finished_at=now, reason="gpu_busy", detail="GPU 4 (0000:9a:00.0) does work")
    known = {"all_reduce": (None, next_run), "pairs": (skip, now + 60)}
    return [
        status_of(
            name, daemon.engine.probing._probes[name].record, now, result=None, skip=known[name][0],
            next_run_at=known[name][1],
        )
        for name in _PROBES
    ]  # fmt: skip


def with_version(said: Documents, version: str) -> Documents:
    """The same from a daemon of another version."""
    replace = msgspec.structs.replace
    return Documents(
        replace(said.findings, version=version),
        replace(said.probes, version=version),
        replace(said.snapshot, version=version),
    )


def made(
    *series: tuple[str, tuple[str, ...], float], now: float | None = None, maintenance: str | None = None
) -> Documents:
    """A daemon that knows these series and nothing else.

    Args:
        series: metric without the namespace, values of its labels, and number.
        now: seconds since 1970.
        maintenance: why it is paused.
    """
    about = {"version": "1.2.3", "time": now or time.time(), "simulated": None, "maintenance": maintenance}
    metrics: dict[str, list[SeriesRecord]] = {}
    for name, values, number in series:
        labels = dict(zip(CATALOGUE[f"commwatch_{name}"].labels, values, strict=True))
        metrics.setdefault(f"commwatch_{name}", []).append(SeriesRecord(labels, number))
    records = [MetricRecord(name, "gauge", "", tuple(found)) for name, found in metrics.items()]
    return Documents(
        FindingsDocument(**about, thresholds="0", looked_at=about["time"], failing_rules=(), findings=()),  # type: ignore[arg-type]  # of their fields
        ProbesDocument(**about, probes=()),  # type: ignore[arg-type]
        SnapshotDocument(**about, metrics=tuple(records)),  # type: ignore[arg-type]
    )

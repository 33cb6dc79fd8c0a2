"""Contents of the node's page besides the snapshot: the node, verdict and findings, pairs, collectors and probes."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from commwatch.findings.finding import SEVERITIES, Cause, Finding
from commwatch.node.inventory_state import origin_words
from commwatch.node.run import Collector
from commwatch.service.api import Answers
from commwatch.service.engine import Engine
from commwatch.views.heatmap.grid import View
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.node_page.records import (
    NOT_LOOKED_YET,
    CollectorStatus,
    Fact,
    Mark,
    Status,
)
from commwatch.workers.sources import SOURCES
from commwatch_exporters.node.model import Driver, Gpu, Inventory, Node, node_at
from commwatch_exporters.snapshot import Snapshot

NO_DRIVER = (
    "No NVIDIA driver is loaded here, so there is no GPU to watch: interfaces, PCIe devices and a gloo probe remain. "
    "To see a GPU node, start the daemon with --simulate h100x8."
)
_KINDS = {
    "gpu": "GPUs here", "nvlink": "NVLinks up", "pcie_lane": "PCIe lanes of GPUs", "rdma_port": "RDMA ports up",
    "ethernet_port": "Ethernet ports up",
}  # fmt: skip


def describe(answers: Answers, snapshot: Snapshot) -> Status:
    """The status of the engine that the answers are of."""
    engine, document = answers.engine, answers.findings()
    now, simulated, verdict = document.time, document.simulated or "", engine.verdict
    absent = engine.collection.absent_sources
    with node_at(snapshot) as node:
        facts = tuple(_facts(node, engine.inventory()["kinds"]))
    return Status(
        version=document.version,
        time=now,
        name=simulated or socket.gethostname(),
        simulated=simulated,
        verdict=document.verdict or NOT_LOOKED_YET,
        facts=facts,
        notices=tuple(_notices(engine)),
        findings=document.findings,
        closed=document.closed,
        marks=marks_of(verdict.findings),
        score=None if verdict.looked_at is None else verdict.score(),
        pairs=_pairs(engine, now),
        pairs_probe=engine.probing.pairs_probe(now),
        collectors=[
            _collector(one, now) for one in engine.collection.collectors.values() if one.source not in absent
        ],
        probes=engine.probing.status(now),
        documentation=engine.config.web.documentation,
    )  # fmt: skip


def _notices(engine: Engine) -> Iterator[str]:
    if engine.store.maintenance is not None:
        yield f"Paused for maintenance ({engine.store.maintenance}): GPUs are neither read nor probed."
    if not engine.presence.has_driver():
        yield NO_DRIVER
    collection = engine.collection
    stuck = {one.source: collection.reader_of(one).stuck_count for one in collection.collectors.values()}
    for source, count in stuck.items():
        if count:
            processes = "process is" if count == 1 else "processes are"
            yield f"{count} worker {processes} stuck in the kernel and left alone ({source})."
    if failing := engine.verdict.failing_rules:
        rules = "1 rule" if len(failing) == 1 else f"{len(failing)} rules"
        yield f"{rules} failed, so that what they look for is not known: {', '.join(sorted(failing))}."


def _facts(node: Node, kinds: Mapping[str, Mapping[str, Any]]) -> Iterator[Fact]:
    models = Counter(gpu.name for gpu, _ in node.each(Gpu.info))
    if models:
        yield Fact("Model", ", ".join(f"{count} × {name}" for name, count in models.items()))
    for parts, present in node.each(Inventory.present):
        expected = parts.expected
        wanted = "" if expected is None else f" of {expected}"
        is_short = present < (expected or 0)
        origin = f" ({words})" if (words := origin_words(kinds.get(parts.kind, {}))) else ""
        yield Fact(_KINDS.get(parts.kind, parts.kind.replace("_", " ")), f"{present}{wanted}{origin}", is_short)
    for driver, _ in node.each(Driver.info):
        yield Fact("NVIDIA driver, NVML", f"{driver.driver_version}, {driver.nvml_version}")


def marks_of(findings: list[Finding]) -> dict[str, Mark]:
    """By identity of each component that a finding or one of its causes is about, the most severe of them."""
    said: list[Finding | Cause] = [*findings, *(cause for one in findings for cause in one.causes)]
    said.sort(key=lambda one: SEVERITIES.index(one.severity), reverse=True)  # the most severe is written last
    return {one.component.identity: Mark(one.severity, one.title) for one in said}


def _pairs(engine: Engine, now: float) -> View | None:
    """Bandwidth one way, in percent of what is expected where that is known of every pair, else as it is."""
    matrix = engine.probing.last_pairs(now)
    if matrix is None:
        return None
    relative = all(cell.expected_bandwidth is not None for cell in matrix.cells)
    low_ratio = engine.verdict.thresholds.probe_bandwidth_utilization_low_ratio
    return view_of(matrix, "bandwidth", relative=relative, low_ratio=low_ratio)


def _collector(collector: Collector, now: float) -> CollectorStatus:
    failing = sorted(collector.failing, key=lambda one: one.device)
    if SOURCES[collector.source].of_jobs:
        errors = [f"{one.reason} (the log of the daemon names it)" for one in failing]
    else:
        errors = [f"{one.device} {one.detail}".strip() for one in failing]
    return CollectorStatus(
        name=collector.name,
        success=not collector.failing if collector.attempted else None,
        age_seconds=None if collector.last_success is None else max(0.0, now - collector.last_success),
        interval_seconds=collector.current_interval,
        last_error="; ".join(errors[:3]),
    )

"""What the node's page says beside the snapshot: the node, verdict and findings, pairs, collectors and probes."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from commwatch import __version__
from commwatch.config.simulated import node_name
from commwatch.findings.api_documents import ClosedRecord
from commwatch.findings.finding import SEVERITIES, Cause, Finding
from commwatch.findings.score.records import Score
from commwatch.findings.verdict import Verdict
from commwatch.node.inventory_state import origin_words
from commwatch.node.run import Collector
from commwatch.service.engine import Engine
from commwatch.units import utc
from commwatch.views.heatmap.grid import View
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.node_page.records import (
    ClosedStatus,
    CollectorStatus,
    Fact,
    FindingStatus,
    Mark,
    ScoreStatus,
    Status,
    VerdictStatus,
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
_LOSS_SHOWN_FROM = 0.005


def describe(engine: Engine, snapshot: Snapshot) -> Status:
    """The status of a running engine."""
    now = time.time()
    verdict, settings = engine.verdict, engine.config
    simulated = node_name(settings.simulation.preset) if settings.simulation.preset else ""
    absent = engine.collection.absent_sources
    told = verdict.document(
        {"version": __version__, "time": now, "simulated": simulated or None, "maintenance": engine.maintenance}
    )
    with node_at(snapshot) as node:
        facts = tuple(_facts(node, engine.inventory()["kinds"]))
    return Status(
        version=__version__,
        name=simulated or socket.gethostname(),
        simulated=simulated,
        verdict=verdict_status(told.verdict),
        facts=facts,
        notices=tuple(_notices(engine)),
        findings=[finding_status(one, now) for one in told.findings],
        closed=[closed_status(one) for one in told.closed],
        marks=marks_of(verdict.findings),
        score=None if verdict.looked_at is None else _score(verdict.score()),
        pairs=_pairs(engine, now),
        pairs_probe=engine.probing.pairs_probe(now),
        collectors=[
            _collector(one, now) for one in engine.collection.collectors.values() if one.source not in absent
        ],
        probes=engine.probing.status(now),
        documentation=settings.web.documentation,
    )  # fmt: skip


def _notices(engine: Engine) -> Iterator[str]:
    if engine.maintenance is not None:
        yield f"Paused for maintenance ({engine.maintenance}): GPUs are neither read nor probed."
    if not engine.presence.has_driver():
        yield NO_DRIVER
    stuck = {one.source: one.reader.stuck_count for one in engine.collection.collectors.values()}
    for source, count in stuck.items():
        if count:
            processes = "process is" if count == 1 else "processes are"
            yield f"{count} worker {processes} stuck in the driver and left alone ({source})."
    if failing := engine.verdict.failing_rules:
        yield f"{_rules(failing)} failed, so that what they look for is not known: {', '.join(sorted(failing))}."


def verdict_status(verdict: Verdict | None) -> VerdictStatus:
    """What the page says first."""
    return VerdictStatus() if verdict is None else VerdictStatus(verdict.word, verdict.line)


def _rules(failing: Collection[str]) -> str:
    return "1 rule" if len(failing) == 1 else f"{len(failing)} rules"


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


def finding_status(finding: Finding, now: float) -> FindingStatus:
    """What a card says: what is wrong and why, or the cause first where that leads."""
    lead, causes = finding.lead, finding.causes
    return FindingStatus(
        severity=finding.severity,
        title=_titled(lead),
        part=lead.component.words,
        age_seconds=max(0.0, now - finding.since),
        effect="" if lead is finding else f"{_titled(finding)} ({finding.component.words})",
        causes=[f"{cause.title}: {cause.component.words}" for cause in (causes if lead is finding else causes[1:])],
        culprit=causes[0].component.words if causes else "",
        next_step=lead.next_step,
        code=lead.code,
    )


def closed_status(closed: ClosedRecord) -> ClosedStatus:
    """What the page says of a finding that is not open any more."""
    note = f" ({closed.note})" if closed.note else ""
    return ClosedStatus(
        closed.severity, closed.title + note, closed.component.words, utc(closed.since), utc(closed.until)
    )  # fmt: skip


def _titled(said: Finding | Cause) -> str:
    return said.title + (f": {said.detail}" if said.detail else "")


def _score(score: Score) -> ScoreStatus:
    losses = [f"{one.heading}: {one.subject}, {one.words}" for one in score.losses if one.lost >= _LOSS_SHOWN_FROM]
    return ScoreStatus(score.ratio, {one.name: one.ratio for one in score.parts}, losses)


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

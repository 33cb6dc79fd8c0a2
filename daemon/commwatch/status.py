"""What the status page says beside the snapshot: the node, what to know first, collectors and probes."""

from __future__ import annotations

import time

from commwatch import __version__
from commwatch.analysis.findings.codes import CODES
from commwatch.analysis.findings.finding import Finding
from commwatch.collection import Collector
from commwatch.engine import Engine
from commwatch.scheduler import Scheduler
from commwatch_exporters.snapshot import Snapshot
from commwatch_exporters.web import CollectorStatus, FindingStatus, Status

NO_DRIVER = (
    "No NVIDIA driver is loaded here, so there is no GPU to watch: interfaces, PCIe devices and a gloo probe remain. "
    "To see a GPU node, start the daemon with --simulate h100x8."
)


def describe(engine: Engine, scheduler: Scheduler, maintenance: str | None, snapshot: Snapshot) -> Status:
    """The status of a running engine."""
    now = time.time()
    notices = []
    if maintenance is not None:
        notices.append(f"Paused for maintenance ({maintenance}): GPUs are neither read nor probed.")
    if engine.driver_absent():
        notices.append(NO_DRIVER)
    for collector in engine.collection.collectors.values():
        if stuck := collector.reader.stuck_count:
            processes = "process is" if stuck == 1 else "processes are"
            notice = f"{stuck} worker {processes} stuck in the driver and left alone ({collector.source})."
            if notice not in notices:
                notices.append(notice)
    if missing := engine.inventory()["missing"]:
        notices.append(f"Missing here: {'; '.join(missing)}.")
    absent = engine.collection.absent_sources
    collectors = [_collector(one, now) for one in engine.collection.collectors.values() if one.source not in absent]
    return Status(
        version=__version__,
        summary=[*_summary(snapshot), *_verdict(engine)],
        notices=notices,
        findings=[_finding(one, now) for one in engine.verdict.findings],
        collectors=collectors,
        probes=engine.probing.status(now),
    )


def _summary(snapshot: Snapshot) -> list[str]:
    lines = []
    for labels, _ in snapshot.samples("commwatch_software_info"):
        lines.append(f"NVIDIA driver {labels['driver_version']}, NVML {labels['nvml_version']}")
    present = {labels["kind"]: value for labels, value in snapshot.samples("commwatch_present")}
    expected = {labels["kind"]: value for labels, value in snapshot.samples("commwatch_expected")}
    for kind, value in present.items():
        wanted = f" of {expected[kind]} expected" if kind in expected else ""
        lines.append(f"{kind.replace('_', ' ')}: {value}{wanted}")
    return lines


def _verdict(engine: Engine) -> list[str]:
    """How many findings are open; nothing before the rules ran."""
    verdict = engine.verdict
    if verdict.looked_at is None:
        return []
    failing = f"; {len(verdict.failing_rules)} rules failed" if verdict.failing_rules else ""
    return [f"open findings: {len(verdict.findings) or 'none'}{failing}"]


def _finding(finding: Finding, now: float) -> FindingStatus:
    code = CODES[finding.code]
    detail = f": {finding.detail}" if finding.detail else ""
    return FindingStatus(
        severity=finding.severity,
        title=f"{code.title}{detail}",
        part=finding.component.words,
        age_seconds=max(0.0, now - finding.since),
        causes=[f"{CODES[cause.code].title}: {cause.component.words}" for cause in finding.causes],
        next_step=CODES[finding.causes[0].code if finding.causes else finding.code].next_step,
    )


def _collector(collector: Collector, now: float) -> CollectorStatus:
    errors = [f"{one.device} {one.detail}".strip() for one in sorted(collector.failing, key=lambda one: one.device)]
    return CollectorStatus(
        name=collector.name,
        success=not collector.failing if collector.attempted else None,
        age_seconds=None if collector.last_success is None else max(0.0, now - collector.last_success),
        interval_seconds=collector.current_interval,
        last_error="; ".join(errors[:3]),
    )

"""Which of the alerts that matter most can fire on this node now, and from when the others can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from commwatch.config.settings import Config
from commwatch.config.thresholds import Thresholds
from commwatch.findings.api_documents import ProbeRecord
from commwatch.probes.results.level import FEWEST
from commwatch.probes.schedule import BURST_SECONDS, TRY_AGAIN_SECONDS
from commwatch.units import clock
from commwatch_exporters.node.model import Gpu, Inventory, Node, NvLink, Probe
from commwatch_exporters.state_words import RDMA_ACTIVE


@dataclass(frozen=True, slots=True)
class HeadlineAlert:
    name: str
    verdict: Literal["ok", "not yet", "no effect"]
    """ok: it can; no effect: it cannot, as the node is set up."""
    detail: str
    """The basis of the alert, or the missing data and the time from which it exists; times are UTC."""


def headline_alerts(
    node: Node, probes: Sequence[ProbeRecord], config: Config, thresholds: Thresholds
) -> list[HeadlineAlert]:
    """Parts that must be seen first, then what the probe that runs most often has results for."""
    return [*_of_parts(node), *_of_probes(node, probes, config, thresholds)]


def _of_parts(node: Node) -> Iterable[HeadlineAlert]:
    expected_gpus = [parts for parts, _ in node.each(Inventory.expected) if parts.kind == "gpu"]
    gpus = [gpu for gpu, state in node.each(Gpu.state) if state == 0]
    links = [link for link, _ in node.each(NvLink.state) if link.is_up]
    widths = [gpu for gpu, _ in node.each(Gpu.pcie_width_lanes)]
    ports = [port for port in node.rdma_ports if port.state == RDMA_ACTIVE]
    for alert, words, count, unlearned in (
        ("CommwatchGpuLost", "GPUs", len(gpus), 0 if expected_gpus else len(gpus)),
        ("CommwatchNvlinkDown", "NVLinks", len(links), sum(link.expected != 1 for link in links)),
        ("CommwatchPcieWidthDropped", "GPUs with their lanes", len(widths),
         sum(gpu.pcie_width_expected_lanes is None for gpu in widths)),
        ("CommwatchRdmaPortDown", "RDMA ports", len(ports), sum(port.expected != 1 for port in ports)),
    ):  # fmt: skip
        if unlearned:
            yield HeadlineAlert(alert, "not yet", f"{unlearned} of {count} {words} are not expected yet")
        elif count:
            yield HeadlineAlert(alert, "ok", f"{count} {words} are expected")


def _of_probes(
    node: Node, records: Sequence[ProbeRecord], config: Config, thresholds: Thresholds
) -> Iterable[HeadlineAlert]:
    names = ("CommwatchProbeLatencyStreak", "CommwatchProbeBandwidthLow", "CommwatchProbeErrorRateRise")
    if not config.probes.enabled or config.probes.gate == "off":
        yield from (HeadlineAlert(name, "no effect", "probes are off (probes.enabled, probes.gate)") for name in names)
        return
    definitions = config.probes.definitions
    judged = [probe for probe, _, _ in node.each_keyed(Probe.latency_judged_by) if probe.name in definitions]
    if not judged:
        yield from (HeadlineAlert(name, "no effect", "no probe of a collective is defined") for name in names)
        return
    probe = min(judged, key=lambda one: (float(definitions[one.name].interval), one.name))
    record = next((one for one in records if one.name == probe.name), None)
    course = _Course(probe, record, float(definitions[probe.name].interval))
    yield HeadlineAlert(names[0], *_latency(course, thresholds))
    yield HeadlineAlert(names[1], *_bandwidth(course))
    yield HeadlineAlert(names[2], *_error_rate(course, thresholds))


@dataclass(frozen=True, slots=True)
class _Course:
    """A probe with its plan."""

    probe: Probe
    record: ProbeRecord | None
    interval: float

    @property
    def by(self) -> str:
        """The reference for its latency, or the reason why there is none."""
        return next(iter(self.probe.latency_judged_by), "no_result")

    @property
    def attempts(self) -> float:
        """That came to a result or a failure."""
        return self.probe.attempts or 0.0

    def of_attempt(self, number: int, done: float) -> str:
        """When an attempt is due on a free node; the first ones of a probe that runs often follow each other soon."""
        if self.record is None or self.record.next_run_at is None:
            return " is not planned"
        step = BURST_SECONDS if BURST_SECONDS < self.interval <= TRY_AGAIN_SECONDS else self.interval
        return f" about {clock(self.record.next_run_at + max(0.0, number - done - 1) * step)} on a free node"

    @property
    def nothing_yet(self) -> str:
        """Why there is no result, and when there may be one."""
        skipped = f"; last left out: {self.record.skip_reason}" if self.record and self.record.skip_reason else ""
        return f"{self.probe.name} has no result that counts: the next one{self.of_attempt(1, 0)}{skipped}"


def _latency(course: _Course, thresholds: Thresholds) -> tuple[Literal["ok", "not yet"], str]:
    first = thresholds.probe_baseline_results_first
    good = course.attempts - sum(count or 0.0 for count in course.probe.failures.values())
    baseline = f"a baseline from result {first} on,{course.of_attempt(first, good)}"
    if course.by == "no_result":
        return "not yet", f"{course.nothing_yet}; {baseline}"
    if course.by == "too_few_results":
        return "not yet", f"{course.probe.name} has no absolute mark, and too few results: {baseline}"
    if course.by == "published":
        return "ok", f"{course.probe.name} is compared with the published latency; {baseline}"
    if course.by == "mark":
        return "ok", f"{course.probe.name} is compared with the mark of its path; {baseline}"
    return "ok", f"{course.probe.name} is compared with its baseline"


def _bandwidth(course: _Course) -> tuple[Literal["ok", "not yet", "no effect"], str]:
    if course.by == "no_result":
        return "not yet", course.nothing_yet
    source, name = course.probe.expected_source, course.probe.name
    if course.probe.bandwidth_utilization_ratio is None:
        return "no effect", f"{name} has no expected bandwidth: set expected_bandwidth"
    if source == "model":
        return "ok", (
            f"{name} is compared with a model, until {FEWEST} good results over a day are learned or "
            "expected_bandwidth is set"
        )
    return "ok", f"{name} has an expected bandwidth ({source})"


def _error_rate(course: _Course, thresholds: Thresholds) -> tuple[Literal["ok", "not yet"], str]:
    fewest = thresholds.probe_error_rate_attempts_min
    if course.attempts >= fewest:
        return "ok", f"{course.probe.name} has been tried {course.attempts:g} times since the daemon started"
    due = course.of_attempt(fewest, course.attempts)
    return "not yet", f"{course.probe.name} is judged from attempt {fewest} on,{due}; {course.attempts:g} so far"

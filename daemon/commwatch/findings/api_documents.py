"""What /api/v1 and the control socket answer: findings and snapshot as versioned JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from commwatch.findings.code import Role
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Cause, Component, Evidence, Finding, Severity
from commwatch.findings.register import Closed
from commwatch.findings.score.records import Score
from commwatch.findings.verdict import UnreadSource, Verdict
from commwatch.jobs.settings.records import AuditRecord
from commwatch.state.records import Timestamp
from commwatch_exporters.catalogue import CATALOGUE, MetricType
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value

if TYPE_CHECKING:
    from commwatch_exporters.node_page.records import ProbeStatus  # commands need no endpoint

FINDINGS_SCHEMA: Literal["commwatch-findings/1"] = "commwatch-findings/1"
PROBES_SCHEMA: Literal["commwatch-probes/1"] = "commwatch-probes/1"
SCORE_SCHEMA: Literal["commwatch-score/1"] = "commwatch-score/1"
SETTINGS_SCHEMA: Literal["commwatch-settings/1"] = "commwatch-settings/1"
SNAPSHOT_SCHEMA: Literal["commwatch-snapshot/1"] = "commwatch-snapshot/1"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of the daemon that answers."""

    version: str
    """Of commwatch."""
    time: Timestamp
    """Of the answer, seconds since 1970."""
    simulated: str | None
    """The simulated node; None on a real one."""
    maintenance: str | None
    """Why the daemon is paused; None where it is not. What holds a driver is not read then."""


class ComponentRecord(msgspec.Struct, frozen=True):
    """What a finding is about."""

    kind: str
    key: str
    name: str
    identity: str
    """Value of the label ``component``."""
    parts: tuple[str, ...]

    @property
    def component(self) -> Component:
        """As the rules have it."""
        return Component(self.kind, self.key, self.name, frozenset(self.parts))  # type: ignore[arg-type]  # a kind of a later version is kept


class CauseRecord(msgspec.Struct, frozen=True):
    """A fault that explains a finding."""

    code: str
    title: str
    severity: Severity
    component: ComponentRecord
    weight: float
    reason: str
    detail: str
    evidence: tuple[Evidence, ...]
    next_step: str
    alert: str
    last_seen: Timestamp | None
    seen_seconds: float = 0.0
    """As of a finding."""


class FindingRecord(msgspec.Struct, frozen=True):
    """An open finding with what its code says."""

    code: str
    title: str
    severity: Severity
    role: Role
    component: ComponentRecord
    since: Timestamp
    """Seconds since 1970."""
    last_seen: Timestamp | None
    """Last evaluation at which a rule matched it, seconds since 1970: older than ``looked_at`` where it is not read or
    about to close."""
    detail: str
    evidence: tuple[Evidence, ...]
    causes: tuple[CauseRecord, ...]
    meaning: str
    next_step: str
    alert: str
    also_seen: tuple[CauseRecord, ...] = ()
    seen_seconds: float = 0.0
    """Time up to ``last_seen`` over which each evaluation matched it."""

    @property
    def lead(self) -> FindingRecord | CauseRecord:
        """What every face names first: the likeliest cause, unless the finding is a fault itself."""
        return self.causes[0] if self.role != "fault" and self.causes else self


class ClosedRecord(msgspec.Struct, frozen=True):
    """A critical or warning finding of the last day that is not open any more."""

    code: str
    title: str
    severity: Severity
    component: ComponentRecord
    since: Timestamp
    """Seconds since 1970."""
    until: Timestamp
    """When it was gone; of an event, when its part read healthy again and nothing more happened."""
    evidence: tuple[Evidence, ...]
    note: str = ""
    """Why it is closed, where that does not mean that the part is well: ``no longer measured``."""


class FindingsDocument(About, frozen=True, kw_only=True):
    """Answer of ``/api/v1/findings`` and of the control operation ``findings``."""

    schema: Literal["commwatch-findings/1"] = FINDINGS_SCHEMA
    thresholds: str
    """Digest of the thresholds in force."""
    looked_at: Timestamp | None
    """When the rules ran last, seconds since 1970; None before the first time."""
    failing_rules: tuple[str, ...]
    """Rules that raised at the last evaluation: what they match is not known."""
    findings: tuple[FindingRecord, ...]
    """Most severe first."""
    has_gpus: bool = True
    """Whether any GPU is known."""
    verdict: Verdict | None = None
    """At the time of the answer; None of a daemon of an earlier version."""
    is_inventory_known: bool = True
    """Whether the number of GPUs was configured, accepted or is that of a board; False: learned, or not known yet."""
    unanswered: tuple[str, ...] = ()
    """Collectors that had no answer in time while the node was starved of CPU or memory: they are not judged."""
    closed: tuple[ClosedRecord, ...] = ()
    """Of the last day, the latest first."""
    unread: tuple[UnreadSource, ...] = ()
    """Sources of this node without a current reading."""


class ScoreDocument(About, frozen=True, kw_only=True):
    """Answer of the control operation ``score``."""

    schema: Literal["commwatch-score/1"] = SCORE_SCHEMA
    thresholds: str
    """Digest of the thresholds in force."""
    looked_at: Timestamp | None
    """When the metrics that it is made of were looked at, seconds since 1970; None before the first time."""
    score: Score
    verdict: Verdict | None = None
    """Of the node, as ``FindingsDocument`` has it."""


class ProbeRecord(msgspec.Struct, frozen=True):
    """What a probe gave last, and when it runs next."""

    name: str
    backend: str
    last_result: str
    """In words, with units; empty where there is none that is young enough."""
    last_completion_at: Timestamp | None
    """Of the last result, seconds since 1970; None where there was none."""
    next_run_at: Timestamp | None
    """Seconds since 1970; None where nothing is planned."""
    skip_reason: str
    """Why its last turn was left out; empty if it was not."""


class ProbesDocument(About, frozen=True, kw_only=True):
    """Answer of ``/api/v1/probes`` and of the control operation ``probes``: what no metric says of the probes."""

    schema: Literal["commwatch-probes/1"] = PROBES_SCHEMA
    probes: tuple[ProbeRecord, ...]


class SeriesRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One series."""

    labels: dict[str, str]
    value: float | None
    """None for a number that is not finite."""
    name: str = ""
    """Of the series, where it is not that of the metric: those of a histogram."""


class SettingsDocument(About, frozen=True, kw_only=True):
    """Answer of the control operation ``settings``: what the last audit of NCCL settings said, without their values."""

    schema: Literal["commwatch-settings/1"] = SETTINGS_SCHEMA
    audited_at: Timestamp | None
    """When, seconds since 1970; None where the processes on the GPUs are not known now, or were not audited yet."""
    audit: AuditRecord | None


class MetricRecord(msgspec.Struct, frozen=True):
    """One metric with all its series."""

    name: str
    type: MetricType
    unit: str
    series: tuple[SeriesRecord, ...]


class SnapshotDocument(About, frozen=True, kw_only=True, dict=True):
    """Answer of ``/api/v1/snapshot`` and of the control operation ``snapshot``.

    It gives what the rules read, so that a command can run them on it.
    """

    schema: Literal["commwatch-snapshot/1"] = SNAPSHOT_SCHEMA
    metrics: tuple[MetricRecord, ...]

    @cached_property
    def node(self) -> Node:
        """The node as it was then; what a daemon of another version has otherwise is left out."""
        values: dict[Series, Value] = {}
        for metric in self.metrics:
            known = CATALOGUE.get(metric.name)
            if known is not None and known.type != "histogram":
                for one in metric.series:
                    if one.labels.keys() >= set(known.labels):
                        values[metric.name, tuple([one.labels[name] for name in known.labels])] = one.value
        return Node(Snapshot([Block(Layout(values), tuple(values.values()), 0.0)]))


def probe_record(status: ProbeStatus, now: float) -> ProbeRecord:
    """A probe as the document has it.

    Args:
        status: of that time.
        now: seconds since 1970.
    """
    age, left = status.age_seconds, status.next_run_seconds
    return ProbeRecord(
        name=status.name,
        backend=status.backend,
        last_result=status.last_result,
        last_completion_at=None if age is None else now - age,
        next_run_at=None if left is None else now + left,
        skip_reason=status.skip_reason,
    )


LastSeen: TypeAlias = Mapping[tuple[str, str], float]
"""By code and identity of the component: when it was seen last, seconds since 1970."""


def finding_record(finding: Finding, last_seen: LastSeen) -> FindingRecord:
    """An open finding with the words of its code."""
    code = CODES[finding.code]
    return FindingRecord(
        code=finding.code,
        title=code.title,
        severity=finding.severity,
        role=code.role,
        component=_component(finding.component),
        since=finding.since,
        last_seen=last_seen.get(finding.key),
        detail=finding.detail,
        evidence=finding.evidence,
        causes=tuple(_cause(cause, last_seen) for cause in finding.causes),
        meaning=code.meaning,
        next_step=code.next_step,
        alert=code.alert,
        also_seen=tuple(_cause(cause, last_seen) for cause in finding.also_seen),
        seen_seconds=finding.seen_seconds,
    )


def closed_record(closed: Closed) -> ClosedRecord:
    """A finding that was closed, with the words of its code."""
    seen = closed.match
    code = CODES[seen.code]
    return ClosedRecord(
        seen.code, code.title, code.severity, _component(seen.component), closed.since, closed.until, seen.evidence,
        closed.note,
    )  # fmt: skip


def _cause(cause: Cause, last_seen: LastSeen) -> CauseRecord:
    code = CODES[cause.code]
    return CauseRecord(
        code=cause.code,
        title=code.title,
        severity=code.severity,
        component=_component(cause.component),
        weight=cause.weight,
        reason=cause.reason,
        detail=cause.detail,
        evidence=cause.evidence,
        next_step=code.next_step,
        alert=code.alert,
        last_seen=last_seen.get((cause.code, cause.component.identity)),
        seen_seconds=cause.seen_seconds,
    )


def _component(component: Component) -> ComponentRecord:
    return ComponentRecord(
        component.kind, component.key, component.name, component.identity, tuple(sorted(component.parts))
    )


def metric_records(snapshot: Snapshot) -> tuple[MetricRecord, ...]:
    """All exposed series, in the order of the catalogue."""
    records = []
    for name, metric in CATALOGUE.items():
        if series := tuple(_series(snapshot, name)):
            records.append(MetricRecord(name, metric.type, metric.unit, series))
    return tuple(records)


def _series(snapshot: Snapshot, family: str) -> Iterable[SeriesRecord]:
    names = CATALOGUE[family].labels
    for block in snapshot.family_blocks(family):
        for position in block.layout.families[family]:
            value = block.values[position]
            if value is None:
                continue
            name, labels = block.layout.series[position]
            with_le = (*names, "le") if name == f"{family}_bucket" else names
            yield SeriesRecord(dict(zip(with_le, labels, strict=True)), value, "" if name == family else name)

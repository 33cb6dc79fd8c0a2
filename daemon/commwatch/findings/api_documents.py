"""Documents of /api/v1 and the control socket: findings and snapshot as versioned JSON."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

import msgspec

from commwatch.findings.codes import CODES
from commwatch.findings.finding import Cause, ComponentRecord, Evidence, Finding, Severity
from commwatch.findings.register import Closed
from commwatch.findings.score.records import Score
from commwatch.findings.verdict import UnreadSource, Verdict
from commwatch.jobs.evidence import SuspectedJob
from commwatch.jobs.settings.records import AuditRecord
from commwatch.state.records import Timestamp
from commwatch_exporters.catalogue import CATALOGUE, MetricType
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value

FINDINGS_SCHEMA: Literal["commwatch-findings/1"] = "commwatch-findings/1"
JOBS_SCHEMA: Literal["commwatch-jobs/1"] = "commwatch-jobs/1"
PROBES_SCHEMA: Literal["commwatch-probes/1"] = "commwatch-probes/1"
SCORE_SCHEMA: Literal["commwatch-score/1"] = "commwatch-score/1"
SETTINGS_SCHEMA: Literal["commwatch-settings/1"] = "commwatch-settings/1"
SNAPSHOT_SCHEMA: Literal["commwatch-snapshot/1"] = "commwatch-snapshot/1"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the answering daemon."""

    version: str
    """Of commwatch."""
    time: Timestamp
    """Of the answer, seconds since 1970."""
    simulated: str | None
    """The simulated node; None on a real one."""
    maintenance: str | None
    """The reason why the daemon is paused; None if it is not. Sources that hold a driver are not read then."""


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
    findings: tuple[Finding, ...]
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
    """Sources of this node without a current reading, those that list its parts first."""

    @property
    def grave(self) -> list[Finding]:
        """The findings that require action."""
        return [one for one in self.findings if one.severity != "info"]

    @property
    def faults(self) -> tuple[Finding | Cause, ...]:
        """Findings, then the causes below them, each once."""
        causes = {cause.key: cause for one in self.findings for cause in one.causes}
        return (*self.findings, *causes.values())

    @property
    def unread_words(self) -> str:
        """The reason why some parts have no current values; empty if all sources are read."""
        if not self.unread:
            return ""
        first, *others = self.unread
        return f"{first.words}; and {len(others)} more" if others else first.words


class ScoreDocument(About, frozen=True, kw_only=True):
    """Answer of the control operation ``score``."""

    schema: Literal["commwatch-score/1"] = SCORE_SCHEMA
    thresholds: str
    """Digest of the thresholds in force."""
    looked_at: Timestamp | None
    """Time of the evaluation of the underlying metrics, seconds since 1970; None before the first one."""
    score: Score
    verdict: Verdict | None = None
    """Of the node, as ``FindingsDocument`` has it."""


class ProbeRecord(msgspec.Struct, frozen=True):
    """A probe's last result and its next run."""

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
    """Answer of ``/api/v1/probes`` and of the control operation ``probes``: facts about the probes that no metric
    has."""

    schema: Literal["commwatch-probes/1"] = PROBES_SCHEMA
    probes: tuple[ProbeRecord, ...]


class SeriesRecord(msgspec.Struct, frozen=True, omit_defaults=True):
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


class JobsDocument(About, frozen=True, kw_only=True):
    """Answer of the control operation ``jobs``: the processes of the jobs that move no data, which no metric names."""

    schema: Literal["commwatch-jobs/1"] = JOBS_SCHEMA
    jobs: tuple[SuspectedJob, ...]
    others: tuple[int, ...] = ()
    """Processes on the GPUs that are of none of them."""


class MetricRecord(msgspec.Struct, frozen=True):
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


def closed_record(closed: Closed) -> ClosedRecord:
    """A finding that was closed, with the words of its code."""
    seen = closed.match
    code = CODES[seen.code]
    return ClosedRecord(
        seen.code, code.title, code.severity, seen.component.record, closed.since, closed.until, seen.evidence,
        closed.note,
    )  # fmt: skip


def metric_records(snapshot: Snapshot) -> tuple[MetricRecord, ...]:
    """All exposed series, in the order of the catalogue."""
    records = []
    for name, metric in CATALOGUE.items():
        if series := tuple(_series(snapshot, name)):
            records.append(MetricRecord(name, metric.type, metric.unit, series))
    return tuple(records)


def _series(snapshot: Snapshot, family: str) -> Iterable[SeriesRecord]:
    metric = CATALOGUE[family]
    for block in snapshot.family_blocks(family):
        for position in block.layout.families[family]:
            value = block.values[position]
            if value is None:
                continue
            name, labels = block.layout.series[position]
            named = dict(zip(metric.labels_of(name), labels, strict=True))
            yield SeriesRecord(named, value, "" if name == family else name)

"""A full scan: every probe is run by hand, suspicious ones are repeated, and the rules are evaluated on the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
import structlog

from commwatch.config.settings import Config, Probe
from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.known import OWN_FAILURES, Known, Stress, ask
from commwatch.diagnosis.stress_run import run_stress
from commwatch.errors import CommwatchError, StateError
from commwatch.findings.api_documents import MetricRecord, SeriesRecord, SnapshotDocument, metric_records
from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Cause, Component, Evidence, Finding, Match
from commwatch.findings.register import Incident
from commwatch.findings.rules import pairs, probe
from commwatch.findings.rules.components import probe_of
from commwatch.findings.rules.gpu_ways import all_parts, gpus_of
from commwatch.findings.score.score import score_of
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.by_hand.answer import Answer
from commwatch.probes.by_hand.cycles import run_cycles
from commwatch.probes.by_hand.pair_matrix import of_measure
from commwatch.probes.plan import CyclePlan, Failed, Measured, Skipped
from commwatch.probes.prospect import Prospect
from commwatch.probes.results.history import Conditions, ProbeHistory
from commwatch.probes.results.pair_record import PairHistory, PairRecord
from commwatch.probes.results.record import ProbeRecord, Reading
from commwatch.state.client import DaemonAbsent
from commwatch.state.directory import state_path
from commwatch.state.records import read_record
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node import model
from commwatch_exporters.node.parts import KIND_OF
from commwatch_exporters.snapshot import Block, Layout, Snapshot

log = structlog.get_logger("commwatch.diagnosis")

MOST_READINGS = 3
"""Most runs of one suspicious probe: three in a row make a streak."""

PATIENT_SECONDS = 10.0
"""For the daemon's answers: what was measured in minutes must not be lost to a busy second."""

_History = TypeVar("_History", bound=ProbeHistory)

_SLOW_TO_FAIL = frozenset({"rendezvous_timeout", "setup_timeout", "measure_timeout", "stuck", "internal"})
"""Failures that are not tried again: each takes a deadline, or leaves a process in the kernel."""

_RULES = (*pairs.PAIRS.rules, *probe.PROBE.rules)
_PAIR_CODES = frozenset(code.name for code in pairs.PAIRS.codes)
_COUNTED = frozenset({"probe_error_rate_rise", "probe_wrong_result", "probe_starved"})
"""Findings counted over hours are kept as the daemon has them; that a probe is failing ends with its first result."""
_PROBE_CODES = frozenset(code.name for code in probe.PROBE.codes) - _COUNTED

_OF_NOW = ("gauge", "info")
"""Types of metrics that do not count from the start of the daemon."""


@dataclass(frozen=True, slots=True)
class FreshProbe:
    """One probe of a scan, measured once or several times, compared with what the daemon has measured before."""

    name: str
    backend: str
    answers: tuple[Answer, ...]
    """Of each time, the oldest first."""
    bad: tuple[bool, ...]
    """Of each: whether it failed, or was slow or low."""
    readings: tuple[Reading, ...] = ()
    """The series that the daemon would expose after these; empty where nothing was measured."""
    matrix: PairMatrix | None = None
    """Of pairs: the last one, with what three in a row have in common."""
    comparable: bool = True
    """Whether it was measured as the daemon measures it: the same GPUs, sizes and versions."""

    @property
    def conclusive(self) -> tuple[tuple[Answer, bool], ...]:
        """The meaningful answers, each with whether it was bad: not those that were skipped or yielded."""
        both = zip(self.answers, self.bad, strict=True)
        return tuple((answer, bad) for answer, bad in both if isinstance(answer.result, Measured | Failed))

    @property
    def measured(self) -> bool:
        """Whether the last of these gave a result."""
        return bool(self.conclusive) and isinstance(self.conclusive[-1][0].result, Measured)

    @property
    def last_at(self) -> float:
        """When the last time ended, seconds since 1970."""
        return self.answers[-1].result.finished_at

    @property
    def bad_in_a_row(self) -> tuple[Answer, ...]:
        """The last ones that were bad, the oldest first; empty where the last one was well."""
        found: list[Answer] = []
        for answer, bad in reversed(self.conclusive):
            if not bad:
                break
            found.insert(0, answer)
        return tuple(found)

    @property
    def first_bad_at(self) -> float:
        """When the first of them ended, seconds since 1970; without any, the last time."""
        return self.bad_in_a_row[0].result.finished_at if self.bad_in_a_row else self.last_at

    @property
    def seen(self) -> str:
        """How a fault that it shows was seen: ``seen by this scan, 3 times in a row``."""
        times = len(self.bad_in_a_row)
        if times > 1:
            return f"seen by this scan, {times} times in a row"
        return "seen by this scan, in a single reading: no streak"


@dataclass
class _Course:
    """The cycles of one probe in a scan, over the daemon's past of it."""

    record: ProbeRecord
    conditions: Conditions | None
    """Of the daemon's results."""
    answers: list[Answer] = field(default_factory=list)
    bad: list[bool] = field(default_factory=list)


class Scan:
    def __init__(self, config: Config, thresholds: Thresholds) -> None:
        self._state = state_path(config)
        self._thresholds = thresholds
        self._courses: dict[str, _Course] = {}

    def took(self, name: str, probe: Probe, prospect: Prospect, answer: Answer) -> None:
        """Judge a cycle by the daemon's past of this probe."""
        if name not in self._courses:
            record = _record(self._state, prospect.plan, probe, self._thresholds)
            self._courses[name] = _Course(record, record.history.conditions)
        course, result = self._courses[name], answer.result
        record, is_bad = course.record, False
        if isinstance(result, Measured | Failed):
            record.take(result, time.time(), prospect)
            is_bad = record.suspicious or answer.is_bad
            if isinstance(record, PairRecord):
                is_bad = is_bad or answer.verdict == "below model" or bool(record.suspects(time.time()))
        course.answers.append(answer)
        course.bad.append(is_bad)

    def again(self) -> Collection[str]:
        """The probes with suspicious results that have run fewer than three times."""
        return [name for name, course in self._courses.items() if self._wants_another(course)]

    @staticmethod
    def _wants_another(course: _Course) -> bool:
        result = course.answers[-1].result
        if len(course.answers) >= MOST_READINGS:
            return False
        if isinstance(result, Skipped):
            return result.reason == "probe_running"  # a cycle of the daemon, which is over soon
        # One that was bad once is measured until it is well, or bad three times in a row.
        return course.bad[-1] and not (isinstance(result, Failed) and result.reason in _SLOW_TO_FAIL)

    def fresh(self) -> tuple[FreshProbe, ...]:
        return tuple(self._fresh(name, course) for name, course in self._courses.items())

    @staticmethod
    def _fresh(name: str, course: _Course) -> FreshProbe:
        record, conditions = course.record, course.conditions
        measured = any(isinstance(one.result, Measured) and not one.shares_gpus for one in course.answers)
        return FreshProbe(
            name=name,
            backend=record.history.backend,
            answers=tuple(course.answers),
            bad=tuple(course.bad),
            readings=tuple(record.readings(time.time())) if measured else (),
            matrix=record.last_matrix if measured and isinstance(record, PairRecord) else None,
            comparable=conditions is None or conditions == record.history.conditions,
        )


Alone: TypeAlias = Callable[[Config, Thresholds], Known]
"""Reads and judges a node on which no daemon runs."""


@dataclass(frozen=True, slots=True)
class Scope:
    gpus: Sequence[int] = ()
    """NVML indexes of the GPUs to use; empty: those that the probes name."""
    ignore_scheduler: bool = False
    """The operator says that the node is theirs."""
    stress: float | None = None
    """Seconds for which the GPUs are loaded afterwards; None: they are not."""


def full_scan(config: Config, thresholds: Thresholds, alone: Alone, scope: Scope) -> Known:
    """Run every probe that is configured, and pairs in any case; then ask the daemon, and put both together.

    Without a daemon the node is read before, and all is as it would be with one that has just begun.

    Args:
        alone: reads and judges the node where no daemon runs.
        scope: what may be used.

    Raises:
        CommwatchError: the daemon does not answer at the start, the driver cannot be read, or the command was
            interrupted.
    """
    try:
        before = ask(config, thresholds, PATIENT_SECONDS)
    except DaemonAbsent:
        known = alone(config, thresholds)
        run, fresh = _measured(config, thresholds, scope)
        return replace(with_scan(known, fresh), stress=run)
    run, fresh = _measured(config, thresholds, scope)
    try:
        known = ask(config, thresholds, PATIENT_SECONDS)
    except CommwatchError as error:
        log.warning("the daemon does not answer any more: what it knew before the scan is shown", error=str(error))
        known = replace(before, lost=str(error))
    return replace(with_scan(known, fresh), stress=run)


def _measured(
    config: Config, thresholds: Thresholds, scope: Scope
) -> tuple[Stress | None, tuple[FreshProbe, ...]]:  # fmt: skip
    scan, run = Scan(config, thresholds), None
    probes = dict(config.probes.definitions) | of_measure(config, "pairs")
    run_cycles(config, probes, gpus=scope.gpus, ignore_scheduler=scope.ignore_scheduler, follower=scan)
    if scope.stress is not None:
        run = run_stress(
            config, thresholds, scope.stress, gpus=scope.gpus, ignore_scheduler=scope.ignore_scheduler
        )  # fmt: skip
    return run, scan.fresh()


def _record(state: Path, plan: CyclePlan, probe: Probe, thresholds: Thresholds) -> ProbeRecord:
    """The record of a probe with the daemon's past; without one, or of another backend, it begins here."""
    file = state / f"probe-{plan.probe}.json"
    record: ProbeRecord
    if plan.measure == "pairs":
        record = PairRecord(plan, probe, thresholds, _read(file, PairHistory))
        return PairRecord(plan, probe, thresholds) if record.other_backend else record
    record = ProbeRecord(plan, probe, thresholds, _read(file, ProbeHistory))
    return ProbeRecord(plan, probe, thresholds) if record.other_backend else record


def _read(file: Path, kind: type[_History]) -> _History | None:
    """A record of the daemon, if it can be read; nothing is set aside here."""
    try:
        return read_record(file, kind)
    except StateError:
        return None


# --- the findings after it ---


def with_scan(known: Known, fresh: Sequence[FreshProbe]) -> Known:
    """The known facts with the results of a scan's probes."""
    matrix = next((one.matrix for one in fresh if one.matrix is not None), None)
    measured = replace(known, snapshot=overlaid(known.snapshot, fresh))
    findings = _findings(measured, fresh)
    later = [one for one in known.findings.findings if one.code not in CODES]
    score = known.score
    judged_again = [one.comparable for one in fresh if one.measured]
    if judged_again and all(judged_again):  # of some of the GPUs it is no score of the node
        own = score_of(measured.facts, known.thresholds, findings, before=score.score)
        score = msgspec.structs.replace(score, score=own)
    return replace(
        measured,
        findings=msgspec.structs.replace(known.findings, findings=(*findings, *later)),
        score=score,
        matrix=matrix or known.matrix,
        scanned=tuple(answer for one in fresh for answer in one.answers),
    )


def _findings(known: Known, fresh: Sequence[FreshProbe]) -> list[Finding]:
    """The daemon's but for those that the scan has judged again, and the scan's; most severe first.

    Args:
        known: with the fresh values in its snapshot.
    """
    open_before = _flat([one for one in known.findings.findings if one.code in CODES])
    standing = {key: one for key, one in open_before.items() if not _judged_again(known.facts, one, fresh)}
    for match, by in _matches(known.facts, known.thresholds, fresh):
        incident = _incident(match, by, open_before.get((match.code, match.component.identity)))
        standing[incident.key] = incident
    return join(standing.values())


def _flat(findings: Iterable[Finding]) -> dict[tuple[str, str], Incident]:
    """All open findings, causes included; a cause has no duration of its own and gets that of its symptom."""
    found: dict[tuple[str, str], Incident] = {}
    for finding in findings:
        known_causes = [cause for cause in finding.causes if cause.code in CODES]
        together: list[Finding | Cause] = [finding, *known_causes]
        for one in together:
            match = Match(one.code, one.component.component, one.evidence, one.detail)
            last_seen = finding.since if one.last_seen is None else one.last_seen
            incident = Incident(match, finding.since, last_seen, one.seen_seconds, is_open=True)
            known = found.get(incident.key)
            if known is None or incident.first_seen < known.first_seen:
                found[incident.key] = incident
    return found


def _judged_again(facts: Facts, finding: Incident, fresh: Iterable[FreshProbe]) -> bool:
    """Whether the scan would have seen it if it were still so."""
    if finding.code in _PROBE_CODES:
        return any(one.name == finding.component.key and one.measured and one.comparable for one in fresh)
    if finding.code not in _PAIR_CODES:
        return False
    matrix = next((one.matrix for one in fresh if one.matrix is not None), None)
    if matrix is None:
        return False
    scanned = {end.pci_address for end in matrix.endpoints}
    if scanned >= set(facts.derived(gpus_of).values()):
        return True
    return finding.component.kind == "pair" and scanned >= set(finding.component.key.split("-"))


def _matches(facts: Facts, thresholds: Thresholds, fresh: Iterable[FreshProbe]) -> Iterator[tuple[Match, FreshProbe]]:
    by_probe = {one.name: one for one in fresh if one.measured}
    matrix = next((one for one in fresh if one.matrix is not None), None)
    for match in (one for rule in _RULES for one in rule.evaluate(facts, thresholds)):
        by = matrix if match.code in _PAIR_CODES else by_probe.get(match.component.key)
        if by is not None:
            yield match, by
    for one in fresh:
        yield from ((match, one) for match in _of_failures(facts, thresholds, one))


def _of_failures(facts: Facts, thresholds: Thresholds, one: FreshProbe) -> Iterator[Match]:
    """Failures in this scan alone: wrong results count at once, other failures as a streak."""
    results = [answer.result for answer, _ in one.conclusive]
    failed = [result for result in results if isinstance(result, Failed) and result.reason not in OWN_FAILURES]
    if wrong := sum(result.reason == "wrong_result" for result in failed):
        yield Match("probe_wrong_result", _component(facts, one), (Evidence("wrong results in this scan", wrong),))
    least = thresholds.probe_failure_streak
    if len(failed) == len(results) and len(failed) >= least:
        evidence = Evidence("failures in this scan, in a row", len(failed), "", least, "probe_failure_streak")
        yield Match("probe_failing", _component(facts, one), (evidence,), failed[-1].detail)


def _component(facts: Facts, one: FreshProbe) -> Component:
    return probe_of(facts.node.part(model.Probe, one.name, one.backend), facts.derived(all_parts))


def _incident(match: Match, by: FreshProbe, before: Incident | None) -> Incident:
    seen = f"{by.seen[0].upper()}{by.seen[1:]}" if before is None else "Seen again by this scan"
    detail = f"{match.detail}. {seen}" if match.detail else seen
    since = by.first_bad_at if before is None else before.first_seen
    return Incident(msgspec.structs.replace(match, detail=f"{detail}."), since, by.last_at, is_open=True)


def overlaid(snapshot: SnapshotDocument, fresh: Iterable[FreshProbe]) -> SnapshotDocument:
    """The snapshot as it would be had these been cycles of the daemon; counts and histograms stay the daemon's."""
    for one in fresh:
        if one.readings:
            snapshot = _with_probe(snapshot, one)
    return snapshot


def _with_probe(snapshot: SnapshotDocument, probe: FreshProbe) -> SnapshotDocument:
    values = {
        (metric, labels): value
        for metric, labels, value in probe.readings
        if metric in CATALOGUE and CATALOGUE[metric].type in _OF_NOW
    }
    new = {one.name: one for one in metric_records(Snapshot([Block(Layout(values), tuple(values.values()), 0.0)]))}
    kept = [
        msgspec.structs.replace(
            metric, series=(*_others(metric, probe), *(new.pop(metric.name).series if metric.name in new else ()))
        )
        for metric in snapshot.metrics
    ]
    return msgspec.structs.replace(snapshot, metrics=(*(metric for metric in kept if metric.series), *new.values()))


def _others(metric: MetricRecord, probe: FreshProbe) -> tuple[SeriesRecord, ...]:
    """The series of a metric that are not of the probe."""
    if metric.type not in _OF_NOW:
        return metric.series
    if probe.matrix is not None and KIND_OF.get(metric.name) in (model.Pair, model.Suspect):
        return ()
    return tuple(one for one in metric.series if one.labels.get("probe") != probe.name)

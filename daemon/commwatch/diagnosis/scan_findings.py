"""The findings after a full scan: the rules over the fresh values, with causes among what the daemon has open; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.outcomes import OWN_FAILURES
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
from commwatch.probes.plan import Failed, Measured
from commwatch.probes.results.record import Reading
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.node.model import Pair, Probe, Suspect
from commwatch_exporters.node.parts import KIND_OF
from commwatch_exporters.snapshot import Block, Layout, Snapshot

_RULES = (*pairs.PAIRS.rules, *probe.PROBE.rules)
_PAIR_CODES = frozenset(code.name for code in pairs.PAIRS.codes)
_COUNTED = frozenset({"probe_error_rate_rise", "probe_wrong_result", "probe_starved"})
"""What counts over hours stays as the daemon has it; that a probe is failing ends with its first result."""
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
    def told(self) -> tuple[tuple[Answer, bool], ...]:
        """The times that say something, and whether it was bad: not those that were skipped or gave way."""
        both = zip(self.answers, self.bad, strict=True)
        return tuple((answer, bad) for answer, bad in both if isinstance(answer.result, Measured | Failed))

    @property
    def measured(self) -> bool:
        """Whether the last of these gave a result."""
        return bool(self.told) and isinstance(self.told[-1][0].result, Measured)

    @property
    def last_at(self) -> float:
        """When the last time ended, seconds since 1970."""
        return self.answers[-1].result.finished_at

    @property
    def bad_in_a_row(self) -> tuple[Answer, ...]:
        """The last ones that were bad, the oldest first; empty where the last one was well."""
        found: list[Answer] = []
        for answer, bad in reversed(self.told):
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


def with_scan(known: Known, fresh: Sequence[FreshProbe]) -> Known:
    """What is known with the probes of a scan in it.

    Args:
        known: what the daemon knows after the scan.
        fresh: the probes.
    """
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
        fresh: the probes of the scan.
    """
    open_before = _flat([one for one in known.findings.findings if one.code in CODES])
    standing = {key: one for key, one in open_before.items() if not _judged_anew(known.facts, one, fresh)}
    for match, by in _matches(known.facts, known.thresholds, fresh):
        incident = _incident(match, by, open_before.get((match.code, match.component.identity)))
        standing[incident.key] = incident
    return join(standing.values())


def _flat(told: Iterable[Finding]) -> dict[tuple[str, str], Incident]:
    """All that is open, causes among it; how long a cause is open is not told, and it counts as long as its symptom."""
    found: dict[tuple[str, str], Incident] = {}
    for finding in told:
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


def _judged_anew(facts: Facts, finding: Incident, fresh: Iterable[FreshProbe]) -> bool:
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
    """What failed in this scan alone: something wrong that arrived at once, else failures in a row."""
    results = [answer.result for answer, _ in one.told]
    failed = [result for result in results if isinstance(result, Failed) and result.reason not in OWN_FAILURES]
    if wrong := sum(result.reason == "wrong_result" for result in failed):
        yield Match("probe_wrong_result", _component(facts, one), (Evidence("wrong results in this scan", wrong),))
    least = thresholds.probe_failure_streak
    if len(failed) == len(results) and len(failed) >= least:
        evidence = Evidence("failures in this scan, in a row", len(failed), "", least, "probe_failure_streak")
        yield Match("probe_failing", _component(facts, one), (evidence,), failed[-1].detail)


def _component(facts: Facts, one: FreshProbe) -> Component:
    return probe_of(facts.node.part(Probe, one.name, one.backend), facts.derived(all_parts))


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
    """The series of a metric that the probe says nothing of."""
    if metric.type not in _OF_NOW:
        return metric.series
    if probe.matrix is not None and KIND_OF.get(metric.name) in (Pair, Suspect):
        return ()
    return tuple(one for one in metric.series if one.labels.get("probe") != probe.name)

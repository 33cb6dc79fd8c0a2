"""The verdict of the daemon: evaluates the rules on its own metrics, keeps open findings, and reports them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import structlog

from commwatch.config.thresholds import Thresholds
from commwatch.findings.api_documents import FindingsDocument, closed_record
from commwatch.findings.causes import join
from commwatch.findings.codes import CODES, next_step_of
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Finding, Match, format_evidence
from commwatch.findings.history import CounterHistory
from commwatch.findings.job_evidence import with_job_evidence
from commwatch.findings.measured import measured_of, well_at
from commwatch.findings.profile import profile_readings
from commwatch.findings.register import Change, Incident, Register, counted_over, is_counted
from commwatch.findings.repaired import reads_healthy
from commwatch.findings.rule_engine import RuleEngine
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.findings.score.records import Score
from commwatch.findings.score.score import readings_of, score_of
from commwatch.findings.verdict import UnreadSource, verdict_of
from commwatch.jobs.evidence import JobEvidence
from commwatch.node.store import Store
from commwatch.service.collection import Collection
from commwatch.service.instruments import Instruments
from commwatch.service.visibility import Observability
from commwatch_exporters.node.model import ExpectedParts, Pair, Probe, Suspect, node_at
from commwatch_exporters.snapshot import Series, Snapshot, Value

log = structlog.get_logger("commwatch.findings")

GROUP: Final = "verdict"
NAMED_MAX: Final = 200
"""Findings that ``commwatch_finding`` names; a node with more of them is broken as a whole."""
LOGGED_PER_LOOK: Final = 50
PART_UNREAD_SECONDS: Final = 30.0
"""Part of a device that has failed for as long is not known: two intervals of most collectors, and 5 s more, without a
reading; one that runs less often has failed twice by then, unless its runs take long."""
NO_LONGER_MEASURED: Final = "no longer measured"

Reading: TypeAlias = "tuple[str, tuple[str, ...], Value]"
"""Metric, label values, number."""
Readings: TypeAlias = Callable[[Facts, Thresholds, Sequence[Finding]], Iterable[Reading]]
"""Further metrics that are computed from what the rules read and found."""
_NO_EVIDENCE: Final[Mapping[str, Sequence[JobEvidence]]] = {}


def score_readings(facts: Facts, thresholds: Thresholds, findings: Sequence[Finding]) -> Iterable[Reading]:
    """The metrics of the communication score."""
    return readings_of(score_of(facts, thresholds, findings))


READINGS: Final[tuple[Readings, ...]] = (score_readings, profile_readings)
"""Computed beside the findings."""


class Judge:
    """The findings of this node, from evaluation to evaluation and across restarts."""

    def __init__(
        self,
        thresholds: Thresholds,
        history: CounterHistory,
        register: Register,
        store: Store,
        instruments: Instruments,
        collection: Collection,
    ) -> None:
        """
        Args:
            history: of the counters that the rules watch, as an earlier daemon knew it.
            register: of findings, likewise; those that are open stay so until they are seen to be gone.
        """
        self.thresholds = thresholds
        """In force."""
        self._store = store
        self._instruments = instruments
        self.history = history
        self._engine = RuleEngine(RULE_SETS, thresholds, history, self._failed)
        self.register = register
        self._collection = collection
        self._observability = Observability(store, collection)
        self._logged_failures: set[tuple[str, type[Exception]]] = set()
        self.looked_at: float | None = None
        """When the rules ran last, seconds since 1970."""
        self._matches: Sequence[Match] = ()
        """Of the last evaluation."""
        self._before: Snapshot | None = None
        """Of the last evaluation."""
        self._pairs_well_at: float | None = None
        """When all pairs of GPUs were well in a matrix, seconds since 1970."""
        self.findings: list[Finding] = join(register.open_incidents())
        """Open, with their causes, most severe first."""
        if self.findings:
            store.show(GROUP, "", self._named(), time.monotonic())

    @property
    def failing_rules(self) -> frozenset[str]:
        """Rules that failed at the last evaluation."""
        return self._engine.failing

    def evaluate(
        self, snapshot: Snapshot, now: float, job_evidence: Mapping[str, Sequence[JobEvidence]] = _NO_EVIDENCE
    ) -> None:
        """Run all rules once, at seconds since 1970; what goes wrong is logged and counted, and the daemon goes on."""
        try:
            self._evaluate(snapshot, now, job_evidence)
        except Exception as error:
            # A defect of ours must be seen, and must not end the watching.
            self._failed("engine", error)

    def _evaluate(self, snapshot: Snapshot, now: float, job_evidence: Mapping[str, Sequence[JobEvidence]]) -> None:
        matches = self._engine.evaluate(snapshot, now)
        self._matches = matches
        changes = self.register.update(matches, self, now)
        self._pairs_well_at = well_at(self._engine.facts) or self._pairs_well_at
        incidents = self.register.open_incidents()
        findings = join(incidents, measured=measured_of(self._engine.facts) if incidents else ())
        self.findings = list(with_job_evidence(findings, job_evidence))
        self.looked_at, self._before = now, snapshot
        self._announce(changes, now)
        self._publish(self._engine.facts)

    def is_observable(self, match: Match) -> bool:
        """As of ``Observer``: its metrics were read of the component, and its rule could judge it."""
        reads = self._engine.reads_of(match.code)
        if reads is None or not self._observability.sees(match.component, reads, self._engine.facts.node):
            return False
        return self._engine.is_judged(match)

    def is_repaired(self, match: Match) -> bool:
        """As of ``Observer``."""
        return reads_healthy(self._engine.facts, self._matches, match)

    def note(self, match: Match) -> str:
        """Why a finding closes that nothing shows to be well: the configuration does not ask for what showed it."""
        probe = match.component
        if probe.kind != "probe":
            return ""
        unmeasured = match.code == "probe_bandwidth_lost" and any(
            one.name == probe.key for one, _ in self._engine.facts.each(Probe.unmeasured_losses)
        )
        return NO_LONGER_MEASURED if unmeasured or not self._observability.is_probed(probe) else ""

    def known_well(self, match: Match) -> float | None:
        """The last time at which a newly matched condition was known to be absent; None if that is unknown.

        The evaluation before would have seen a fault that is read. Measurements of probes are as old as their last
        result, and a suspect is named at the third matrix that shows it. A fault that needs a number of events began
        with the first of them, and no earlier than the hour or the day in which they are counted.
        """
        reads = self._engine.reads_of(match.code)
        if self._before is None or self.looked_at is None or reads is None or match.since is not None:
            return None
        if match.component.kind == "probe":
            return None
        if Suspect.ratio.metric in reads or Pair.bandwidth_bytes_per_second.metric in reads:
            return self._pairs_well_at
        with node_at(self._before) as before:
            facts = Facts(before, self.history, self.looked_at)
            is_seen = self._observability.saw(match.component, reads, self._engine.facts.node, before)
            if not is_seen or not self._engine.is_judged(match, facts):
                return None
        if not is_counted(match):
            return self.looked_at
        first = self._engine.first_counted(match) or 0.0
        return max(min(first, self.looked_at), self.looked_at - counted_over(match))

    def _failed(self, rule: str, error: Exception) -> None:
        """Count a failure, and log it once for each rule and kind."""
        self._instruments.finding_rule_errors.labels(rule).inc()
        kind = (rule, type(error))
        if kind not in self._logged_failures:
            self._logged_failures.add(kind)
            log.error("a rule failed; what it sights is not known; further failures of this kind are only counted",
                      rule=rule, error=repr(error), exc_info=error)  # fmt: skip

    def _announce(self, changes: Sequence[Change], now: float) -> None:
        for event, one in changes[:LOGGED_PER_LOOK]:
            code = CODES[one.code]
            words = {
                "code": one.code, "title": code.title, "severity": one.severity,
                "component": one.component.identity, "name": one.component.words,
            }  # fmt: skip
            if event == "closed":
                log.info("finding closed", **words, open_seconds=round(now - one.first_seen, 1))
                continue
            say = {"critical": log.error, "warning": log.warning, "info": log.info}[one.severity]
            evidence = [format_evidence(fact) for fact in one.match.evidence]
            say("finding opened", **words, detail=one.match.detail, evidence=evidence,
                explains=self._explained_by(one), next_step=next_step_of(one.match))  # fmt: skip
        if len(changes) > LOGGED_PER_LOOK:
            log.warning("more findings changed at this look", count=len(changes) - LOGGED_PER_LOOK)

    def _explained_by(self, fault: Incident) -> list[str]:
        """Open findings that a fault is a cause of."""
        return [
            f"{finding.code} {finding.component.identity}"
            for finding in self.findings
            if any(cause.key == fault.key for cause in finding.causes)
        ]

    def _publish(self, facts: Facts) -> None:
        readings = self._named()
        for read in READINGS:
            readings.update(self._further(read, facts))
        self._store.show(GROUP, "", readings, time.monotonic())

    def _named(self) -> dict[Series, Value]:
        """The series that name the open findings."""
        readings: dict[Series, Value] = {
            ("commwatch_finding", finding.key): 1 for finding in self.findings[:NAMED_MAX]
        }  # fmt: skip
        readings["commwatch_findings_left_out", ()] = max(0, len(self.findings) - NAMED_MAX)
        return readings

    def _further(self, read: Readings, facts: Facts) -> Mapping[Series, Value]:
        try:
            return {(metric, labels): value for metric, labels, value in read(facts, self.thresholds, self.findings)}
        except Exception as error:
            # As of a rule: it must be seen, and must not take the findings with it.
            self._failed(read.__name__, error)
            return {}

    def score(self) -> Score:
        """The communication score of what the rules read last."""
        return score_of(self._engine.facts, self.thresholds, self.findings)

    def _devices_not_read(self, now: float) -> Iterator[UnreadSource]:
        """GPUs that do not answer and devices that are read in part, but not for long enough to be a finding: meanwhile
        their state is unknown."""
        for one in self.register.unconfirmed(now):
            seconds = now - one.first_seen
            if one.code == "gpu_not_answering":
                # Its first call is late by a second at least when that is seen.
                yield UnreadSource(one.component.words, max(1.0, seconds), "it does not answer")
            elif one.code == "device_unread" and seconds >= PART_UNREAD_SECONDS:
                why = "; ".join(map(format_evidence, one.match.evidence))
                yield UnreadSource(f"part of {one.component.words}", seconds, why, lists_parts=False)

    def document(self, about: Mapping[str, Any]) -> FindingsDocument:
        """The open findings, with the verdict; about the daemon at this time: the fields of ``About``."""
        document = FindingsDocument(
            **about,
            thresholds=self.thresholds.digest,
            looked_at=self.looked_at,
            failing_rules=tuple(sorted(self.failing_rules)),
            findings=tuple(self.findings),
            unanswered=self._collection.unanswered,
            closed=tuple(closed_record(one) for one in reversed(self.register.closed())),
            unread=(*self._collection.unread(), *self._devices_not_read(about["time"])),
            has_gpus=bool(self._engine.facts.derived(gpus_of)),
            is_inventory_known=any(
                one.kind == "gpu" and one.source != "learned" for one, _ in self._engine.facts.each(ExpectedParts.info)
            ),
        )
        return msgspec.structs.replace(document, verdict=verdict_of(document, document.time))

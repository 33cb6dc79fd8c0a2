"""A full scan: every probe run by hand, what looks bad measured again, and all of it put over what the daemon knows."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import structlog

from commwatch.config.settings import Config, Probe
from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.known import Known, ask
from commwatch.diagnosis.scan_findings import FreshProbe, with_scan
from commwatch.diagnosis.stress_run import run_stress
from commwatch.errors import CommwatchError, StateError
from commwatch.probes.by_hand.answer import Answer
from commwatch.probes.by_hand.cycles import run_cycles
from commwatch.probes.by_hand.pair_matrix import pair_probes
from commwatch.probes.node import Prospect
from commwatch.probes.plan import CyclePlan, Failed, Measured, Skipped
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.pair_record import PairHistory, PairRecord
from commwatch.probes.results.record import ProbeRecord
from commwatch.state.directory import state_path
from commwatch.state.records import read_record

log = structlog.get_logger("commwatch.diagnosis")

MOST_READINGS = 3
"""Of one probe: what looks bad is measured so often, for three in a row make a streak."""

PATIENT_SECONDS = 10.0
"""For the daemon's answers: what was measured in minutes must not be lost to a busy second."""

_History = TypeVar("_History", bound=ProbeHistory)

_SLOW_TO_FAIL = frozenset({"rendezvous_timeout", "setup_timeout", "measure_timeout", "stuck", "internal"})
"""Failures that are not tried again: each takes a deadline, or leaves a process in the kernel."""


class Scan:
    """Follows the cycles of a scan."""

    def __init__(self, config: Config, thresholds: Thresholds) -> None:
        self._state = state_path(config)
        self._thresholds = thresholds
        self._courses: dict[str, _Course] = {}

    def took(self, name: str, probe: Probe, prospect: Prospect, answer: Answer) -> None:
        """Judge a cycle by the daemon's past of this probe."""
        course = self._courses.get(name)
        if course is None:
            record = _record(self._state, prospect.plan, probe, self._thresholds)
            course = self._courses[name] = _Course(name, record)
        course.take(prospect, answer)

    def again(self) -> Collection[str]:
        """The probes that look bad, until they have looked so three times."""
        return [name for name, course in self._courses.items() if course.wants_another]

    def fresh(self) -> tuple[FreshProbe, ...]:
        """All that was measured."""
        return tuple(course.fresh() for course in self._courses.values())


class _Course:
    """The cycles of one probe in a scan."""

    def __init__(self, name: str, record: ProbeRecord) -> None:
        self._name = name
        self._record = record
        self._conditions = record.history.conditions
        """Of the daemon's results."""
        self._answers: list[Answer] = []
        self._bad: list[bool] = []

    def take(self, prospect: Prospect, answer: Answer) -> None:
        record, result = self._record, answer.result
        if isinstance(result, Measured | Failed):
            record.take(result, prospect, time.time())
            pairs_slow = isinstance(record, PairRecord) and answer.verdict == "below model"
            named = isinstance(record, PairRecord) and bool(record.suspects(time.time()))
            self._bad.append(record.suspicious or named or pairs_slow or answer.is_bad)
        else:
            self._bad.append(False)
        self._answers.append(answer)

    @property
    def wants_another(self) -> bool:
        result = self._answers[-1].result
        if len(self._answers) >= MOST_READINGS:
            return False
        if isinstance(result, Skipped):
            return result.reason == "probe_running"  # a cycle of the daemon, which is over soon
        if isinstance(result, Failed) and result.reason in _SLOW_TO_FAIL:
            return False
        # One that was bad once is measured until it is well, or bad three times in a row.
        return isinstance(result, Measured | Failed) and self._bad[-1]

    def fresh(self) -> FreshProbe:
        now, record = time.time(), self._record
        measured = any(isinstance(one.result, Measured) and not one.shares_gpus for one in self._answers)
        return FreshProbe(
            name=self._name,
            backend=record.history.backend,
            answers=tuple(self._answers),
            bad=tuple(self._bad),
            readings=tuple(record.readings(now)) if measured else (),
            matrix=record.last_matrix if measured and isinstance(record, PairRecord) else None,
            comparable=self._conditions is None or self._conditions == record.history.conditions,
        )


def full_scan(
    config: Config, thresholds: Thresholds, *, gpus: Sequence[int], ignore_scheduler: bool, stress: float | None
) -> Known:
    """Run every probe that is configured, and pairs in any case; then ask the daemon, and put both together.

    Args:
        config: of the node.
        thresholds: in force.
        gpus: NVML indexes of the GPUs to use; empty: those that the probes name.
        ignore_scheduler: the operator says that the node is theirs.
        stress: seconds for which the GPUs are loaded afterwards; None: they are not.

    Raises:
        CommwatchError: the daemon does not answer at the start, the driver cannot be read, or the command was
            interrupted.
    """
    before = ask(config, thresholds, PATIENT_SECONDS)  # where no daemon is, no probe need run
    scan = Scan(config, thresholds)
    probes = dict(config.probes.definitions) | pair_probes(config)
    run_cycles(config, probes, gpus=gpus, ignore_scheduler=ignore_scheduler, follower=scan)
    run = None
    if stress is not None:
        run = run_stress(config, thresholds, stress, gpus=gpus, ignore_scheduler=ignore_scheduler)
    try:
        known = ask(config, thresholds, PATIENT_SECONDS)
    except CommwatchError as error:
        log.warning("the daemon does not answer any more: what it knew before the scan is shown", error=str(error))
        known = replace(before, lost=str(error))
    return replace(with_scan(known, scan.fresh()), stress=run)


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
    """What the daemon has kept, as long as it can be read; nothing is set aside here."""
    try:
        return read_record(file, kind)
    except StateError:
        return None

"""The evidence of the verdict in one record: saved whole, so that nothing in it disagrees after a crash."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from commwatch.findings.causes import join
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.history import CounterHistory, CounterState, HistoryState
from commwatch.findings.register import Register, RegisterState
from commwatch.jobs.logs.tracker import JobLogs, JobLogsState
from commwatch.node.hardware_events import METRICS, HardwareEvents, HardwareEventsState
from commwatch.node.link_flaps import FlapsState, LinkFlaps
from commwatch.node.store import Store
from commwatch.node.wrap import Wraps, WrapsState
from commwatch.state.directory import StateDirectory

log = structlog.get_logger("commwatch.judgement")

STATE_NAME: Final = "judgement"
EARLIER: Final = ("hardware_events", "nccl_logs", "wraps", "counter_history", "findings")
"""Files of version 0.1.0, which had each part in a file of its own."""
_JOB_ERRORS: Final = "commwatch_nccl_log_errors_total"


class Judgement(msgspec.Struct, kw_only=True):
    """Counts, how they moved, and what was found; all of one moment."""

    boot: str = ""
    """Identity of the boot; empty where it is not known."""
    events: HardwareEventsState = msgspec.field(default_factory=HardwareEventsState)
    job_logs: JobLogsState = msgspec.field(default_factory=JobLogsState)
    wraps: WrapsState = msgspec.field(default_factory=WrapsState)
    flaps: FlapsState = msgspec.field(default_factory=FlapsState)
    history: HistoryState = msgspec.field(default_factory=HistoryState)
    register: RegisterState = msgspec.field(default_factory=RegisterState)


def restore(state: StateDirectory, boot: str, now: float) -> Judgement:
    """The part of an earlier daemon's record that is still valid; one that contradicts itself is set aside.

    Args:
        state: where it is.
        boot: identity of this boot; empty where it is not known.
        now: seconds since 1970.

    Raises:
        StateError: there is a file and it cannot be read.
    """

    def use(record: Judgement | None) -> Judgement:
        if record is None:
            return _of_earlier_version(state, boot, now)
        check(record)
        return _in_use(record, boot, now)

    kept = state.restore(STATE_NAME, Judgement, use)
    if (state.path / f"{STATE_NAME}.json").exists():
        for name in EARLIER:
            (state.path / f"{name}.json").unlink(missing_ok=True)
    return kept


def _in_use(record: Judgement, boot: str, now: float) -> Judgement:
    is_same_boot = bool(boot) and boot == record.boot
    if boot != record.events.boot:
        record.events.init_failures.clear()  # the driver has tried again since
    recent = [replace(one, times=[min(when, now) for when in one.times]) for one in record.flaps.recent]
    kept = replace(
        record,
        flaps=FlapsState(record.flaps.totals, recent if is_same_boot else []),
        history=_as_of_now(record.history, now, is_same_boot=is_same_boot),
    )
    # Make all that the daemon makes of it at its start: what raises must do so while the record can be set aside.
    HardwareEvents(kept.events).readings(0.0)
    JobLogs(kept.job_logs, Store()).show(0.0)
    Wraps(kept.wraps, boot)
    LinkFlaps(kept.flaps, Store()).on_tick(time.monotonic())
    CounterHistory(WATCHED, EVENTS, kept.history)
    join(Register(kept.register).open_incidents())
    return kept


def _of_earlier_version(state: StateDirectory, boot: str, now: float) -> Judgement:
    """The state that version 0.1.0 left. It saved each file at a different time, so after a crash they may disagree;
    the totals are then continued without opening findings."""
    events, job_logs, wraps, history, register = EARLIER
    record = Judgement(
        events=state.load(events, HardwareEventsState) or HardwareEventsState(),
        job_logs=state.load(job_logs, JobLogsState) or JobLogsState(),
        wraps=state.load(wraps, WrapsState) or WrapsState(),
        history=state.load(history, HistoryState) or HistoryState(),
        register=state.load(register, RegisterState) or RegisterState(),
    )
    try:
        check(record)
    except ValueError as error:
        log.warning("findings of the earlier version are left out, as its files disagree", error=str(error))
        record = replace(record, history=HistoryState(), register=RegisterState())
    try:
        return _in_use(record, boot, now)
    except Exception as error:
        log.warning("events and findings of the earlier version are left out", error=repr(error))
        return _in_use(Judgement(), boot, now)


def check(record: Judgement) -> None:
    """See that the parts agree.

    Raises:
        ValueError: an event was counted that the history does not know or the other way round, more of them happened
            lately than ever, or a finding names an event that was not counted.
    """
    totals = _totals(record)
    moved: dict[str, dict[tuple[str, ...], CounterState]] = {}
    for one in record.history.counters:
        if one.metric in totals and one.last:
            # The index of a GPU may be another one by now.
            moved.setdefault(one.metric, {})[one.labels[-2:]] = one
    # One that is not among those seen was not watched by the daemon that wrote the record.
    for metric in totals.keys() & record.history.seen.keys():
        known = {labels: one.last for labels, one in moved.get(metric, {}).items()}
        if known != totals[metric]:
            raise ValueError(f"{metric}: {totals[metric]} were counted, and {known} are in the history")
    for one in (one for counters in moved.values() for one in counters.values()):
        if sum(rise for _, rise in one.rises) > one.last:
            raise ValueError(f"{one.metric} of {one.labels} rose by more than it shows")
    for incident in record.register.incidents:
        for fact in incident.match.evidence:
            kind, _, code = fact.event.partition(" ")
            if kind not in ("xid", "sxid"):
                continue
            table = record.events.xids if kind == "xid" else record.events.sxids
            count = table.get(incident.match.component.key, {}).get(code, 0)
            if isinstance(fact.value, str) or fact.value > count:
                raise ValueError(f"{incident.match.code} stands on {fact.value} of {fact.event}; {count} were counted")


def _totals(record: Judgement) -> Mapping[str, Mapping[tuple[str, ...], float]]:
    """Events by metric, and by device and code; those of the logs of jobs by category."""
    found: dict[str, dict[tuple[str, ...], float]] = {
        metric: {
            (device, code): total
            for device, totals in getattr(record.events, table).items()
            for code, total in totals.items()
            if total
        }
        for table, metric in METRICS.items()
        if metric in EVENTS
    }
    found[_JOB_ERRORS] = {(category,): total for category, total in record.job_logs.counts.errors.items() if total}
    return found


def _as_of_now(kept: HistoryState, now: float, *, is_same_boot: bool) -> HistoryState:
    """The part of a saved history that is still valid.

    Counters begin again with a boot, some with what the boot itself brings; and a rise during a gap that is longer than
    a rule's window may not be recent. So counters that had not risen are taken over only within the same boot and
    window. A time in the future means that the wall clock was set back or that the number is wrong.
    """
    still = {
        metric: counters
        for metric, counters in kept.still.items()
        if is_same_boot and now - kept.seen.get(metric, 0.0) <= WATCHED.get(metric, 0.0)
    }
    return HistoryState(
        kept.events_since if kept.events_since is None else min(kept.events_since, now),
        [replace(one, rises=[(min(when, now), rise) for when, rise in one.rises]) for one in kept.counters],
        still,
        {metric: min(when, now) for metric, when in kept.seen.items()},
    )

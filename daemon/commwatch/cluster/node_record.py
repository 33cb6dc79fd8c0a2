"""A daemon's record of runs and checks between nodes: counts, the last results, and the named faults with their
counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, TypeAlias, TypeVar, get_args

import msgspec

from commwatch.cluster.messages import FailureCause, TriedPort
from commwatch.cluster.node_report import CAUSES, CheckReport, NodeReport, RunOutcome, Suspicion
from commwatch.errors import CommwatchError
from commwatch.probes.rank_plan import SkipReason
from commwatch.probes.results.streak import is_current
from commwatch.state.records import Count, Timestamp, check_unique
from commwatch_exporters.snapshot import Value

STATE_NAME: Final = "cluster"
LONGEST_WAY_SECONDS: Final = 600.0
"""Between the end of a run and its report; a member hands it in at once."""
CLOCKS_APART_SECONDS: Final = 60.0
_KNOWN_RUNS: Final = 64

Report = TypeVar("Report", NodeReport, CheckReport)
Reading: TypeAlias = "tuple[str, tuple[str, ...], Value]"
"""Metric, label values, number."""
Refusal: TypeAlias = Literal["stranger", "malformed", "stale", "replayed"]
"""Why a report was not taken: ``stranger`` by the user that handed it in, ``stale`` by its time."""


class NotTaken(CommwatchError):
    """A report does not count."""

    def __init__(self, reason: Refusal, words: str) -> None:
        super().__init__(f"{reason}: {words}")
        self.reason: Refusal = reason


class Named(msgspec.Struct, frozen=True):
    """A suspicion, and in how many runs in a row it was there."""

    suspicion: Suspicion
    runs: Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class NodeHistory(msgspec.Struct):
    """State that outlives the daemon."""

    last: NodeReport | None = None
    """Of the runs that measured this node."""
    named: tuple[Named, ...] = ()
    """By that run."""
    runs: dict[RunOutcome, Count] = {}
    skips: dict[SkipReason, Count] = {}
    occupied_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Of a GPU, of all runs."""
    known: Annotated[tuple[tuple[str, Timestamp], ...], msgspec.Meta(max_length=_KNOWN_RUNS)] = ()
    """The latest reports: run and when it ended."""
    check: CheckReport | None = None
    """The last check."""
    failing: dict[FailureCause, Count] = {}
    """In how many checks in a row this node failed, by cause."""

    def __post_init__(self) -> None:
        check_unique((one.suspicion.key for one in self.named), "suspicion")
        check_unique((run for run, _ in self.known), "run")
        if not {one.suspicion for one in self.named} <= {*(self.last.suspicions if self.last else ())}:
            raise ValueError("a suspicion that the last run does not name")
        if self.last is not None and self.last.outcome != "completed":
            raise ValueError("the last run that measured this node was not completed")
        if self.failing and self.check is None:
            raise ValueError("a check failed that was never made")


class NodeRecord:
    """Takes reports, one after the other, and gives what is exported of them."""

    def __init__(self, interval: float, history: NodeHistory | None = None) -> None:
        """
        Args:
            interval: at which runs are meant to be made, seconds.
        """
        self._interval = interval
        self.history = NodeHistory() if history is None else history
        self._refused: dict[Refusal, int] = {}

    def take_over(self, earlier: NodeRecord) -> None:
        """Share what another record knows, and what it will take."""
        self.history, self._refused = earlier.history, earlier._refused

    def refuse(self, reason: Refusal) -> None:
        """Count a report that was not taken."""
        self._refused[reason] = self._refused.get(reason, 0) + 1

    def take(self, report: NodeReport | CheckReport, now: float) -> None:
        """Take a report.

        Args:
            now: seconds since 1970.

        Raises:
            NotTaken: it is an old one, or one that was taken before; nothing has changed.
        """
        if isinstance(report, CheckReport):
            self._take_check(report, now)
        else:
            self._take_run(report, now)

    def _take_run(self, report: NodeReport, now: float) -> None:
        history = self.history
        self._admit(report, history.last, now)
        history.runs[report.outcome] = history.runs.get(report.outcome, 0) + 1
        if report.skip:
            history.skips[report.skip] = history.skips.get(report.skip, 0) + 1
        history.occupied_seconds += report.occupied_seconds
        if report.outcome == "completed":
            history.named = tuple(self._named(report, now))
            history.last = report

    def _take_check(self, report: CheckReport, now: float) -> None:
        history = self.history
        before = history.failing if self._current(history.check, now) else {}
        self._admit(report, history.check, now)
        failing = {one: before.get(one, 0) + 1 for one in report.causes}
        # A member that did not reach the meeting place has checked nothing else.
        history.failing = {**before, **failing} if report.outcome == "unreached" else failing
        history.check = report

    def _admit(self, report: NodeReport | CheckReport, last: NodeReport | CheckReport | None, now: float) -> None:
        """Know a report from now on, which is to follow the last one of its kind.

        Raises:
            NotTaken: it does not.
        """
        history = self.history
        if any(run == report.run for run, _ in history.known):
            raise NotTaken("replayed", f"run {report.run} is known")
        age = now - report.finished_at
        if age > LONGEST_WAY_SECONDS or age < -CLOCKS_APART_SECONDS:
            raise NotTaken("stale", f"the run ended {abs(age):.0f} s {'ago' if age > 0 else 'ahead'}")
        if last is not None and report.finished_at < last.finished_at <= now:
            raise NotTaken("stale", "a later run is known")
        history.known = (*history.known, (report.run, report.finished_at))[-_KNOWN_RUNS:]

    def _named(self, report: NodeReport, now: float) -> Iterator[Named]:
        """The suspicions of a run; those of a result that still counts go on."""
        before = {one.suspicion.key: one.runs for one in self.history.named} if self.current(now) else {}
        seen = set()
        for suspicion in report.suspicions:
            if suspicion.key not in seen:
                seen.add(suspicion.key)
                yield Named(suspicion, before.get(suspicion.key, 0) + 1)

    def current(self, now: float) -> NodeReport | None:
        """The last result that measured this node; None if it is too old."""
        return self._current(self.history.last, now)

    def _current(self, last: Report | None, now: float) -> Report | None:
        return last if last is not None and is_current(last.finished_at, self._interval, now) else None

    def readings(self, now: float) -> list[Reading]:
        """The exported readings; nothing before the first report. Each name is without ``commwatch_cluster_``."""
        history = self.history
        found: list[Reading] = [("refused_reports_total", (one,), count) for one, count in self._refused.items()]
        if history.runs:
            found += [("runs_total", (one,), history.runs.get(one, 0)) for one in get_args(RunOutcome)]
            found += [("skips_total", (one,), count) for one, count in sorted(history.skips.items())]
            found.append(("gpu_occupied_seconds_total", (), history.occupied_seconds))
        if history.last is not None:
            found.append(("last_completion_timestamp_seconds", (), history.last.finished_at))
        last = self.current(now)
        if last is not None:
            found += _of_result(last)
            found += _of_suspicions(history.named)
        if history.check is not None:
            found.append(("last_check_timestamp_seconds", (), history.check.finished_at))
        if (check := self._current(history.check, now)) is not None:
            found += [("check_failed", (one,), history.failing.get(one, 0)) for one in CAUSES]
            peers = {(one.port_kind, one.direction): one.peers for one in check.unreachable}
            found += [("unreachable_peers", (kind, way), peers.get((kind, way), 0))
                      for kind in get_args(TriedPort) for way in ("in", "out")]  # fmt: skip
        return [(f"commwatch_cluster_{name}", labels, value) for name, labels, value in found]


def _of_result(last: NodeReport) -> Iterator[Reading]:
    yield "run_duration_seconds", (), last.seconds
    yield "run_nodes", (), last.nodes
    conditions = (last.engine, last.leaf_source, last.backend, last.nccl_version, last.settings)
    yield "info", (last.leaf, last.block, *conditions), 1
    for one in last.rails:
        rail = (str(one.rail), one.device)
        values: Mapping[str, tuple[float | None, float | None]] = {
            "sent": (one.sent, one.sent_ratio),
            "received": (one.received, one.received_ratio),
        }
        for direction, (rate, ratio) in values.items():
            yield "rail_bandwidth_bytes_per_second", (*rail, direction, last.backend), rate
            yield "rail_peer_ratio", (*rail, direction, last.backend), ratio
        yield "rail_latency_seconds", (*rail, last.backend), one.latency
        for outcome, count in (("good", one.good), ("slow", one.slow), ("failed", one.failed)):
            yield "pairs", (*rail, outcome), count


def _of_suspicions(named: tuple[Named, ...]) -> Iterator[Reading]:
    for one in named:
        labels = one.suspicion.key
        yield "suspect_runs", labels, one.runs
        yield "suspect_ratio", labels, one.suspicion.ratio

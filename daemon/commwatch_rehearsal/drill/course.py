"""The course of one drill: what to do when, and the verdict. Pure: what was seen, and the time, are handed in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from commwatch.config.simulated import node_name
from commwatch.findings.codes import CODES
from commwatch_rehearsal.drill.drill import SILENT_SECONDS, Drill
from commwatch_rehearsal.drill.pace import Pace
from commwatch_rehearsal.drill.receiver import Notice

START_SECONDS = 120.0
"""Until a node serves and knows what it should have."""
_SETTLE_SECONDS = 45.0
"""A node is watched for this long before its fault, at the shipped intervals: healthy nodes are silent."""
_LINGER_SECONDS = 60.0
"""The fault goes on for this long after its page, at the shipped intervals, so that other alerts would be seen."""
_FINDING_SECONDS = 120.0
"""For findings that come after the page. The daemon counts their time itself: the fast form does not judge them."""
_GIVE_UP_FACTOR = 2.0
_MARGIN_SECONDS = 30.0
"""A busy machine may take this much longer at any pace."""
_RESOLVE_SECONDS = 180.0
"""From the end of an alert to its notice, at the shipped intervals: group_interval and some evaluations."""
_GRAVITY = {"info": 1, "warning": 2, "critical": 3}
PATIENCE_SECONDS = {"shipped": 1200.0, "fast": 300.0}
"""An alert that goes on for longer than this after its fault is not waited for."""

Action: TypeAlias = Literal["begin", "finish"]


class Phase(Enum):
    """How far a drill is."""

    STARTING = "starting"
    SETTLING = "healthy"
    FAULTY = "faulty"
    ENDING = "ended"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a drill. Times are seconds; None: it did not happen."""

    name: str
    family: str
    preset: str
    faults: tuple[str, ...]
    detection: str
    expected: tuple[str, ...]
    received: tuple[str, ...]
    """Alerts that were paged, expected or not."""
    unexpected: tuple[str, ...]
    """Alerts that fired beside what the catalogue allows."""
    findings: tuple[str, ...]
    """Findings that were open during the fault."""
    seconds_to_firing: float | None
    """From the fault until all expected alerts fired."""
    seconds_to_first_page: float | None
    """From the fault until the first of its alerts was paged, expected or allowed: what the limit is for."""
    first_page: str | None
    """The alert of that page."""
    seconds_allowed: float | None
    """The limit, at the shipped intervals; None: there must be no page."""
    seconds_to_page: float | None
    """From the fault until all that are expected were paged."""
    seconds_to_resolved: float | None
    """From the end of the fault until all of them were reported resolved."""
    resolved: bool | None
    """None: it was not waited for."""
    passed: bool
    problems: tuple[str, ...]


@dataclass
class Course:
    """One drill on its node or nodes."""

    drill: Drill
    pace: Pace
    started_at: float
    held_seconds: float = 0.0
    """How long its alerts keep firing by ``keep_firing_for``, at the pace."""
    receiver: str = ""
    """The only receiver that its alerts may go to; empty: any."""
    phase: Phase = Phase.STARTING
    began_at: float = 0.0
    finished_at: float = 0.0
    fired: dict[str, float] = field(default_factory=dict)
    paged: dict[str, float] = field(default_factory=dict)
    severities: dict[str, str] = field(default_factory=dict)
    """Of the alerts that were paged."""
    resolved: dict[str, float] = field(default_factory=dict)
    findings: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _firing: frozenset[str] = frozenset()
    _settled_at: float = 0.0

    def see(self, now: float, firing: Collection[str], notices: Sequence[Notice], findings: Collection[str]) -> None:
        """Take what was seen of its nodes.

        Args:
            now: seconds since 1970.
            firing: names of the alerts that fire now.
            notices: what was notified since the last time.
            findings: codes of the findings that are open now.
        """
        self._firing = frozenset(firing)
        for name in firing:
            self.fired.setdefault(name, now)
        for notice in notices:
            self._take_notice(notice)
        if self.phase in {Phase.FAULTY, Phase.ENDING}:
            self.findings |= set(findings)

    def _take_notice(self, notice: Notice) -> None:
        name = notice.labels["alertname"]
        if self.receiver and notice.receiver != self.receiver:
            self._say(f"{name} went to the receiver {notice.receiver}")
        if notice.resolved:
            self.resolved[name] = notice.at
            return
        self.resolved.pop(name, None)
        self.paged.setdefault(name, notice.at)
        self.severities.setdefault(name, notice.labels.get("severity", ""))
        self.fired[name] = min(self.fired.get(name, notice.started_at), notice.started_at)

    def step(self, now: float, *, ready: bool) -> Action | None:
        if self.phase is Phase.STARTING:
            self._start(now, ready=ready)
        elif self.phase is Phase.SETTLING and now >= self._settled_at:
            self.phase, self.began_at = Phase.FAULTY, now
            return "begin"
        elif self.phase is Phase.FAULTY and self._is_seen(now):
            self.phase, self.finished_at = Phase.ENDING, now
            return "finish"
        elif self.phase is Phase.ENDING and self._is_over(now):
            self.phase = Phase.DONE
        return None

    def abort(self, problem: str) -> None:
        """End it for a reason of its node or of the drill."""
        self._say(problem)
        self.phase = Phase.DONE

    def _start(self, now: float, *, ready: bool) -> None:
        if ready and self.drill.first_day:
            self.phase, self.began_at = Phase.FAULTY, self.started_at
        elif ready:
            self.phase, self._settled_at = Phase.SETTLING, now + self._seconds(max(_SETTLE_SECONDS, self.drill.settles))
        elif now > self.started_at + START_SECONDS:
            unready = "did not know its own parts, or Prometheus had not scraped it,"
            self.abort(f"the node {unready} after {START_SECONDS:g} s")

    def _seconds(self, shipped: float) -> float:
        return self.pace.seconds(shipped)

    def _is_seen(self, now: float) -> bool:
        """Whether the fault has lasted long enough."""
        if self.drill.is_silent:
            return now >= self.began_at + self._seconds(SILENT_SECONDS)
        if not self._all_paged:
            return now >= self.began_at + self._seconds(self.drill.limit) * _GIVE_UP_FACTOR + _MARGIN_SECONDS
        paged_at = max(self.paged[name] for name in self.drill.alerts)
        if now < paged_at + self._seconds(_LINGER_SECONDS):
            return False
        return not self.pace.is_shipped or set(self.drill.codes) <= self.findings or now >= paged_at + _FINDING_SECONDS

    @property
    def _all_paged(self) -> bool:
        return self.paged.keys() >= set(self.drill.alerts)

    @property
    def _lasts(self) -> float:
        return self.held_seconds + self._seconds(self.drill.lasts)

    @property
    def waits_for_resolve(self) -> bool:
        """Whether its alerts end soon enough after the fault to be waited for."""
        return self._lasts <= PATIENCE_SECONDS[self.pace.name]

    def _is_over(self, now: float) -> bool:
        if self.drill.is_silent or not self.waits_for_resolve:
            return now >= self.finished_at + self._seconds(_LINGER_SECONDS)
        if self._are_over:
            return True
        limit = self._lasts + self.pace.paging_seconds(_RESOLVE_SECONDS) + self.drill.returns + _MARGIN_SECONDS
        return now >= self.finished_at + limit

    @property
    def _are_over(self) -> bool:
        """Whether the alerts that it is about fire no more, and have been reported resolved."""
        return all(name in self.resolved and name not in self._firing for name in self.drill.alerts)

    def _say(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def outcome(self) -> Outcome:
        drill = self.drill
        unexpected = sorted((self.fired.keys() | self.paged.keys()) - set(drill.alerts) - set(drill.also))
        has_begun = self.began_at > 0
        all_paged = has_begun and not drill.is_silent and self._all_paged
        all_fired = has_begun and not drill.is_silent and self.fired.keys() >= set(drill.alerts)
        resolved = self._resolved() if has_begun else None
        problems = [*self.problems, *self._judge(unexpected, resolved)]
        first = self._first_page if all_paged else None
        return Outcome(
            name=drill.name,
            family=drill.family,
            preset=node_name(drill.preset),
            faults=drill.fault_texts,
            detection=drill.detection,
            expected=drill.alerts,
            received=tuple(sorted(self.paged)),
            unexpected=tuple(unexpected),
            findings=tuple(sorted(self.findings)),
            seconds_to_firing=max(self.fired[name] for name in drill.alerts) - self.began_at if all_fired else None,
            seconds_to_first_page=None if first is None else self.paged[first] - self.began_at,
            first_page=first,
            seconds_allowed=None if drill.is_silent else float(drill.limit),
            seconds_to_page=max(self.paged[name] for name in drill.alerts) - self.began_at if all_paged else None,
            seconds_to_resolved=(
                max(self.resolved[name] for name in drill.alerts) - self.finished_at if all_paged and resolved else None
            ),
            resolved=resolved,
            passed=not problems,
            problems=tuple(problems),
        )

    @property
    def _first_page(self) -> str | None:
        """The alert of the first page of the fault: of any that is as severe as those expected.

        Alertmanager sends later alerts of one node together, ``group_interval`` after the first.
        """
        expected = [self._gravity(name) for name in self.drill.alerts if name in self.paged]
        names = [name for name in (*self.drill.alerts, *self.drill.also) if name in self.paged]
        # Where simulated alerts go, all severities arrive; a real node's ticket or information would not page.
        grave = [name for name in names if expected and self._gravity(name) >= max(expected)]
        return min(grave, key=lambda name: self.paged[name], default=None)

    def _gravity(self, name: str) -> int:
        return _GRAVITY.get(self.severities[name], 0)

    def _resolved(self) -> bool | None:
        if self.drill.is_silent or not self.waits_for_resolve or not self.finished_at:
            return None
        return self._are_over

    def _judge(self, unexpected: Sequence[str], resolved: bool | None) -> list[str]:
        drill = self.drill
        problems = [f"unexpected {name}" for name in unexpected]
        if not self.finished_at:
            return problems
        problems += [f"no page of {name}" for name in drill.alerts if name not in self.paged]
        early = [name for name in drill.alerts if name in self.paged and self.paged[name] < self.began_at]
        problems += [f"{name} before the fault" for name in early]
        first = self._first_page
        seconds = 0.0 if first is None else self.paged[first] - self.began_at
        if self.pace.is_shipped and seconds > drill.limit:
            problems.append(f"late: {seconds:.0f} s, more than {drill.limit:g} s")
        if resolved is False:
            left = [name for name in drill.alerts if name in self.paged and name not in self.resolved]
            problems += [f"not resolved: {', '.join(left)}"] if left else []
        if self.pace.is_shipped:
            problems += [f"no finding {code}" for code in drill.codes if code not in self.findings]
            problems += [f"finding {code} without its alert" for code in sorted(self.findings) if self._is_alone(code)]
        return problems

    def _is_alone(self, code: str) -> bool:
        """Whether a finding reports a fault that no alert of this drill covers."""
        return CODES[code].severity != "info" and CODES[code].alert not in {*self.drill.alerts, *self.drill.also}

"""Which findings are open: they open and close with hysteresis, and outlive a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol, TypeAlias

import msgspec

from commwatch.findings.codes import CODES, REPLACED_BY
from commwatch.findings.finding import Component, Match, Severity
from commwatch.findings.repaired import OVER_AFTER
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, DAY, HOUR, STATE_CLOSES_AFTER
from commwatch.state.records import Timestamp


class Observer(Protocol):
    """The register's questions about the part of a match, as of the current evaluation."""

    def is_observable(self, match: Match) -> bool:
        """Whether a fault could be seen now if it were there: a part that cannot be observed neither opens nor
        closes."""

    def known_well(self, match: Match) -> float | None:
        """When a part that shows a fault for the first time was last known not to have it, seconds since 1970."""

    def is_repaired(self, match: Match) -> bool:
        """Whether the part of an event reads healthy now."""

    def note(self, match: Match) -> str:
        """Why a finding closes that nothing shows to be well; empty where something does."""


UNSEEN_CLOSES_AFTER = 7 * 24 * 3600.0
"""Seconds after which a finding that is neither seen nor observable is closed: a part that is no longer read can never
be reported as well again."""


EVALUATION_SECONDS_MAX = 20.0
"""At most this much of the time between two evaluations counts for ``seen_seconds``: the rules run each 10 s, and a
longer time may be a wall clock that was set forward."""


class Incident(msgspec.Struct):
    """One code at one component, from its first match until it has been gone for long enough."""

    match: Match = msgspec.field(name="sighting")
    """The latest; the name in the file is that of version 0.1.0."""
    first_seen: Timestamp
    """Seconds since 1970."""
    last_seen: Timestamp
    seen_seconds: float = 0.0
    """As of a finding."""
    is_open: bool = False
    absent_since: Timestamp | None = None
    """First evaluation without it, since it was seen last."""
    grew_at: Timestamp | None = None
    """Last evaluation at which its counts were higher than at the one before."""
    well_at: Timestamp | None = None
    """When it was last known not to be so; None where that is not known."""
    healthy_since: Timestamp | None = None
    """Of an event: since when its part reads healthy again."""
    is_over: bool = False
    """It was open, and is not any more although it is counted still: it happened, and its part is well again."""

    @property
    def code(self) -> str:
        return self.match.code

    @property
    def component(self) -> Component:
        return self.match.component

    @property
    def severity(self) -> Severity:
        """Its own, whatever its causes are."""
        return CODES[self.code].severity

    @property
    def key(self) -> tuple[str, str]:
        """As of a finding."""
        return _key(self.match)


Change: TypeAlias = tuple[Literal["opened", "closed"], Incident]
"""One event of the log."""


class Closed(msgspec.Struct):
    """A critical or warning finding that was open within the last day."""

    match: Match = msgspec.field(name="sighting")
    """The latest."""
    since: Timestamp
    """Seconds since 1970."""
    until: Timestamp
    """When it was seen to be gone, or its part to read healthy again."""
    note: str = ""
    """Why it is closed, where that does not mean that the part is well: ``no longer measured``."""


CLOSED_MAX = 50
"""Of the closed ones that are kept: the latest."""


class RegisterState(msgspec.Struct):
    incidents: list[Incident] = msgspec.field(default_factory=list, name="spells")
    closed: list[Closed] = []


class Register:
    """Open findings, and matches that have not lasted yet."""

    def __init__(self, state: RegisterState | None = None) -> None:
        """
        Raises:
            ValueError: a finding is there twice.
        """
        known = state or RegisterState()
        # A code that this version does not know any more is dropped.
        incidents = [one for one in known.incidents if one.match.code in CODES]
        self._incidents = {_key(one.match): one for one in incidents}
        if len(self._incidents) != len(incidents):
            raise ValueError("a finding is there twice")
        self._closed = [one for one in known.closed if one.match.code in CODES]
        self._looked_at: float | None = None
        self.version = 0
        """Grows with each finding that is seen first, opens or goes."""

    @property
    def state(self) -> RegisterState:
        """To keep in the state directory."""
        return RegisterState(list(self._incidents.values()), list(self._closed))

    def update(self, matches: Iterable[Match], observer: Observer, now: float) -> list[Change]:
        """Take the matches of one evaluation.

        Args:
            matches: all of it; the first of each code and component counts.
            observer: of the same evaluation.
            now: seconds since 1970.

        Returns:
            The opened incidents, then the closed ones.
        """
        seen: dict[tuple[str, str], Match] = {}
        for match in matches:
            seen.setdefault(_key(match), match)
        known = set(self._incidents)
        changes: list[Change] = []
        for key in [key for key in self._incidents if key not in seen]:
            incident = self._incidents[key]
            if observer.is_observable(incident.match) or now - incident.last_seen >= UNSEEN_CLOSES_AFTER:
                changes += self._miss(key, now, observer)
        # Of several degrees of one fault the highest comes first.
        for match in sorted(seen.values(), key=lambda one: len(REPLACED_BY.get(one.code, ()))):
            changes += self._see(match, now, observer)
        for key in [key for key in seen if CODES[key[0]].is_event]:
            changes += self._follow_event(self._incidents[key], now, observer)
        changes += self._close_replaced(now)
        self._looked_at = now
        self._closed = [one for one in self._closed if now - one.until < DAY][-CLOSED_MAX:]
        self.version += bool(changes or self._incidents.keys() != known)
        return sorted(changes, key=lambda one: one[0] != "opened")

    def _see(self, match: Match, now: float, observer: Observer) -> list[Change]:
        key = _key(match)
        began = now if match.since is None else min(match.since, now)
        incident = self._incidents.get(key)
        if incident is None:
            incident = self._incidents[key] = Incident(
                match, began, now, grew_at=now, well_at=observer.known_well(match)
            )
        is_interrupted = _is_interrupted(incident, now)
        if incident.last_seen == self._looked_at and not is_interrupted:
            incident.seen_seconds += min(max(now - incident.last_seen, 0.0), EVALUATION_SECONDS_MAX)
        else:
            incident.seen_seconds = 0.0
        begins_anew = is_interrupted and not (incident.is_open or incident.is_over)
        if begins_anew or incident.first_seen > now:  # not evaluated for a while, or the wall clock was set back
            incident.first_seen, incident.well_at = began, observer.known_well(match)
        if incident.first_seen == now or _grew(incident, match, now):
            incident.grew_at, incident.healthy_since, incident.is_over = now, None, False
        incident.match, incident.last_seen, incident.absent_since = match, now, None
        lasted = now - incident.first_seen >= CODES[match.code].opens_after
        if incident.is_open or incident.is_over or not lasted or self._replacement(key):
            return []
        incident.is_open = True
        return [("opened", incident)]

    def _replacement(self, key: tuple[str, str]) -> str:
        """The open code at the same component that a code is a lesser degree of; empty where none is open."""
        code, component = key
        greater = (self._incidents.get((one, component)) for one in REPLACED_BY.get(code, ()))
        return next((one.match.code for one in greater if one is not None and one.is_open), "")

    def _close_replaced(self, now: float) -> list[Change]:
        changes = []
        for key, incident in list(self._incidents.items()):
            if incident.is_open and (code := self._replacement(key)):
                del self._incidents[key]
                changes.append(self._close(incident, now, f"became: {CODES[code].title}"))
        return changes

    def _follow_event(self, incident: Incident, now: float, observer: Observer) -> list[Change]:
        """An event is over once its part reads healthy, and nothing of it happened for long enough."""
        if not incident.is_open:
            return []
        if not observer.is_repaired(incident.match):
            incident.healthy_since = None
            return []
        if incident.healthy_since is None or incident.healthy_since > now:
            incident.healthy_since = now
        if now - (incident.grew_at or incident.first_seen) < OVER_AFTER:
            return []
        incident.is_open, incident.is_over = False, True
        return [self._close(incident, incident.healthy_since)]

    def _close(self, incident: Incident, until: float, note: str = "") -> Change:
        if CODES[incident.match.code].severity != "info":
            self._closed.append(Closed(incident.match, incident.first_seen, until, note))
        return ("closed", incident)

    def closed(self) -> list[Closed]:
        """Critical and warning findings that were open within the last day and are not any more, the oldest first."""
        return list(self._closed)

    def _miss(self, key: tuple[str, str], now: float, observer: Observer) -> list[Change]:
        incident = self._incidents[key]
        if not incident.is_open and not incident.is_over:
            del self._incidents[key]
            return []
        if incident.absent_since is None or incident.absent_since > now:
            incident.absent_since = now
        if now - incident.absent_since < CODES[incident.match.code].closes_after:
            return []
        del self._incidents[key]
        return [self._close(incident, incident.absent_since, observer.note(incident.match))] if incident.is_open else []

    def open_incidents(self) -> list[Incident]:
        return [incident for incident in self._incidents.values() if incident.is_open]

    def unconfirmed(self, now: float) -> list[Incident]:
        """All that were seen and have not lasted for long enough to be open, in no order.

        Args:
            now: seconds since 1970.
        """
        unopened = [one for one in self._incidents.values() if not (one.is_open or one.is_over)]
        return [one for one in unopened if not _is_interrupted(one, now)]


def _key(match: Match) -> tuple[str, str]:
    return (match.code, match.component.identity)


def _is_interrupted(incident: Incident, now: float) -> bool:
    """Whether it was not seen for longer than a finding stays open, by this clock: the next time it begins again."""
    return abs(now - incident.last_seen) > STATE_CLOSES_AFTER


def _grew(incident: Incident, match: Match, now: float) -> bool:
    """Whether more is counted than at the evaluation before.

    A series of events that lasts longer than the counted hour keeps its count while it goes on. An event that is still
    counted is not new; one that was gone is.
    """
    before, after = _count(incident.match), _count(match)
    if CODES[match.code].is_event:
        return after > before or incident.absent_since is not None
    return after > before or (after == before and now - incident.first_seen > HOUR)


def _count(match: Match) -> float:
    return sum(one.value for one in match.evidence if isinstance(one.value, (int, float)))


def is_counted(match: Match) -> bool:
    """Whether it is a fault from a number of events in an hour on."""
    is_event = CODES[match.code].closes_after >= COUNT_CLOSES_AFTER
    return is_event and any(one.threshold is not None for one in match.evidence)


def counted_over(match: Match) -> float:
    """Seconds in which the events came that make it a fault: a day where those of the last hour are too few."""
    reached = [
        one.threshold_origin
        for one in match.evidence
        if one.threshold is not None and isinstance(one.value, (int, float)) and one.value >= one.threshold
    ]
    return DAY if reached and all(key.endswith("_per_day") for key in reached) else HOUR

"""Which findings are open: they open and close with hysteresis, and outlive a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from commwatch.findings.code import STATE_CLOSES_AFTER
from commwatch.findings.codes import CODES, REPLACED_BY
from commwatch.findings.finding import Finding, Sighting
from commwatch.findings.repaired import EVENTS, OVER_AFTER
from commwatch.findings.rules.rule_set import DAY, HOUR
from commwatch.state.records import Timestamp

Change: TypeAlias = tuple[Literal["opened", "closed"], Finding]
"""One event of the log."""

Observable: TypeAlias = Callable[[Sighting], bool]
"""Whether a fault could be seen now if it were there: what cannot be looked at neither opens nor closes."""

KnownWell: TypeAlias = Callable[[Sighting], "float | None"]
"""When a part that shows a fault for the first time was last known not to have it, seconds since 1970."""


Note: TypeAlias = Callable[[Sighting], str]
"""Why a finding closes that nothing shows to be well; empty where something does."""

Repaired: TypeAlias = Callable[[Sighting], bool]
"""Whether the part of an event reads healthy now."""

UNSEEN_CLOSES_AFTER = 7 * 24 * 3600.0
"""Seconds for which a finding may be neither seen nor observable: of what no one reads any more, no one will say that
it is well again."""


LOOK_SECONDS_MAX = 20.0
"""At most this much of the time between two looks counts for ``seen_seconds``: the rules look each 10 s, and a longer
time may be a wall clock that was set forward."""


class Spell(msgspec.Struct):
    """One code at one component, from its first sighting until it has been gone for long enough."""

    sighting: Sighting
    """The latest."""
    first_seen: Timestamp
    """Seconds since 1970."""
    last_seen: Timestamp
    seen_seconds: float = 0.0
    """As of a finding."""
    is_open: bool = False
    absent_since: Timestamp | None = None
    """First look without it, since it was seen last."""
    grew_at: Timestamp | None = None
    """Last look at which its counts were higher than at the look before."""
    well_at: Timestamp | None = None
    """When it was last known not to be so; None where that is not known."""
    healthy_since: Timestamp | None = None
    """Of an event: since when its part reads healthy again."""
    is_over: bool = False
    """It was open, and is not any more although it is counted still: it happened, and its part is well again."""


class Closed(msgspec.Struct):
    """A critical or warning finding that was open within the last day."""

    sighting: Sighting
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
    """What survives a restart."""

    spells: list[Spell] = []
    closed: list[Closed] = []


class Register:
    """Open findings, and sightings that have not lasted yet."""

    def __init__(self, state: RegisterState | None = None) -> None:
        """
        Raises:
            ValueError: a finding is there twice.
        """
        known = state or RegisterState()
        # A code that this version does not know any more is dropped.
        spells = [one for one in known.spells if one.sighting.code in CODES]
        self._spells = {_key(one.sighting): one for one in spells}
        if len(self._spells) != len(spells):
            raise ValueError("a finding is there twice")
        self._closed = [one for one in known.closed if one.sighting.code in CODES]
        self._looked_at: float | None = None
        self.version = 0
        """Grows with each finding that is seen first, opens or goes."""

    @property
    def state(self) -> RegisterState:
        """To keep in the state directory."""
        return RegisterState(list(self._spells.values()), list(self._closed))

    def update(
        self,
        sightings: Iterable[Sighting],
        observable: Observable,
        now: float,
        known_well: KnownWell = lambda sighting: None,
        repaired: Repaired = lambda sighting: False,
        note: Note = lambda sighting: "",
    ) -> list[Change]:
        """Take one look at the node.

        Args:
            sightings: all of this look; the first of each code and component counts.
            observable: whether what is not among them could have been seen.
            now: seconds since 1970.
            known_well: asked about each sighting that is new.
            repaired: asked about each event that is open.
            note: asked about each finding that closes.

        Returns:
            What opened and closed by it.
        """
        seen: dict[tuple[str, str], Sighting] = {}
        for sighting in sightings:
            seen.setdefault(_key(sighting), sighting)
        known = set(self._spells)
        changes: list[Change] = []
        for key in [key for key in self._spells if key not in seen]:
            spell = self._spells[key]
            if observable(spell.sighting) or now - spell.last_seen >= UNSEEN_CLOSES_AFTER:
                changes += self._miss(key, now, note)
        # Of several degrees of one fault the highest comes first.
        for sighting in sorted(seen.values(), key=lambda one: len(REPLACED_BY.get(one.code, ()))):
            changes += self._see(sighting, now, known_well)
        for key in [key for key in seen if key[0] in EVENTS]:
            changes += self._follow_event(self._spells[key], repaired, now)
        changes += self._close_replaced(now)
        self._looked_at = now
        self._closed = [one for one in self._closed if now - one.until < DAY][-CLOSED_MAX:]
        self.version += bool(changes or self._spells.keys() != known)
        return changes

    def _see(self, sighting: Sighting, now: float, known_well: KnownWell) -> list[Change]:
        key = _key(sighting)
        began = now if sighting.since is None else min(sighting.since, now)
        spell = self._spells.get(key)
        if spell is None:
            spell = self._spells[key] = Spell(sighting, began, now, grew_at=now, well_at=known_well(sighting))
        is_interrupted = _is_interrupted(spell, now)
        if spell.last_seen == self._looked_at and not is_interrupted:
            spell.seen_seconds += min(max(now - spell.last_seen, 0.0), LOOK_SECONDS_MAX)
        else:
            spell.seen_seconds = 0.0
        begins_anew = is_interrupted and not (spell.is_open or spell.is_over)
        if begins_anew or spell.first_seen > now:  # not looked at for a while, or the wall clock was set back
            spell.first_seen, spell.well_at = began, known_well(sighting)
        if spell.first_seen == now or _grew(spell, sighting, now):
            spell.grew_at, spell.healthy_since, spell.is_over = now, None, False
        spell.sighting, spell.last_seen, spell.absent_since = sighting, now, None
        lasted = now - spell.first_seen >= CODES[sighting.code].opens_after
        if spell.is_open or spell.is_over or not lasted or self._replacement(key):
            return []
        spell.is_open = True
        return [("opened", _finding(spell))]

    def _replacement(self, key: tuple[str, str]) -> str:
        """The open code at the same component that a code is a lesser degree of; empty where none is open."""
        code, component = key
        greater = (self._spells.get((one, component)) for one in REPLACED_BY.get(code, ()))
        return next((one.sighting.code for one in greater if one is not None and one.is_open), "")

    def _close_replaced(self, now: float) -> list[Change]:
        changes = []
        for key, spell in list(self._spells.items()):
            if spell.is_open and (code := self._replacement(key)):
                del self._spells[key]
                changes.append(self._close(spell, now, f"became: {CODES[code].title}"))
        return changes

    def _follow_event(self, spell: Spell, repaired: Repaired, now: float) -> list[Change]:
        """An event is over once its part reads healthy, and nothing of it happened for long enough."""
        if not spell.is_open:
            return []
        if not repaired(spell.sighting):
            spell.healthy_since = None
            return []
        if spell.healthy_since is None or spell.healthy_since > now:
            spell.healthy_since = now
        if now - (spell.grew_at or spell.first_seen) < OVER_AFTER:
            return []
        spell.is_open, spell.is_over = False, True
        return [self._close(spell, spell.healthy_since)]

    def _close(self, spell: Spell, until: float, note: str = "") -> Change:
        if CODES[spell.sighting.code].severity != "info":
            self._closed.append(Closed(spell.sighting, spell.first_seen, until, note))
        return ("closed", _finding(spell))

    def closed(self) -> list[Closed]:
        """Critical and warning findings that were open within the last day and are not any more, the oldest first."""
        return list(self._closed)

    def _miss(self, key: tuple[str, str], now: float, note: Note) -> list[Change]:
        spell = self._spells[key]
        if not spell.is_open and not spell.is_over:
            del self._spells[key]
            return []
        if spell.absent_since is None or spell.absent_since > now:
            spell.absent_since = now
        if now - spell.absent_since < CODES[spell.sighting.code].closes_after:
            return []
        del self._spells[key]
        return [self._close(spell, spell.absent_since, note(spell.sighting))] if spell.is_open else []

    def last_seen(self) -> dict[tuple[str, str], float]:
        """By code and identity of the component: when a rule saw it last, seconds since 1970."""
        return {key: spell.last_seen for key, spell in self._spells.items()}

    def open_findings(self) -> list[Finding]:
        """All that are open, without causes, in no order."""
        return [_finding(spell) for spell in self._spells.values() if spell.is_open]

    def unconfirmed(self, now: float) -> list[Finding]:
        """All that were seen and have not lasted for long enough to be open, without causes, in no order.

        Args:
            now: seconds since 1970.
        """
        unopened = [one for one in self._spells.values() if not (one.is_open or one.is_over)]
        return [_finding(one) for one in unopened if not _is_interrupted(one, now)]


def _key(sighting: Sighting) -> tuple[str, str]:
    return (sighting.code, sighting.component.identity)


def _is_interrupted(spell: Spell, now: float) -> bool:
    """Whether it was not seen for longer than a finding stays open, by this clock: the next time it begins again."""
    return abs(now - spell.last_seen) > STATE_CLOSES_AFTER


def _grew(spell: Spell, sighting: Sighting, now: float) -> bool:
    """Whether more is counted than at the look before.

    What has gone on for longer than the hour over which is counted stands still while it goes on. One event that is
    still counted is no new one; one that was gone is.
    """
    before, after = _count(spell.sighting), _count(sighting)
    if sighting.code in EVENTS:
        return after > before or spell.absent_since is not None
    return after > before or (after == before and now - spell.first_seen > HOUR)


def _count(sighting: Sighting) -> float:
    return sum(one.value for one in sighting.evidence if isinstance(one.value, (int, float)))


def _finding(spell: Spell) -> Finding:
    seen = spell.sighting
    return Finding(
        seen.code, seen.component, CODES[seen.code].severity, spell.first_seen, seen.evidence, seen.detail,
        seen_seconds=spell.seen_seconds, grew_at=spell.grew_at, well_at=spell.well_at,
        healthy_since=spell.healthy_since,
    )  # fmt: skip

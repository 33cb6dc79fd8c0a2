"""Findings made by hand, with the words of their code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Cause, Component, Evidence, Finding, Match
from commwatch.findings.register import Incident

SINCE = 1_700_000_000.0
"""Seconds since 1970, where a test does not say otherwise."""


def incident(
    code: str, component: Component, since: float = SINCE, evidence: tuple[Evidence, ...] = (), detail: str = "",
    **more: Any,
) -> Incident:  # fmt: skip
    """An open one of a register, seen when it began unless ``last_seen`` says otherwise."""
    return Incident(Match(code, component, evidence, detail), since, **{"last_seen": since, "is_open": True, **more})


def incidents(matches: Iterable[Match], since: float = SINCE) -> list[Incident]:
    """What rules found, as if it had lasted for long enough."""
    return [Incident(match, since, since, is_open=True) for match in matches]


def finding(
    code: str, component: Component, since: float = SINCE, evidence: tuple[Evidence, ...] = (), detail: str = "",
    causes: tuple[Cause, ...] = (), **more: Any,
) -> Finding:  # fmt: skip
    """One with these causes; further fields are those of the record."""
    [found] = join([incident(code, component, since, evidence, detail)], {})
    return replace(found, causes=causes, **more)


def cause(code: str, component: Component, weight: float = 0.9, reason: str = "So it is.", **more: Any) -> Cause:
    """A cause; further fields are those of the record."""
    known = CODES[code]
    fields = {"detail": "", "evidence": (), "last_seen": None, "next_step": known.next_step, "alert": known.alert}
    return Cause(
        code=code, title=known.title, severity=known.severity, component=component.record, weight=weight,
        reason=reason, **{**fields, **more},
    )  # fmt: skip


@dataclass(frozen=True)
class Observer:
    """What a register asks, with one answer for all parts."""

    observable: bool = True
    repaired: bool = False

    def is_observable(self, match: Match) -> bool:
        return self.observable

    def known_well(self, match: Match) -> float | None:
        return None

    def is_repaired(self, match: Match) -> bool:
        return self.repaired

    def note(self, match: Match) -> str:
        return ""

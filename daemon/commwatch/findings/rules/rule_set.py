"""A family of rules: its codes, the counters it looks back at, and the function that looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Sighting

Look: TypeAlias = Callable[[Facts, Thresholds], Iterable[Sighting]]
"""One rule, or several that belong together."""

Judge: TypeAlias = Callable[[Facts, Thresholds, Component], bool]
"""Whether a component can be judged now: a PCIe link shows its speed under load alone."""

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of one family of metrics."""

    name: str
    """Heading in the documentation."""
    codes: tuple[FindingCode, ...]
    looks: tuple[Look, ...]
    windows: Mapping[str, float] = field(default_factory=dict)
    """Counters that the rules look back at: metric, seconds."""
    events: frozenset[str] = frozenset()
    """Those of them of which a series is not there before its first event: it counts from 0."""
    judged: Mapping[str, Judge] = field(default_factory=dict)
    """By code, for those that cannot always be judged: where one cannot, its finding stays as it is."""

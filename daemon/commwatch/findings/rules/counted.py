"""Counters of links and ports that have limits in their rows of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import interface_of, nvlink_of, port_of
from commwatch.findings.rules.rule_set import Rule
from commwatch_exporters.catalogue import LIMITS
from commwatch_exporters.catalogue.metric import SUSTAINED_SECONDS, Limit
from commwatch_exporters.node.model import Interface, NvLink, RdmaPort
from commwatch_exporters.node.parts import AnyColumn, column_of

_Counted: TypeAlias = "NvLink | RdmaPort | Interface"

Found: TypeAlias = "dict[Component, list[Evidence]]"

SUSTAINED_OPENS_AFTER = 2 * SUSTAINED_SECONDS
"""Seconds for which a rate must stay too high: longer than it is taken over, so that one burst opens nothing."""

_KINDS: Mapping[str, type[NvLink | RdmaPort | Interface]] = {
    "nvlink": NvLink, "rdma": RdmaPort, "ethernet": Interface,
}  # fmt: skip
"""By the first word of the metric."""


class _Row(NamedTuple):
    column: AnyColumn
    limit: Limit


_ROWS: Mapping[str, tuple[_Row, ...]] = {
    code: tuple(_Row(column_of(_KINDS[metric.name.split("_")[1]], metric.name), limit) for metric, limit in limits)
    for code, limits in LIMITS.items()
}
"""By code of the finding."""


def add_rises(code: str, facts: Facts, thresholds: Thresholds, evidence_of: Found) -> None:
    """Add what rose beyond the limits of a code."""
    for column, limit in _ROWS[code]:
        most = limit.most(getattr(thresholds, limit.threshold)) if limit.threshold else None
        for part, kind, rise in facts.rises_keyed(column, limit.window_seconds):
            if limit.is_exceeded(rise, most):
                of = f" ({kind.replace('_', ' ')})" if kind else ""
                what = f"{limit.what}{of} {facts.lately(limit.window_seconds)}"
                evidence_of.setdefault(_component(part), []).append(Evidence(what, rise, "", most, limit.threshold))


def _component(part: _Counted) -> Component:
    if isinstance(part, NvLink):
        return nvlink_of(part)
    return port_of(part) if isinstance(part, RdmaPort) else interface_of(part)


def risen(code: str, facts: Facts, thresholds: Thresholds) -> Iterator[Match]:
    """The links, RDMA ports or interfaces of which counters rose beyond the limits of a code."""
    evidence_of: Found = {}
    add_rises(code, facts, thresholds, evidence_of)
    return matches(code, evidence_of)


def counted(name: str, *codes: str) -> Rule:
    """A rule that is rows of the catalogue alone: counters that rose beyond the limits of their codes.

    Args:
        name: see ``Rule.name``.
        codes: of the limits.
    """

    def evaluate(facts: Facts, thresholds: Thresholds) -> Iterator[Match]:
        for code in codes:
            yield from risen(code, facts, thresholds)

    columns = tuple(dict.fromkeys(column for code in codes for column in columns_of(code)))
    limits = tuple(dict.fromkeys(limit for code in codes for limit in thresholds_of(code)))
    details: Mapping[type[_Counted], tuple[AnyColumn, ...]] = {
        NvLink: (), RdmaPort: (RdmaPort.info,), Interface: (Interface.info,),
    }  # fmt: skip
    return Rule(evaluate, codes, reads=columns, details=details[columns[0].kind], thresholds=limits, row=name)


def matches(code: str, evidence_of: Found) -> Iterator[Match]:
    """One of each component."""
    for component, evidence in evidence_of.items():
        yield Match(code, component, tuple(evidence))


def columns_of(code: str) -> tuple[AnyColumn, ...]:
    """The counters of a code, each once."""
    return tuple(dict.fromkeys(column for column, _ in _ROWS[code]))


def thresholds_of(code: str) -> tuple[str, ...]:
    """The keys of their limits, each once."""
    return tuple(dict.fromkeys(limit.threshold for _, limit in _ROWS[code] if limit.threshold))


def windows_of(*codes: str) -> dict[AnyColumn, float]:
    """How long changes of each counter must be kept."""
    longest: dict[AnyColumn, float] = {}
    for column, limit in (row for code in codes for row in _ROWS[code]):
        longest[column] = max(limit.window_seconds, longest.get(column, 0.0))
    return longest

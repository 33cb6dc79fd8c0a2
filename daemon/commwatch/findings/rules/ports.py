"""RDMA ports and network interfaces as components, and the counters of them that are held against a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.components import interface_of, port_of
from commwatch_exporters.node.model import Collector, Interface, Inventory, RdmaPort
from commwatch_exporters.node.parts import AnyColumn

Told: TypeAlias = "dict[Component, list[Evidence]]"
"""What is found, by component."""

MINUTE = 60.0
SUSTAINED_WINDOW = 120.0
"""Seconds over which the rate is taken of what a network may do for a moment."""
SUSTAINED_OPENS_AFTER = 240.0
"""Seconds for which such a rate must stay: longer than the window, so that one burst opens nothing."""

_SPANS: Mapping[float, str] = {MINUTE: "minute", SUSTAINED_WINDOW: "2 min", 3600.0: "hour"}


class Limit(NamedTuple):
    """How far a counter may rise."""

    column: AnyColumn
    what: str
    """In words: ``symbol errors``."""
    window: float
    """Seconds looked back."""
    threshold: str = ""
    """Key of the number that may be reached; empty where any is a fault."""
    per: float = 1.0
    """Seconds that the number is for."""


def tell_rises(facts: Facts, thresholds: Thresholds, limits: Iterable[Limit], told: Told) -> None:
    """Add the counters of RDMA ports or interfaces that rose beyond their limits."""
    for limit in limits:
        most = float(getattr(thresholds, limit.threshold)) * limit.window / limit.per if limit.threshold else None
        for part, kind, rise in facts.rises_keyed(limit.column, limit.window):
            if most is None or rise > most:
                of = f" ({kind.replace('_', ' ')})" if kind else ""
                what = f"{limit.what}{of} in the last {_SPANS[limit.window]}"
                told.setdefault(_of(part), []).append(Evidence(what, rise, "", most, limit.threshold))


def _of(part: RdmaPort | Interface) -> Component:
    return port_of(part) if isinstance(part, RdmaPort) else interface_of(part)


def risen(code: str, facts: Facts, thresholds: Thresholds, limits: Iterable[Limit]) -> Iterator[Sighting]:
    """The RDMA ports or interfaces of which counters rose beyond their limits."""
    told: Told = {}
    tell_rises(facts, thresholds, limits, told)
    return sightings(code, told)


def sightings(code: str, told: Told) -> Iterator[Sighting]:
    """One of each component."""
    for component, evidence in told.items():
        yield Sighting(code, component, tuple(evidence))


def columns_of(limits: Iterable[Limit]) -> tuple[AnyColumn, ...]:
    """The counters, each once."""
    return tuple(dict.fromkeys(limit.column for limit in limits))


def thresholds_of(limits: Iterable[Limit]) -> tuple[str, ...]:
    """The keys that they are held against, each once."""
    return tuple(dict.fromkeys(limit.threshold for limit in limits if limit.threshold))


def windows_of(limits: Iterable[Limit]) -> dict[AnyColumn, float]:
    """How long changes of each counter must be kept."""
    longest: dict[AnyColumn, float] = {}
    for limit in limits:
        longest[limit.column] = max(limit.window, longest.get(limit.column, 0.0))
    return longest


ALL_READ = (Collector.success, Inventory.present)
"""What ``all_read`` reads."""


def all_read(facts: Facts, collector: str, kind: str) -> bool:
    """Whether a part that is not on the page is not on the node: its collector read all there is.

    Args:
        facts: of now.
        collector: that reads parts of the kind.
        kind: as the inventory calls it: ``rdma_port``.
    """
    node = facts.node
    return node.part(Collector, collector).success == 1 and node.part(Inventory, kind).present is not None

"""RDMA ports and network interfaces as components, and the counters of them that are held against a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.components import interface_of, port_of
from commwatch_exporters.node.parts import AnyColumn

Told: TypeAlias = "dict[Component, list[Evidence]]"
"""What is found, by component."""

PORTS = "commwatch_rdma_port_info"
"""What ``port_at`` reads."""
INTERFACES = "commwatch_ethernet_info"
"""What ``interface_at`` reads."""

MINUTE = 60.0
SUSTAINED_WINDOW = 120.0
"""Seconds over which the rate is taken of what a network may do for a moment."""
SUSTAINED_OPENS_AFTER = 240.0
"""Seconds for which such a rate must stay: longer than the window, so that one burst opens nothing."""

_SPANS: Mapping[float, str] = {MINUTE: "minute", SUSTAINED_WINDOW: "2 min", 3600.0: "hour"}


class Limit(NamedTuple):
    """How far a counter may rise."""

    metric: str
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
        for labels, rise in facts.increases(limit.metric, limit.window):
            if most is None or rise > most:
                kind = labels.get("kind", "").replace("_", " ")
                what = f"{limit.what}{kind and f' ({kind})'} in the last {_SPANS[limit.window]}"
                component = port_at(facts, labels) if "port" in labels else interface_at(facts, labels)
                told.setdefault(component, []).append(Evidence(what, rise, "", most, limit.threshold))


def risen(code: str, facts: Facts, thresholds: Thresholds, limits: Iterable[Limit]) -> Iterator[Sighting]:
    """The RDMA ports or interfaces of which counters rose beyond their limits."""
    told: Told = {}
    tell_rises(facts, thresholds, limits, told)
    return sightings(code, told)


def sightings(code: str, told: Told) -> Iterator[Sighting]:
    """One of each component."""
    for component, evidence in told.items():
        yield Sighting(code, component, tuple(evidence))


def metrics_of(limits: Iterable[Limit]) -> tuple[str, ...]:
    """The counters, each once."""
    return tuple(dict.fromkeys(limit.metric for limit in limits))


def thresholds_of(limits: Iterable[Limit]) -> tuple[str, ...]:
    """The keys that they are held against, each once."""
    return tuple(dict.fromkeys(limit.threshold for limit in limits if limit.threshold))


def windows_of(limits: Iterable[Limit]) -> dict[AnyColumn | str, float]:
    """How long changes of each counter must be kept."""
    longest: dict[AnyColumn | str, float] = {}
    for limit in limits:
        longest[limit.metric] = max(limit.window, longest.get(limit.metric, 0.0))
    return longest


def by_labels(facts: Facts, metric: str) -> dict[tuple[str, ...], float]:
    """The numbers of a metric by the values of their labels."""
    return {tuple(labels.values()): number for labels, number in facts.series(metric)}


def port_at(facts: Facts, labels: Mapping[str, str]) -> Component:
    """The RDMA port of a series with ``device`` and ``port``, with all that it stands on."""
    known = facts.derived(_ports).get((labels["device"], labels["port"]), {})
    return port_of({**known, **labels})


def interface_at(facts: Facts, labels: Mapping[str, str]) -> Component:
    """The network interface of a series with ``device``, with all that it stands on."""
    return interface_of({**facts.derived(_interfaces).get(labels["device"], {}), **labels})


def _ports(facts: Facts) -> dict[tuple[str, str], Mapping[str, str]]:
    """Identity by device and port."""
    return {(labels["device"], labels["port"]): labels for labels, _ in facts.series(PORTS)}


def _interfaces(facts: Facts) -> dict[str, Mapping[str, str]]:
    """Identity by name."""
    return {labels["device"]: labels for labels, _ in facts.series(INTERFACES)}


ALL_READ = ("commwatch_collector_success", "commwatch_present")
"""What ``all_read`` reads."""


def all_read(facts: Facts, collector: str, kind: str) -> bool:
    """Whether a part that is not on the page is not on the node: its collector read all there is.

    Args:
        facts: of now.
        collector: that reads parts of the kind.
        kind: as the inventory calls it: ``rdma_port``.
    """
    well = facts.value("commwatch_collector_success", collector=collector) == 1
    return well and facts.value("commwatch_present", kind=kind) is not None

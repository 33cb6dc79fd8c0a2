"""Measurements of probes by place: each pair of GPUs and each copy to the host with the parts on its path; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from commwatch.findings.facts import Facts
from commwatch.findings.rules.gpu_ways import PEERS, gpus_of, ways_of
from commwatch_exporters.node.model import HostCopy, Pair, Probe

WELL_FROM = 0.85
"""Share of the expected bandwidth from which on a pair is well: healthy ones show this and more."""


class Measured(NamedTuple):
    """The slower direction of one pair of GPUs, or of the copies between one GPU and the host."""

    kind: Literal["pair", "copy"]
    way: frozenset[str]
    """Parts that it is known to use."""
    maybe: frozenset[str]
    """Those with the links whose far end is not known."""
    share: float
    """Of the expected bandwidth."""
    at: float
    """End of its cycle, seconds since 1970."""


def measured_of(facts: Facts) -> tuple[Measured, ...]:
    """The current results of the pair matrix and of copies to the host, without those that nothing was expected of."""
    return (*_pairs(facts), *_copies(facts))


def well_at(facts: Facts) -> float | None:
    """When all pairs reached their expectation, seconds since 1970; None if the current matrix does not show it."""
    at, shares = _matrix(facts)
    return at if shares and min(shares.values()) >= WELL_FROM else None


def _matrix(facts: Facts) -> tuple[float, Mapping[frozenset[str], float]]:
    """The end of the last matrix, seconds since 1970, and by both GPUs of a pair its share of what is expected."""
    times = [at for probe, at in facts.each(Probe.last_completion_timestamp_seconds) if probe.collective == "pairs"]
    shares: dict[frozenset[str], float] = {}
    if not times:
        return 0.0, shares
    gpus = facts.derived(gpus_of)
    for pair, rate in facts.each(Pair.bandwidth_bytes_per_second):
        expected = pair.expected_bandwidth_bytes_per_second
        ends = frozenset(gpus.get(one, "") for one in (pair.source, pair.target))
        if expected and pair.backend != "gloo" and len(ends) == 2 and "" not in ends:
            shares[ends] = min(rate / expected, shares.get(ends, rate / expected))
    return max(times), shares


def _pairs(facts: Facts) -> Iterator[Measured]:
    at, shares = _matrix(facts)
    ways = facts.derived(ways_of)
    for ends, share in shares.items():
        first, second = sorted(ends)
        is_known = ways.over_nvlink(first, second) or ways.only_over_pcie(first, second)
        way = ways.surely(first, second) | {PEERS} if is_known else frozenset()
        yield Measured("pair", way, ways.pair(first, second) | {PEERS}, share, at)


def _copies(facts: Facts) -> Iterator[Measured]:
    times = {probe.name: at for probe, at in facts.each(Probe.last_completion_timestamp_seconds)}
    shares: dict[str, tuple[float, float]] = {}
    for copy, rate in facts.each(HostCopy.bandwidth_bytes_per_second):
        expected, at = copy.expected_bandwidth_bytes_per_second, times.get(copy.probe)
        if expected and at is not None:
            shares[copy.address] = min((rate / expected, at), shares.get(copy.address, (rate / expected, at)))
    ways = facts.derived(ways_of)
    for address, (share, at) in shares.items():
        way = ways.to_host(address)
        yield Measured("copy", way, way, share, at)

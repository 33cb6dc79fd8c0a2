"""Series of the probes as the score reads them: GPU fabric only, each rate beside what it should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from commwatch.findings.facts import Facts
from commwatch_exporters.node.model import HostCopy, Pair, Probe
from commwatch_exporters.node.parts import Column


@dataclass(frozen=True, slots=True)
class Reached:
    """A rate beside what it should be."""

    subject: str
    """``GPU3 to GPU5``, ``GPU3 host_to_device``."""
    bytes_per_second: float
    expected: float
    """Bytes per second."""

    @property
    def ratio(self) -> float:
        """Of what is expected, also above 1."""
        return self.bytes_per_second / self.expected

    @property
    def share(self) -> float:
        """Of what is expected, at most 1: what one way gives too much makes good for no other."""
        return at_most_one(self.ratio)


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies between GPUs and host of one probe."""

    probe: str
    gpus: int
    """Number of GPUs that were measured."""
    rates: tuple[Reached, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Results of single GPUs and pairs as shares of their expectations, where these are known."""

    copies: Mapping[Probe, Copies]
    pairs: tuple[Reached, ...]
    """The ordered pairs, one way."""


def rates_of(facts: Facts) -> Rates:
    """Gathered once for all parts."""
    return Rates(_copies(facts), _pairs(facts))


def at_most_one(ratio: float) -> float:
    """A ratio that counts for no more than 1, and for no less than 0."""
    return min(1.0, max(0.0, ratio))


def of_probes(facts: Facts, column: Column[Probe]) -> Iterator[tuple[Probe, float]]:
    """The probes over GPUs that have a number: gloo tests the host's TCP path."""
    return ((probe, value) for probe, value in facts.each(column) if probe.backend != "gloo")


def _copies(facts: Facts) -> dict[Probe, Copies]:
    rates: dict[Probe, list[Reached]] = {}
    gpus: dict[Probe, set[str]] = {}
    for copy, rate in facts.each(HostCopy.bandwidth_bytes_per_second):
        if copy.backend != "gloo" and (wanted := copy.expected_bandwidth_bytes_per_second):
            probe = facts.node.part(Probe, copy.probe, copy.backend)
            rates.setdefault(probe, []).append(Reached(f"GPU{copy.gpu_index} {copy.direction}", rate, wanted))
            gpus.setdefault(probe, set()).add(copy.address)
    return {probe: Copies(probe.name, len(gpus[probe]), tuple(found)) for probe, found in rates.items()}


def _pairs(facts: Facts) -> tuple[Reached, ...]:
    return tuple(
        Reached(f"GPU{pair.source} to GPU{pair.target}", rate, wanted)
        for pair, rate in facts.each(Pair.bandwidth_bytes_per_second)
        if pair.backend != "gloo" and (wanted := pair.expected_bandwidth_bytes_per_second)
    )

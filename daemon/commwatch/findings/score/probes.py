"""Series of the probes as the score reads them: GPU fabric only, each rate beside what it should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from commwatch.findings.facts import Facts
from commwatch.findings.history import Labels


@dataclass(frozen=True, slots=True)
class Reached:
    """A rate beside what it should be."""

    subject: str
    """``GPU3 to GPU5``, ``GPU3 host_to_device``."""
    bytes_per_second: float
    expected: float
    """Bytes per second."""

    @property
    def share(self) -> float:
        """Of what is expected, at most 1: what one way gives too much makes good for no other."""
        return at_most_one(self.bytes_per_second / self.expected)


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies between GPUs and host of one probe."""

    probe: str
    gpus: int
    """Number of GPUs that were measured."""
    rates: tuple[Reached, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """What single GPUs and pairs reached in the last results, as far as it is known what they should."""

    copies: Mapping[tuple[str, str], Copies]
    """By probe and backend."""
    pairs: tuple[Reached, ...]
    """The ordered pairs, one way."""


def rates_of(facts: Facts) -> Rates:
    """Gathered once for all parts."""
    return Rates(_copies(facts), _pairs(facts))


def at_most_one(ratio: float) -> float:
    """A ratio that counts for no more than 1, and for no less than 0."""
    return min(1.0, max(0.0, ratio))


def fabric_series(facts: Facts, metric: str) -> Iterator[tuple[dict[str, str], float]]:
    """The series of a metric with a label ``backend`` that are about GPUs: gloo tests the host's TCP path."""
    return ((labels, value) for labels, value in facts.series(metric) if labels["backend"] != "gloo")


def by_probe(facts: Facts, metric: str) -> dict[tuple[str, str], float]:
    """Value by probe and backend, of a metric that has no other labels."""
    return {(labels["probe"], labels["backend"]): value for labels, value in fabric_series(facts, metric)}


def _copies(facts: Facts) -> dict[tuple[str, str], Copies]:
    expected = _known(facts, "commwatch_probe_copy_expected_bandwidth_bytes_per_second")
    rates: dict[tuple[str, str], list[Reached]] = {}
    gpus: dict[tuple[str, str], set[str]] = {}
    for labels, rate in fabric_series(facts, "commwatch_probe_copy_bandwidth_bytes_per_second"):
        wanted = expected.get(tuple(labels.values()))
        if wanted:
            probe = labels["probe"], labels["backend"]
            subject = f"GPU{labels['gpu']} {labels['direction']}"
            rates.setdefault(probe, []).append(Reached(subject, rate, wanted))
            gpus.setdefault(probe, set()).add(labels["pci_bus_id"])
    return {probe: Copies(probe[0], len(gpus[probe]), tuple(found)) for probe, found in rates.items()}


def _pairs(facts: Facts) -> tuple[Reached, ...]:
    expected = _known(facts, "commwatch_pair_expected_bandwidth_bytes_per_second")
    return tuple(
        Reached(f"GPU{labels['src']} to GPU{labels['dst']}", rate, wanted)
        for labels, rate in fabric_series(facts, "commwatch_pair_bandwidth_bytes_per_second")
        if (wanted := expected.get(tuple(labels.values())))
    )


def _known(facts: Facts, metric: str) -> dict[Labels, float]:
    return {tuple(labels.values()): value for labels, value in fabric_series(facts, metric)}

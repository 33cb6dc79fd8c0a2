"""Bandwidth: how much of what is expected the large operations reach, on average over the probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.findings.facts import Facts
from commwatch.findings.score.probes import Rates, Reached, at_most_one, by_probe, fabric_series
from commwatch.findings.score.records import PartReadings, Reading
from commwatch.units import format_percent, format_rate

_NEEDS = "a current result of a probe of which is known what it should give"


def bandwidth(facts: Facts, rates: Rates) -> PartReadings:
    """Each probe counts once: a collective by its last bus bandwidth, copies and pairs by the mean of theirs."""
    readings = [reading for probe, reading in _collectives(facts) if probe not in rates.copies]
    readings += [_mean(f"probe {one.probe}", "copies", one.rates) for one in rates.copies.values()]
    if rates.pairs:
        readings.append(_mean("pairs", "pairs", rates.pairs))
    return PartReadings("bandwidth", tuple(readings), least_counts=False, needs=_NEEDS)


def _collectives(facts: Facts) -> Iterator[tuple[tuple[str, str], Reading]]:
    last = by_probe(facts, "commwatch_probe_last_bus_bandwidth_bytes_per_second")
    expected = by_probe(facts, "commwatch_probe_expected_bandwidth_bytes_per_second")
    for labels, ratio in fabric_series(facts, "commwatch_probe_bandwidth_utilization_ratio"):
        probe = labels["probe"], labels["backend"]
        words = f"reaches {format_percent(ratio)} of what is expected"
        if probe in last and probe in expected:
            words += f": {format_rate(last[probe])} of {format_rate(expected[probe])}"
        yield probe, Reading(f"probe {probe[0]}", at_most_one(ratio), words)


def _mean(subject: str, what: str, rates: Sequence[Reached]) -> Reading:
    ratio = sum(one.share for one in rates) / len(rates)
    worst = min(rates, key=lambda one: one.share)
    words = (
        f"{len(rates)} {what} reach {format_percent(ratio)} of what is expected on average, "
        f"the worst ({worst.subject}) {format_rate(worst.bytes_per_second)} of {format_rate(worst.expected)}"
    )
    return Reading(subject, ratio, words)

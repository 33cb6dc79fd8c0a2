"""Bandwidth: how much of what is expected the large operations reach, on average over the probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.findings.facts import Facts
from commwatch.findings.score.probes import Rates, Reached, at_most_one, of_probes
from commwatch.findings.score.records import PartReadings, Reading
from commwatch.units import format_percent, format_rate
from commwatch_exporters.node.model import Probe

_NEEDS = "a current result of a probe of which is known what it should give"


def bandwidth(facts: Facts, rates: Rates) -> PartReadings:
    """Each probe counts once: a collective by its last bus bandwidth, copies and pairs by the mean of theirs."""
    readings = [reading for probe, reading in _collectives(facts) if probe not in rates.copies]
    readings += [_mean(f"probe {one.probe}", "copies", one.rates) for one in rates.copies.values()]
    if rates.pairs:
        readings.append(_mean("pairs", "pairs", rates.pairs))
    return PartReadings("bandwidth", tuple(readings), least_counts=False, needs=_NEEDS)


def _collectives(facts: Facts) -> Iterator[tuple[Probe, Reading]]:
    for probe, ratio in of_probes(facts, Probe.bandwidth_utilization_ratio):
        last, expected = probe.last_bus_bandwidth_bytes_per_second, probe.expected_bandwidth_bytes_per_second
        words = f"reaches {format_percent(ratio)} of what is expected"
        if last is not None and expected is not None:
            words += f": {format_rate(last)} of {format_rate(expected)}"
        yield probe, Reading(f"probe {probe.name}", at_most_one(ratio), words)


def _mean(subject: str, what: str, rates: Sequence[Reached]) -> Reading:
    ratio = sum(one.share for one in rates) / len(rates)
    worst = min(rates, key=lambda one: one.share)
    words = (
        f"{len(rates)} {what} reach {format_percent(ratio)} of what is expected on average, "
        f"the worst ({worst.subject}) {format_rate(worst.bytes_per_second)} of {format_rate(worst.expected)}"
    )
    return Reading(subject, ratio, words)

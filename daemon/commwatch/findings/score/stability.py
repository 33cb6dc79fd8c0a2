"""Stability: the worst of what happened again and again, or changed, over the last day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.score.probes import at_most_one, of_probes
from commwatch.findings.score.records import PartReadings, Reading
from commwatch_exporters.node.model import NvLink, Probe, RdmaPort
from commwatch_exporters.node.parts import Column, KeyedColumn

DAY = 86400.0

_RECOVERIES = (NvLink.recovery_errors, NvLink.recoveries)
"""NVLink 1 to 4, and NVLink 5."""
_CYCLES = (Probe.attempts, Probe.failures, Probe.latency_spikes)

WINDOWS: Mapping[str, float] = MappingProxyType(
    dict.fromkeys((one.metric for one in (*_CYCLES, *_RECOVERIES, NvLink.recoveries_failed, RdmaPort.flaps)), DAY)
)
"""Counters that this part looks back at, and for how many seconds."""

_CHANGES = (
    (Probe.latency_step_ratio, "latency: the last results take {:.3g} times as long as those before"),
    (Probe.bandwidth_step_ratio, "bandwidth: the last results take {:.3g} times as long as those before"),
    (Probe.latency_drift_ratio, "latency: the latest results take {:.3g} times as long as the first ones"),
    (Probe.bandwidth_drift_ratio, "bandwidth: the latest results take {:.3g} times as long as the first ones"),
)


def stability(facts: Facts, thresholds: Thresholds) -> PartReadings:
    """The least of what the probes and the links show over time.

    What links alone show only takes away: without any probe there is nothing whose stability it would be.
    """
    fewest = thresholds.probe_error_rate_attempts_min
    attempts = _rises(facts, Probe.attempts, DAY)
    changes = list(_changes(facts))
    needs = f"{fewest} cycles of probes in the last day, or enough results of one probe to compare over time"
    if attempts.total() < fewest and not changes:
        return PartReadings("stability", (), least_counts=True, needs=needs)
    readings = [
        *_bad_cycles(facts, DAY, fewest),
        # A day of good cycles must not hide that nothing works any more.
        *_bad_cycles(facts, min(DAY, thresholds.probe_error_rate_window_seconds), fewest),
        *_streaks(facts, thresholds),
        *changes,
        *_links(facts, thresholds),
    ]
    return PartReadings("stability", tuple(readings), least_counts=True, needs=needs)


def _rises(facts: Facts, column: Column[Probe] | KeyedColumn[Probe], window: float) -> Counter[str]:
    """By how much a counter of the probes rose in the last seconds, by probe."""
    rises: Counter[str] = Counter()
    for probe, _, rise in facts.rises_keyed(column, window):
        if probe.backend != "gloo":
            rises[probe.name] += round(rise)
    return rises


def _bad_cycles(facts: Facts, window: float, fewest: int) -> Iterator[Reading]:
    """The share of good cycles: of each probe, and of all together, for many probes may fail once each.

    Args:
        facts: of this moment.
        window: seconds to look back.
        fewest: cycles that a share is taken of at least: one failure of one is not yet all.
    """
    attempts = _rises(facts, Probe.attempts, window)
    for column, what in ((Probe.failures, "failed"), (Probe.latency_spikes, "were latency spikes")):
        bad = _rises(facts, column, window)
        for subject, count, cycles in (
            *((f"probe {probe}", bad[probe], attempts[probe]) for probe in attempts | bad),
            ("all probes", bad.total(), attempts.total()),
        ):
            words = f"{count} of {cycles} cycles of the last {window / 3600:g} h {what}"
            yield Reading(subject, at_most_one(1.0 - count / max(cycles, fewest)), words)


def _streaks(facts: Facts, thresholds: Thresholds) -> Iterator[Reading]:
    """One bad result costs nothing here, as many as raise an alert cost everything."""
    for column, alerting, words in (
        (Probe.latency_spike_streak, thresholds.probe_latency_spike_streak, "latency spikes in a row"),
        (Probe.low_bandwidth_streak, thresholds.probe_low_bandwidth_streak, "low bandwidths in a row"),
    ):
        for probe, streak in of_probes(facts, column):
            left = 1.0 - (streak - 1) / (alerting - 1) if alerting > 1 else float(streak < 1)
            yield Reading(f"probe {probe.name}", at_most_one(left), f"{streak:g} {words}")


def _changes(facts: Facts) -> Iterator[Reading]:
    for column, words in _CHANGES:
        for probe, ratio in of_probes(facts, column):
            yield Reading(f"probe {probe.name}", at_most_one(1.0 / max(1.0, ratio)), words.format(ratio))


def _links(facts: Facts, thresholds: Thresholds) -> Iterator[Reading]:
    for column in _RECOVERIES:
        for link, rise in facts.rises(column, DAY):
            ratio = at_most_one(1.0 - rise / thresholds.nvlink_recoveries_per_day)
            yield Reading(f"GPU{link.index} link {link.number}", ratio, f"{rise:g} recoveries in the last day")
    for link, rise in facts.rises(NvLink.recoveries_failed, DAY):
        yield Reading(f"GPU{link.index} link {link.number}", 0.0, f"{rise:g} failed recoveries in the last day")
    for port, rise in facts.rises(RdmaPort.flaps, DAY):
        ratio = at_most_one(1.0 - rise / thresholds.score_port_flaps_per_day)
        words = f"down {f'{rise:g} times' if rise != 1 else 'once'} in the last day"
        yield Reading(f"{port.device} port {port.number}", ratio, words)

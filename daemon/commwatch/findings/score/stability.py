"""Stability: the worst of what happened again and again, or changed, over the last day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.score.probes import at_most_one, by_probe
from commwatch.findings.score.records import PartReadings, Reading

DAY = 86400.0

_ATTEMPTS = "commwatch_probe_attempts_total"
_FAILURES = "commwatch_probe_failures_total"
_SPIKES = "commwatch_probe_latency_spikes_total"
_RECOVERIES = ("commwatch_nvlink_recovery_errors_total", "commwatch_nvlink_recoveries_total")
"""NVLink 1 to 4, and NVLink 5."""
_FAILED_RECOVERIES = "commwatch_nvlink_recoveries_failed_total"
_FLAPS = "commwatch_rdma_port_flaps_total"

WINDOWS: Mapping[str, float] = MappingProxyType(
    dict.fromkeys((_ATTEMPTS, _FAILURES, _SPIKES, *_RECOVERIES, _FAILED_RECOVERIES, _FLAPS), DAY)
)
"""Counters that this part looks back at, and for how many seconds."""

_CHANGES = (
    ("commwatch_probe_latency_step_ratio", "latency: the last results take {:.3g} times as long as those before"),
    ("commwatch_probe_bandwidth_step_ratio", "bandwidth: the last results take {:.3g} times as long as those before"),
    ("commwatch_probe_latency_drift_ratio", "latency: the latest results take {:.3g} times as long as the first ones"),
    (
        "commwatch_probe_bandwidth_drift_ratio",
        "bandwidth: the latest results take {:.3g} times as long as the first ones",
    ),
)


def stability(facts: Facts, thresholds: Thresholds) -> PartReadings:
    """The least of what the probes and the links show over time.

    What links alone show only takes away: without any probe there is nothing whose stability it would be.
    """
    fewest = thresholds.probe_error_rate_attempts_min
    attempts = _rises(facts, _ATTEMPTS, DAY)
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


def _rises(facts: Facts, metric: str, window: float) -> Counter[str]:
    """By how much a counter of the probes rose in the last seconds, by probe."""
    rises: Counter[str] = Counter()
    for labels, rise in facts.increases(metric, window):
        if labels["backend"] != "gloo":
            rises[labels["probe"]] += round(rise)
    return rises


def _bad_cycles(facts: Facts, window: float, fewest: int) -> Iterator[Reading]:
    """The share of good cycles: of each probe, and of all together, for many probes may fail once each.

    Args:
        facts: of this moment.
        window: seconds to look back.
        fewest: cycles that a share is taken of at least: one failure of one is not yet all.
    """
    attempts = _rises(facts, _ATTEMPTS, window)
    for metric, what in ((_FAILURES, "failed"), (_SPIKES, "were latency spikes")):
        bad = _rises(facts, metric, window)
        for subject, count, cycles in (
            *((f"probe {probe}", bad[probe], attempts[probe]) for probe in attempts | bad),
            ("all probes", bad.total(), attempts.total()),
        ):
            words = f"{count} of {cycles} cycles of the last {window / 3600:g} h {what}"
            yield Reading(subject, at_most_one(1.0 - count / max(cycles, fewest)), words)


def _streaks(facts: Facts, thresholds: Thresholds) -> Iterator[Reading]:
    """One bad result costs nothing here, as many as raise an alert cost everything."""
    for metric, alerting, words in (
        ("commwatch_probe_latency_spike_streak", thresholds.probe_latency_spike_streak, "latency spikes in a row"),
        ("commwatch_probe_low_bandwidth_streak", thresholds.probe_low_bandwidth_streak, "low bandwidths in a row"),
    ):
        for (probe, _), streak in by_probe(facts, metric).items():
            left = 1.0 - (streak - 1) / (alerting - 1) if alerting > 1 else float(streak < 1)
            yield Reading(f"probe {probe}", at_most_one(left), f"{streak:g} {words}")


def _changes(facts: Facts) -> Iterator[Reading]:
    for metric, words in _CHANGES:
        for (probe, _), ratio in by_probe(facts, metric).items():
            yield Reading(f"probe {probe}", at_most_one(1.0 / max(1.0, ratio)), words.format(ratio))


def _links(facts: Facts, thresholds: Thresholds) -> Iterator[Reading]:
    for metric in _RECOVERIES:
        for labels, rise in facts.increases(metric, DAY):
            subject = f"GPU{labels['gpu']} link {labels['link']}"
            ratio = at_most_one(1.0 - rise / thresholds.nvlink_recoveries_per_day)
            yield Reading(subject, ratio, f"{rise:g} recoveries in the last day")
    for labels, rise in facts.increases(_FAILED_RECOVERIES, DAY):
        yield Reading(f"GPU{labels['gpu']} link {labels['link']}", 0.0, f"{rise:g} failed recoveries in the last day")
    for labels, rise in facts.increases(_FLAPS, DAY):
        ratio = at_most_one(1.0 - rise / thresholds.score_port_flaps_per_day)
        yield Reading(
            f"{labels['device']} port {labels['port']}",
            ratio,
            f"down {f'{rise:g} times' if rise != 1 else 'once'} in the last day",
        )

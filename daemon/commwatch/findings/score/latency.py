"""Latency: the last small collective against what it took when the probe was new, on average over the probes."""

from __future__ import annotations

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.score.probes import at_most_one, by_probe, fabric_series
from commwatch.findings.score.records import PartReadings, Reading
from commwatch.units import format_seconds


def latency(facts: Facts, thresholds: Thresholds) -> PartReadings:
    """Each probe with a baseline counts once.

    A single spike is the host's scheduler as often as the fabric: before the second in a row it costs no more than a
    latency at the factor from which on it is one.
    """
    baselines = by_probe(facts, "commwatch_probe_baseline_latency_seconds")
    drifts = by_probe(facts, "commwatch_probe_latency_drift_ratio")
    streaks = by_probe(facts, "commwatch_probe_latency_spike_streak")
    readings = []
    for labels, last in fabric_series(facts, "commwatch_probe_last_latency_seconds"):
        probe = labels["probe"], labels["backend"]
        if probe not in baselines or last <= 0:
            continue
        # The baseline follows a decline as far as a limit; what it followed counts as slower, not as normal.
        followed = min(max(1.0, drifts.get(probe, 1.0)), thresholds.probe_drift_max_factor)
        usual = baselines[probe] / followed
        ratio = at_most_one(usual / last)
        if probe in streaks and streaks[probe] <= 1:
            ratio = max(ratio, at_most_one(1.0 / thresholds.probe_latency_spike_median_factor))
        words = f"{format_seconds(last)} for a small call, usually {format_seconds(usual)}"
        readings.append(Reading(f"probe {probe[0]}", ratio, words))
    needs = f"a latency baseline: {thresholds.probe_baseline_results_min} good results of a collective"
    return PartReadings("latency", tuple(readings), least_counts=False, needs=needs)

"""Latency: the last small collective against what it took when the probe was new, on average over the probes."""

from __future__ import annotations

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.score.probes import at_most_one, of_probes
from commwatch.findings.score.records import PartReadings, Reading
from commwatch.units import format_seconds
from commwatch_exporters.node.model import Probe


def latency(facts: Facts, thresholds: Thresholds) -> PartReadings:
    """Each probe with a baseline counts once.

    A single spike is the host's scheduler as often as the fabric: before the second in a row it costs no more than a
    latency at the factor from which on it is one.
    """
    readings = []
    for probe, last in of_probes(facts, Probe.last_latency_seconds):
        baseline, drift, streak = probe.baseline_latency_seconds, probe.latency_drift_ratio, probe.latency_spike_streak
        if baseline is None or last <= 0:
            continue
        # The baseline follows a decline as far as a limit; what it followed counts as slower, not as normal.
        followed = min(max(1.0, 1.0 if drift is None else drift), thresholds.probe_drift_max_factor)
        usual = baseline / followed
        ratio = at_most_one(usual / last)
        if streak is not None and streak <= 1:
            ratio = max(ratio, at_most_one(1.0 / thresholds.probe_latency_spike_median_factor))
        words = f"{format_seconds(last)} for a small call, usually {format_seconds(usual)}"
        readings.append(Reading(f"probe {probe.name}", ratio, words))
    needs = f"a latency baseline: {thresholds.probe_baseline_results_first} good results of a collective"
    return PartReadings("latency", tuple(readings), least_counts=False, needs=needs)

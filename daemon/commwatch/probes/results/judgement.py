"""When a result of a probe is bad, and for how long it counts."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.config import settings
from commwatch.config.thresholds import Thresholds
from commwatch.probes.results.baseline import SpikeRule
from commwatch.probes.results.drift import DriftRule


@dataclass(frozen=True, slots=True)
class JudgementRules:
    """The rules of one probe."""

    spike: SpikeRule
    drift: DriftRule
    low_bandwidth_ratio: float
    """A bus bandwidth below this share of the expected one is low."""
    latency_mark_factor: float
    latency_mark_max_seconds: float
    """See ``latency_mark``: the absolute limit where the probe sets none."""
    streak_gap_seconds: float
    """Bad results further apart than this are not in a row."""
    interval: float
    """Seconds between cycles; results age by it."""


def rules_of(probe: settings.Probe, thresholds: Thresholds) -> JudgementRules:
    """The rules of a probe: the thresholds in force, and its own interval and absolute limit."""
    return JudgementRules(
        spike=SpikeRule(
            deviations=thresholds.probe_latency_spike_mad_factor,
            ratio=thresholds.probe_latency_spike_median_factor,
            absolute_seconds=probe.latency_limit,
        ),
        drift=DriftRule(
            fewest=thresholds.probe_baseline_results_min,
            first=thresholds.probe_baseline_results_first,
            most=thresholds.probe_drift_max_factor,
            step_results=thresholds.probe_step_results,
            step_factor=thresholds.probe_step_min_factor,
            swing_calm=thresholds.probe_swing_calm_ratio,
        ),
        low_bandwidth_ratio=thresholds.probe_bandwidth_utilization_low_ratio,
        latency_mark_factor=thresholds.probe_latency_mark_factor,
        latency_mark_max_seconds=thresholds.probe_latency_mark_max_seconds,
        streak_gap_seconds=thresholds.probe_streak_gap_max_seconds,
        interval=probe.interval,
    )

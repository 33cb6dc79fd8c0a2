"""What is known of one probe over time: its counts, its streaks, its baseline, and the metrics that show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import msgspec

from commwatch import config
from commwatch.analysis.baseline import Baseline, SpikeRule, baseline_of, is_spike, keep
from commwatch.analysis.bus_bandwidth import algorithm_bandwidth, bus_bandwidth
from commwatch.analysis.expected import Expected
from commwatch.analysis.streak import Streak, is_current
from commwatch.probes.budget import Occupied, recent
from commwatch.probes.histogram import LatencyHistogram
from commwatch.probes.plan import CyclePlan, CycleResult, Failed, FailureReason, Measured, SkipReason
from commwatch.thresholds import Thresholds
from commwatch_exporters.snapshot import Value


@dataclass(frozen=True, slots=True)
class JudgementRules:
    """When a result is bad, and for how long it counts."""

    spike: SpikeRule
    baseline_results_min: int
    low_bandwidth_ratio: float
    """A bus bandwidth below this share of the expected one is low."""
    streak_gap_seconds: float
    """Bad results further apart than this are not in a row."""
    interval: float
    """Seconds between cycles; results age by it."""


def rules_of(probe: config.Probe, thresholds: Thresholds) -> JudgementRules:
    """The rules of a probe: the thresholds in force, and its own interval and absolute limit."""
    return JudgementRules(
        spike=SpikeRule(
            deviations=thresholds.probe_latency_spike_mad_factor,
            ratio=thresholds.probe_latency_spike_median_factor,
            absolute_seconds=probe.latency_limit,
        ),
        baseline_results_min=thresholds.probe_baseline_results_min,
        low_bandwidth_ratio=thresholds.probe_bandwidth_utilization_low_ratio,
        streak_gap_seconds=thresholds.probe_streak_gap_max_seconds,
        interval=probe.interval,
    )


class Conditions(msgspec.Struct, frozen=True):
    """What two results must have in common to be compared."""

    collective: str
    latency_bytes: int
    bandwidth_bytes: int
    ranks: int
    nccl_version: str


class LastResult(msgspec.Struct, frozen=True):
    """The last good result."""

    finished_at: float
    latency_seconds: float
    bus_bandwidth: float
    """Bytes per second."""
    algorithm_bandwidth: float
    """Bytes per second."""
    setup_seconds: float
    expected: Expected | None


class ProbeHistory(msgspec.Struct):
    """What must survive a restart."""

    backend: str
    """Of all results under this name, for life."""
    conditions: Conditions | None = None
    latencies: list[float] = []
    """Good ones, seconds, oldest first."""
    latency_streak: Streak = Streak()
    latency_judged_at: float | None = None
    bandwidth_streak: Streak = Streak()
    last: LastResult | None = None
    last_completion_at: float | None = None
    occupied: list[Occupied] = []


class ProbeRecord:
    """One probe; takes the outcome of each cycle and gives the metrics. No I/O, and time is handed in."""

    def __init__(self, plan: CyclePlan, rules: JudgementRules, history: ProbeHistory | None = None) -> None:
        self.history = history or ProbeHistory(plan.backend)
        self.suspicious = False
        """The last cycle failed, was slow or was low: worth another look soon."""
        self._rules = rules
        self._histogram = LatencyHistogram()
        self._attempts = 0
        self._spikes = 0
        self._occupied_seconds = 0.0
        self._failures: dict[str, int] = dict.fromkeys(get_args(FailureReason), 0)
        self._skips: dict[str, int] = dict.fromkeys(get_args(SkipReason), 0)
        self.adopt_plan(plan)

    def adopt_plan(self, plan: CyclePlan) -> None:
        """Take the plan of the next cycle: GPUs come and go, and the backend is settled by the first outcome only."""
        self._plan = plan
        if self.history.last_completion_at is None and not self._attempts:
            self.history.backend = plan.backend

    @property
    def other_backend(self) -> str:
        """Backend of the results under this name where the plan has another one: then it must not run; else empty."""
        return self.history.backend if self.history.backend != self._plan.backend else ""

    def apply(self, result: CycleResult, expected: Expected | None, now: float) -> None:
        """Take in the outcome of a cycle.

        Args:
            result: of this probe.
            expected: bus bandwidth that it should have given.
            now: seconds since 1970.

        Raises:
            ValueError: a result of another backend than the one that the name stands for.
        """
        if isinstance(result, Measured | Failed) and self.other_backend:
            raise ValueError(f"probe {self._plan.probe} stands for results of {self.other_backend}")
        if result.occupied_seconds:
            self._occupy(result.occupied_seconds * self._plan.gpus, now)
        if isinstance(result, Measured):
            self._attempts += 1
            self._measured(result, expected, now)
        elif isinstance(result, Failed):
            self._attempts += 1
            self._failed(result.reason, now)
        else:
            self.skip(result.reason)

    def skip(self, reason: SkipReason) -> None:
        """Take in that a cycle did not start, or gave way; streaks stay as they are."""
        self._skips[reason] += 1

    def _occupy(self, gpu_seconds: float, now: float) -> None:
        self._occupied_seconds += gpu_seconds
        self.history.occupied = [*recent(self.history.occupied, now), Occupied(now, gpu_seconds)]

    def _failed(self, reason: FailureReason, now: float) -> None:
        self._failures[reason] += 1
        self.suspicious = True
        if reason == "measure_timeout":
            self._spike(now)

    def _spike(self, now: float) -> None:
        self._spikes += 1
        self.history.latency_streak = self.history.latency_streak.bad(now, self._rules.streak_gap_seconds)
        self.history.latency_judged_at = now

    def _measured(self, result: Measured, expected: Expected | None, now: float) -> None:
        history = self.history
        history.last_completion_at = result.finished_at
        self.suspicious = False
        if self._plan.shares_gpus:
            return  # the sums were exact; the times are those of the GPU's time slices
        self._compare_only_like(result.nccl_version)
        size, seconds = self._plan.bandwidth_bytes, result.bandwidth_seconds
        history.last = LastResult(
            finished_at=result.finished_at,
            latency_seconds=result.latency_seconds,
            bus_bandwidth=bus_bandwidth(self._plan.ranks, size, seconds),
            algorithm_bandwidth=algorithm_bandwidth(size, seconds),
            setup_seconds=result.setup_seconds,
            expected=expected,
        )
        self._histogram.observe(result.latency_seconds)
        if is_spike(result.latency_seconds, self._baseline(), self._rules.spike):
            self.suspicious = True
            self._spike(now)
        else:
            history.latencies = keep(history.latencies, result.latency_seconds)
            history.latency_streak = history.latency_streak.good()
            history.latency_judged_at = now
        if self._is_low(history.last):
            self.suspicious = True
            history.bandwidth_streak = history.bandwidth_streak.bad(now, self._rules.streak_gap_seconds)
        else:
            history.bandwidth_streak = history.bandwidth_streak.good()

    def _compare_only_like(self, nccl_version: str) -> None:
        """Begin anew where a result was taken under other conditions than those before."""
        history, conditions = self.history, self._conditions(nccl_version)
        if conditions != history.conditions:
            history.conditions = conditions
            history.latencies = []
            history.latency_streak = Streak()
            history.bandwidth_streak = Streak()

    def _conditions(self, nccl_version: str) -> Conditions:
        plan = self._plan
        return Conditions(plan.collective, plan.latency_bytes, plan.bandwidth_bytes, plan.ranks, nccl_version)

    def _baseline(self) -> Baseline | None:
        return baseline_of(self.history.latencies, self._rules.baseline_results_min)

    def _is_low(self, last: LastResult) -> bool:
        ratio = self._utilization(last)
        return ratio is not None and _is_firm(last.expected) and ratio < self._rules.low_bandwidth_ratio

    def _utilization(self, last: LastResult) -> float | None:
        return None if last.expected is None else last.bus_bandwidth / last.expected.bytes_per_second

    def readings(self, now: float) -> list[tuple[str, tuple[str, ...], Value]]:
        """Metric, label values and number of all series of this probe; None for what is not known or too old.

        The series are the same each time, but for ``commwatch_probe_info``, whose labels may change with a result.
        """
        labels = (self._plan.probe, self.history.backend)
        series: list[tuple[str, tuple[str, ...], Value]] = [
            (f"commwatch_probe_{name}", labels, value) for name, value in self._values(now).items()
        ]
        series += [(f"commwatch_probe_latency_seconds{suffix}", (*labels, *extra), value)
                   for suffix, extra, value in self._histogram.series()]  # fmt: skip
        for name, counts in (("failures_total", self._failures), ("skips_total", self._skips)):
            series += [(f"commwatch_probe_{name}", (*labels, reason), count) for reason, count in counts.items()]
        series.append(("commwatch_probe_info", (*labels, *self._info()), 1))
        return series

    def _values(self, now: float) -> Mapping[str, Value]:
        history, rules = self.history, self._rules
        values: dict[str, Value] = {
            "attempts_total": self._attempts,
            "latency_spikes_total": self._spikes,
            "gpu_occupied_seconds_total": self._occupied_seconds,
            "last_completion_timestamp_seconds": history.last_completion_at,
        }
        judged = is_current(history.latency_judged_at, rules.interval, now)
        baseline = self._baseline()
        by_some_rule = baseline is not None or rules.spike.absolute_seconds is not None or history.latency_streak.count
        values["latency_spike_streak"] = history.latency_streak.count if judged and by_some_rule else None
        last = history.last
        if last is None or not is_current(last.finished_at, rules.interval, now):
            return values | dict.fromkeys(_OF_LAST_RESULT)
        return values | {
            "last_latency_seconds": last.latency_seconds,
            "last_bus_bandwidth_bytes_per_second": last.bus_bandwidth,
            "last_algorithm_bandwidth_bytes_per_second": last.algorithm_bandwidth,
            "expected_bandwidth_bytes_per_second": last.expected.bytes_per_second if last.expected else None,
            "bandwidth_utilization_ratio": self._utilization(last),
            "baseline_latency_seconds": baseline.median if baseline else None,
            "low_bandwidth_streak": history.bandwidth_streak.count if _is_firm(last.expected) else None,
            "setup_seconds": last.setup_seconds,
        }

    def _info(self) -> tuple[str, ...]:
        """Under what conditions the last result was taken; before the first one, what is planned."""
        known = self.history.conditions or self._conditions(nccl_version="")
        sizes = (str(known.latency_bytes), str(known.bandwidth_bytes))
        last = self.history.last
        source = last.expected.source if last is not None and last.expected is not None else "none"
        return (known.collective, *sizes, str(known.ranks), known.nccl_version, source)


_OF_LAST_RESULT = (
    "last_latency_seconds",
    "last_bus_bandwidth_bytes_per_second",
    "last_algorithm_bandwidth_bytes_per_second",
    "expected_bandwidth_bytes_per_second",
    "bandwidth_utilization_ratio",
    "baseline_latency_seconds",
    "low_bandwidth_streak",
    "setup_seconds",
)


def _is_firm(expected: Expected | None) -> bool:
    """Whether an expectation may make a streak: what a model says is a hint only."""
    return expected is not None and expected.source != "model"

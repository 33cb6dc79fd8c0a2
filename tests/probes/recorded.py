"""A record of a probe with a clock, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commwatch.config import settings
from commwatch.config.thresholds import load_thresholds
from commwatch.node.gpus_now import ProbeGpu
from commwatch.probes.plan import CyclePlan, Failed
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import FailureReason
from commwatch.probes.results.expected import Expected
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.record import ProbeRecord
from commwatch_exporters.snapshot import Value
from probes.results import MIB, measured, plan_of

LIMITS = load_thresholds(None)
FIRM = Expected(MIB / 1e-2, "configured", "for the test")
"""What a good result gives: 1 MiB in 10 ms on two ranks."""
GPUS = tuple(ProbeGpu(number, f"GPU-{number}", f"0000:{number}7:00.0", "") for number in range(8))


@dataclass(frozen=True, slots=True)
class Foreseen(Prospect):
    """A cycle of which the test says what is expected."""

    expectations: Mapping[int, Expected] = field(default_factory=dict)
    """By place of the step in the plan."""

    @property
    def expected(self) -> dict[int, Expected]:
        return dict(self.expectations)


def probe_of(latency_limit: float | None = None, interval: float = 900.0) -> settings.Probe:
    """One every 15 minutes, which is the default."""
    limit = None if latency_limit is None else settings.Duration(latency_limit)
    return settings.Probe(latency_limit=limit, interval=settings.Duration(interval))


class Probe:
    """A record with a clock, and one cycle every 15 minutes, whatever interval is configured."""

    def __init__(
        self, plan: CyclePlan | None = None, latency_limit: float | None = None, history: ProbeHistory | None = None,
        interval: float = 900.0,
    ) -> None:  # fmt: skip
        self.plan = plan or plan_of()
        self.record = ProbeRecord(self.plan, probe_of(latency_limit, interval), LIMITS, history)
        self.now = 1_000_000.0

    def steps(
        self, *seconds: float | Sequence[float], expected: Mapping[int, Expected] | None = None, **changes: Any
    ) -> None:
        """A result with these times, by step of the plan."""
        self.now += 900
        result = measured(self.plan, self.now, seconds, **changes)
        self.record.take(result, self.now, Foreseen(self.plan, GPUS[: self.plan.ranks], expectations=expected or {}))

    def result(self, latency: float = 1e-3, bandwidth: float = 1e-2, expected: Expected | None = FIRM) -> None:
        self.steps(latency, bandwidth, expected={} if expected is None else {1: expected})

    def failure(self, reason: FailureReason) -> None:
        self.now += 900
        failed = Failed(finished_at=self.now, occupied_seconds=5.0, reason=reason, detail="")
        self.record.take(failed, self.now)

    def baseline(self, times: int = 20) -> Probe:
        for _ in range(times):
            self.result()
        return self

    def series(self, after: float = 0.0) -> dict[tuple[str, ...], Value]:
        """Numbers by name and all labels but those of the probe."""
        return {
            (metric.removeprefix("commwatch_probe_"), *labels[2:]): value
            for metric, labels, value in self.record.readings(self.now + after)
        }

    def value(self, *key: str, after: float = 0.0) -> Value:
        return self.series(after)[key]

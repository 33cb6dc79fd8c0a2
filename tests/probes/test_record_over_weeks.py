"""What a probe's record makes of weeks: a slow decline stays in sight, and healthy ups and downs are nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest

from probes.recorded import Probe
from probes.results import plan_of

DAY = 96
"""Cycles: one every 15 minutes."""
LATENCY, BANDWIDTH = 1e-3, 1e-2


def unrest(random: Random) -> float:
    """Two percent of noise, and now and then a late result with a heavy tail."""
    late = min(8.0, 1.3 / math.sqrt(random.random())) if random.random() < 0.01 else 1.0
    return late * random.gauss(1, 0.02)


def decline(days: float) -> float:
    """One percent a day after the first one."""
    return math.pow(1.01, max(0.0, days - 1))


def season(days: float) -> float:
    """8 % with the day and 3 % with the week: temperatures and neighbours."""
    return 1 + 0.08 * math.sin(2 * math.pi * days) + 0.03 * math.sin(2 * math.pi * days / 7)


class Weeks:
    """A probe that lives on; what was seen of it on the way."""

    def __init__(self, course: Callable[[float], float]) -> None:
        self.probe = Probe()
        self._course = course
        self._random = Random(7)  # noqa: S311, the same weeks each time
        self._cycle = 0
        self.longest = {"latency": 0, "bandwidth": 0}
        """Streaks so far."""
        self.steps = 0
        """Results that are suspicious though they are neither slow nor low, by themselves or against their level."""
        self.losses = 0
        """Results with an open loss."""

    def live(self, days: int) -> Probe:
        for _ in range(days * DAY):
            factor = self._course(self._cycle / DAY)
            self._cycle += 1
            self.probe.result(LATENCY * factor * unrest(self._random), BANDWIDTH * factor * unrest(self._random))
            history = self.probe.record.history
            streaks = {"latency": history.latency_streak.count, "bandwidth": history.bandwidth_streak.count}
            self.longest = {name: max(count, self.longest[name]) for name, count in streaks.items()}
            settling = any(level.is_settling for level in history.levels.values())
            self.steps += self.probe.record.suspicious and not settling and not any(streaks.values())
            self.losses += bool(self.probe.record.losses)
        return self.probe


def test_a_slow_decline_does_not_become_the_new_normal() -> None:
    """One percent a day: the bandwidth is lost at 15 %, and what came after is no baseline; then it fires."""
    weeks = Weeks(decline)
    weeks.live(15)
    assert weeks.losses == 0

    probe = weeks.live(15)

    assert probe.record.losses[0].lost_share == pytest.approx(1 - 1 / decline(30), abs=0.03)
    for ratio in ("latency_drift_ratio", "bandwidth_drift_ratio"):
        assert probe.value(ratio) == pytest.approx(1 / 0.85, rel=0.02)
    assert probe.value("baseline_latency_seconds") == pytest.approx(1.15 * LATENCY, rel=0.01)
    assert max(weeks.longest.values()) < 3

    # 60 % of the bandwidth expected are passed on day 52, 1.5 × 1.15 of the first latency on day 56.
    weeks.live(20)
    assert max(weeks.longest.values()) < 3
    probe = weeks.live(10)
    assert min(weeks.longest.values()) >= 3
    assert probe.value("baseline_latency_seconds") == pytest.approx(1.15 * LATENCY, rel=0.01)


def test_days_and_weeks_of_a_healthy_node_are_nothing() -> None:
    """Six weeks that go up and down by 11 %: no streak, no step, no drift, no loss."""
    weeks = Weeks(season)

    for _ in range(42):
        probe = weeks.live(1)
        ratios = [probe.value(name) for name in ("latency_drift_ratio", "bandwidth_drift_ratio")]
        assert all(ratio is None or 0.9 < ratio < 1.1 for ratio in ratios)

    assert max(weeks.longest.values()) < 3
    assert weeks.steps == weeks.losses == 0


@pytest.mark.parametrize(("factor", "steps"), [(1.199, 0), (1.2, 1)])
def test_a_step_at_its_edge(factor: float, steps: int) -> None:
    """At 1.2 the result that completes it is suspicious, just below it is not; once it is the normal it is gone."""
    probe = Probe(plan_of()).baseline(30)

    looks = 0
    for _ in range(40):
        probe.result(LATENCY * factor)
        looks += probe.record.suspicious

    assert looks == steps
    assert probe.value("latency_step_ratio") == 1

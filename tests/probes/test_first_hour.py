"""The first hour of a node: three latency spikes are found in it, within the budget and without false streaks."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from commwatch.config import settings
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.probes.gate.budget import WINDOW_SECONDS, first_guess_seconds
from commwatch.probes.prospect import Prospect
from commwatch.probes.results.course import Course, spike_limit
from commwatch.probes.results.record import ProbeRecord
from commwatch.probes.schedule import ProbeSchedule
from probes.recorded import GPUS
from probes.results import measured, plan_of
from support.passes import in_one_pass

LIMITS = load_thresholds(None)
HOUR = 3600.0
USUAL = 20e-6
MARK_OF_8_GPUS = 280e-6


def run(share: float, until: float, slow_from: float = float("inf")) -> tuple[ProbeRecord, list[float]]:
    """A record at the shipped interval on a stepped clock, and the times of its cycles in seconds from the start."""
    plan, turns = plan_of(), ProbeSchedule(900.0, start_delay=10.0, share=share)
    record, now, cycles = ProbeRecord(plan, settings.Probe(), LIMITS), turns.first(None, 0.0), list[float]()
    while now < until and record.history.latency_streak.count < 3:
        cycles.append(now)
        seconds = (USUAL * (1 if now < slow_from else 3), 1e-2)
        record.take(measured(plan, now, seconds), now, Prospect(plan, GPUS[: plan.ranks]))
        after = turns.after(
            ran=True, suspicious=record.suspicious, now=now, wall=now, learning=record.is_learning
        )  # fmt: skip
        now += 900.0 if after is None else after
    return record, cycles


@in_one_pass("share", [0.0, 0.5, 1.0])
def test_three_spikes_alert_within_the_first_hour(share: float) -> None:
    """A small collective that takes three times as long from minute 26 on is a streak of three before minute 60."""
    record, cycles = run(share, HOUR, slow_from=26 * 60)

    assert record.history.latency_streak.count == 3
    assert cycles[-1] < HOUR


@in_one_pass("share", [0.0, 0.5, 1.0])
def test_the_burst_keeps_to_the_budget(share: float) -> None:
    """All cycles of the budget's first window, and the first ones of the rare probes: below 1 % as estimated."""
    _, cycles = run(share, WINDOW_SECONDS)
    rare = 57.5  # seconds of each GPU; docs/using/probes.md: 5452 GPU seconds a day, less 96 cycles of all_reduce

    assert len(cycles) * first_guess_seconds(steps=2) + rare <= 0.01 * WINDOW_SECONDS


def _latencies(source: random.Random, count: int, lasting: float) -> list[float]:
    """Seconds of a healthy node: a log-normal body of 8 %, and one in 33 in a Pareto tail from twice the usual on.

    Args:
        source: of chance.
        count: of results.
        lasting: share of the late ones that are followed by another.
    """
    times, late = [], False
    for _ in range(count):
        late = source.random() < (lasting if late else 0.03)
        tail = 1 + source.paretovariate(1.5) if late else 1.0
        times.append(USUAL * source.lognormvariate(0.0, 0.08) * tail)
    return times


def _streaks(times: list[float], rule: Thresholds, mark: float | None) -> tuple[int, int]:
    """How often three in a row are above the limit, and how many results a baseline judged, under equal conditions."""
    course, row, found, judged = Course(), 0, 0, 0
    for number, seconds in enumerate(times):
        baseline = course.baseline(rule)
        limit = spike_limit(baseline, mark, rule)
        spike = limit is not None and seconds > limit
        course = course.after(seconds, good=not spike, now=number * 900.0, rule=rule)
        row = row + 1 if spike else 0
        found += row == 3
        judged += baseline is not None
    return found, judged


@pytest.mark.parametrize(("lasting", "most"), [(0.03, 0.02), (0.2, 0.5)], ids=["late ones alone", "late together"])
def test_plain_noise_rarely_swings(lasting: float, most: float) -> None:
    """Two years of a healthy node: so many times in 1000 results a swing begins."""
    times = _latencies(random.Random(16), 2 * 365 * 96, lasting)  # noqa: S311  # always the same ones
    courses = (Course(latest=tuple(times[end - 40 : end])) for end in range(40, len(times)))
    ratios = [course.swing_ratio(LIMITS) or 0.0 for course in courses]
    found = [ratio >= LIMITS.probe_swing_min_factor for ratio in ratios]
    begun = sum(now and not before for before, now in itertools.pairwise(found))

    assert begun / len(times) * 1000 <= most


@pytest.mark.parametrize("lasting", [0.03, 0.2], ids=["late ones alone", "late ones together"])
def test_first_results_do_not_alarm_more_often_than_a_full_baseline(lasting: float) -> None:
    """30 years of a healthy node that begins again each week: false streaks for each result that is judged.

    Only the first 30 results after each beginning differ: from the twentieth on both ways judge alike.
    """
    source = random.Random(16)  # noqa: S311  # always the same ones
    full = replace(LIMITS, probe_baseline_results_first=LIMITS.probe_baseline_results_min)
    counts = {"before": [0, 0], "after": [0, 0]}
    for _ in range(30 * 52):
        times = _latencies(source, 30, lasting)
        for name, rule, mark in (("before", full, None), ("after", LIMITS, MARK_OF_8_GPUS)):
            for place, number in enumerate(_streaks(times, rule, mark)):
                counts[name][place] += number
    before, after = ((streaks + 1) / judged for streaks, judged in counts.values())

    assert counts["after"][1] > 2 * counts["before"][1]
    assert after <= 1.1 * before, counts

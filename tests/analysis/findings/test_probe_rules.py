"""What probes find: each rule fires at its edge, is silent just below it, and says nothing of what was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import pytest

from commwatch.findings.facts import Facts
from commwatch.findings.finding import Match
from support.facts import DAY, HOUR, NOW, Numbers, codes_by, facts_of, seen_by, seen_in, shipped
from support.machines import CARDS, HGX, four_cards, four_on_nvswitch, merged
from support.passes import in_one_pass

KEY = ("all_reduce", "nccl")
LIMITS = shipped()
Rows: TypeAlias = dict[tuple[str, ...], float]


def gauge(name: str, value: float, key: tuple[str, ...] = KEY) -> Numbers:
    return {f"commwatch_probe_{name}": {key: value}}


def info(source: str = "reference", measure: str = "all_reduce", key: tuple[str, str] = KEY) -> Numbers:
    return {"commwatch_probe_info": {(*key, measure, "8", "67108864", "4", "", "", "", source): 1.0}}


def counts(attempts: float, failures: Mapping[str, float], key: tuple[str, str] = KEY) -> Numbers:
    return {
        "commwatch_probe_attempts_total": {key: attempts},
        "commwatch_probe_failures_total": {(*key, reason): count for reason, count in failures.items()},
    }


def seen(facts: Facts) -> list[Match]:
    return seen_in(facts)


def test_a_latency_streak_counts_from_three_on() -> None:
    """Two spikes in a row are none; the latencies stand beside the streak."""
    numbers = merged(gauge("last_latency_seconds", 90e-6), gauge("baseline_latency_seconds", 30e-6))
    below, at = (
        facts_of(merged(numbers, gauge("latency_spike_streak", streak)))
        for streak in (LIMITS.probe_latency_spike_streak - 1, LIMITS.probe_latency_spike_streak)
    )

    assert seen_by("probe_latency_high", below) == []
    [found] = seen_by("probe_latency_high", at)
    assert (found.code, found.component.identity) == ("probe_latency_high", "probe/all_reduce")
    assert [fact.value for fact in found.evidence] == [3, 90e-6, 30e-6]


def test_a_low_bandwidth_streak_counts_from_three_on() -> None:
    """The share that was reached and the rates are evidence where they are current."""
    numbers = merged(
        info(), gauge("bandwidth_utilization_ratio", 0.4), gauge("last_bus_bandwidth_bytes_per_second", 4e10)
    )
    below, at = (
        facts_of(merged(numbers, gauge("low_bandwidth_streak", streak)))
        for streak in (LIMITS.probe_low_bandwidth_streak - 1, LIMITS.probe_low_bandwidth_streak)
    )

    assert seen_by("probe_bandwidth_low", below) == []
    [found] = seen_by("probe_bandwidth_low", at)
    assert found.code == "probe_bandwidth_low"
    assert [(fact.value, fact.unit) for fact in found.evidence] == [(3, ""), (0.4, "ratio"), (4e10, "bytes_per_second")]


PAIRS = ("pairs", "nccl")
MEASURED_AT = NOW - 60.0
LOW = merged(info("model"), gauge("low_bandwidth_streak", 3), gauge("bandwidth_utilization_ratio", 0.4))
ATTEMPTS = {ago: counts(attempts, {}) for ago, attempts in ((900.0, 5), (700.0, 6), (500.0, 7), (300.0, 8))}
"""The row of bad results began at the look of 700 s ago."""


def matrix(
    share: float, suspect: tuple[str, str] | None = None, at: float = MEASURED_AT, slow: Mapping[str, float] = {}
) -> Numbers:
    """All pairs of four GPUs at a share of 20 GB/s, those that are ``slow`` at their own, and a part that they point
    at.
    """
    cells = [(str(one), str(other), "nccl") for one in range(4) for other in range(4) if one != other]
    numbers: Numbers = {
        "commwatch_pair_bandwidth_bytes_per_second": {
            cell: slow.get(f"{cell[0]}-{cell[1]}", share) * 2e10 for cell in cells
        },
        "commwatch_pair_expected_bandwidth_bytes_per_second": dict.fromkeys(cells, 2e10),
        "commwatch_suspect_ratio": {} if suspect is None else {suspect: 0.9},
    }
    completed = gauge("last_completion_timestamp_seconds", at, PAIRS)
    return merged(numbers, completed, info("model", "pairs", PAIRS))


@pytest.mark.parametrize(
    ("numbers", "blamed"),
    [
        (matrix(0.9, ("gpu", "GPU2")), {2}),
        (matrix(0.9, ("pair", "GPU0-GPU3")), {0, 3}),
        (matrix(0.9, ("gpu", "GPU2"), at=NOW - 800.0), {0, 1, 2, 3}),
        (matrix(0.9), {0, 1, 2, 3}),
        ({}, {0, 1, 2, 3}),
        (matrix(0.9, ("gpu", "GPU2"), slow={"0-1": 0.59}), {0, 1, 2}),
        (matrix(0.9, ("gpu", "GPU2"), slow={"0-1": 0.61}), {2}),
        (matrix(0.9, ("gpu", "GPU2"), slow={"0-2": 0.59}), {2}),
    ],
    ids=[
        "one GPU",
        "one pair",
        "a matrix from before",
        "no suspect",
        "no matrix",
        "a slow pair elsewhere",
        "a pair elsewhere that is well",
        "a slow pair of the suspect",
    ],
)
def test_what_the_matrix_clears_is_not_blamed_for_a_slow_collective(numbers: Numbers, blamed: set[int]) -> None:
    """Pairs that were measured after the first bad result say which GPUs the finding is about; else it is about all."""
    [found] = seen_by("probe_bandwidth_low", facts_of(merged(four_cards(), LOW, counts(9, {}), numbers), ATTEMPTS))

    assert {
        number for number, card in enumerate(CARDS) if any(card in part for part in found.component.parts)
    } == blamed


@pytest.mark.parametrize(
    ("numbers", "advised"),
    [
        (matrix(0.61), True),
        (matrix(0.59), False),
        (matrix(0.9, ("gpu", "GPU2")), False),
        (matrix(0.9, at=NOW - 800.0), False),
        ({}, False),
    ],
    ids=["all are well", "slow pairs", "a suspect", "a matrix from before", "no matrix"],
)
def test_an_expected_bandwidth_is_advised_only_once_all_pairs_are_well(numbers: Numbers, advised: bool) -> None:
    """While a pair or a part is suspect, or nobody has looked, the expectation is not in question."""
    [found] = seen_by("probe_bandwidth_low", facts_of(merged(four_cards(), LOW, counts(9, {}), numbers), ATTEMPTS))

    assert ("set expected_bandwidth" in found.detail) == advised


def test_a_streak_began_with_the_first_of_its_attempts() -> None:
    """Of those that were seen to be made; a daemon that saw fewer does not know."""
    numbers = merged(gauge("low_bandwidth_streak", 3), gauge("latency_spike_streak", 3), counts(9, {}))
    looks = {ago: counts(attempts, {}) for ago, attempts in ((900.0, 5), (700.0, 6), (500.0, 7), (300.0, 8))}
    known, unknown = (facts_of(numbers, history) for history in (looks, {}))

    for rule in ("probe_latency_high", "probe_bandwidth_low"):
        assert [one.since for one in seen_by(rule, known)] == [NOW - 500.0]
        assert [one.since for one in seen_by(rule, unknown)] == [None]


@in_one_pass("source", ["configured", "reference", "learned", "model"])
def test_a_low_bandwidth_says_what_its_expectation_rests_on(source: str) -> None:
    """A model may be wrong for a machine, and the finding says so."""
    numbers = merged(info(source), gauge("low_bandwidth_streak", LIMITS.probe_low_bandwidth_streak))

    [found] = seen_by("probe_bandwidth_low", facts_of(numbers))

    assert found.detail.startswith("expected by ")
    assert ("may be wrong" in found.detail) == (source == "model")


def test_what_is_too_old_is_not_judged() -> None:
    """A probe without current results has counts and a completion, and nothing is slow."""
    facts = facts_of(merged(info("model"), counts(5, {"crashed": 0}), gauge("last_completion_timestamp_seconds", NOW)))

    assert seen(facts) == []


def failing(failures: Mapping[str, float], completed: float | None = None, *, ago: float = 600.0) -> Facts:
    """So many failures in one rule, with the last good result so many seconds ago."""
    now = counts(20, failures)
    if completed is not None:
        now = merged(now, gauge("last_completion_timestamp_seconds", NOW - completed))
    before = counts(10, dict.fromkeys(failures, 0.0))
    return facts_of(now, history={ago + 60.0: before, ago: now})


def test_three_failures_in_a_row_are_failing() -> None:
    """Of whatever reasons; the reasons are named, the most frequent first."""
    assert seen_by("probe_failing", failing({"nccl_error": 1, "crashed": 1})) == []
    [found] = seen_by("probe_failing", failing({"crashed": 1, "nccl_error": 2}))

    assert (found.code, found.detail) == ("probe_failing", "2 × nccl_error, 1 × crashed")


def test_a_good_result_ends_a_row_of_failures() -> None:
    """Failures before the last good result do not count, those after it do."""
    assert seen_by("probe_failing", failing({"nccl_error": 3}, completed=300.0, ago=600.0)) == []
    assert codes_by("probe_failing", failing({"nccl_error": 3}, completed=900.0, ago=600.0)) == [
        ("probe_failing", "probe/all_reduce")
    ]


def test_failures_are_forgotten_after_a_day() -> None:
    """A probe that was taken out of the configuration does not stay failing."""
    assert len(seen_by("probe_failing", failing({"nccl_error": 3}, ago=DAY - 60))) == 1
    assert seen_by("probe_failing", failing({"nccl_error": 3}, ago=DAY + 60)) == []


def rates(earlier: tuple[float, float], later: tuple[float, float]) -> list[Match]:
    """Attempts and failures in the window before, and in the last one."""
    window = LIMITS.probe_error_rate_window_seconds
    looks = {
        2.5 * window: counts(100, {"nccl_error": 10}),
        1.5 * window: counts(100 + earlier[0], {"nccl_error": 10 + earlier[1]}),
        0.5 * window: counts(100 + earlier[0] + later[0], {"nccl_error": 10 + earlier[1] + later[1]}),
    }
    return seen_by("probe_error_rate_rise", facts_of(looks[0.5 * window], history=looks))


def test_the_share_of_failures_rises_by_more_than_five_points() -> None:
    """Exactly five points are not more; the rise is the evidence."""
    assert rates((20, 2), (20, 3)) == []
    [found] = rates((20, 2), (20, 4))

    assert found.code == "probe_error_rate_rise"
    assert found.evidence[0].value == pytest.approx(0.1)
    assert found.evidence[1].value == pytest.approx(0.2)


def test_a_rate_needs_events() -> None:
    """Fewer than three failures, or fewer than six attempts, are no rate; a falling rate is none."""
    assert rates((8, 0), (8, 2)) == []
    assert len(rates((8, 0), (8, 3))) == 1
    assert len(rates((0, 0), (6, 3))) == 1  # the first window of a node
    assert len(rates((5, 5), (8, 3))) == 1  # hardly tried before: as if nothing had failed
    assert rates((8, 0), (5, 3)) == []
    assert rates((20, 10), (20, 4)) == []


def test_many_attempts_do_not_look_like_fewer() -> None:
    """A probe every two minutes moves its counter faster than each change is kept; failures are few and all known."""
    window, every = LIMITS.probe_error_rate_window_seconds, 120.0
    looks = {
        every * step: counts(1000.0 - step, {"nccl_error": 10.0 if every * step > 0.75 * window else 13.0})
        for step in range(int(2.5 * window / every))
    }
    assert seen_by("probe_error_rate_rise", facts_of(looks[0.0], history=looks)) == []  # 3 of 60


def test_a_wrong_result_is_told_at_once() -> None:
    """One is enough; other failures are none of it."""
    assert seen_by("probe_wrong_result", failing({"nccl_error": 5, "wrong_result": 0})) == []
    assert codes_by("probe_wrong_result", failing({"wrong_result": 1})) == [("probe_wrong_result", "probe/all_reduce")]


@in_one_pass(
    "kind, code, limit",
    [
        ("step", "probe_step", LIMITS.probe_step_min_factor),
        ("swing", "probe_swing", LIMITS.probe_swing_min_factor),
        ("drift", "probe_drift", LIMITS.probe_drift_max_factor),
    ],
)
def test_slower_or_more_uneven_than_before(kind: str, code: str, limit: float) -> None:
    """At the mark and above; latency and bandwidth of one probe are one finding."""
    below, at, both = (
        facts_of(merged(gauge(f"latency_{kind}_ratio", late), gauge(f"bandwidth_{kind}_ratio", low)))
        for late, low in ((limit - 0.001, 0.9), (0.9, limit), (limit, limit + 1))
    )

    assert seen(below) == []
    assert [(one.code, len(one.evidence)) for one in seen(at)] == [(code, 1)]
    assert [(one.code, len(one.evidence)) for one in seen(both)] == [(code, 2)]


def test_uneven_ranks() -> None:
    """Below the mark, with the rank that is behind; gloo's processes of one host say nothing of GPUs."""
    least = LIMITS.probe_balance_low_ratio
    slowest: Numbers = {"commwatch_probe_slowest_rank_info": {(*KEY, "3", CARDS[3]): 1.0}}

    assert seen_by("probe_imbalance", facts_of(merged(slowest, gauge("rank_balance_ratio", least)))) == []
    [found] = seen_by("probe_imbalance", facts_of(merged(slowest, gauge("rank_balance_ratio", least - 0.01))))
    assert found.detail == f"rank 3 ({CARDS[3]}) takes longest"
    assert seen_by("probe_imbalance", facts_of(gauge("rank_balance_ratio", 0.1, ("loop", "gloo")))) == []


def chances(reasons: Mapping[str, float], completed: float | None, first: float = DAY - 60) -> Facts:
    """One miss of each reason so many seconds ago, and the rest an hour ago."""

    def skips(share: Mapping[str, float]) -> Numbers:
        return {"commwatch_probe_skips_total": {(*KEY, reason): count for reason, count in share.items()}}

    none, one = dict.fromkeys(reasons, 0.0), dict.fromkeys(reasons, 1.0)
    now = skips(reasons)
    if completed is not None:
        now = merged(now, gauge("last_completion_timestamp_seconds", NOW - completed))
    return facts_of(now, history={first + 60: skips(none), first: skips(one), HOUR: now})


def test_a_probe_that_gets_no_chance() -> None:
    """A day without a result and four chances missed; younger results, or fewer chances, are none of it."""
    for reason in ("budget", "compute_mode", "gpu_memory_used"):
        assert [one.code for one in seen_by("probe_starved", chances({reason: 4}, DAY))] == ["probe_starved"]
    assert seen_by("probe_starved", chances({"budget": 4}, DAY - 1)) == []
    assert seen_by("probe_starved", chances({"budget": 3}, DAY)) == []


@in_one_pass("hours", [6, 24, 48])
def test_chances_are_counted_as_far_back_as_the_evidence_says(hours: int) -> None:
    """A limit of one's own is looked back at, and of a longer one the last day, for which changes are kept."""
    limits = replace(LIMITS, probe_starved_after_seconds=hours * HOUR)
    [found] = seen_by("probe_starved", chances({"budget": 5}, 3 * DAY, first=5.5 * HOUR), limits)

    assert found.evidence[0].what == f"chances missed in the last {min(hours, 24)} h"


def test_a_node_with_jobs_starves_no_probe() -> None:
    """Nor does one that is paused, held or has nothing to probe."""
    reasons = (
        "gpu_busy",
        "scheduler_busy",
        "maintenance",
        "yielded",
        "single_gpu",
        "no_torch",
        "mig",
    )

    assert seen_by("probe_starved", chances(dict.fromkeys(reasons, 50), 9 * DAY)) == []


def test_a_probe_without_any_result_starves_after_a_day_of_chances() -> None:
    """A node that has just been set up is given its day."""
    assert seen_by("probe_starved", chances({"scheduler_unknown": 9}, None, first=20 * HOUR)) == []
    [found] = seen_by("probe_starved", chances({"scheduler_unknown": 9}, None))

    assert found.detail == "9 × scheduler_unknown"


def parts(numbers: Numbers, key: tuple[str, str] = KEY) -> frozenset[str]:
    facts = facts_of(merged(numbers, gauge("low_bandwidth_streak", 3, key)))
    [found] = seen_by("probe_bandwidth_low", facts)
    return found.component.parts


def test_a_collective_uses_what_lies_between_all_gpus() -> None:
    """On NVSwitches that is no PCIe."""
    assert {f"{card}/pcie" for card in CARDS} <= parts(merged(four_cards(), info()))
    assert {f"{gpu}/nvlink" for gpu in HGX} <= parts(merged(four_on_nvswitch(), info()))
    assert not any("pcie" in part for part in parts(merged(four_on_nvswitch(), info())))


def test_copies_use_the_way_of_the_low_gpu_to_the_host() -> None:
    """Those that are as they should be are none of its parts, also where the GPUs have NVLink."""
    key = ("host_copies", "nccl")
    rows: Rows = {(*key, str(index), gpu, "to_gpu"): 2.4e10 for index, gpu in enumerate(HGX)}
    low: Rows = {**rows, (*key, "2", HGX[2], "to_gpu"): 6e9}
    copies: Numbers = {
        "commwatch_probe_copy_bandwidth_bytes_per_second": low,
        "commwatch_probe_copy_expected_bandwidth_bytes_per_second": rows,
    }
    found = parts(merged(four_on_nvswitch(), info(measure="host_copies", key=key), copies), key)

    assert found == {f"{HGX[2]}/pcie", "0000:97:01.0/pcie"}


def test_uneven_copies_are_those_of_the_slowest_gpu() -> None:
    """What goes to the host from one GPU uses no part of another."""
    key = ("host_copies", "nccl")
    slowest: Numbers = {"commwatch_probe_slowest_rank_info": {(*key, "2", HGX[2]): 1.0}}
    uneven = gauge("rank_balance_ratio", 0.5, key)
    [found] = seen(facts_of(merged(four_on_nvswitch(), info(measure="host_copies", key=key), slowest, uneven)))

    assert found.component.parts == {f"{HGX[2]}/pcie", "0000:97:01.0/pcie"}


def test_gloo_uses_no_part_of_a_gpu() -> None:
    """It runs over the loopback interface."""
    assert parts(merged(four_cards(), info(key=("loop", "gloo"))), ("loop", "gloo")) == {"lo"}


LOST = (*KEY, "all_reduce 8")


def loss(ratio: float = 1 / 3) -> Numbers:
    """An open loss with both numbers and its begin."""
    return merged(
        gauge("losses", 1),
        gauge("loss_ratio", ratio, LOST),
        gauge("loss_level_bytes_per_second", 360e9, LOST),
        gauge("loss_bandwidth_bytes_per_second", 240e9, LOST),
        gauge("loss_since_timestamp_seconds", NOW - DAY, LOST),
    )


def test_an_open_loss_has_both_numbers_and_its_begin() -> None:
    """Also without any current result; without an open one there is nothing."""
    assert seen_by("probe_bandwidth_lost", facts_of(merged(info(), gauge("losses", 0)))) == []

    [found] = seen_by("probe_bandwidth_lost", facts_of(merged(info(), loss())))

    assert (found.code, found.component.identity, found.since) == (
        "probe_bandwidth_lost",
        "probe/all_reduce",
        NOW - DAY,
    )
    assert [fact.value for fact in found.evidence] == [1 / 3, 240e9, 360e9]
    assert found.detail == "of all_reduce 8"


def test_a_loss_over_gloo_is_no_finding() -> None:
    """It shares the CPUs with all work of the node, and measures no fabric."""
    key = ("all_reduce", "gloo")
    numbers = merged(info(key=key), gauge("losses", 1, key), gauge("loss_ratio", 0.5, (*key, "all_reduce 8")))

    assert seen(facts_of(numbers)) == []


def test_a_lost_copy_stands_on_the_parts_of_its_gpu() -> None:
    """And on those of no other one."""
    key = ("host_copies", "nccl")
    numbers = merged(
        four_cards(), info(measure="host_copies", key=key), gauge("losses", 1, key),
        gauge("loss_ratio", 0.5, (*key, f"host_to_device {CARDS[3]}")),
    )  # fmt: skip

    [found] = seen_by("probe_bandwidth_lost", facts_of(numbers))

    assert any(part.startswith(CARDS[3]) for part in found.component.parts)
    assert not any(part.startswith(CARDS[2]) for part in found.component.parts)


@in_one_pass(
    "source, code",
    [("configured", "probe_bandwidth_short"), ("reference", "probe_bandwidth_short"), ("model", "probe_below_model")],
)
def test_results_short_of_what_is_expected_count_from_three_on(source: str, code: str) -> None:
    """A ticket by a firm value, information by a model; two are none."""
    two, three = (facts_of(merged(info(source), gauge("short_bandwidth_streak", streak))) for streak in (2, 3))

    assert seen(two) == []
    assert [one.code for one in seen(three)] == [code]


@pytest.mark.parametrize("source", ["reference", "model"])
def test_one_slow_probe_is_one_finding(source: str) -> None:
    """What is low is not short and lost as well; what is lost is not short."""
    short = merged(info(source), gauge("short_bandwidth_streak", 9))

    assert [one.code for one in seen(facts_of(merged(short, loss())))] == ["probe_bandwidth_lost"]
    low = merged(short, loss(), gauge("low_bandwidth_streak", LIMITS.probe_low_bandwidth_streak))
    assert [one.code for one in seen(facts_of(low))] == ["probe_bandwidth_low"]


def test_a_latency_above_a_model_is_information() -> None:
    """From three on, and not where spikes say the same firmly."""
    numbers = merged(info("reference"), {"commwatch_probe_expected_latency_seconds": {(*KEY, "model"): 10e-6}})
    two, three = (merged(numbers, gauge("latency_above_model_streak", streak)) for streak in (2, 3))

    assert seen(facts_of(two)) == []
    [found] = seen(facts_of(three))
    assert (found.code, [fact.value for fact in found.evidence]) == ("probe_below_model", [3, 10e-6])
    spikes = merged(three, gauge("latency_spike_streak", 3))
    assert [one.code for one in seen(facts_of(spikes))] == ["probe_latency_high"]

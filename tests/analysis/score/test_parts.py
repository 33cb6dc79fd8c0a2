"""What each part of the score reads, at its edges."""

from __future__ import annotations

import pytest

from analysis.score.cases import (
    ATTEMPTS,
    BANDWIDTH_STEP,
    BASELINE,
    COPIES,
    COPY,
    COPY_ATTEMPTS,
    FAILED_RECOVERIES,
    FAILURES,
    FLAPS,
    GPU1,
    HEALTHY,
    JOB_ERRORS,
    LATENCY,
    LATENCY_DRIFT,
    LATENCY_STEP,
    OLD_RECOVERIES,
    PAIR,
    RANK_BALANCE,
    RECOVERIES,
    SPIKE_STREAK,
    SPIKES,
    SUSPECT,
    UTILIZATION,
    Key,
    Values,
    of_a_job,
    only,
    part,
    score,
)
from commwatch.findings.score.records import PartName
from support.passes import in_one_pass


def ratio(
    name: PartName, changes: Values | None = None, rises: dict[Key, float] | None = None, rose_hours_ago: float = 0.0
) -> float | None:
    """Value of one part of the healthy node with some numbers changed."""
    return part(score(changes, rises, rose_hours_ago), name).ratio


def test_bandwidth_is_the_mean_over_probes() -> None:
    """The collective, the copies and the pairs count alike, copies and pairs by their own mean."""
    assert ratio("bandwidth") == 1.0
    assert ratio("bandwidth", {UTILIZATION: 0.4}) == pytest.approx((0.4 + 1 + 1) / 3)
    assert ratio("bandwidth", {COPY: 24e9}) == pytest.approx((1 + 0.75 + 1) / 3)
    assert ratio("bandwidth", {PAIR: 75e9}) == pytest.approx((1 + 1 + 0.625) / 3)


def test_more_than_expected_makes_good_for_nothing() -> None:
    """A pair at twice its expectation does not hide a slow one."""
    twice: Key = ("pair_bandwidth_bytes_per_second", ("1", "0", "simulated"))

    assert ratio("bandwidth", {UTILIZATION: 1.7}) == 1.0
    assert ratio("bandwidth", {PAIR: 75e9, twice: 600e9}) == ratio("bandwidth", {PAIR: 75e9})


def test_what_has_no_expectation_is_no_bandwidth() -> None:
    """A rate alone says nothing: the other probes count, and without any the part is missing."""
    nothing_expected: Key = ("pair_expected_bandwidth_bytes_per_second", ("0", "1", "simulated"))

    assert ratio("bandwidth", {PAIR: 75e9, nothing_expected: None}) == 1.0
    missing = part(score(only(LATENCY, BASELINE, PAIR, ATTEMPTS)), "bandwidth")
    assert (missing.ratio, missing.weight) == (None, 0.0)
    assert "what it should give" in missing.missing


def test_gloo_is_no_fabric() -> None:
    """It tests the TCP path of the host: a node with nothing else has no score."""
    gloo = ("tcp", "gloo")
    tcp: Values = {
        **only(),
        ("probe_bandwidth_utilization_ratio", gloo): 0.5,
        ("probe_rank_balance_ratio", gloo): 0.5,
        ("probe_last_latency_seconds", gloo): 1e-3,
        ("probe_baseline_latency_seconds", gloo): 1e-3,
        ("probe_latency_step_ratio", gloo): 1.0,
        ("probe_attempts_total", gloo): 100,
    }

    assert score(tcp, {("probe_attempts_total", gloo): 50}).ratio is None


@in_one_pass("last, value", [(8e-6, 1.0), (10e-6, 1.0), (12.5e-6, 0.8)])
def test_latency_is_held_against_the_baseline(last: float, value: float) -> None:
    """10 µs as usual; faster is no merit."""
    assert ratio("latency", {LATENCY: last}) == pytest.approx(value)


@pytest.mark.parametrize(
    ("streak", "value"), [(0.0, 1 / 1.5), (1.0, 1 / 1.5), (2.0, 0.1), (None, 0.1)], ids=["none", "one", "two", "absent"]
)
def test_a_single_spike_costs_a_third_at_most(streak: float | None, value: float) -> None:
    """Ten times the baseline: the second spike in a row is believed, and so is one that no rule counts."""
    assert ratio("latency", {LATENCY: 100e-6, SPIKE_STREAK: streak}) == pytest.approx(value)


@in_one_pass("drift, usual", [(0.9, 11e-6), (1.1, 10e-6), (1.15, 11e-6 / 1.15), (1.6, 11e-6 / 1.15)])
def test_a_baseline_that_followed_a_decline_is_not_the_measure(drift: float, usual: float) -> None:
    """11 µs are slow where it was 10 µs at first; the baseline itself follows no further than 1.15 times."""
    assert ratio("latency", {LATENCY: 11e-6, BASELINE: 11e-6, LATENCY_DRIFT: drift}) == pytest.approx(usual / 11e-6)


def test_without_a_baseline_there_is_no_latency() -> None:
    """The part is missing and says what it takes."""
    missing = part(score({BASELINE: None}), "latency")

    assert missing.ratio is None
    assert "2 good results" in missing.missing


@in_one_pass(
    "changes, value, subject",
    [
        ({RANK_BALANCE: 0.84}, 0.84 / 0.85, "probe ring"),
        ({COPY: 0.84 * 48e9}, 0.84 / 0.85, "GPU1 host_to_device"),
        ({PAIR: 0.84 * 300e9}, 0.84 / 0.85, "GPU0 to GPU1"),
        ({SUSPECT: 0.6}, 0.7, "GPU1"),
        ({("suspect_ratio", ("numa_node", "1")): 1.0}, 0.5, "numa_node 1"),
        (of_a_job([0.9, 0.3]), 0.3 / 0.9 / 0.85, "busy time of job on GPU0, GPU1"),
        (of_a_job([0.9, 0.9], nvlink=[0.1, 0.04]), 0.4 / 0.85, "NVLink of job on GPU0, GPU1"),
        (of_a_job([0.9, 0.9], pcie=[0.0, 0.5]), 0.0, "PCIe of job on GPU0, GPU1"),
    ],
)
def test_the_worst_off_decides_the_balance(changes: Values, value: float, subject: str) -> None:
    """Each kind of measurement by itself lowers it, and the first loss names the part."""
    found = part(score(changes), "balance")

    assert found.ratio == pytest.approx(value)
    assert found.readings[0].subject == subject
    assert found.readings[0].ratio == found.ratio


@in_one_pass(
    "changes",
    [
        {RANK_BALANCE: 0.85},
        {COPY: 0.85 * 48e9},
        {PAIR: 0.85 * 300e9},
        {key: HEALTHY[key] / 3 for key in HEALTHY if key[0] == PAIR[0]},
        {key: HEALTHY[key] / 3 for key in HEALTHY if key[0] == COPY[0]},
        of_a_job([0.9, 0.77], nvlink=[0.09, 0.0], pcie=[0.5, 0.43]),
        {**of_a_job([0.9, 0.9]), PAIR: 1e9, COPY: 1e9, RANK_BALANCE: 0.1, SUSPECT: 1.0},
        of_a_job([0.04, 0.0]) | {("gpu_job_nvlink_recent_use_ratio", GPU1): 0.5},
    ],
)
def test_what_is_equal_within_15_percent_or_carries_no_load_is_in_balance(changes: Values) -> None:
    """A node of which all pairs are slow is not unbalanced; under a job its load counts, and no probe of before it."""
    assert ratio("balance", changes) in (None, pytest.approx(1.0))


def test_two_jobs_are_not_compared() -> None:
    """Each uses its GPUs as it does, and one GPU has nobody to be even with: the balance is not measured."""
    found = part(score(of_a_job([0.9, 0.1], first=(0, 1))), "balance")

    assert found.ratio is None
    assert "a job that has been on as many" in found.missing


def test_the_worst_of_several_is_named_with_their_number() -> None:
    """One reason for all pairs, not one for each."""
    other: Key = ("pair_bandwidth_bytes_per_second", ("1", "0", "simulated"))
    worst = part(score({PAIR: 200e9, other: 100e9}), "balance").readings[0]

    assert worst.subject == "GPU1 to GPU0"
    usual = "100 GB/s of 300 GB/s expected, the others usually reach 67 % of it"
    assert worst.words == f"{usual}; 1 of 2 pairs below 85 % of that"


def test_one_gpu_has_nobody_to_be_even_with() -> None:
    """Its copies count for the bandwidth alone."""
    copies_of_one = {
        **only(COPY),
        ("probe_copy_expected_bandwidth_bytes_per_second", COPY[1]): 48e9,
        ("probe_rank_balance_ratio", COPIES): 0.01,
    }

    assert part(score(copies_of_one), "balance").ratio is None
    assert part(score(copies_of_one), "bandwidth").ratio == 1.0


@in_one_pass(
    "changes, value",
    [
        ({UTILIZATION: 0.1, ("probe_low_bandwidth_streak", ("ring", "simulated")): 9}, 1.0),
        ({LATENCY_STEP: 1.25}, 0.8),
        ({BANDWIDTH_STEP: 1.25}, 0.8),
        ({LATENCY_DRIFT: 1.25}, 1.0),
        ({BANDWIDTH_STEP: 0.5}, 1.0),
    ],
)
def test_steps_cost_stability(changes: Values, value: float) -> None:
    """A node that is as slow as ever, or has become so over weeks, is stable."""
    assert ratio("stability", changes) == pytest.approx(value)


@in_one_pass(
    "rises, value",
    [
        ({FAILURES: 1}, 0.95),
        ({SPIKES: 4}, 0.8),
        ({FAILURES: 20}, 0.0),
        ({("probe_failures_total", (*COPIES, "crashed")): 0.0}, 1.0),
        ({RECOVERIES: 1}, 0.9),
        ({OLD_RECOVERIES: 9}, 0.1),
        ({RECOVERIES: 10}, 0.0),
        ({FAILED_RECOVERIES: 1}, 0.0),
        ({FLAPS: 1}, 2 / 3),
        ({FLAPS: 3}, 0.0),
    ],
)
def test_what_happened_within_the_day_costs_stability(rises: dict[Key, float], value: float) -> None:
    """Failures and spikes by their share of the cycles, recoveries and flaps by their number."""
    assert ratio("stability", rises=rises) == pytest.approx(value)


def test_one_failure_of_a_probe_that_runs_once_a_day_is_no_certainty() -> None:
    """A share needs events: one of one counts as one of six, and six of six as all."""
    failures: Key = ("probe_failures_total", (*COPIES, "crashed"))

    assert ratio("stability", {failures: 50}, {COPY_ATTEMPTS: 1, failures: 1}) == pytest.approx(5 / 6)
    assert ratio("stability", {failures: 50}, {COPY_ATTEMPTS: 6, failures: 6}) == pytest.approx(0.0)


def test_many_probes_that_fail_once_each_do_not_hide_behind_each_other() -> None:
    """Eight probes, one cycle each, all failed: nothing is stable."""
    names = [(f"probe{number}", "simulated") for number in range(8)]
    attempts: dict[Key, float] = {("probe_attempts_total", name): 1 for name in names}
    failures: dict[Key, float] = {("probe_failures_total", (*name, "crashed")): 1 for name in names}
    found = score({**only(), **attempts, **failures}, {**attempts, **failures})

    assert (found.ratio, found.word) == (0.0, "needs work")


@in_one_pass("hours, value", [(0, 0.0), (6, 0.25), (18, 0.75), (25, 1.0)])
def test_how_long_jobs_go_without_an_error_counts(hours: float, value: float) -> None:
    """From an error by which a job fails or is stuck on a day has to pass; its own settings cost nothing."""
    wrong_setting: Key = ("nccl_log_errors_total", ("usage",))

    assert ratio("stability", {JOB_ERRORS: 4}, {JOB_ERRORS: 1}, hours) == pytest.approx(value, abs=1e-3)
    assert ratio("stability", {wrong_setting: 4}, {wrong_setting: 1}, hours) == 1.0


@pytest.mark.parametrize(("hours", "value"), [(23, 0.95), (25, 1.0)])
def test_what_is_older_than_a_day_is_forgiven(hours: float, value: float) -> None:
    """A failure counts for 24 hours."""
    assert ratio("stability", rises={FAILURES: 1}, rose_hours_ago=hours) == pytest.approx(value)


def test_a_day_of_good_cycles_does_not_hide_that_nothing_works_any_more() -> None:
    """Ninety good cycles, and since then six that failed: the last two hours count too."""
    spread = part(score(rises={ATTEMPTS: 96, FAILURES: 6}, rose_hours_ago=3), "stability")
    assert spread.ratio == pytest.approx(1 - 6 / 96)
    assert spread.readings[0].words == "6 of 96 cycles of the last 24 h failed"

    now = part(score(rises={ATTEMPTS: 90}, rose_hours_ago=3, just_now={ATTEMPTS: 6, FAILURES: 6}), "stability")
    assert now.ratio == pytest.approx(0.0)
    assert now.readings[0].words == "6 of 6 cycles of the last 2 h failed"


def test_a_few_cycles_are_no_stability() -> None:
    """Five good cycles prove nothing over time; six, or a course long enough to compare, do."""
    without = {LATENCY_STEP: None, BANDWIDTH_STEP: None, LATENCY_DRIFT: None}

    assert ratio("stability", without, {ATTEMPTS: 5, COPY_ATTEMPTS: 0}) is None
    assert ratio("stability", without, {ATTEMPTS: 5, COPY_ATTEMPTS: 1}) == 1.0
    assert ratio("stability", rises={ATTEMPTS: 0, COPY_ATTEMPTS: 0}) == 1.0


def test_links_alone_make_no_stability() -> None:
    """A node whose links flap and that no probe has measured has a finding and no score."""
    assert score(only(FLAPS, RECOVERIES), {FLAPS: 5}).ratio is None

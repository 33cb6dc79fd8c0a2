"""How the parts make the score: weights, words, what is missing, and where the points went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from analysis.score.cases import (
    BASELINE,
    COPY,
    FAILURES,
    GPU0,
    HEALTHY,
    LATENCY,
    LATENCY_DRIFT,
    LATENCY_STEP,
    PAIR,
    RANK_BALANCE,
    RING,
    SPIKE_STREAK,
    SPIKES,
    SUSPECT,
    UTILIZATION,
    Key,
    of_a_job,
    only,
    part,
    score,
)
from commwatch.findings.finding import Component
from commwatch.findings.score.records import WEIGHTS, PartName, PartReadings, Reading, Score, weighted
from commwatch.findings.score.score import readings_of
from commwatch_exporters.catalogue import CATALOGUE
from support.findings import finding
from support.passes import in_one_pass

PARTS: tuple[PartName, ...] = ("bandwidth", "latency", "balance", "stability")


def of_values(*values: float | None) -> Score:
    """A score of parts with these values."""
    parts = [
        PartReadings(name, () if value is None else (Reading("", value, ""),), least_counts=False, needs="a probe")
        for name, value in zip(PARTS, values, strict=True)
    ]
    return weighted(parts, excellent=0.85, good=0.70)


def test_the_weights_are_those_of_the_documentation() -> None:
    """30, 25, 25 and 20 %."""
    assert [WEIGHTS[name] for name in PARTS] == [0.30, 0.25, 0.25, 0.20]
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)


@in_one_pass("place", range(4))
def test_a_part_that_is_nothing_costs_its_weight(place: int) -> None:
    """And no more."""
    values = [0.0 if at == place else 1.0 for at in range(4)]

    assert of_values(*values).ratio == pytest.approx(1 - WEIGHTS[PARTS[place]])


def test_a_part_without_data_gives_its_weight_to_the_others() -> None:
    """Visibly: its own is 0, it says what it takes, and the others' shares add up to 1."""
    found = of_values(0.5, None, 1.0, None)

    assert found.ratio == pytest.approx((0.30 * 0.5 + 0.25 * 1.0) / 0.55)
    assert [one.weight for one in found.parts] == pytest.approx([0.30 / 0.55, 0, 0.25 / 0.55, 0])
    assert [one.missing for one in found.parts] == ["", "a probe", "", "a probe"]


@in_one_pass(
    "value, word",
    [
        (1.0, "excellent"),
        (0.85, "excellent"),
        (0.8499, "good"),
        (0.70, "good"),
        (0.6999, "needs work"),
        (0.0, "needs work"),
    ],
)
def test_the_word_changes_at_its_mark(value: float, word: str) -> None:
    """0.85 is excellent, 0.70 is good."""
    assert of_values(value, None, None, None).word == word


def test_a_node_on_which_nothing_was_measured_has_no_score() -> None:
    """Absent, never 1; and its metrics are absent too."""
    found = score(only())

    assert (found.ratio, found.word, found.losses) == (None, "not measured", ())
    assert all(one.missing and one.ratio is None for one in found.parts)
    assert {value for _, _, value in readings_of(found)} == {None}


def test_a_healthy_node_loses_nothing() -> None:
    """Every part is measured and is 1."""
    found = score()

    assert found.ratio == pytest.approx(1.0)
    assert found.word == "excellent"
    assert [one.ratio for one in found.parts] == pytest.approx([1.0] * 4)
    assert found.losses == ()


def test_the_metrics_are_in_the_catalogue_and_always_the_same() -> None:
    """One series of the score and one of each part, whatever was measured."""
    series = [[(metric, labels) for metric, labels, _ in readings_of(one)] for one in (score(), score(only()))]

    assert series[0] == series[1]
    assert [labels for _, labels in series[0]] == [(), *((name,) for name in PARTS)]
    assert all(metric in CATALOGUE for metric, _ in series[0])


def test_losses_name_what_they_went_to() -> None:
    """The greatest first, with units: the suspect costs half the balance, and the pair waits behind it."""
    found = score({SUSPECT: 1.0, PAIR: 180e9, UTILIZATION: 0.7})

    assert [(one.part, one.subject, round(one.lost, 4)) for one in found.losses] == [
        ("balance", "GPU1", 0.125),
        ("bandwidth", "probe ring", 0.03),
        ("bandwidth", "pairs", 0.02),
        ("balance", "GPU0 to GPU1", 0.0),
    ]
    assert [one.words for one in found.losses[:2]] == [
        "what slow pairs have in common, 100 % sure",
        "reaches 70 % of what is expected: 100 GB/s of 100 GB/s",
    ]


_SHORT: dict[Key, st.SearchStrategy[float]] = {
    UTILIZATION: st.floats(0.0, 1.5),
    LATENCY: st.floats(1e-6, 1e-3),
    BASELINE: st.floats(1e-6, 1e-3),
    LATENCY_DRIFT: st.floats(0.5, 3.0),
    LATENCY_STEP: st.floats(0.5, 3.0),
    RANK_BALANCE: st.floats(0.01, 1.0),
    COPY: st.floats(0.0, 100e9),
    PAIR: st.floats(0.0, 600e9),
    SUSPECT: st.floats(0.0, 1.0),
    SPIKE_STREAK: st.integers(0, 9),
}


@given(st.fixed_dictionaries({}, optional=_SHORT), st.integers(0, 20), st.integers(0, 20))
def test_losses_add_up(changes: dict[Key, float], failures: int, spikes: int) -> None:
    """Score and losses are 1 together; each part lies between 0 and 1, and so does the score."""
    found = score(changes, {FAILURES: failures, SPIKES: spikes})

    assert found.ratio is not None
    assert found.ratio + sum(one.lost for one in found.losses) == pytest.approx(1.0)
    assert all(one.ratio is not None and 0.0 <= one.ratio <= 1.0 for one in found.parts)
    assert 0.0 <= found.ratio <= 1.0
    for name in PARTS:
        lost = sum(one.lost for one in found.losses if one.part == name)
        assert lost == pytest.approx(WEIGHTS[name] * (1 - (part(found, name).ratio or 0.0)))


@in_one_pass("key", [UTILIZATION, PAIR, COPY])
def test_a_bandwidth_below_the_mark_is_never_good(key: Key) -> None:
    """A node at a third of what is expected needs work, whatever else is well; the loss says what keeps it down."""
    third = {key: HEALTHY[key] / 3} if key == UTILIZATION else dict.fromkeys(_alike(key), HEALTHY[key] / 3)
    found = score(third)

    assert found.word == "needs work"
    assert sum(one.lost for one in found.losses) == pytest.approx(1 - (found.ratio or 0))


def _alike(key: Key) -> list[Key]:
    return [one for one in HEALTHY if one[0] == key[0]]


def test_a_critical_finding_keeps_the_score_below_good() -> None:
    """And no other one does; what is lower already stays so."""
    port = Component("rdma_port", "mlx5_0/1", "mlx5_0 port 1")
    critical = finding("rdma_port_down", port)
    capped, warned = score(findings=[critical]), score(findings=[structs.replace(critical, severity="warning")])
    low = score({UTILIZATION: 0.1, LATENCY: 1e-3, RANK_BALANCE: 0.1}, findings=[critical])

    assert capped.word == "needs work"
    assert capped.ratio == pytest.approx(0.693)
    [loss] = capped.losses
    assert (loss.part, loss.heading, loss.subject) == ("cap", "held down", "mlx5_0 port 1 (mlx5_0/1)")
    assert loss.lost == pytest.approx(0.307)
    assert warned.word == "excellent"
    assert "cap" not in [one.part for one in low.losses]


def test_the_word_of_a_job_stands_beside_the_score_of_the_node() -> None:
    """By the finding about it, the highest severity first; without one by the state of its GPUs. No job, no word."""
    name = "job on GPU0, GPU1"
    job = Component("process", GPU0[1], name)
    waits = [finding("job_network_bound", job), finding("job_uneven", job)]

    assert [(one.name, one.word) for one in score(of_a_job([0.2, 0.3]), findings=waits).jobs] == [
        (name, "held up by the network")
    ]
    words = [score(of_a_job(use)).jobs[0].word for use in ([0.5, 0.5], [0.49, 0.5], [0.04, 0.05], [])]
    assert words == ["no remarks", "computes now and then", "computes nothing", "use not known"]
    assert score(of_a_job([0.5, 0.7], nvlink=[0.1, 0.3])).jobs[0].use == {
        "busy time": pytest.approx(0.6), "NVLink": pytest.approx(0.2),
    }  # fmt: skip
    assert score().jobs == ()


@in_one_pass(
    "metric, count, capped",
    [
        (("probe_losses", RING), 1, True),
        (("probe_losses", RING), 0, False),
        (("probe_short_bandwidth_streak", RING), 3, True),
        (("probe_short_bandwidth_streak", RING), 2, False),
        (SPIKE_STREAK, 3, True),
    ],
)
def test_an_open_loss_keeps_the_score_below_excellent(metric: Key, count: int, *, capped: bool) -> None:
    """Below 0.85 whatever the parts give; without one nothing is lost."""
    source = ("probe_info", (*RING, "all_reduce", "8", "67108864", "8", "", "", "", "reference"))

    found = score({metric: count, source: 1})

    assert found.ratio is not None
    assert (found.ratio < 0.85) == capped
    assert capped == (found.word != "excellent")


@in_one_pass(
    "category, hours_ago, capped",
    [("timeout", 0, True), ("crash", 0, True), ("ib_retry", 0, True), ("usage", 0, False)],
)
def test_a_job_that_failed_in_the_last_hour_keeps_the_score_below_excellent(
    category: str, hours_ago: float, *, capped: bool
) -> None:
    """What its own settings and program did is no matter of the node."""
    errors = ("nccl_log_errors_total", (category,))

    found = score({errors: 4}, {errors: 1}, hours_ago)

    assert found.ratio is not None
    assert (found.ratio < 0.85) == capped
    assert capped == any("job" in one.words for one in found.losses)

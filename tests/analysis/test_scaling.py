"""Whether adding GPUs helps, as commwatch probe answers it: the break-even, its edge, and its words."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Probe
from commwatch.config.thresholds import load_thresholds
from commwatch.probes.by_hand.answer import Scaling, answer_of
from commwatch.probes.prospect import Prospect
from probes.results import MIB, measured, plan_of
from support.examples import examples

GB = 10**9
seconds = st.floats(min_value=1e-6, max_value=10.0)


def scaling(*each: float, size: int = GB) -> Scaling:
    """The answer to all-reduces over 2, 4 and 8 GPUs that took so long."""
    plan = plan_of("scaling", 2 ** len(each), bandwidth_bytes=size)
    result = measured(plan, 1e9, list(each))
    found = answer_of(Prospect(plan), Probe(), result, load_thresholds(None))
    assert found.scaling is not None
    return found.scaling


def work(gpus: int, compute: float, sums: float) -> float:
    """Pieces of work per second: each GPU does one in a step of computing and summing."""
    return gpus / (compute + sums)


@examples(50)
@given(seconds, seconds, st.floats(min_value=0.0, max_value=100.0))
def test_more_gpus_win_exactly_above_the_break_even(two: float, four: float, compute: float) -> None:
    """Held against the work per second itself, on both sides of the limit; one GPU sums nothing."""
    for point in scaling(two, four).points:
        alone, many = work(1, compute, 1e-300), work(point.ranks, compute, point.seconds_per_gigabyte)

        if compute > point.break_even_seconds * (1 + 1e-9) + 1e-9:
            assert many > alone
        elif compute < point.break_even_seconds * (1 - 1e-9) - 1e-9:
            assert many < alone


@examples(50)
@given(st.floats(min_value=1e-3, max_value=10.0), st.floats(min_value=1e-3, max_value=10.0))
def test_a_slower_sum_never_lowers_the_break_even(more: float, by: float) -> None:
    """The longer the larger group needs, the more must there be to compute."""
    before, after = (scaling(1e-3, slow).points[1].break_even_seconds for slow in (more, more + by))

    assert after >= before


def test_points_of_a_node_that_scales() -> None:
    """64 MiB on 2, 4 and 8 GPUs: bandwidths, shares of the best, and times for a GB of gradients."""
    points = scaling(400e-6, 520e-6, 584e-6, size=64 * MIB).points

    assert [point.ranks for point in points] == [2, 4, 8]
    assert points[2].bus_bandwidth == pytest.approx(1.75 * 64 * MIB / 584e-6)
    assert points[2].share_of_best == 1
    assert points[0].share_of_best == pytest.approx((1 / 400) / (1.75 / 584))
    assert points[2].seconds_per_gigabyte == pytest.approx(584e-6 * GB / (64 * MIB))
    assert points[2].break_even_seconds == pytest.approx(584e-6 * GB / (64 * MIB) / 7)


@pytest.mark.parametrize(
    ("each", "limits", "well_used"),
    [
        pytest.param((0.020, 0.150), ("20 ms", "110 ms"), "600 ms", id="a bridge, and four across the processors"),
        pytest.param((0.010, 0.015), ("10 ms", None), "60 ms", id="equal bus bandwidth"),
        pytest.param((0.010, 0.012, 0.7), ("10 ms", None, "676 ms"), "2.8 s", id="eight over a slow path"),
    ],
)
def test_words_say_where_more_gpus_do_not_help(
    each: tuple[float, ...], limits: tuple[str | None, ...], well_used: str
) -> None:
    """Each number of GPUs against the one below it; where it sums nearly as fast it helps whatever there is to do."""
    found = scaling(*each)
    ranks = [1, *(point.ranks for point in found.points)]

    for (fewer, more), limit, words in zip(pairwise(ranks), limits, found.words, strict=False):
        when = "at any step time" if limit is None else f"if a step computes longer than {limit} per GB"
        assert words.startswith(f"{more} GPUs beat {fewer} {when}")
    assert found.words[-1] == (
        f"With {ranks[-1]} GPUs at least 80 % of a step is computing where it computes longer than {well_used} per GB "
        "of gradients."
    )


def test_words_have_bandwidth_and_share_of_the_best() -> None:
    """Of each number of GPUs."""
    words = scaling(0.020, 0.150).words

    assert [one.partition("; ")[2] for one in words[:2]] == [
        "bus bandwidth 50 GB/s, 100 % of the best.", "bus bandwidth 10 GB/s, 20 % of the best."
    ]  # fmt: skip

"""Whether adding GPUs helps: the break-even, its edge, and its words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.results.scaling import break_even_seconds, computing_seconds, scaling_points, scaling_words

MIB = 2**20
seconds = st.floats(min_value=1e-6, max_value=10.0)


def work(gpus: int, compute: float, sums: float) -> float:
    """Pieces of work per second: each GPU does one in a step of computing and summing."""
    return gpus / (compute + sums)


@given(
    st.integers(min_value=1, max_value=63),
    st.integers(min_value=1, max_value=64),
    seconds,
    seconds,
    st.floats(min_value=0.0, max_value=100.0),
)
def test_more_gpus_win_exactly_above_the_break_even(
    fewer: int, added: int, fewer_seconds: float, more_seconds: float, compute: float
) -> None:
    """Held against the work per second itself, on both sides of the limit."""
    more, fewer_seconds = fewer + added, fewer_seconds if fewer > 1 else 0.0
    limit = break_even_seconds(fewer, fewer_seconds, more, more_seconds)

    less, much = work(fewer, compute, fewer_seconds or 1e-300), work(more, compute, more_seconds)

    if compute > limit * (1 + 1e-9) + 1e-9:
        assert much > less
    elif compute < limit * (1 - 1e-9) - 1e-9:
        assert much < less


def test_at_the_break_even_both_do_the_same() -> None:
    """Two GPUs over NVLink against four over a slow path, 20 ms and 150 ms to sum: even at 110 ms of computing."""
    limit = break_even_seconds(2, 0.020, 4, 0.150)

    assert limit == pytest.approx(0.110)
    assert work(4, limit, 0.150) == pytest.approx(work(2, limit, 0.020))
    assert work(4, 0.109, 0.150) < work(2, 0.109, 0.020)
    assert work(4, 0.111, 0.150) > work(2, 0.111, 0.020)


def test_against_one_gpu() -> None:
    """One GPU sums nothing: eight beat it where a step computes longer than a seventh of their sum."""
    assert break_even_seconds(1, 0.0, 8, 0.7) == pytest.approx(0.1)


@given(seconds, st.floats(min_value=0.01, max_value=0.99))
def test_the_share_of_computing_is_the_share_of_the_work(sums: float, share: float) -> None:
    """Where a share of the step is computing, n GPUs do that share of n times the work of one."""
    compute = computing_seconds(share, sums)

    assert work(8, compute, sums) == pytest.approx(8 * share * work(1, compute, 0.0))


def test_where_more_always_win_the_break_even_is_zero() -> None:
    """Equal bus bandwidth over two and four: never negative."""
    assert break_even_seconds(2, 1.0, 4, 1.5) == 0.0


@pytest.mark.parametrize(("fewer", "more"), [(4, 4), (8, 4), (0, 2)])
def test_more_must_be_more(fewer: int, more: int) -> None:
    """Anything else is a mistake of the caller."""
    with pytest.raises(ValueError, match="not more"):
        break_even_seconds(fewer, 1.0, more, 1.0)


@given(st.integers(min_value=1, max_value=8), st.integers(min_value=1, max_value=8), seconds, seconds, seconds)
def test_a_slower_sum_never_lowers_the_break_even(
    fewer: int, added: int, fewer_seconds: float, more_seconds: float, by: float
) -> None:
    """The longer the larger group needs, the more must there be to compute."""
    before = break_even_seconds(fewer, fewer_seconds, fewer + added, more_seconds)

    assert break_even_seconds(fewer, fewer_seconds, fewer + added, more_seconds + by) >= before


def test_points_of_a_node_that_scales() -> None:
    """64 MiB on 2, 4 and 8 GPUs, in any order: bandwidths, shares of the best, and times for a GB of gradients."""
    points = scaling_points(64 * MIB, {8: 584e-6, 2: 400e-6, 4: 520e-6})

    assert [point.ranks for point in points] == [2, 4, 8]
    assert points[2].bus_bandwidth == pytest.approx(1.75 * 64 * MIB / 584e-6)
    assert points[2].share_of_best == 1
    assert points[0].share_of_best == pytest.approx((1 / 400) / (1.75 / 584))
    assert points[2].seconds_per_gigabyte == pytest.approx(584e-6 * 1e9 / (64 * MIB))
    assert points[2].break_even_seconds == pytest.approx(584e-6 * 1e9 / (64 * MIB) / 7)


def test_words_say_where_more_gpus_do_not_help() -> None:
    """A pair on a bridge, four across the processors: the second pair helps only where there is much to compute."""
    points = scaling_points(10**9, {2: 0.020, 4: 0.150})

    assert scaling_words(points) == (
        "2 GPUs instead of 1 help where a step computes longer than 20 ms per GB of gradients; "
        "bus bandwidth 50 GB/s, 100 % of the best.",
        "4 GPUs instead of 2 help where a step computes longer than 110 ms per GB of gradients; "
        "bus bandwidth 10 GB/s, 20 % of the best.",
        "With 4 GPUs at least 80 % of a step is computing where it computes longer than 600 ms per GB of gradients.",
    )


def test_words_of_a_node_that_scales() -> None:
    """Where the larger group sums nearly as fast, more GPUs help whatever there is to compute."""
    words = scaling_words(scaling_points(10**9, {2: 0.010, 4: 0.015}))

    assert words[1].startswith("4 GPUs instead of 2 help whatever a step computes;")


def test_nothing_measured_says_nothing() -> None:
    """No times, no points, no words."""
    assert scaling_words(scaling_points(MIB, {})) == ()

"""How evenly ranks keep pace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.results.balance import Balance, balance_of

times = st.lists(st.floats(min_value=1e-6, max_value=10.0), min_size=2, max_size=16)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1.0, 2.0, 4.0], Balance(0.25, 2)),
        ([None, 2.0, None, 1.0], Balance(0.5, 1)),
        ([2.0, 1.0, 2.0], Balance(0.5, 0)),
        ([1.0, 1.0], Balance(1.0, None)),
        ([1.0, None], None),
        ([], None),
        ([1.0, 0.0], None),
    ],
)
def test_the_fastest_over_the_slowest(seconds: list[float | None], expected: Balance | None) -> None:
    """The slowest rank is named by its own number, nobody where all are equal; one rank alone is no balance."""
    assert balance_of(seconds) == expected


@given(times, st.floats(min_value=1.0, max_value=100.0))
def test_the_slowest_rank_made_slower_never_improves_the_balance(seconds: list[float], by: float) -> None:
    """The ratio is above 0, at most 1, and falls when the rank behind falls further behind; it stays the one named."""
    before = balance_of(seconds)
    assert before is not None
    behind = seconds.index(max(seconds))

    after = balance_of([one * by if rank == behind else one for rank, one in enumerate(seconds)])

    assert after is not None
    assert 0 < after.ratio <= before.ratio <= 1
    assert before.slowest is None or after.slowest == before.slowest

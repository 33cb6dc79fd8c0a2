"""Rates of counters: never negative, never across a gap, a reset or a hole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.rate import ResetWatch, interval, rates
from commwatch_exporters.snapshot import Block, Layout, Value

COUNTS = st.none() | st.integers(min_value=0, max_value=2**64 - 1)
TX = "commwatch_ethernet_transmit_bytes_total"
RX = "commwatch_ethernet_receive_bytes_total"
CARRIER = "commwatch_ethernet_carrier"
LAYOUT = Layout([(TX, ("eth0",)), (RX, ("eth0",)), (CARRIER, ("eth0",))])


@pytest.mark.parametrize(
    ("earlier", "later", "seconds"), [(10, 11, 1), (10, 13, 3), (10, 13.1, None), (10, 10, None), (10, 9, None)]
)
def test_an_interval_is_bounded(earlier: float, later: float, seconds: float | None) -> None:
    """A rate spans neither a gap that is too long nor time that did not advance."""
    assert interval(earlier, later, max_gap_seconds=3) == seconds


@given(st.lists(st.tuples(COUNTS, COUNTS)), st.none() | st.floats(min_value=1e-3, max_value=1e6))
def test_a_rate_is_known_only_where_both_values_are(pairs: list[tuple[Value, Value]], seconds: float | None) -> None:
    """A rate is the increase over the interval; a fall, a hole or no interval gives none."""
    result = rates([before for before, _ in pairs], [now for _, now in pairs], seconds)

    for (before, now), rate in zip(pairs, result, strict=True):
        if before is None or now is None or now < before or seconds is None:
            assert rate is None
        else:
            assert rate == (now - before) / seconds


def test_resets_are_counted_by_reading() -> None:
    """Counters that fall together are one reset; a gauge that falls is none."""
    watch = ResetWatch()
    readings = [[5, 5, 1], [6, 6, 0], [0, 0, 1], [1, 1, 1], [1, 0, 1]]

    assert [watch.update(Block(LAYOUT, values, float(time))) for time, values in enumerate(readings)] == [
        False, False, True, False, True,
    ]  # fmt: skip
    assert watch.resets == 2


def test_a_reset_while_nothing_was_read_counts() -> None:
    """A counter that vanishes and comes back lower was reset, also in a layout that has changed."""
    watch = ResetWatch()
    other = Layout([(RX, ("eth0",)), (TX, ("eth0",))])

    watch.update(Block(LAYOUT, [100, 50, 1], 0.0))
    watch.update(Block(LAYOUT, [None, 60, 1], 1.0))

    assert watch.update(Block(other, [60, 99], 2.0))


@given(st.lists(st.lists(COUNTS, min_size=3, max_size=3)))
def test_rising_counters_are_never_reset(readings: list[list[Value]]) -> None:
    """Holes in counters that only rise are no resets."""
    watch = ResetWatch()
    highest = [0, 0, 0]
    for time, values in enumerate(readings):
        highest = [top if now is None else max(top, int(now)) for top, now in zip(highest, values, strict=True)]
        rising = [None if now is None else top for top, now in zip(highest, values, strict=True)]
        watch.update(Block(LAYOUT, rising, float(time)))

    assert watch.resets == 0

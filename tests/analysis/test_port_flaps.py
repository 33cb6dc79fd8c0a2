"""Drops of RDMA ports, and the time they took."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.port_flaps import PortFlaps
from commwatch_exporters.snapshot import Block, Layout, Value

PORT = ("mlx5_0", "1")
LAYOUT = Layout([("commwatch_rdma_port_state", PORT)])
DOWN, INIT, ARMED, ACTIVE, DEFERRED = range(1, 6)


def watch(states: Iterable[Value], step: float = 5.0) -> tuple[Value, Value]:
    """Flaps and seconds after readings so far apart."""
    flaps, values = PortFlaps(*PORT, max_gap_seconds=15), (None, None)
    for number, state in enumerate(states):
        block = flaps.update(Block(LAYOUT, [state], number * step))
        values = tuple(block.values)  # type: ignore[assignment]  # two of them
    return values


@pytest.mark.parametrize(
    ("states", "flaps", "seconds"),
    [
        ([ACTIVE, ACTIVE], 0, 0),
        ([DOWN, DOWN, INIT], 0, 0),
        ([DOWN, INIT, ARMED, ACTIVE], 0, 0),
        ([ACTIVE, DOWN], 1, 0),
        ([ACTIVE, DOWN, DOWN, ACTIVE], 1, 10),
        ([ACTIVE, DOWN, INIT, ARMED, ACTIVE, ACTIVE], 1, 15),
        ([ACTIVE, INIT, ACTIVE, DOWN, ACTIVE], 2, 10),
        ([ACTIVE, DEFERRED], 1, 0),
    ],
)
def test_a_port_that_was_active_flaps(states: list[int], flaps: int, seconds: float) -> None:
    """One drop counts once, whatever states it goes through; a port that was never active has none."""
    assert watch(states) == (flaps, seconds)


def test_what_was_not_read_is_neither_up_nor_down() -> None:
    """A port that is active before and after has not flapped in between; a gap that is too long adds no time."""
    assert watch([ACTIVE, None, ACTIVE]) == (0, 0)
    assert watch([ACTIVE, None, DOWN]) == (1, 0)
    assert watch([ACTIVE, DOWN, None, DOWN]) == (1, 10)
    assert watch([ACTIVE, DOWN, None, None, None, DOWN]) == (1, 0)
    assert watch([None]) == (0, 0)


def test_a_drop_of_any_length_is_one() -> None:
    """A drop longer than the gap between readings is counted in full while the port is read."""
    assert watch([ACTIVE, *[DOWN] * 721, ACTIVE]) == (1, 721 * 5)


@given(st.lists(st.sampled_from([None, DOWN, INIT, ARMED, ACTIVE, DEFERRED])))
def test_totals_only_grow(states: list[Value]) -> None:
    """Whatever the port does, neither total falls, and no more time is counted than went by."""
    before: tuple[Value, Value] = (0, 0)
    for end in range(1, len(states) + 1):
        after = watch(states[:end])
        assert all(new >= old for new, old in zip(after, before, strict=True) if new is not None and old is not None)
        assert (after[1] or 0) <= (end - 1) * 5
        before = after

"""Counters that wrap go on growing; counters that start again do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.wrap import Unwrap
from commwatch_exporters.snapshot import Block, Layout, Value
from support.passes import in_one_pass

RANGE = 2**32
PORT = ("mlx5_0", "1")
LAYOUT = Layout((
    ("commwatch_rdma_port_state", PORT),
    ("commwatch_rdma_out_of_sequence_total", PORT),
    ("commwatch_rdma_ack_timeouts_total", PORT),
    ("commwatch_rdma_cnp_sent_total", PORT),
))  # fmt: skip
"""A gauge, two counters of 32 bits and one of 64."""
GAP = 15.0


class Watched:
    """The exposed counters of one port, and how often one of them fell."""

    def __init__(self) -> None:
        self.unwrap, self.time, self.falls = Unwrap(), 0.0, 0
        self._last: list[Value] = []

    def read(self, first: Value, second: Value = 7, third: Value = 9, after: float = 5.0) -> list[Value]:
        """The three counters as exposed, from what was read so long after the reading before."""
        self.time += after
        block = self.unwrap.update(Block(LAYOUT, [4, first, second, third], self.time), GAP)
        known = [(now, before) for now, before in zip(block.values, self._last, strict=False)]
        self.falls += any(now is not None and before is not None and now < before for now, before in known)
        self._last = list(block.values)
        assert block.values[0] == 4
        return list(block.values[1:])


def test_a_wrap_is_no_reset() -> None:
    """The exposed number goes on growing, wrap after wrap, and nothing counts as a reset."""
    port = Watched()
    port.read(RANGE - 10)

    assert port.read(20) == [RANGE + 20, 7, 9]
    for raw in (900_000_000, 1_800_000_000, 2_700_000_000, 3_600_000_000):
        port.read(raw)
    assert port.read(5) == [2 * RANGE + 5, 7, 9]
    assert port.falls == 0


@in_one_pass(
    "before, after, seconds, is_wrap",
    [
        (RANGE - 1, 0, 5.0, True),
        (RANGE - 500_000_000, 500_000_000, 5.0, True),  # 2e8 a second
        (RANGE - 500_000_000, 500_000_001, 5.0, False),
        (RANGE - 2**31 + 1, 0, 15.0, True),  # just below half the range
        (RANGE - 2**31, 0, 15.0, False),
        (1_000_000, 0, 5.0, False),
        (RANGE - 1, 0, 15.1, False),  # too long ago
        (RANGE, 0, 5.0, False),  # wider than 32 bits
    ],
)
def test_a_fall_is_a_wrap_only_where_it_can_be_one(before: int, after: int, seconds: float, is_wrap: bool) -> None:
    """Otherwise it is a reset: the raw number is passed on and the reset is seen."""
    port = Watched()
    port.read(before)

    assert port.read(after, after=seconds)[0] == (after + RANGE if is_wrap else after)
    assert port.falls == (0 if is_wrap else 1)


@pytest.mark.parametrize(("second", "third"), [(0, 9), (7, 0)], ids=["of 32 bits", "of 64 bits"])
def test_a_fall_of_two_counters_is_a_reset(second: int, third: int) -> None:
    """A driver that is loaded again takes every counter of the device back to 0, also one that was about to wrap."""
    port = Watched()
    port.read(RANGE - 10)

    assert port.read(0, second, third) == [0, second, third]
    assert port.falls == 1


def test_a_reset_forgets_the_wraps_before() -> None:
    """After a reset the raw number is exposed again."""
    port = Watched()
    port.read(RANGE - 10)
    port.read(20)

    assert port.read(3, 0, 0) == [3, 0, 0]
    assert port.read(4) == [4, 7, 9]
    assert port.falls == 1


def test_a_counter_that_was_not_read_stays_absent() -> None:
    """What is known of wraps is kept across it and makes no number up."""
    port = Watched()
    port.read(RANGE - 10)
    port.read(20)

    assert port.read(None) == [None, 7, 9]
    assert port.read(30) == [RANGE + 30, 7, 9]


def test_another_layout_keeps_what_is_known() -> None:
    """A label of the port that changes is no reset of its counters."""
    port = Watched()
    port.read(RANGE - 10)
    other = Layout(reversed(LAYOUT.series))

    block = port.unwrap.update(Block(other, [9, 7, 20, 4], port.time + 5), GAP)

    assert list(block.values) == [9, 7, RANGE + 20, 4]


def test_blocks_without_wraps_are_passed_on() -> None:
    """Where nothing has wrapped the same block comes back, and layouts without such counters need no watch."""
    block = Block(LAYOUT, [4, 1, 2, 3], 1.0)

    assert Unwrap().update(block, GAP) is block
    assert LAYOUT.wraps
    assert not Layout([("commwatch_rdma_cnp_sent_total", PORT)]).wraps


@given(st.lists(st.integers(0, 900_000_000), max_size=40), st.integers(0, RANGE - 1))
def test_every_wrap_is_found(increases: list[int], start: int) -> None:
    """Whatever the true number does, within what an adapter can do, the exposed one differs from it by a constant."""
    port, true = Watched(), start
    port.read(start)
    for increase in increases:
        true += increase
        assert port.read(true % RANGE)[0] == true

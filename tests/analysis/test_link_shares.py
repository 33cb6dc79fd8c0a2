"""NVLinks to the same place are compared once a minute, and the one that falls furthest behind is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from commwatch.node.link_shares import MOST_SECONDS, SHARE_SECONDS, LinkShares
from commwatch_exporters.snapshot import Block, Layout, Series, Value

GPU = ("0", "0000:17:00.0")
SENT, RECEIVED = "commwatch_nvlink_transmit_bytes_total", "commwatch_nvlink_receive_bytes_total"
STATE = "commwatch_nvlink_link_state"
SWITCHES = dict.fromkeys("0123", "switch")


class Node:
    """Four links of a GPU, minute by minute."""

    def __init__(self, far_ends: Mapping[str, str] = SWITCHES) -> None:
        self._far_ends = far_ends
        self._layout = Layout(
            (name, (*GPU, link)) for name in (STATE, SENT, RECEIVED) for link in "0123"
        )  # fmt: skip
        self._watch = LinkShares(*GPU)
        self._bytes = [0.0] * 4
        self._time = 1000.0
        self.states: list[Value] = [1, 1, 1, 1]
        self.step((0, 0, 0, 0))

    def step(self, rates: Sequence[float | None], seconds: float = SHARE_SECONDS) -> dict[Series, Value]:
        """What is told after a time in which the links sent so many bytes per second; None: not read at its end."""
        self._time += seconds
        self._bytes = [
            count + (rate or 0.0) * seconds for count, rate in zip(self._bytes, rates, strict=True)
        ]  # fmt: skip
        shown = [None if rate is None else count for count, rate in zip(self._bytes, rates, strict=True)]
        reading = Block(self._layout, [*self.states, *shown, *self._bytes], self._time)
        told = self._watch.update(reading, lambda: self._far_ends)
        return {} if told is None else dict(zip(told.layout.series, told.values, strict=True))


def slowest(told: Mapping[Series, Value], direction: str = "transmit") -> tuple[Value, ...]:
    """Link, its rate, and the median of its siblings."""
    names = ("slowest_link", "slowest_link_bytes_per_second", "sibling_bytes_per_second")
    return tuple(told[f"commwatch_nvlink_{name}", (*GPU, direction)] for name in names)


def test_the_link_that_falls_furthest_behind_is_told() -> None:
    """With what it carried and the median of the others, in each direction."""
    told = Node().step((100.0, 40.0, 90.0, 110.0))

    assert slowest(told) == (1, 40.0, 100.0)
    assert slowest(told, "receive") == (1, 40.0, 100.0)


def test_a_minute_must_be_over() -> None:
    """Over a second traffic is uneven on healthy links too; the next minute begins where the last one ended."""
    node = Node()

    assert node.step((100.0, 40.0, 100.0, 100.0), seconds=SHARE_SECONDS - 1.0) == {}
    assert slowest(node.step((100.0, 40.0, 100.0, 100.0), seconds=1.0)) == (1, 40.0, 100.0)
    assert slowest(node.step((100.0, 100.0, 50.0, 100.0))) == (2, 50.0, 100.0)


def test_only_links_to_the_same_place_are_compared() -> None:
    """A neighbour that gets nothing has no slow link; links to an idle one do not hide a slow one."""
    ends = {"0": "0000:18:00.0", "1": "0000:18:00.0", "2": "0000:18:00.0", "3": "0000:19:00.0"}

    assert slowest(Node(ends).step((100.0, 100.0, 50.0, 0.0))) == (2, 50.0, 100.0)


@pytest.mark.parametrize("ends", [{}, {"0": "switch", "1": "switch"}], ids=["unknown", "one sibling"])
def test_a_link_without_two_siblings_is_not_judged(ends: Mapping[str, str]) -> None:
    """With one it is not known which of the two is at fault."""
    assert slowest(Node(ends).step((100.0, 0.0, 100.0, 100.0))) == (None, None, None)


def test_a_link_that_is_down_is_no_sibling() -> None:
    """That it carries nothing is another finding; one that came up within the minute has no minute yet."""
    node = Node()
    node.states[1] = 0

    assert slowest(node.step((100.0, 0.0, 90.0, 100.0))) == (2, 90.0, 100.0)
    node.states[1] = 1
    assert slowest(node.step((100.0, 10.0, 90.0, 100.0))) == (2, 90.0, 100.0)
    assert slowest(node.step((100.0, 10.0, 90.0, 100.0))) == (1, 10.0, 100.0)


def test_without_the_rate_of_one_nothing_is_said() -> None:
    """What was not read is not 0; the other direction was read."""
    told = Node().step((100.0, None, 100.0, 50.0))

    assert slowest(told) == (None, None, None)
    assert slowest(told, "receive") == (1, 0.0, 100.0)


def test_a_gap_says_nothing_of_the_time_in_it() -> None:
    """The comparison begins again."""
    node = Node()

    assert node.step((100.0, 0.0, 100.0, 100.0), seconds=MOST_SECONDS + 1.0) == {}
    assert slowest(node.step((100.0, 40.0, 100.0, 100.0))) == (1, 40.0, 100.0)

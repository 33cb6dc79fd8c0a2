"""What moved between two looks: numbers that come, go or differ, and layouts that are not as before."""

from __future__ import annotations

import pytest

from commwatch.node.changes import Changes
from commwatch_exporters.snapshot import Block, Layout, Series, Value

STATE, LINKS, REPLAYS = (f"commwatch_{name}" for name in ("gpu_state", "nvlink_links", "pcie_replays_total"))
GPU, OTHER = ("0", "0000:17:00.0"), ("1", "0000:65:00.0")
SERIES: tuple[Series, ...] = ((STATE, GPU), (REPLAYS, GPU), (LINKS, GPU))


class Looks:
    """One look after the other, at state and links; replays are not asked for."""

    def __init__(self) -> None:
        self.changes = Changes((STATE, LINKS))

    def at(self, *blocks: Block) -> tuple[list[str], set[str]]:
        """Metrics that moved, and those that count as changed."""
        moved = self.changes.take(blocks, [block.layout for block in blocks])
        return [one.metric for one in moved], set(self.changes.changed)


def of(layout: Layout, *values: Value) -> Block:
    return Block(layout, values, 0.0)


def test_all_is_new_at_the_first_look() -> None:
    """Also what no block holds: nobody knows what was there before."""
    assert Looks().at() == ([], {STATE, LINKS})
    assert Looks().at(of(Layout(SERIES), 0, 5, 18)) == ([STATE, LINKS], {STATE, LINKS})


@pytest.mark.parametrize(
    ("values", "moved"),
    [
        ((0, 5, 18), []),
        ((0, 6, 18), []),
        ((2, 5, 18), [STATE]),
        ((0, 6, None), [LINKS]),
        ((None, 5, 17), [STATE, LINKS]),
    ],
)
def test_a_number_that_differs(values: tuple[Value, ...], moved: list[str]) -> None:
    """One that is not read any more is another one; one that is not asked for is none; and so on the way back."""
    layout, looks = Layout(SERIES), Looks()
    usual = of(layout, 0, 5, 18)
    looks.at(usual)

    assert looks.at(usual) == ([], set())
    assert looks.at(of(layout, *values)) == (moved, set(moved))
    assert looks.at(of(layout, *values)) == ([], set())
    assert looks.at(usual) == (moved, set(moved))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 3, 1), (3, 1, 0, 2)])
def test_metrics_in_any_order(order: tuple[int, ...]) -> None:
    """Side by side, apart, or one between the series of another."""
    series = [SERIES[0], (STATE, OTHER), SERIES[1], SERIES[2]]
    layout, looks = Layout([series[place] for place in order]), Looks()
    looks.at(of(layout, 0, 0, 0, 0))
    for at, place in enumerate(order):
        looks.at(of(layout, 0, 0, 0, 0))
        moved, changed = looks.at(of(layout, *(int(other == at) for other in range(4))))

        # Of a metric between whose series another one stands that one's numbers may count.
        assert {series[place][0]} & {STATE, LINKS} <= changed
        assert set(moved) == changed
        assert changed <= {STATE} | ({series[place][0]} & {LINKS})


def test_blocks_that_come_go_or_change_places() -> None:
    """Then everything may be other than it was, though what moved is only what is new."""
    first, second = of(Layout(SERIES), 0, 5, 18), of(Layout([(STATE, OTHER)]), 0)
    looks, everything = Looks(), {STATE, LINKS}
    looks.at(first)

    assert looks.at(first, second) == ([STATE], everything)
    assert looks.at(second, first) == ([], everything)
    assert looks.at(second, first) == ([], set())
    assert looks.at(second) == ([], everything)
    assert looks.at(second, of(first.layout, 0, 5, 17)) == ([STATE, LINKS], everything), "as it was before nobody knows"

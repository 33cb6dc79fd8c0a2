"""Which of the expected NVLinks are down, as series that are there only while one is.

The rule of a page would read the state of every link at each evaluation; of these it reads none while nothing is wrong.
"""

from __future__ import annotations

from typing import Final

from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout, Series
from commwatch_exporters.state_words import NVLINK_UP

GROUP: Final = "nvlink_down"
_LINKS: Final = "nvml_nvlink"
_EXPECTED: Final = "inventory"
"""Group of the store that says which links are expected."""


class LinksDown:
    """The expected links that are down, put into the store while the states that say so are current."""

    collectors = (_LINKS,)
    """Those that it follows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def after(self, outcome: Outcome) -> None:
        """Look at the links of all GPUs after a run that has read some."""
        expected = self._store.get(_EXPECTED, "")
        down: dict[Series, int | float] = {
            ("commwatch_nvlink_link_down", labels): state
            for block in self._store.group(_LINKS).values()
            for labels, state in _not_up(block)
            if expected is not None and expected.get("commwatch_nvlink_link_expected", *labels) == 1
        }
        if down:
            block = Block(Layout(down), list(down.values()), outcome.time)
            self._store.put(GROUP, "", block, outcome.time + outcome.collector.lifetime)
        else:
            self._store.drop(GROUP, "")


def _not_up(block: Block) -> list[tuple[tuple[str, ...], int | float]]:
    """Labels and state of the links that carry no traffic; nothing of those that were not read."""
    values, series = block.values, block.layout.series
    states = block.layout.slices.get("commwatch_nvlink_link_state")
    if states is None or NVLINK_UP.issuperset(values[states]):
        return []
    return [
        (series[place][1], state)
        for place in block.layout.families.get("commwatch_nvlink_link_state", ())
        if (state := values[place]) is not None and state not in NVLINK_UP
    ]

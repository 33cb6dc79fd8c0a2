"""How evenly the NVLinks of a GPU that lead to the same place share its traffic, minute by minute."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median
from typing import Final, NamedTuple

from commwatch.node.rate import DIRECTIONS, increase
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Series, Value
from commwatch_exporters.state_words import NVLINK_UP

SHARE_SECONDS: Final = 60.0
"""Traffic of single links is compared over a minute: over a second it is uneven on healthy links too."""
MOST_SECONDS: Final = 2 * SHARE_SECONDS
"""Readings further apart than this do not show the time between them."""
SIBLINGS_MIN: Final = 2
"""With one sibling it is not known which of the two is at fault."""

GROUP: Final = "nvlink_shares"
_LINKS, _IDENTITY = "nvml_nvlink", "nvml_identity"
_SWITCH = "switch"


class _Slowest(NamedTuple):
    """The link that falls furthest behind its siblings."""

    link: int
    rate: float
    """Bytes per second."""
    typical: float
    """Median of its siblings, bytes per second."""


class LinkShares(Tracker):
    """The use of each GPU's slowest link, kept in the store as long as its links are read."""

    collectors = (_LINKS,)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.declare(GROUP, self.collectors)
        self._starts: dict[str, Block] = {}
        """By device: the reading with which its minute began."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take each reading of the links, and compare them once a minute."""
        for device, block in outcome.collected.blocks.items():
            start = self._starts.get(device)
            if start is None or start.layout is not block.layout or block.time - start.time > MOST_SECONDS:
                self._starts[device] = block
            elif block.time - start.time >= SHARE_SECONDS and block.layout.series:
                self._starts[device] = block
                shown = self._compared(device, start, block)
                self._store.show(GROUP, device, shown, block.time, SHARE_SECONDS + outcome.collector.lifetime)

    def on_tick(self, now: float) -> None:
        """Drop the shares of GPUs whose links are not read."""
        self._store.retain(GROUP, self._store.devices(_LINKS))

    def _compared(self, device: str, start: Block, end: Block) -> dict[Series, Value]:
        gpu = end.layout.series[0][1][:2]
        bundles = self._bundles(device, start, end)
        shown: dict[Series, Value] = {}
        for direction in DIRECTIONS:
            counter = f"commwatch_nvlink_{direction}_bytes_total"
            found = [_slowest(start, end, counter, bundle) for bundle in bundles]
            known = [one for one in found if one is not None]
            slowest = max(known, key=lambda one: one.typical - one.rate, default=(None, None, None))
            metrics = ("slowest_link", "slowest_link_bytes_per_second", "sibling_bytes_per_second")
            for metric, value in zip(metrics, slowest, strict=True):
                shown[f"commwatch_nvlink_{metric}", (*gpu, direction)] = value
        return shown

    def _bundles(self, device: str, start: Block, end: Block) -> Collection[Sequence[tuple[str, ...]]]:
        """The labels of the links that were up, by where they lead: to the switches together, or to one other GPU."""
        identity = self._store.get(_IDENTITY, device)
        bundles: dict[str, list[tuple[str, ...]]] = {}
        for *link, _, remote_type, remote, _ in identity.labels("commwatch_nvlink_info") if identity else ():
            far_end = _SWITCH if remote_type == _SWITCH else remote
            states = [block.get("commwatch_nvlink_link_state", *link) for block in (start, end)]
            if far_end and NVLINK_UP.issuperset(states):
                bundles.setdefault(far_end, []).append(tuple(link))
        return bundles.values()


def _slowest(start: Block, end: Block, counter: str, links: Sequence[tuple[str, ...]]) -> _Slowest | None:
    """The slowest link of a bundle with the median of the others; None while one of them has no rate.

    No other link falls further behind its siblings: the fewer of the slow ones are left out, the lower their median.
    """
    moved = [increase(start.get(counter, *link), end.get(counter, *link)) for link in links]
    rates = [one / (end.time - start.time) for one in moved if one is not None]
    if len(rates) < len(links) or len(links) <= SIBLINGS_MIN:
        return None
    place = rates.index(min(rates))
    return _Slowest(int(links[place][2]), rates[place], median(rates[:place] + rates[place + 1 :]))

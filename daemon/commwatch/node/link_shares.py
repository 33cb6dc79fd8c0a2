"""How evenly the NVLinks of a GPU that lead to the same place share its traffic, minute by minute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final, NamedTuple

from commwatch.node.rate import rates
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.node.utilisation import DIRECTIONS
from commwatch_exporters.snapshot import Block, Layout, Value
from commwatch_exporters.state_words import NVLINK_UP

SHARE_SECONDS: Final = 60.0
"""Traffic of single links is compared over a minute: over a second it is uneven on healthy links too."""
MOST_SECONDS: Final = 2 * SHARE_SECONDS
"""Readings further apart than this do not show the time between them."""
SIBLINGS_MIN: Final = 2
"""With one sibling it is not known which of the two is at fault."""

_METRICS: Final = ("slowest_link", "slowest_link_bytes_per_second", "sibling_bytes_per_second")

LINK_SHARES: Final = "nvlink_shares"
"""Group of the store."""
_LINKS, _IDENTITY = "nvml_nvlink", "nvml_identity"
_SWITCH = "switch"


class _Slowest(NamedTuple):
    """The link that falls furthest behind its siblings."""

    link: int
    rate: float
    """Bytes per second."""
    typical: float
    """Median of its siblings, bytes per second."""


class LinkShares:
    """The links of one GPU, compared with each other once a minute.

    Args:
        gpu: NVML index, as a label.
        pci_bus_id: PCI address, as a label.
    """

    def __init__(self, gpu: str, pci_bus_id: str) -> None:
        self._labels = (gpu, pci_bus_id)
        self._layout = Layout(
            (f"commwatch_nvlink_{metric}", (*self._labels, direction))
            for direction in DIRECTIONS
            for metric in _METRICS
        )
        self._start: Block | None = None

    def update(self, block: Block, far_ends: Callable[[], Mapping[str, str]]) -> Block | None:
        """Take the next reading; None until a minute is over.

        Args:
            block: of the GPU's ``nvlink`` collector: state and byte counters of its links.
            far_ends: asked after a minute: where each link leads, by its number as a label; links of which that is
                not known are left out.
        """
        start = self._start
        if start is None or start.layout is not block.layout or block.time - start.time > MOST_SECONDS:
            self._start = block
            return None
        seconds = block.time - start.time
        if seconds < SHARE_SECONDS:
            return None
        self._start = block
        values: list[Value] = []
        bundles: dict[str, list[str]] = {}
        for link, far_end in far_ends().items():
            if self._carried(start, link) and self._carried(block, link):
                bundles.setdefault(far_end, []).append(link)
        for direction in DIRECTIONS:
            metric = f"commwatch_nvlink_{direction}_bytes_total"
            slowest = self._slowest(start, block, metric, bundles.values(), seconds)
            values += (None, None, None) if slowest is None else slowest
        return Block(self._layout, values, block.time)

    def _slowest(
        self, start: Block, end: Block, metric: str, bundles: Iterable[Sequence[str]], seconds: float
    ) -> _Slowest | None:
        found = []
        for links in bundles:
            begun, ended = ([block.get(metric, *self._labels, link) for link in links] for block in (start, end))
            slowest = _against_siblings(links, rates(begun, ended, seconds))
            found += [] if slowest is None else [slowest]
        return max(found, key=lambda one: one.typical - one.rate, default=None)

    def _carried(self, block: Block, link: str) -> bool:
        return block.get("commwatch_nvlink_link_state", *self._labels, link) in NVLINK_UP


def _against_siblings(links: Sequence[str], of_each: Sequence[float | None]) -> _Slowest | None:
    """The slowest link of a bundle with the median of the others; None while one of them has no rate.

    No other link falls further behind its siblings: the fewer of the slow ones are left out, the lower their median.
    """
    known = [rate for rate in of_each if rate is not None]
    if len(known) < len(links) or len(links) <= SIBLINGS_MIN:
        return None
    rate = min(known)
    place = known.index(rate)
    return _Slowest(int(links[place]), rate, median(known[:place] + known[place + 1 :]))


class Shares(Tracker):
    """The use of each GPU's slowest link, kept in the store as long as its links are read."""

    collectors = (_LINKS,)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.declare(LINK_SHARES, self.collectors)
        self._watches: dict[str, tuple[Layout, LinkShares]] = {}
        """By device, with the layout of its links, which has the labels of the GPU."""
        self._far_ends: dict[str, tuple[Layout, dict[str, str]]] = {}
        """By device: where its links lead, and the layout of the identity that said so."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take each reading of the links."""
        for device, block in outcome.collected.blocks.items():
            layout = block.layout
            if not layout.series:
                continue
            watched_layout, watch = self._watches.get(device, (None, None))
            if watch is None or watched_layout is not layout:
                gpu, pci_bus_id, *_ = layout.series[0][1]
                watch = LinkShares(gpu, pci_bus_id)
                self._watches[device] = (layout, watch)
            shares = watch.update(block, partial(self._where, device))
            if shares is not None:
                self._store.put(LINK_SHARES, device, shares, block.time + SHARE_SECONDS + outcome.collector.lifetime)

    def on_tick(self, now: float) -> None:
        """Drop the shares of GPUs whose links are not read."""
        for device in self._store.devices(LINK_SHARES) - self._store.devices(_LINKS):
            self._store.drop(LINK_SHARES, device)

    def _where(self, device: str) -> dict[str, str]:
        """Where the links of a GPU lead, by number: to the switches together, or to one other GPU."""
        identity = self._store.get(_IDENTITY, device)
        if identity is None:
            return {}
        known = self._far_ends.get(device)
        if known is None or known[0] is not identity.layout:
            known = self._far_ends[device] = (identity.layout, _far_ends(identity.layout))
        return known[1]


def _far_ends(layout: Layout) -> dict[str, str]:
    ends = {}
    for position in layout.families.get("commwatch_nvlink_info", ()):
        _, _, link, _, remote_type, remote, _ = layout.series[position][1]
        if far_end := _SWITCH if remote_type == _SWITCH else remote:
            ends[link] = far_end
    return ends

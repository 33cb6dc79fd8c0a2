"""How often links went down: NVLinks since they were first read, and links of all kinds within the last hour.

A rule of a page would read the counters of all links at each evaluation; of the flaps of the last hour it reads none
while no link goes down.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from commwatch.node.run import Collected, Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Clock, Tracker
from commwatch.state.records import Count, Timestamp, check_labels, check_unique
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from commwatch_exporters.state_words import NVLINK_UP

TOTALS: Final = "nvlink_flaps"
RECENT: Final = "link_flaps_recent"
WINDOW_SECONDS: Final = 3600.0
MOST_KEPT: Final = 100
"""Flaps kept of one link: many more than make a page."""
GAP_SECONDS: Final = 180.0
"""The states between readings further apart than this, or than three intervals, are not known."""

NVLINK: Final = "commwatch_nvlink_link_flaps_recent"
RDMA: Final = "commwatch_rdma_port_flaps_recent"
ETHERNET: Final = "commwatch_ethernet_flaps_recent"
_SHOWN_IN: Final = (NVLINK, RDMA, ETHERNET)

_NVLINKS, _RDMA_PORTS, _NETWORK, _ETHTOOL = "nvml_nvlink", "rdma", "network", "ethtool"
_STATE, _TOTAL = "commwatch_nvlink_link_state", "commwatch_nvlink_link_flaps_total"
_CARRIER: Final = "commwatch_ethernet_carrier"
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    _RDMA_PORTS: ("commwatch_rdma_port_link_downed_total", RDMA),
    _NETWORK: ("commwatch_ethernet_carrier_downs_total", ETHERNET),
    _ETHTOOL: ("commwatch_ethernet_phy_link_down_total", ETHERNET),
}
"""By collector: the counter of flaps that the adapter or the kernel keeps itself, and what it is shown in."""
_BMC_DRIVERS: Final = frozenset({"cdc_ether", "cdc_ncm", "cdc_subset", "rndis_host"})
"""Of interfaces on the USB bus: that of the BMC goes down with each restart of the BMC."""
_PORT_OFF: Final = 3
"""Physical state of an InfiniBand port that was switched off."""
OFF_SECONDS: Final = 20.0
"""Within which all collectors have seen that an interface is switched off, or is on again."""


class KeptFlaps(msgspec.Struct, frozen=True):
    """The flaps of one link within the last hour, as one source saw them."""

    metric: str
    """That they are shown in."""
    labels: tuple[str, ...]
    """Of the link."""
    source: str
    """A counter, or ``state``: the state that was read."""
    times: list[Timestamp]
    """Seconds since 1970."""

    def __post_init__(self) -> None:
        check_labels((*self.labels, self.source))
        if len(self.labels) != len(CATALOGUE[self.metric].labels if self.metric in _SHOWN_IN else ()):
            raise ValueError(f"{self.metric} has no labels like {self.labels}")


class FlapsState(msgspec.Struct):
    """State that survives a restart of the daemon."""

    totals: dict[str, Count] = {}
    """Flaps of each NVLink that had one, by address of the GPU and number: ``0000:17:00.0/3``."""
    recent: list[KeptFlaps] = []
    """Of one boot: a shutdown takes links down."""

    def __post_init__(self) -> None:
        check_labels(self.totals)
        check_unique(((one.metric, one.labels, one.source) for one in self.recent), "a link")


class _Link(NamedTuple):
    metric: str
    labels: tuple[str, ...]
    source: str
    """Source of the flaps: a state that was read, or a counter."""


class _Watch:
    """The last reading of one device."""

    __slots__ = ("layout", "time", "up", "values")

    def __init__(self) -> None:
        self.time = float("-inf")
        self.layout: Layout | None = None
        self.values: object = None
        self.up: dict[tuple[str, ...], bool] = {}
        """By labels of the link."""


class LinkFlaps(Tracker):
    """The flaps of all links: between two readings a link that was up is not, or its adapter has counted one.

    Intended changes are no flaps: nothing is counted during maintenance or of a port that is switched off, a device
    that comes back starts from zero, and a new boot forgets the flaps of the last one.

    Args:
        state: of an earlier daemon; it is changed in place.
        clock: usually the module ``time``.
    """

    collectors = (_NVLINKS, *_COUNTERS)

    def __init__(self, state: FlapsState, store: Store, clock: Clock = time) -> None:
        super().__init__(store)
        store.declare(TOTALS, [_NVLINKS])
        store.declare(RECENT)
        self._clock = clock
        self._totals = state.totals
        self._times: dict[_Link, list[float]] = {}
        """Monotonic seconds, in order."""
        self._kept = state.recent
        """Flaps from an earlier daemon, until they are first evaluated."""
        self._watches: dict[str, _Watch] = {}
        """By address of the GPU."""
        self._counted: dict[str, dict[str, tuple[float, Value]]] = {name: {} for name in _COUNTERS}
        """By collector and device: time of the last reading of the counter, and what it said."""
        self._off: dict[str, float] = {}
        """When each interface was last seen to be switched off, monotonic seconds."""
        self._shown: dict[Series, int] = {}
        self._is_paused = False

    @property
    def state(self) -> FlapsState:
        """To keep over a restart."""
        self._use_kept()
        zero = self._zero()
        recent = [KeptFlaps(*link, [max(0.0, when + zero) for when in times]) for link, times in self._times.items()]
        return FlapsState(dict(self._totals), recent)

    def _zero(self) -> float:
        """Seconds since 1970 at the zero of the monotonic clock."""
        return self._clock.time() - self._clock.monotonic()

    def of_nvlinks(self, now: float) -> Mapping[tuple[str, str], Sequence[float]]:
        """When NVLinks went down within the last hour, in order, by PCI address of the GPU and number of the link.

        Args:
            now: monotonic seconds; so are the times.
        """
        self._use_kept()
        oldest = now - WINDOW_SECONDS
        recent = {
            (link.labels[1], link.labels[2]): [when for when in times if when > oldest]
            for link, times in self._times.items()
            if link.metric == NVLINK
        }
        return {link: times for link, times in recent.items() if times}

    def pause(self) -> None:
        """Maintenance begins: what happens to links is meant, and what happened before it is being repaired."""
        self._is_paused = True
        self._kept = []
        self._times.clear()
        self._forget_readings()
        self._show(float("-inf"))

    def resume(self) -> None:
        """Maintenance has ended."""
        self._is_paused = False
        self._forget_readings()

    def _forget_readings(self) -> None:
        self._watches.clear()
        for counted in self._counted.values():
            counted.clear()

    def on_batch(self, outcome: Outcome) -> None:
        """Take each reading of the links."""
        collector = outcome.collector
        gap = max(GAP_SECONDS, 3 * collector.current_interval)
        for device, block in outcome.collected.blocks.items():
            if device and collector.name == _NVLINKS:
                self._take_states(device, block, gap)
            elif device and block.layout.series:
                self._take_counter(collector.name, device, block)
        if collector.name != _NVLINKS:
            counted = self._counted[collector.name]
            for device in gone(outcome.collected, counted.keys()):
                del counted[device]
                self._off.pop(device, None)

    def _take_states(self, device: str, block: Block, gap: float) -> None:
        states = block.layout.slices.get(_STATE)
        if states is None:
            return
        watch = self._watches.setdefault(device, _Watch())
        values = block.values[states]
        is_same = watch.layout is block.layout and watch.values == values
        if block.time - watch.time > gap:
            watch.up.clear()
            is_same = False
        watch.time, watch.layout, watch.values = block.time, block.layout, values
        if is_same and self._store.get(TOTALS, device) is not None:
            return
        totals: dict[Series, Value] = {}
        for place in block.layout.families[_STATE]:
            labels, state = block.layout.series[place][1], block.values[place]
            if state is not None:
                is_up = state in NVLINK_UP
                if watch.up.get(labels) and not is_up:
                    self._count_nvlink(labels, block.time)
                watch.up[labels] = is_up
            totals[_TOTAL, labels] = self._totals.get("/".join(labels[1:]), 0)
        self._store.show(TOTALS, device, totals, block.time)

    def _count_nvlink(self, labels: tuple[str, ...], when: float) -> None:
        key = "/".join(labels[1:])
        self._totals[key] = self._totals.get(key, 0) + 1
        self.add(NVLINK, labels, "state", 1, when)

    def _take_counter(self, collector: str, device: str, block: Block) -> None:
        counter, metric = _COUNTERS[collector]
        labels = block.layout.series[0][1][: 2 if collector == _RDMA_PORTS else 1]
        total = block.get(counter, *labels)
        is_off = self._is_off(collector, device, block)
        counted = self._counted[collector]
        when, before = counted.get(device, (float("-inf"), None))
        if total is None:
            return
        counted[device] = (block.time, total)
        if before is not None and total > before and block.time - when <= WINDOW_SECONDS and not is_off:
            self.add(metric, labels, counter, round(total - before), block.time)

    def _is_off(self, collector: str, device: str, block: Block) -> bool:
        """Whether a port or interface is or recently was switched off."""
        if collector == _RDMA_PORTS:
            return self.is_port_off(block)
        if collector == _NETWORK and block.get(_CARRIER, device) is None:
            self._off[device] = block.time
            self._forget_flaps_of(device, block.time - OFF_SECONDS)
        return block.time - self._off.get(device, float("-inf")) < OFF_SECONDS

    def is_port_off(self, block: Block) -> bool:
        """Whether an RDMA port or its interface is switched off, by its block."""
        infos = list(_labels_of(block, "commwatch_rdma_port_info"))
        # Of a RoCE port without a link the kernel says that it is disabled, whoever has done so.
        if any(labels[2] == "InfiniBand" for labels in infos):
            return any(
                block.values[place] == _PORT_OFF
                for place in block.layout.families.get("commwatch_rdma_port_phys_state", ())
            )
        return any(block.time - self._off.get(labels[-1], float("-inf")) < OFF_SECONDS for labels in infos)

    def _forget_flaps_of(self, interface: str, since: float) -> None:
        """Of an interface that turns out to be switched off, and of its port: what was counted as it went down."""
        ports = dict(self._interfaces_of_ports())
        for link, times in self._times.items():
            if link.labels in ((interface,), ports.get(interface)):
                self._times[link] = [when for when in times if when <= since]

    def add(self, metric: str, labels: tuple[str, ...], source: str, count: int, when: float) -> None:
        """Count flaps of a link.

        Args:
            metric: what they are shown in.
            labels: of the link.
            source: what saw them.
            count: how many.
            when: monotonic seconds.
        """
        if self._is_paused:
            return
        link = _Link(metric, labels, source)
        self._times[link] = [*self._times.get(link, ()), *[when] * min(count, MOST_KEPT)][-MOST_KEPT:]
        self.version += 1
        self._show(when)

    def on_tick(self, now: float) -> None:
        """Drop the totals of GPUs that are not read, and forget flaps of more than an hour ago."""
        for device in self._store.devices(TOTALS) - self._store.devices(_NVLINKS):
            self._store.drop(TOTALS, device)
        if self._times or self._kept:
            self._show(now)

    def _use_kept(self) -> None:
        kept, self._kept = self._kept, []
        zero = self._zero() if kept else 0.0
        for one in kept:
            link = _Link(one.metric, one.labels, one.source)
            self._times[link] = sorted([*(when - zero for when in one.times), *self._times.get(link, ())])

    def _show(self, now: float) -> None:
        self._use_kept()
        oldest = now - WINDOW_SECONDS
        kept = {link: [when for when in times if when > oldest] for link, times in self._times.items()}
        self._times = {link: times for link, times in kept.items() if times}
        shown = dict(self._counts())
        if shown == self._shown:
            return
        self._shown = shown
        self._store.show(RECENT, "", shown, now)

    def _counts(self) -> Iterator[tuple[Series, int]]:
        """Flaps of the last hour by link: the largest number of those who saw it."""
        ports = dict(self._interfaces_of_ports())
        found: dict[Series, int] = {}
        for link, times in self._times.items():
            series: Series = (link.metric, link.labels)
            if link.metric == ETHERNET:
                if not self._is_judged(link):
                    continue
                series = (RDMA, ports[link.labels[0]]) if link.labels[0] in ports else series
            found[series] = max(len(times), found.get(series, 0))
        yield from found.items()

    def _is_judged(self, link: _Link) -> bool:
        """Whether a source counts: new settings of a driver drop the carrier, so the port's own counter is better."""
        if link.source == _COUNTERS[_NETWORK][0] and link.labels[0] in self._counted[_ETHTOOL]:
            return False
        block = self._store.get(_NETWORK, link.labels[0])
        return block is None or all(
            labels[1] and labels[2] not in _BMC_DRIVERS for labels in _labels_of(block, "commwatch_ethernet_info")
        )

    def _interfaces_of_ports(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The interface of each RoCE port, with the labels of the port: they are one link."""
        for block in self._store.group(_RDMA_PORTS).values():
            for labels in _labels_of(block, "commwatch_rdma_port_info"):
                if labels[-1]:
                    yield labels[-1], labels[:2]


def gone(collected: Collected, known: Collection[str]) -> set[str]:
    """Devices that are no longer present, as while their driver is loaded again: their earlier state has no meaning.

    Of a device that could not be read once, or of a run that failed as a whole or was cut short, the reading before
    still counts.

    Args:
        collected: the last run.
        known: devices that were read before.
    """
    if collected.is_cut_short or any(not one.device for one in collected.absences):
        return set()
    unread = {one.device for one in collected.absences if one.reason != "not_found"}
    return set(known) - collected.blocks.keys() - unread


def _labels_of(block: Block, family: str) -> Iterator[tuple[str, ...]]:
    for place in block.layout.families.get(family, ()):
        yield block.layout.series[place][1]

"""How often links went down: NVLinks and RDMA ports by their states, and links of all kinds within the last hour.

A rule of a page would read the counters of all links at each evaluation; of the flaps of the last hour it reads none
while no link goes down.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from commwatch.node.rate import increase, interval
from commwatch.node.run import Collected, Outcome
from commwatch.node.store import Store, number_of
from commwatch.node.tracker import Tracker
from commwatch.state.records import Count, Timestamp, check_labels, check_unique
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Series, Value
from commwatch_exporters.state_words import NVLINK_UP, RDMA_ACTIVE, RDMA_DISABLED

NVLINK_TOTALS: Final = "nvlink_flaps"
PORT_TOTALS: Final = "rdma_port_flaps"
RECENT: Final = "link_flaps_recent"
WINDOW_SECONDS: Final = 3600.0
MOST_KEPT: Final = 100
"""Flaps kept of one link: many more than make a page."""
GAP_SECONDS: Final = 180.0
"""The states of an NVLink between readings further apart than this, or than three intervals, are not known."""
FORGOTTEN_SECONDS: Final = 3600.0
"""A driver that is loaded again brings its ports back long before; the ports of a pod that has ended never come."""

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


@dataclass(slots=True)
class _Port:
    """The drops of an RDMA port since the daemon started, and the time they took.

    A port that has not been active yet, such as one without a cable, counts nothing. A drop shorter than the interval
    of the readings is not seen here; ``rdma_port_link_downed_total`` of the adapter has it. Time in which the port was
    not read counts as neither.
    """

    flaps: int = 0
    down_seconds: float = 0.0
    seen_at: float = float("-inf")
    """Monotonic seconds of the last reading."""
    was_active: bool = False
    """The last state that was read is active."""
    down_at: float | None = None
    """Time of the last reading, where the port was down in it after it had been active."""

    def reset(self) -> None:
        """The device is not here: the state of its port when it comes back is no evidence of a drop."""
        self.was_active, self.down_at = False, None

    def drops(self, state: Value, time: float, max_gap_seconds: float) -> bool:
        """Take the next state; whether a drop begins with it. It ends with the first that is active again."""
        if time - self.seen_at > max_gap_seconds:
            self.reset()
        self.seen_at = time
        if state is None:
            return False
        if self.down_at is not None:
            self.down_seconds += interval(self.down_at, time, max_gap_seconds) or 0.0
        is_active, was_active = state == RDMA_ACTIVE, self.was_active
        is_down = not is_active and (was_active or self.down_at is not None)
        self.was_active, self.down_at = is_active, time if is_down else None
        self.flaps += was_active and not is_active
        return was_active and not is_active


class LinkFlaps(Tracker):
    """The flaps of all links: between two readings a link that was up is not, or its adapter has counted one.

    Intended changes are no recent flaps: nothing is counted during maintenance or of a port that is switched off, a
    device that comes back starts from zero, and a new boot forgets the flaps of the last one.

    Args:
        state: of an earlier daemon; its totals are changed in place.
    """

    collectors = (_NVLINKS, *_COUNTERS)

    def __init__(self, state: FlapsState, store: Store) -> None:
        super().__init__(store)
        store.declare(NVLINK_TOTALS, [_NVLINKS])
        store.declare(PORT_TOTALS, [_RDMA_PORTS])
        store.declare(RECENT)
        self._totals = state.totals
        self._times: dict[_Link, list[float]] = {}
        """Monotonic seconds, in order."""
        self._kept = state.recent
        """Flaps from an earlier daemon, until they are first evaluated."""
        self._gpus: dict[str, Block] = {}
        """The last reading of the NVLinks by address of the GPU."""
        self._was_up: dict[tuple[str, ...], tuple[float, bool]] = {}
        """By labels of an NVLink: the last state before ``_gpus`` that was read, and when."""
        self._ports: dict[str, _Port] = {}
        """By key of the RDMA port. One that comes back within an hour goes on counting."""
        self._counted: dict[str, dict[str, tuple[float, Value]]] = {name: {} for name in _COUNTERS}
        """By collector and device: time of the last reading of the counter, and its number."""
        self._off: dict[str, float] = {}
        """When each interface was last seen to be switched off, monotonic seconds."""
        self._is_paused = False

    @property
    def state(self) -> FlapsState:
        """To keep over a restart."""
        self._use_kept()
        zero = _zero()
        recent = [KeptFlaps(*link, [max(0.0, when + zero) for when in times]) for link, times in self._times.items()]
        return FlapsState(dict(self._totals), recent)

    def of_nvlinks(self, now: float) -> Mapping[tuple[str, str], Sequence[float]]:
        """When NVLinks went down within the last hour, in order, by PCI address of the GPU and number of the link.

        Args:
            now: monotonic seconds; so are the times.
        """
        return {link.labels[1:]: times for link, times in self._recent(now).items() if link.metric == NVLINK}  # type: ignore[misc]  # two labels

    def pause(self) -> None:
        """Maintenance begins: what happens to links is meant, and what happened before it is being repaired."""
        self._is_paused = True
        self._kept = []
        self._times.clear()
        self._forget_readings()
        self._store.drop(RECENT, "")

    def resume(self) -> None:
        self._is_paused = False
        self._forget_readings()

    def _forget_readings(self) -> None:
        self._gpus.clear()
        self._was_up.clear()
        for counted in self._counted.values():
            counted.clear()

    # --- what is read ---

    def on_batch(self, outcome: Outcome) -> None:
        """Take each reading of the links."""
        collector = outcome.collector
        for device, block in outcome.collected.blocks.items():
            if not device or not block.layout.series:
                continue
            if collector.name == _NVLINKS:
                self._take_nvlinks(device, block, max(GAP_SECONDS, 3 * collector.current_interval))
                continue
            if collector.name == _RDMA_PORTS:
                self._take_port(device, block, outcome)
            self._take_counter(collector.name, device, block)
        if collector.name != _NVLINKS:
            for device in gone(outcome.collected, self._counted[collector.name]):
                del self._counted[collector.name][device]
                self._off.pop(device, None)
        if collector.name == _RDMA_PORTS:
            for device in gone(outcome.collected, self._ports):
                self._ports[device].reset()

    def _take_nvlinks(self, device: str, block: Block, max_gap_seconds: float) -> None:
        if _STATE not in block.layout.families:
            return
        previous, self._gpus[device] = self._gpus.get(device), block
        if previous is not None:
            for labels, state in previous.samples(_STATE):
                self._was_up[labels] = previous.time, state in NVLINK_UP
        for labels, state in block.samples(_STATE):
            when, was_up = self._was_up.get(labels, (block.time, False))
            if was_up and state not in NVLINK_UP and block.time - when <= max_gap_seconds:
                key = "/".join(labels[1:])
                self._totals[key] = self._totals.get(key, 0) + 1
                self.add(NVLINK, labels, "state", 1, block.time)
        totals = {(_TOTAL, labels): self._totals.get("/".join(labels[1:]), 0) for labels in block.labels(_STATE)}
        self._store.show(NVLINK_TOTALS, device, totals, block.time)

    def _take_port(self, device: str, block: Block, outcome: Outcome) -> None:
        labels, port = block.layout.series[0][1][:2], self._ports.setdefault(device, _Port())
        state = number_of(block, "commwatch_rdma_port_state")
        if port.drops(state, block.time, 3 * outcome.collector.current_interval):
            self.version += 1
            if not self._is_port_off(block):
                self.add(RDMA, labels, "state", 1, block.time)
        totals: dict[Series, Value] = {
            ("commwatch_rdma_port_flaps_total", labels): port.flaps,
            ("commwatch_rdma_port_down_seconds_total", labels): round(port.down_seconds, 3),
        }
        self._store.show(PORT_TOTALS, device, totals, block.time, outcome.collector.lifetime)

    def _take_counter(self, collector: str, device: str, block: Block) -> None:
        counter, metric = _COUNTERS[collector]
        labels = block.layout.series[0][1][: 2 if collector == _RDMA_PORTS else 1]
        total = block.get(counter, *labels)
        is_off = self._is_off(collector, device, block)
        if total is None:
            return
        when, before = self._counted[collector].get(device, (float("-inf"), None))
        self._counted[collector][device] = (block.time, total)
        count = increase(before, total)
        if count and block.time - when <= WINDOW_SECONDS and not is_off:
            self.add(metric, labels, counter, round(count), block.time)

    def _is_off(self, collector: str, device: str, block: Block) -> bool:
        """Whether a port or interface is or recently was switched off."""
        if collector == _RDMA_PORTS:
            return self._is_port_off(block)
        if collector == _NETWORK and block.get(_CARRIER, device) is None:
            self._off[device] = block.time
            self._forget_flaps_of(device, block.time - OFF_SECONDS)
        return self._was_off(device, block.time)

    def _is_port_off(self, block: Block) -> bool:
        """Whether an RDMA port or its interface is switched off, by its block."""
        infos = list(block.labels("commwatch_rdma_port_info"))
        if any(labels[2] == "InfiniBand" for labels in infos):
            return number_of(block, "commwatch_rdma_port_phys_state") == RDMA_DISABLED
        return any(self._was_off(labels[-1], block.time) for labels in infos)

    def _was_off(self, interface: str, now: float) -> bool:
        return now - self._off.get(interface, float("-inf")) < OFF_SECONDS

    def _forget_flaps_of(self, interface: str, since: float) -> None:
        """Of an interface that turns out to be switched off, and of its port: what was counted as it went down."""
        port = self._interfaces_of_ports().get(interface)
        for link, times in self._times.items():
            if link.labels in ((interface,), port):
                self._times[link] = [when for when in times if when <= since]

    def on_tick(self, now: float) -> None:
        """Drop the totals of what is not read, and forget flaps of more than an hour ago."""
        for group, collector in ((NVLINK_TOTALS, _NVLINKS), (PORT_TOTALS, _RDMA_PORTS)):
            self._store.retain(group, self._store.devices(collector))
        for device in [device for device, port in self._ports.items() if now - port.seen_at > FORGOTTEN_SECONDS]:
            del self._ports[device]
        if self._times or self._kept:
            self._show(now)

    # --- the flaps of the last hour ---

    def add(self, metric: str, labels: tuple[str, ...], source: str, count: int, when: float) -> None:
        """Count flaps of a link.

        Args:
            when: monotonic seconds.
        """
        if not self._is_paused:
            link = _Link(metric, labels, source)
            self._times[link] = [*self._times.get(link, ()), *[when] * min(count, MOST_KEPT)][-MOST_KEPT:]
            self.version += 1
            self._show(when)

    def _use_kept(self) -> None:
        kept, self._kept = self._kept, []
        for one in kept:
            link = _Link(one.metric, one.labels, one.source)
            self._times[link] = sorted([*(when - _zero() for when in one.times), *self._times.get(link, ())])

    def _recent(self, now: float) -> dict[_Link, list[float]]:
        self._use_kept()
        left = {link: [when for when in times if when > now - WINDOW_SECONDS] for link, times in self._times.items()}
        return {link: times for link, times in left.items() if times}

    def _show(self, now: float) -> None:
        """Show the flaps of the last hour by link: the largest number of those who saw it."""
        self._times = self._recent(now)
        ports = self._interfaces_of_ports()
        found: dict[Series, int] = {}
        for link, times in self._times.items():
            series: Series = (link.metric, link.labels)
            if link.metric == ETHERNET:
                if not self._is_judged(link):
                    continue
                series = (RDMA, ports[link.labels[0]]) if link.labels[0] in ports else series
            found[series] = max(len(times), found.get(series, 0))
        self._store.show(RECENT, "", found, now)

    def _is_judged(self, link: _Link) -> bool:
        """Whether a source counts: new settings of a driver drop the carrier, so the port's own counter is better."""
        if link.source == _COUNTERS[_NETWORK][0] and link.labels[0] in self._counted[_ETHTOOL]:
            return False
        block = self._store.get(_NETWORK, link.labels[0])
        return block is None or all(
            labels[1] and labels[2] not in _BMC_DRIVERS for labels in block.labels("commwatch_ethernet_info")
        )

    def _interfaces_of_ports(self) -> Mapping[str, tuple[str, ...]]:
        """The interface of each RoCE port, with the labels of the port: they are one link."""
        blocks = self._store.group(_RDMA_PORTS).values()
        infos = [labels for block in blocks for labels in block.labels("commwatch_rdma_port_info")]
        return {labels[-1]: labels[:2] for labels in infos if labels[-1]}


def _zero() -> float:
    """Seconds since 1970 at the zero of the monotonic clock."""
    return time.time() - time.monotonic()


def gone(collected: Collected, known: Collection[str]) -> set[str]:
    """Devices that are no longer present, as while their driver is loaded again: their earlier state has no meaning.

    Of a device that could not be read once, or of a run that failed as a whole or was cut short, the reading before
    still counts.

    Args:
        collected: the last run.
    """
    if collected.is_cut_short or any(not one.device for one in collected.absences):
        return set()
    unread = {one.device for one in collected.absences if one.reason != "not_found"}
    return set(known) - collected.blocks.keys() - unread

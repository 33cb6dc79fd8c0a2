"""How much of its expected capacity each device uses: NVLink and PCIe of a GPU, a network interface, an RDMA port."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from commwatch.node.inventory import Inventory
from commwatch.node.pcie_samples import COLLECTOR as PCIE_SAMPLES
from commwatch.node.rate import DIRECTIONS, interval
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Layout, Series, Value

PEAK_WINDOW_SECONDS: Final = 60.0
_INACTIVE: Final = 0
"""NVML field 165: the link is down and carries nothing."""
_NVLINKS: Final = "nvml_nvlink"

_Places: TypeAlias = Sequence[tuple[int | None, int | None]]
"""For each link the places in a block of its state and of its byte counter in one direction; None where there is
none."""


class _Family(NamedTuple):
    group: str
    """Of the store."""
    name: str
    """Of its metrics: ``commwatch_NAME_transmit_utilization_ratio``."""
    labels: int
    """How many labels of its first series name a device."""
    counters: tuple[str, ...]
    """Byte counters by direction; the first that a device has counts."""


_FAMILIES: Final = {
    _NVLINKS: _Family("nvlink_use", "nvlink", 2, ("commwatch_nvlink_{}_bytes_total",)),
    # The capacity of PCIe is before packet headers, so that a link at its limit shows some 0.8 to 0.9.
    "nvml_gpm": _Family("pcie_use", "pcie", 2, ("commwatch_pcie_{}_bytes_total",)),
    PCIE_SAMPLES: _Family("pcie_sampled_use", "pcie", 2, ("commwatch_pcie_{}_rate_bytes_per_second",)),
    "network": _Family("ethernet_use", "ethernet", 1, ("commwatch_ethernet_{}_bytes_total",)),
    # With RoCE it is the use by RDMA alone: the port's counters leave out all else. An adapter without port counters
    # (EFA) has byte counters of its own.
    "rdma": _Family(
        "rdma_use", "rdma_port", 2, ("commwatch_rdma_port_{}_bytes_total", "commwatch_rdma_{}_bytes_total")
    ),
}
"""By collector."""
_PORTS: Final = frozenset({"network", "rdma"})


class _Peak:
    """The highest sample of the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        """Time and value; each value is less than the one before it, which is why the first is the highest."""

    def add(self, time: float, value: float) -> None:
        """Take a sample; times must not fall."""
        while self._samples and self._samples[-1][1] <= value:
            self._samples.pop()
        self._samples.append((time, value))

    def highest(self, now: float) -> float | None:
        """The highest sample not older than the window; None where there is none."""
        while self._samples and self._samples[0][0] < now - PEAK_WINDOW_SECONDS:
            self._samples.popleft()
        return self._samples[0][1] if self._samples else None


class _Device:
    """The last reading of a device, where its counters are, and its peaks."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self.labels = labels
        self.previous: Block | None = None
        self.peaks = [_Peak() for _ in DIRECTIONS]
        self._found_for: tuple[Layout, frozenset[int]] | None = None
        self._places: Sequence[_Places] = ()

    def places(self, family: _Family, layout: Layout, links: frozenset[int]) -> Sequence[_Places]:
        """Places of the counters by direction: those of the expected links of a GPU, else of the device itself."""
        if self._found_for is None or self._found_for[0] is not layout or self._found_for[1] != links:
            self._found_for = layout, links
            self._places = [self._counters(family, layout, direction, links) for direction in DIRECTIONS]
        return self._places

    def _counters(self, family: _Family, layout: Layout, direction: str, links: Iterable[int]) -> _Places:
        index = layout.index
        metrics = [metric.format(direction) for metric in family.counters]
        if family is not _FAMILIES[_NVLINKS]:
            found = [index[metric, self.labels] for metric in metrics if (metric, self.labels) in index]
            return [(None, found[0] if found else None)]
        of_links = [(*self.labels, str(link)) for link in links]
        return [(index.get(("commwatch_nvlink_link_state", one)), index.get((metrics[0], one))) for one in of_links]


class Uses(Tracker):
    """The utilisation of every device, put into the store beside what it was computed from.

    It is the rate of its byte counters over its expected capacity. An NVLink whose state was read as inactive adds
    nothing. Any other expected link whose rate is not known makes the ratio of that direction absent, because the sum
    would be of a part only.
    """

    collectors = tuple(_FAMILIES)

    def __init__(self, store: Store, inventory: Inventory) -> None:
        super().__init__(store)
        for collector, family in _FAMILIES.items():
            store.declare(family.group, [collector])
        self._inventory = inventory
        self._devices: dict[str, dict[str, _Device]] = {collector: {} for collector in _FAMILIES}
        """By collector and by key of the device."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take a reading of the devices, and show their use."""
        collector, devices = outcome.collector, self._devices[outcome.collector.name]
        for key, block in outcome.collected.blocks.items():
            if not key or not block.layout.series:
                continue
            labels = block.layout.series[0][1][: _FAMILIES[collector.name].labels]
            device = devices.get(key)
            if device is None or device.labels != labels:
                device = devices[key] = _Device(labels)
            self._show(collector.name, key, device, block, 3 * collector.current_interval, collector.lifetime)

    def _show(
        self, collector: str, key: str, device: _Device, block: Block, max_gap_seconds: float, lifetime: float
    ) -> None:
        family = _FAMILIES[collector]
        links, capacity = self._expected(collector, key, block)
        previous, device.previous = device.previous, block
        shown: dict[Series, Value] = {}
        all_places = device.places(family, block.layout, links)
        for direction, places, peak in zip(DIRECTIONS, all_places, device.peaks, strict=True):
            if collector == PCIE_SAMPLES:
                rate = None if (place := places[0][1]) is None else block.values[place]
            elif previous is None or previous.layout is not block.layout:
                rate = None
            else:
                seconds = interval(previous.time, block.time, max_gap_seconds)
                total = None if seconds is None else _total(block.values, previous.values, places)
                rate = None if seconds is None or total is None else total / seconds
            ratio = rate / capacity if rate is not None and capacity else None
            if ratio is not None:
                peak.add(block.time, ratio)
            metric = f"commwatch_{family.name}_{direction}_utilization"
            shown[f"{metric}_ratio", device.labels] = ratio
            shown[f"{metric}_peak_ratio", device.labels] = peak.highest(block.time)
        self._store.show(family.group, key, shown, block.time, lifetime)

    def _expected(self, collector: str, key: str, block: Block) -> tuple[frozenset[int], float | None]:
        """The NVLinks that count, and the bytes per second that a device should reach in one direction."""
        if collector == _NVLINKS:
            expected = self._inventory.nvlink_expectation(key)
            return (frozenset(), None) if expected is None else expected
        if collector == "rdma":
            return frozenset(), self._inventory.rdma_capacity(key)
        if collector == "network":
            # Of an interface that is no part of the inventory, such as a bond, no other speed is expected than it has.
            speed = block.get("commwatch_ethernet_speed_bytes_per_second", key)
            return frozenset(), self._inventory.ethernet_capacity(key) or speed
        return frozenset(), self._inventory.pcie_capacity(key)

    def on_tick(self, now: float) -> None:
        """Drop the use of devices that are not read. Interfaces come and go by the thousand: those are forgotten."""
        for collector, family in _FAMILIES.items():
            here = self._store.devices(collector)
            for key in self._store.devices(family.group) - here:
                self._store.drop(family.group, key)
            if collector in _PORTS:
                for key in self._devices[collector].keys() - here:
                    del self._devices[collector][key]

    def pause(self) -> None:
        """Start again with the GPUs: no rate spans the pause."""
        for collector in _FAMILIES.keys() - _PORTS:
            self._devices[collector].clear()


def _total(values: Sequence[Value], previous: Sequence[Value], places: _Places) -> int | float | None:
    """The increase of some counters together between two readings; None where one that carries traffic has none."""
    total: int | float = 0
    for state, counter in places:
        if state is not None and values[state] == _INACTIVE:
            continue
        if counter is None:
            return None
        now, before = values[counter], previous[counter]
        if now is None or before is None or now < before:
            return None
        total += now - before
    return total

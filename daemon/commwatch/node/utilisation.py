"""How much of its expected capacity a device uses: NVLink and PCIe of a GPU, a network interface, an RDMA port."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import ge
from typing import Any, Final, TypeAlias

from commwatch.node.rate import Taker, interval, taker
from commwatch_exporters.snapshot import Block, Layout, Value

DIRECTIONS = ("transmit", "receive")
PEAK_WINDOW_SECONDS = 60.0

_INACTIVE = 0
"""NVML field 165: the link is down and carries nothing."""


@dataclass(frozen=True, slots=True)
class NvlinkExpectation:
    """The NVLinks that one GPU should have."""

    links: frozenset[int]
    capacity_bytes_per_second: float | None
    """Nominal rate of the links together, one direction; None where it is not known."""


class PeakWindow:
    """The highest sample of the last minute."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        """Time and value; each value is less than the one before it, which is why the first is the highest."""

    def add(self, time: float, value: float) -> None:
        """Take a sample; times must not fall."""
        samples = self._samples
        while samples and samples[-1][1] <= value:
            samples.pop()
        samples.append((time, value))

    def highest(self, now: float) -> float | None:
        """The highest sample not older than the window; None where there is none."""
        samples = self._samples
        while samples and samples[0][0] < now - PEAK_WINDOW_SECONDS:
            samples.popleft()
        return samples[0][1] if samples else None


def _taker(positions: Sequence[int | None]) -> Taker | None:
    """As ``taker``; None where one of the positions is not there."""
    known = [position for position in positions if position is not None]
    return taker(tuple(known)) if known and len(known) == len(positions) else None


_Sum: TypeAlias = tuple[Sequence[int | float], int | float]


class _Plan:
    """Positions in a block of the values that one ratio needs."""

    __slots__ = ("counters", "states", "take", "take_states")

    def __init__(self, states: tuple[int | None, ...], counters: tuple[tuple[int | None, ...], ...]) -> None:
        """Args:
        states: for each link the position of its state; None where it has none.
        counters: for each direction the positions of the byte counters of the same links; None where one has none.
        """
        self.states = states
        self.counters = counters
        self.take_states = _taker(states)
        is_plain = self.take_states is not None or states.count(None) == len(states)
        self.take: Sequence[Callable[[Sequence[Value]], Any] | None] = [
            _taker(one) if is_plain else None for one in counters
        ]
        """For each direction what takes the counters out of a reading: numbers, unless one was not read."""


@lru_cache(maxsize=64)
def _plan(states: tuple[int | None, ...], counters: tuple[tuple[int | None, ...], ...]) -> _Plan:
    """As ``_Plan``, one for all devices whose blocks are alike."""
    return _Plan(states, counters)


_NO_PLAN = _plan(states=(), counters=((),) * len(DIRECTIONS))
_NO_SUMS: Final[Sequence[_Sum | None]] = (None,) * len(DIRECTIONS)


def use_metrics(family: str) -> tuple[str, ...]:
    """The metrics of the use of a kind of device, in the order of their values."""
    return tuple(
        f"commwatch_{family}_{direction}_utilization_{kind}"
        for direction in DIRECTIONS
        for kind in ("ratio", "peak_ratio")
    )


class _Use:
    """Rates and peaks of one device in both directions, over its expected capacity."""

    def __init__(self, family: str, labels: tuple[str, ...], max_gap_seconds: float) -> None:
        self._layout = Layout((metric, labels) for metric in use_metrics(family))
        self.max_gap_seconds = max_gap_seconds
        self._peaks = tuple(PeakWindow() for _ in DIRECTIONS)
        self._ratios: list[float | None] = [None] * len(DIRECTIONS)
        self._previous: Block | None = None
        self._plan: _Plan | None = None
        self._sums: Sequence[_Sum | None] = _NO_SUMS
        """Of the previous reading: its plan, and of each direction the counters with their sum, where all count."""

    def follow(self, block: Block, plan: _Plan, capacity: float | None) -> None:
        """Take the next reading."""
        previous, self._previous = self._previous, block
        earlier = self._sums if plan is self._plan else _NO_SUMS
        values, time = block.values, block.time
        sums: list[_Sum | None] = []
        counts = plan.take_states is None or _INACTIVE not in plan.take_states(values)
        self._plan, self._sums = plan, sums
        seconds = None
        if previous is not None and previous.layout is block.layout:
            seconds = interval(previous.time, time, self.max_gap_seconds)
        for place, take in enumerate(plan.take):
            taken = None if take is None or not counts else take(values)
            last: _Sum | None = None if taken is None or None in taken else (taken, sum(taken))
            sums.append(last)
            if previous is None or seconds is None or not capacity:
                self._ratios[place] = None
                continue
            first = earlier[place]
            if first is not None and last is not None:  # the same as below, in a quarter of its time
                total = (last[1] - first[1]) / seconds if all(map(ge, last[0], first[0])) else None
            else:
                total = _total_rate(previous.values, values, plan.states, plan.counters[place], seconds)
            self._take(place, None if total is None else total / capacity, time)

    def follow_rates(self, rates: Sequence[Value], time: float, capacity: float | None) -> None:
        """Take the next reading of what has rates and no counters: bytes per second, transmitting and receiving."""
        for place, rate in enumerate(rates):
            self._take(place, None if rate is None or not capacity else rate / capacity, time)

    def _take(self, place: int, ratio: float | None, time: float) -> None:
        self._ratios[place] = ratio
        if ratio is not None:
            self._peaks[place].add(time, ratio)

    def values(self, time: float) -> list[Value]:
        """The use at the last reading, which was taken at this time: ratio and peak, transmitting and receiving."""
        values: list[Value] = []
        for ratio, peak in zip(self._ratios, self._peaks, strict=True):
            values += (ratio, peak.highest(time))
        return values

    def block(self, time: float) -> Block:
        """``values``, with their series."""
        return Block(self._layout, self.values(time), time)


def _total_rate(
    previous: Sequence[Value],
    current: Sequence[Value],
    states: Sequence[int | None],
    counters: Sequence[int | None],
    seconds: float,
) -> float | None:
    """Bytes per second of some counters together; None where one that carries traffic has no rate.

    Args:
        states: for each counter the position of its link's state, None where it has none.
        counters: positions of the counters, None where one is missing.
    """
    total = 0.0
    for state, counter in zip(states, counters, strict=True):
        if state is not None and current[state] == _INACTIVE:
            continue
        if counter is None:
            return None
        now, before = current[counter], previous[counter]
        if now is None or before is None or now < before:
            return None
        total += (now - before) / seconds
    return total


class NvlinkUse:
    """NVLink utilisation of one GPU: the rates of its expected links together over their nominal capacity.

    A link whose state was read as inactive adds nothing. Any other expected link whose rate is not known makes the
    ratio of that direction absent, because the sum would be of a part only.

    Args:
        gpu: NVML index, as a label.
        pci_bus_id: PCI address, as a label.
        max_gap_seconds: readings further apart give no rate.
    """

    def __init__(self, gpu: str, pci_bus_id: str, max_gap_seconds: float) -> None:
        self._labels = (gpu, pci_bus_id)
        self._use = _Use("nvlink", self._labels, max_gap_seconds)
        self._planned_for: tuple[Layout, frozenset[int]] | None = None
        self._plan = _NO_PLAN

    def allow_gap(self, seconds: float) -> None:
        """Change ``max_gap_seconds``: the collector runs at another interval now."""
        self._use.max_gap_seconds = seconds

    def follow(self, block: Block, expected: NvlinkExpectation | None) -> None:
        """Take the next reading of the GPU's links.

        Args:
            block: of the GPU's ``nvlink`` collector: state and byte counters of its links.
            expected: what ``Inventory.nvlink_expectation`` says of the GPU; None where nothing is known.
        """
        if expected is None:
            self._use.follow(block, _NO_PLAN, None)
            return
        if self._planned_for is None or self._planned_for != (block.layout, expected.links):
            self._planned_for = (block.layout, expected.links)
            self._plan = self._plan_for(block.layout, sorted(expected.links))
        self._use.follow(block, self._plan, expected.capacity_bytes_per_second)

    def update(self, block: Block, expected: NvlinkExpectation | None) -> Block:
        """As ``follow``, and give the utilisation at the same time."""
        self.follow(block, expected)
        return self.block(block.time)

    def values(self, time: float) -> list[Value]:
        """The utilisation at the last reading, which was taken at this time, in the order of ``use_metrics``."""
        return self._use.values(time)

    def block(self, time: float) -> Block:
        """The same with its series."""
        return self._use.block(time)

    def _plan_for(self, layout: Layout, links: Iterable[int]) -> _Plan:
        labels = [(*self._labels, str(link)) for link in links]
        return _plan(
            states=_positions(layout, "commwatch_nvlink_link_state", labels),
            counters=tuple(
                _positions(layout, f"commwatch_nvlink_{direction}_bytes_total", labels) for direction in DIRECTIONS
            ),
        )


class _BytesUse:
    """Utilisation of what has one byte counter in each direction: its rate over an expected one.

    Args:
        family: of the metrics, such as ``ethernet``.
        labels: of its counters and ratios.
        max_gap_seconds: readings further apart give no rate.
    """

    def __init__(self, family: str, labels: tuple[str, ...], max_gap_seconds: float) -> None:
        self._family = family
        self._labels = labels
        self._use = _Use(family, labels, max_gap_seconds)
        self._planned_for: Layout | None = None
        self._plan = _NO_PLAN

    def allow_gap(self, seconds: float) -> None:
        """Change ``max_gap_seconds``: the collector runs at another interval now."""
        self._use.max_gap_seconds = seconds

    def follow(self, block: Block, expected_speed: float | None) -> None:
        """Take the next reading.

        Args:
            block: holds the byte counters.
            expected_speed: bytes per second in one direction; None where not known.
        """
        if self._planned_for is not block.layout:
            self._planned_for = block.layout
            counters = tuple(self._counters(block.layout, direction) for direction in DIRECTIONS)
            self._plan = _plan(states=(None,), counters=counters)
        self._use.follow(block, self._plan, expected_speed)

    def update(self, block: Block, expected_speed: float | None) -> Block:
        """As ``follow``, and give the utilisation at the same time."""
        self.follow(block, expected_speed)
        return self.block(block.time)

    def values(self, time: float) -> list[Value]:
        """The utilisation at the last reading, which was taken at this time, in the order of ``use_metrics``."""
        return self._use.values(time)

    def block(self, time: float) -> Block:
        """The same with its series."""
        return self._use.block(time)

    def _counters(self, layout: Layout, direction: str) -> tuple[int | None, ...]:
        return _positions(layout, f"commwatch_{self._family}_{direction}_bytes_total", [self._labels])


class EthernetUse(_BytesUse):
    """Utilisation of one network interface, from blocks of ``network`` and ``Inventory.ethernet_capacity``.

    Args:
        device: name of the interface, as a label.
        max_gap_seconds: readings further apart give no rate.
    """

    def __init__(self, device: str, max_gap_seconds: float) -> None:
        super().__init__("ethernet", (device,), max_gap_seconds)


class RdmaUse(_BytesUse):
    """Utilisation of one RDMA port, from blocks of ``rdma`` and ``Inventory.rdma_capacity``.

    With RoCE it is the use by RDMA alone: the port's counters leave out all else. An adapter without port counters
    (EFA) has byte counters of its own.

    Args:
        device: name of the RDMA device, as a label.
        port: number of the port, as a label.
        max_gap_seconds: readings further apart give no rate.
    """

    def __init__(self, device: str, port: str, max_gap_seconds: float) -> None:
        super().__init__("rdma_port", (device, port), max_gap_seconds)

    def _counters(self, layout: Layout, direction: str) -> tuple[int | None, ...]:
        positions = super()._counters(layout, direction)
        if None not in positions:
            return positions
        return _positions(layout, f"commwatch_rdma_{direction}_bytes_total", [self._labels])


class PcieUse(_BytesUse):
    """Utilisation of the PCIe link of one GPU, from blocks of ``nvml_gpm`` and ``Inventory.pcie_capacity``.

    The capacity is before packet headers, so that a link at its limit shows some 0.8 to 0.9.

    Args:
        gpu: NVML index, as a label.
        pci_bus_id: PCI address, as a label.
        max_gap_seconds: readings further apart give no rate.
    """

    def __init__(self, gpu: str, pci_bus_id: str, max_gap_seconds: float) -> None:
        super().__init__("pcie", (gpu, pci_bus_id), max_gap_seconds)


class SampledPcieUse:
    """As ``PcieUse``, from blocks of ``nvml_pcie_sampled``: each ratio is that of a sample alone.

    Args:
        gpu: NVML index, as a label.
        pci_bus_id: PCI address, as a label.
    """

    def __init__(self, gpu: str, pci_bus_id: str) -> None:
        self._labels = (gpu, pci_bus_id)
        self._use = _Use("pcie", self._labels, math.inf)

    def allow_gap(self, seconds: float) -> None:
        """A sample has no gap to the one before."""

    def follow(self, block: Block, expected_speed: float | None) -> None:
        """As ``_BytesUse.follow``."""
        rates = [
            block.get(f"commwatch_pcie_{direction}_rate_bytes_per_second", *self._labels) for direction in DIRECTIONS
        ]
        self._use.follow_rates(rates, block.time, expected_speed)

    def values(self, time: float) -> list[Value]:
        """The utilisation by the last sample, which was taken at this time, in the order of ``use_metrics``."""
        return self._use.values(time)

    def block(self, time: float) -> Block:
        """The same with its series."""
        return self._use.block(time)


def _positions(layout: Layout, metric: str, labels: Iterable[tuple[str, ...]]) -> tuple[int | None, ...]:
    return tuple(layout.index.get((metric, one)) for one in labels)

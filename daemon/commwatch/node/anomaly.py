"""Follows, from run to run of the collectors, which counters cannot be trusted."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import gt
from typing import Final, TypeAlias

import structlog

from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store, number_of
from commwatch.node.tracker import Tracker
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from commwatch_exporters.state_words import COUNTER_ANOMALIES

BLANK: Final = 2
"""Supported, and yet without a number; or 0 while its twin counts."""
STALE: Final = 3
"""Stood still while its twin counted."""
SATURATED: Final = 4
"""Stands at the greatest number that the hardware's counter can hold: what happens from now on is not seen."""

TWIN_SECONDS: Final = 30.0
"""A counter that does not move for this time, while its twin counts, is called stale."""
BUSY_SECONDS: Final = 60.0
BUSY_SHARE: Final = 0.9
"""A GPU that works this much of the time is fed over PCIe, as kernel launches alone move bytes, unless one call never
ends."""

_LINK_LABELS: Final = 3
"""Labels that name a link: index and address of its GPU, and its number."""
_LEAST_BYTES: Final = 2**20
_LEAST_PACKETS: Final = 10_000
"""Least rise of a counter before its unmoving twin is judged."""


def _twins(family: str, others: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for direction in ("transmit", "receive"):
        for other in others:
            yield f"commwatch_{family}_{direction}_bytes_total", f"commwatch_{family}_{direction}_{other}_total"


TWINS: Final = (
    *_twins("nvlink", ("packets", "raw_bytes")),
    *_twins("rdma_port", ("packets",)),
    *_twins("ethernet_phy", ("packets",)),
)
"""Pairs that one transfer moves together: what passes in one direction, counted in two ways."""


def device_of(labels: tuple[str, ...]) -> str:
    """The device that a series is of, in one label: a link as ``0000:17:00.0/3``, a port as ``mlx5_0/1``."""
    # A GPU's index moves when a card is lost, so that its address alone names it.
    return "/".join(labels[1:] if labels and labels[0].isdecimal() else labels)


def counter_of(metric: str) -> str:
    """A metric as the label ``counter`` names it."""
    return metric.removeprefix("commwatch_")


_NONE: Final = frozenset({type(None)})

_Pair: TypeAlias = "tuple[Value, Value]"
"""The values of two twins."""


class _Twins:
    """Two counters of each link or port of a device, and how they stood when both last moved, or neither.

    Args:
        metrics: the two.
        places: of both in a block, for each link or port.
        devices: these, as the anomalies name them.
    """

    def __init__(self, metrics: tuple[str, str], places: Sequence[tuple[int, int]], devices: Sequence[str]) -> None:
        self._counters = counter_of(metrics[0]), counter_of(metrics[1])
        self._least = _least(metrics[0]), _least(metrics[1])
        self._devices = devices
        self._firsts, self._seconds = [first for first, _ in places], [second for _, second in places]
        self._time = 0.0
        self._seen: tuple[Sequence[Value], Sequence[Value]] = ([None] * len(places), [None] * len(places))
        """At the last reading, by counter."""
        self._apart: dict[int, tuple[float, _Pair]] = {}
        """Of those that did not move together since then: that time, and what they showed."""

    def judge(self, block: Block) -> Iterator[tuple[str, str, int]]:
        """The counters that do not move while their twin counts: device, counter, and the verdict."""
        read = block.values.__getitem__
        seen = list(map(read, self._firsts)), list(map(read, self._seconds))
        if self._apart or not self._move_together(seen):
            apart = {}
            for at, pair in enumerate(zip(*seen, strict=True)):
                time, was = self._apart.get(at) or (self._time, (self._seen[0][at], self._seen[1][at]))
                if _are_together(pair, was):
                    continue
                apart[at] = time, was
                mover = 0 if _rise(pair[0], was[0]) > 0 else 1
                if _rise(pair[mover], was[mover]) >= self._least[mover] and block.time - time >= TWIN_SECONDS:
                    yield self._devices[at], self._counters[1 - mover], STALE if was[1 - mover] else BLANK
            self._apart = apart
        self._seen, self._time = seen, block.time

    def _move_together(self, now: tuple[Sequence[Value], Sequence[Value]]) -> bool:
        """Whether the two counters of every pair have either both risen since the last reading, or neither: the usual
        case, tested in one pass."""
        earlier = self._seen
        try:
            return list(map(gt, now[0], earlier[0])) == list(map(gt, now[1], earlier[1]))  # type: ignore[arg-type]
        except TypeError:  # one was not read now or then
            return False


def _are_together(now: _Pair, was: _Pair) -> bool:
    """Whether two counters moved together, or neither did, or they began again, or are read for the first time."""
    if None in now or None in was:
        return True
    moved = _rise(now[0], was[0]), _rise(now[1], was[1])
    return (moved[0] > 0) == (moved[1] > 0) or min(moved) < 0


def _rise(now: Value, was: Value) -> float:
    return (now or 0) - (was or 0)


class CounterWatch:
    """The counters of one device and collector, watched from reading to reading.

    Args:
        layout: of the blocks that follow.
        blanks: whether a counter without a number is one that the driver left blank. Where a source keeps a place
            for counters that a device lacks, it is not.
    """

    def __init__(self, layout: Layout, *, blanks: bool) -> None:
        self._limits = []
        self._counters = []
        for place, (metric, labels) in enumerate(layout.series):
            family = CATALOGUE.get(metric)
            if family is None or family.type != "counter":
                continue
            key = (device_of(labels), counter_of(metric))
            if family.saturates_at is not None:
                self._limits.append((place, family.saturates_at, key))
            if blanks:
                # A lane or a bin of a link is silent with its link.
                self._counters.append((place, key, device_of(labels[:_LINK_LABELS])))
        self._twins = list(_twins_of(layout))
        self._complete: Sequence[Value] = ()
        """The last reading that lacked no value."""

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to watch."""
        return bool(self._limits or self._counters or self._twins)

    def update(self, block: Block, silent: Container[str] = ()) -> dict[tuple[str, str], int]:
        """Anomalies in the counters of a reading: ``BLANK``, ``STALE`` or ``SATURATED`` by device and counter.

        Args:
            block: the reading.
            silent: links whose counters have no number for a reason: they are down or were not read.
        """
        found: dict[tuple[str, str], int] = {}
        if self._counters and not self._is_complete(block.values) and any(one is not None for one in block.values):
            for place, key, link in self._counters:
                if block.values[place] is None and link not in silent:
                    found[key] = BLANK
        for place, limit, key in self._limits:
            value = block.values[place]
            if value is not None and value >= limit:
                found[key] = SATURATED
        for twins in self._twins:
            for device, counter, code in twins.judge(block):
                found[device, counter] = code
        return found

    def _is_complete(self, values: Sequence[Value]) -> bool:
        """Whether all has a number; most counters show the same each time, which is known sooner."""
        if values != self._complete:
            if not _NONE.isdisjoint(map(type, values)):
                return False
            self._complete = values
        return True


def _twins_of(layout: Layout) -> Iterator[_Twins]:
    for first, second in TWINS:
        labels = [layout.series[place][1] for place in layout.families.get(first, ())]
        both = [one for one in labels if (second, one) in layout.index]
        if both:
            places = [(layout.index[first, one], layout.index[second, one]) for one in both]
            yield _Twins((first, second), places, [device_of(one) for one in both])


def _least(metric: str) -> int:
    return _LEAST_BYTES if CATALOGUE[metric].unit == "bytes" else _LEAST_PACKETS


class FedWatch:
    """Detects stalled PCIe byte counters of a GPU: it works without pause, and not one byte is counted either way.

    A job that hangs in one call looks the same; other counters show whether it does.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._seen: tuple[float, float] | None = None
        self.moved = False
        """Whether a working GPU was fed between the last two readings."""

    def update(self, time: float, utilisation: float | None, transmitted: float | None, received: float | None) -> bool:
        """Take the next reading; whether the counters have stood still for long enough.

        Args:
            time: monotonic seconds.
            utilisation: share of the time in which the GPU worked; None where not read.
            transmitted: PCIe bytes sent so far; None where not read.
            received: PCIe bytes received so far; None where not read.
        """
        earlier, self._seen, self.moved = self._seen, None, False
        if utilisation is None or utilisation < BUSY_SHARE or transmitted is None or received is None:
            self._since = None
            return False
        self._seen = (transmitted, received)
        if earlier != self._seen or self._since is None:
            self._since, self.moved = time, earlier is not None
        return time - self._since >= BUSY_SECONDS


log = structlog.get_logger("commwatch.anomalies")

LOOK_SECONDS = 10.0
"""Between two checks of a collector's counters: none of the anomalies comes and goes quickly."""
_EARLY_SECONDS = 0.5
"""A run comes a little early where the one before was late."""
GROUP = "counters_anomaly"
_ANOMALY = "commwatch_counters_anomaly"
_USE, _SENT, _RECEIVED = (
    f"commwatch_{name}" for name in ("gpu_utilization_ratio", "pcie_transmit_bytes_total", "pcie_receive_bytes_total")
)


@dataclass
class _Watched:
    layout: Layout
    watch: CounterWatch
    found: Mapping[tuple[str, str], int] | None = None
    """Result of the last check; None before the first one."""


class Anomalies(Tracker):
    """The anomalies of all counters, put into the store while they last."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.declare(GROUP, silent=[_ANOMALY])
        self._watched: dict[str, dict[str, _Watched]] = {}
        """By collector, and by device."""
        self._due: dict[str, float] = {}
        """Monotonic seconds of the next check, by collector."""
        self._fed: dict[str, FedWatch] = {}
        """By the PCI address of the GPU."""

    def follows(self, collector: Collector) -> bool:
        """All."""
        return True

    def on_batch(self, outcome: Outcome) -> None:
        """Look at the counters of a collector, each ``LOOK_SECONDS``."""
        collector, collected = outcome.collector, outcome.collected
        if outcome.time < self._due.get(collector.name, 0.0):
            return
        self._due[collector.name] = outcome.time + LOOK_SECONDS - _EARLY_SECONDS
        failed = {absence.device for absence in collected.absences}  # of these a missing number is no blank
        for device, block in collected.blocks.items():
            if block.layout.counters and device not in failed:
                self._look(collector, device, block)

    def _look(self, collector: Collector, device: str, block: Block) -> None:
        devices = self._watched.setdefault(collector.name, {})
        watched = devices.get(device)
        if watched is None or watched.layout is not block.layout:
            watch = CounterWatch(block.layout, blanks=collector.source == "nvml")
            watched = devices[device] = _Watched(block.layout, watch)
        if not watched.watch.is_needed:
            return
        found = watched.watch.update(block, self._silent(device) if collector.source == "nvml" else ())
        if collector.name == "nvml_gpm":
            found |= self._unfed(device, block)
        self._keep(collector, device, watched, found, block.time)

    def _silent(self, device: str) -> frozenset[str]:
        """The links of a GPU that were not read as active: their counters need not have a number."""
        metric, block = "commwatch_nvlink_link_state", self._store.get("nvml_nvlink", device)
        if block is None or metric not in block.layout.families:
            return frozenset()
        layout, values = block.layout, block.values
        places = layout.families[metric]
        if values[layout.slices[metric]].count(1) == len(places) == len(values[layout.slices[metric]]):
            return frozenset()  # as a rule all are
        return frozenset(f"{device}/{layout.series[place][1][2]}" for place in places if values[place] != 1)

    def _unfed(self, device: str, block: Block) -> dict[tuple[str, str], int]:
        use = self._store.get("nvml_gpu", device)
        if use is None or not block.layout.series:
            return {}
        watch = self._fed.get(device)
        if watch is None:
            watch = self._fed[device] = FedWatch()
        sent, received = number_of(block, _SENT), number_of(block, _RECEIVED)
        is_still = watch.update(block.time, number_of(use, _USE), sent, received)
        if not is_still or not self._job_goes_on(device):
            return {}
        return {(device, counter_of(metric)): BLANK for metric in (_SENT, _RECEIVED)}

    def _job_goes_on(self, device: str) -> bool:
        """Whether data of the same job move elsewhere: over the NVLinks of this GPU, or to another of its GPUs.

        A job that hangs in one call keeps its GPUs busy without feeding them: so counters that all stand still are no
        evidence of a fault.
        """
        job = self._job_of(device)
        links = self._store.get("nvlink_use", device)
        nvlink = () if links is None else zip(links.layout.series, links.values, strict=True)
        peers = (watch for other, watch in self._fed.items() if other != device and job & self._job_of(other))
        return any(watch.moved for watch in peers) or any(
            metric.endswith("utilization_ratio") and value for (metric, _), value in nvlink
        )

    def _job_of(self, device: str) -> frozenset[int]:
        """The identities of the jobs on a GPU."""
        return frozenset(self._store.jobs.get(one, one) for one in self._store.occupants.get(device, ()))

    def _keep(
        self, collector: Collector, device: str, watched: _Watched, found: Mapping[tuple[str, str], int], time: float
    ) -> None:
        if not found and watched.found == {}:
            return
        known = watched.found or {}
        new = [(counter, code, part) for (part, counter), code in found.items() if known.get((part, counter)) != code]
        # A GPU in trouble has it on all its links at once: one line for each counter.
        for (counter, code), parts in groupby(sorted(new), key=lambda one: one[:2]):
            places = [part for _, _, part in parts]
            log.warning("a counter cannot be trusted", devices=places, counter=counter, state=COUNTER_ANOMALIES[code])
        name = f"{collector.name} {device}"
        shown: dict[Series, Value] = {
            (_ANOMALY, (collector.source, part, counter)): code for (part, counter), code in sorted(found.items())
        }
        self._store.show(GROUP, name, shown, time, time + LOOK_SECONDS + collector.lifetime)
        watched.found = found

    def on_tick(self, now: float) -> None:
        """Forget the anomalies of devices that are no longer read."""
        for collector, devices in self._watched.items():
            for device in devices.keys() - self._store.devices(collector):
                del devices[device]
                self._store.drop(GROUP, f"{collector} {device}")
                self._fed.pop(device, None)

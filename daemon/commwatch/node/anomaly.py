"""Follows, from run to run of the collectors, which counters cannot be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final, TypeAlias

import structlog

from commwatch.node.rate import DIRECTIONS
from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store, number_of
from commwatch.node.tracker import Tracker
from commwatch_exporters.catalogue import CATALOGUE, family_of
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from commwatch_exporters.state_words import COUNTER_ANOMALIES

log = structlog.get_logger("commwatch.anomalies")

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
LOOK_SECONDS: Final = 10.0
"""Between two checks of a collector's counters: none of the anomalies comes and goes quickly."""
_EARLY_SECONDS: Final = 0.5
"""A run comes a little early where the one before was late."""
_LEAST_BYTES: Final = 2**20
_LEAST_PACKETS: Final = 10_000
"""Least rise of a counter before its unmoving twin is judged."""

GROUP: Final = "counters_anomaly"
_ANOMALY: Final = "commwatch_counters_anomaly"
_LINK_STATE: Final = "commwatch_nvlink_link_state"
_USE, _SENT, _RECEIVED = (
    f"commwatch_{name}" for name in ("gpu_utilization_ratio", "pcie_transmit_bytes_total", "pcie_receive_bytes_total")
)
TWINS: Final = tuple(
    (f"commwatch_{family}_{direction}_bytes_total", f"commwatch_{family}_{direction}_{other}_total")
    for family, other in (
        ("nvlink", "packets"), ("nvlink", "raw_bytes"), ("rdma_port", "packets"), ("ethernet_phy", "packets")
    )
    for direction in DIRECTIONS
)  # fmt: skip
"""Pairs that one transfer moves together: what passes in one direction, counted in two ways."""

_Counter: TypeAlias = tuple[str, str]
"""Device and counter, as the labels of an anomaly."""


def device_of(labels: tuple[str, ...]) -> str:
    """The device that a series is of, in one label: a link as ``0000:17:00.0/3``, a port as ``mlx5_0/1``."""
    # A GPU's index moves when a card is lost, so that its address alone names it.
    return "/".join(labels[1:] if labels and labels[0].isdecimal() else labels)


def counter_of(metric: str) -> str:
    """A metric as the label ``counter`` names it."""
    return metric.removeprefix("commwatch_")


class _Twins:
    """Two counters of one link or port, and how they stood when both last moved, or neither."""

    def __init__(self, layout: Layout, series: tuple[Series, Series]) -> None:
        self._places = [layout.index[one] for one in series]
        self._counters = [(device_of(labels), counter_of(metric)) for metric, labels in series]
        self._least = [
            _LEAST_BYTES if CATALOGUE[metric].unit == "bytes" else _LEAST_PACKETS for metric, _ in series
        ]  # fmt: skip
        self._together: tuple[float, list[int | float]] | None = None
        """Time and numbers; None until both were read."""

    def judge(self, block: Block) -> Iterator[tuple[_Counter, int]]:
        """The counter that does not move while the other counts, with the verdict."""
        numbers = [value for place in self._places if (value := block.values[place]) is not None]
        if len(numbers) < len(self._places):
            self._together = None
            return
        time, before = self._together or (block.time, numbers)
        moved = [now - earlier for now, earlier in zip(numbers, before, strict=True)]
        if (moved[0] > 0) == (moved[1] > 0) or min(moved) < 0:  # also where one began again
            self._together = block.time, numbers
            return
        mover = 0 if moved[0] > 0 else 1
        if moved[mover] >= self._least[mover] and block.time - time >= TWIN_SECONDS:
            yield self._counters[1 - mover], STALE if before[1 - mover] else BLANK


class _Device:
    """The counters of one device and collector, watched from reading to reading.

    Args:
        blanks: whether a counter without a number is one that the driver left blank. Where a source keeps a place
            for counters that a device lacks, it is not.
    """

    def __init__(self, layout: Layout, *, blanks: bool) -> None:
        self.layout = layout
        self.known: dict[_Counter, int] = {}
        """Result of the last check."""
        self._limits: list[tuple[int, int, _Counter]] = []
        """Place and greatest number of those that saturate."""
        self._counters: list[tuple[int, str, _Counter]] = []
        """Place and link of those that may be blank: a lane or a bin of a link is silent with its link."""
        for place in layout.counters:
            metric, labels = layout.series[place]
            counter, limit = (device_of(labels), counter_of(metric)), family_of(metric).saturates_at
            if limit is not None:
                self._limits.append((place, limit, counter))
            if blanks:
                self._counters.append((place, device_of(labels[:3]), counter))
        self._twins = [
            _Twins(layout, ((first, labels), (second, labels)))
            for first, second in TWINS
            for labels in [layout.series[place][1] for place in layout.families.get(first, ())]
            if (second, labels) in layout.index
        ]

    def blank(self, block: Block) -> list[tuple[str, _Counter]]:
        """The counters of a reading without a number, each with its link; none where nothing was read at all."""
        blank = [(link, counter) for place, link, counter in self._counters if block.values[place] is None]
        return blank if any(value is not None for value in block.values) else []

    def check(self, block: Block) -> dict[_Counter, int]:
        """The counters of a reading that have a number which cannot be trusted."""
        found: dict[_Counter, int] = {}
        for place, limit, counter in self._limits:
            if (block.values[place] or 0) >= limit:
                found[counter] = SATURATED
        for twins in self._twins:
            found.update(twins.judge(block))
        return found


class _Feed:
    """The PCIe byte counters of a GPU that works without pause."""

    def __init__(self) -> None:
        self._since: float | None = None
        """Monotonic seconds from which on they have stood still."""
        self._seen: tuple[Value, Value] | None = None
        self.moved = False
        """Whether a working GPU was fed between the last two readings."""

    def stalls(self, time: float, utilisation: Value, transmitted: Value, received: Value) -> bool:
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


class Anomalies(Tracker):
    """The anomalies of all counters, put into the store while they last."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.declare(GROUP, silent=[_ANOMALY])
        self._devices: dict[str, dict[str, _Device]] = {}
        """By collector, and by device."""
        self._due: dict[str, float] = {}
        """Monotonic seconds of the next check, by collector."""
        self._feeds: dict[str, _Feed] = {}
        """By the PCI address of the GPU."""

    def follows(self, collector: Collector) -> bool:
        return True

    def on_batch(self, outcome: Outcome) -> None:
        """Check the counters of a collector, each ``LOOK_SECONDS``."""
        collector, collected = outcome.collector, outcome.collected
        if outcome.time < self._due.get(collector.name, 0.0):
            return
        self._due[collector.name] = outcome.time + LOOK_SECONDS - _EARLY_SECONDS
        failed = {absence.device for absence in collected.absences}  # of these a missing number is no blank
        for device, block in collected.blocks.items():
            if block.layout.counters and device not in failed:
                self._check(collector, device, block)

    def _check(self, collector: Collector, key: str, block: Block) -> None:
        devices, is_driver = self._devices.setdefault(collector.name, {}), collector.source == "nvml"
        device = devices.get(key)
        if device is None or device.layout is not block.layout:
            device = devices[key] = _Device(block.layout, blanks=is_driver)
        found = device.check(block)
        if blank := device.blank(block):
            silent = self._silent(key)
            found |= {counter: BLANK for link, counter in blank if link not in silent}
        if collector.name == "nvml_gpm":
            found |= self._unfed(key, block)
        new = [(counter, code, part) for (part, counter), code in found.items()
               if device.known.get((part, counter)) != code]  # fmt: skip
        # A GPU in trouble has it on all its links at once: one line for each counter.
        for (counter, code), parts in groupby(sorted(new), key=lambda one: one[:2]):
            places = [part for _, _, part in parts]
            log.warning("a counter cannot be trusted", devices=places, counter=counter, state=COUNTER_ANOMALIES[code])
        shown: dict[Series, Value] = {
            (_ANOMALY, (collector.source, *counter)): code for counter, code in sorted(found.items())
        }
        lifetime = LOOK_SECONDS + collector.lifetime
        self._store.show(GROUP, f"{collector.name} {key}", shown, block.time, lifetime)
        device.known = found

    def _silent(self, device: str) -> frozenset[str]:
        """The links of a GPU that were not read as active: their counters have no number for a reason."""
        block = self._store.get("nvml_nvlink", device)
        if block is None:
            return frozenset()
        return frozenset(
            device_of(labels) for labels in block.labels(_LINK_STATE) if block.get(_LINK_STATE, *labels) != 1
        )

    def _unfed(self, device: str, block: Block) -> dict[_Counter, int]:
        """The PCIe counters of a GPU that works, and not one byte is counted either way while its job goes on.

        A job that hangs in one call looks the same; other counters show whether it does.
        """
        use = self._store.get("nvml_gpu", device)
        if use is None or not block.layout.series:
            return {}
        feed = self._feeds.setdefault(device, _Feed())
        stalls = feed.stalls(block.time, number_of(use, _USE), number_of(block, _SENT), number_of(block, _RECEIVED))
        if not stalls or not self._job_goes_on(device):
            return {}
        return {(device, counter_of(metric)): BLANK for metric in (_SENT, _RECEIVED)}

    def _job_goes_on(self, device: str) -> bool:
        """Whether data of the same job move elsewhere: over the NVLinks of this GPU, or to another of its GPUs.

        A job that hangs in one call keeps its GPUs busy without feeding them: so counters that all stand still are no
        evidence of a fault.
        """
        job = self._job_of(device)
        peers = (feed for other, feed in self._feeds.items() if other != device and job & self._job_of(other))
        links = self._store.get("nvlink_use", device)
        uses = (f"commwatch_nvlink_{direction}_utilization_ratio" for direction in DIRECTIONS)
        return any(feed.moved for feed in peers) or (
            links is not None and any(value for use in uses for _, value in links.samples(use))
        )

    def _job_of(self, device: str) -> frozenset[int]:
        """The identities of the jobs on a GPU."""
        return frozenset(self._store.jobs.get(one, one) for one in self._store.occupants.get(device, ()))

    def on_tick(self, now: float) -> None:
        """Forget the anomalies of devices that are no longer read."""
        for collector, devices in self._devices.items():
            for device in devices.keys() - self._store.devices(collector):
                del devices[device]
                self._store.drop(GROUP, f"{collector} {device}")
                self._feeds.pop(device, None)

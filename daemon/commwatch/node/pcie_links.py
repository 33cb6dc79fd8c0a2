"""Tracks the PCIe links from run to run of the collectors, and reports which are degraded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog

from commwatch.node.inventory import Inventory
from commwatch.node.pcie import ASPECTS, DeviceTree, is_loaded, is_narrow, is_slow, of_both_ends
from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store, number_of
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Series, Value

log = structlog.get_logger("commwatch.pcie_links")

GPU_LINKS: Final = "pcie_link_degraded"
DEVICE_LINKS: Final = "pcie_device_link_degraded"
"""Groups of the store."""

_LINKS, _DEVICES, _USE = "nvml_pcie", "pci", "nvml_gpu"
_EVIDENCE: Final = (_USE, "nvml_gpm")
"""Collectors that show whether a GPU is under load."""
_LOAD_METRICS: Final = (
    "commwatch_gpu_utilization_ratio",
    "commwatch_pcie_transmit_rate_bytes_per_second",
    "commwatch_pcie_receive_rate_bytes_per_second",
)


@dataclass(slots=True)
class _Verdict:
    """The state of one aspect of a link, and the time for which it was bad."""

    seconds: float = 0.0
    is_bad: bool | None = None
    time: float = float("-inf")

    def judge(self, time: float, is_bad: bool | None, max_gap_seconds: float) -> None:
        """Take the verdict of a reading; only the time between two bad readings counts as bad."""
        if is_bad and self.is_bad and 0.0 < time - self.time <= max_gap_seconds:
            self.seconds += time - self.time
        self.is_bad, self.time = is_bad, time


@dataclass(slots=True)
class _Load:
    """What one kind of evidence shows of the load of a GPU."""

    time: float = float("-inf")
    is_loaded: bool = False
    """At this time."""
    lasts: bool = False
    """And at the reading before it as well."""


class _GpuLink:
    """The link of one GPU, followed from reading to reading.

    Width is judged at once. The generation follows the performance state of the GPU, and so is judged only where the
    GPU was under load, and in P0 where its state is known, before and after the reading; until the load after it is
    known, the reading waits.
    """

    def __init__(self) -> None:
        self.max_gap_seconds = 0.0
        """Readings further apart say nothing of the time between them."""
        self._verdicts = {aspect: _Verdict() for aspect in ASPECTS}
        self._waiting: list[tuple[float, bool | None]] = []
        """Time and verdict of the readings whose load afterwards is not known yet, in order."""
        self._loads = {evidence: _Load() for evidence in _EVIDENCE}

    def take_link(self, time: float, narrow: bool | None, slow: bool | None) -> None:
        """Take a reading of the link; times must not fall."""
        self._verdicts["width"].judge(time, narrow, self.max_gap_seconds)
        self._waiting.append((time, slow))
        self._forget_before(time - self.max_gap_seconds)

    def take_load(self, evidence: str, time: float, *, loaded: bool) -> None:
        """Take whether the GPU is under load; two kinds of evidence are not mixed.

        Args:
            evidence: the collector that shows it.
            time: monotonic seconds; must not fall for one evidence.
            loaded: as of ``is_loaded``.
        """
        earlier, gap = self._loads[evidence], self.max_gap_seconds
        lasts = loaded and earlier.is_loaded and 0.0 < time - earlier.time <= gap
        self._loads[evidence] = _Load(time, loaded, lasts)
        if lasts:
            for reading in [one for one in self._waiting if earlier.time <= one[0] <= time]:
                self._verdicts["generation"].judge(*reading, gap)
                self._waiting.remove(reading)
        elif not any(one.is_loaded and time - one.time <= gap for one in self._loads.values()):
            self._verdicts["generation"].judge(time, None, gap)
            self._waiting.clear()
        self._forget_before(time - gap)

    def is_under_load(self, now: float) -> bool:
        """Whether the GPU was under load in the last two readings."""
        return any(one.lasts and now - one.time <= self.max_gap_seconds for one in self._loads.values())

    def readings(self, labels: tuple[str, ...], now: float) -> dict[Series, Value]:
        """1 for what is bad, 0 for what is not, nothing where the last reading that shows it is too old; and the
        seconds for which the link was seen to be degraded."""
        shown: dict[Series, Value] = {}
        for aspect, one in self._verdicts.items():
            is_current = one.is_bad is not None and now - one.time <= self.max_gap_seconds
            shown["commwatch_pcie_link_degraded", (*labels, aspect)] = int(bool(one.is_bad)) if is_current else None
            shown["commwatch_pcie_link_degraded_seconds_total", (*labels, aspect)] = one.seconds
        return shown

    def _forget_before(self, time: float) -> None:
        self._waiting = [one for one in self._waiting if one[0] >= time]


class PcieLinks(Tracker):
    """The verdicts on all PCIe links, kept in the store while their inputs are current."""

    collectors = (_LINKS, _DEVICES, *_EVIDENCE)

    def __init__(self, store: Store, inventory: Inventory) -> None:
        super().__init__(store)
        store.declare(GPU_LINKS, [_LINKS])
        store.declare(DEVICE_LINKS, [_DEVICES])
        self._inventory = inventory
        self._links: dict[tuple[str, ...], _GpuLink] = {}
        """By the labels of the GPU; kept while the GPU is away, so that its seconds do not begin again."""
        self._tree = DeviceTree()
        self._gaps: dict[str, float] = {}
        """Seconds beyond which two readings do not show the time between them, by collector."""
        self._lifetime = 0.0
        self._degraded: set[tuple[str, ...]] = set()
        """Labels of the links that were degraded at the last evaluation."""

    def on_batch(self, outcome: Outcome) -> None:
        """Judge the links that a run is evidence for."""
        collector = outcome.collector
        if collector.name == _DEVICES:
            self._judge_devices(collector)
            return
        self._gaps[collector.name] = 3 * collector.current_interval
        for device, block in outcome.collected.blocks.items():
            if device and block.layout.series:
                self._judge_gpu(collector, device, block)

    def on_tick(self, now: float) -> None:
        """Drop the verdicts on GPUs and devices whose links are not read."""
        self._store.retain(GPU_LINKS, self._store.devices(_LINKS))
        if not self._store.devices(_DEVICES):
            self._store.drop_group(DEVICE_LINKS)

    def _judge_gpu(self, collector: Collector, device: str, block: Block) -> None:
        labels = block.layout.series[0][1][:2]
        watch = self._links.setdefault(labels, _GpuLink())
        watch.max_gap_seconds = max(self._gaps.values())
        if collector.name == _LINKS:
            self._lifetime = collector.lifetime
            watch.take_link(block.time, *self._of_link(device, block))
        else:
            evidence = [number_of(block, metric) for metric in _LOAD_METRICS]
            # Of the two collectors only one reads the state; it holds for the other's evidence as well.
            use = self._store.get(_USE, device)
            state = None if use is None else number_of(use, "commwatch_gpu_performance_state")
            watch.take_load(collector.name, block.time, loaded=is_loaded(*evidence, performance_state=state))
        if (link := self._store.get(_LINKS, device)) is not None:
            shown = watch.readings(labels, block.time)
            self._store.show(GPU_LINKS, device, shown, block.time, link.time - block.time + self._lifetime)
            self._report(shown)

    def _of_link(self, device: str, block: Block) -> tuple[bool | None, bool | None]:
        """Whether the link of a GPU is narrow, and whether it is slow; the port above it may be able to do less."""
        port = self._tree.ports.get(device, "")
        above = self._store.get(_DEVICES, port)
        width, width_max, generation, generation_max = (
            number_of(block, f"commwatch_pcie_link_{name}")
            for name in ("width_lanes", "width_max_lanes", "generation", "generation_max")
        )
        if above is not None:
            width_max = of_both_ends(width_max, above.get("commwatch_pcie_device_link_width_max_lanes", port))
            generation_max = of_both_ends(generation_max, above.get("commwatch_pcie_device_link_generation_max", port))
        narrow = is_narrow(width, self._inventory.pcie_expected_lanes(device), width_max)
        return narrow, is_slow(generation, generation_max)

    def _judge_devices(self, collector: Collector) -> None:
        blocks = self._store.group(_DEVICES)
        time = max((block.time for block in blocks.values()), default=0.0)
        loaded = {labels[1] for labels, watch in self._links.items() if watch.is_under_load(time)}
        shown = self._tree.degraded(blocks, loaded)
        self._store.show(DEVICE_LINKS, "", shown, time, collector.lifetime)
        self._report(shown)

    def _report(self, verdicts: dict[Series, Value]) -> None:
        """Log what has become degraded, and what is as it should be again."""
        for (metric, labels), value in verdicts.items():
            if not metric.endswith("link_degraded"):
                continue
            device = labels[1] if metric == "commwatch_pcie_link_degraded" else labels[0]
            if value == 1 and labels not in self._degraded:
                self._degraded.add(labels)
                log.warning("a PCIe link is degraded", device=device, aspect=labels[-1])
            elif value == 0 and labels in self._degraded:
                self._degraded.discard(labels)
                log.info("a PCIe link is as it should be again", device=device, aspect=labels[-1])

"""Tracks the PCIe links from run to run of the collectors, and reports which are degraded."""

from __future__ import annotations

from typing import Final

import structlog

from commwatch.node.inventory import Inventory
from commwatch.node.pcie import GpuLinkWatch, LinkReading, is_loaded, of_both_ends
from commwatch.node.pcie_tree import DeviceLinkWatch
from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store, number_of
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Value

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
_STATE: Final = "commwatch_gpu_performance_state"


class PcieLinks(Tracker):
    """The verdicts on all PCIe links, kept in the store while their inputs are current."""

    collectors = (_LINKS, _DEVICES, *_EVIDENCE)

    def __init__(self, store: Store, inventory: Inventory) -> None:
        super().__init__(store)
        store.declare(GPU_LINKS, [_LINKS])
        store.declare(DEVICE_LINKS, [_DEVICES])
        self._inventory = inventory
        self._watches: dict[tuple[str, str], GpuLinkWatch] = {}
        """By the labels of the GPU; kept while the GPU is away, so that its seconds do not begin again."""
        self._devices = DeviceLinkWatch()
        self._gaps: dict[str, float] = {}
        """Seconds beyond which two readings do not show the time between them, by collector."""
        self._gap = 0.0
        """The longest of them."""
        self._lifetime = 0.0
        self._degraded: set[tuple[str, ...]] = set()
        """Labels of the links that were degraded at the last evaluation."""

    def on_batch(self, outcome: Outcome) -> None:
        """Judge the links that a run is evidence for."""
        collector = outcome.collector
        if collector.name == _DEVICES:
            self._judge_devices(collector)
        else:
            self._gaps[collector.name] = 3 * collector.current_interval
            self._gap = max(self._gaps.values())
            for device, block in outcome.collected.blocks.items():
                self._judge_gpu(collector, device, block)

    def on_tick(self, now: float) -> None:
        """Drop the verdicts on GPUs and devices whose links are not read."""
        for device in self._store.devices(GPU_LINKS) - self._store.devices(_LINKS):
            self._store.drop(GPU_LINKS, device)
        if not self._store.devices(_DEVICES):
            self._store.drop_group(DEVICE_LINKS)

    def _judge_gpu(self, collector: Collector, device: str, block: Block) -> None:
        if not device or not block.layout.series:
            return
        gpu, pci_bus_id, *_ = block.layout.series[0][1]
        watch = self._watch_of((gpu, pci_bus_id))
        if collector.name == _LINKS:
            self._lifetime = collector.lifetime
            watch.take_link(self._reading(device, block))
        else:
            evidence = [number_of(block, metric) for metric in _LOAD_METRICS]
            # Of the two collectors only one reads the state; it holds for the other's evidence as well.
            use = self._store.get(_USE, device)
            state = None if use is None else number_of(use, _STATE)
            watch.take_load(collector.name, block.time, is_loaded(*evidence, performance_state=state))
        if (link := self._store.get(_LINKS, device)) is None:
            return
        verdict = watch.block(block.time)
        self._store.put(GPU_LINKS, device, verdict, link.time + self._lifetime)
        self._report(verdict)

    def _reading(self, device: str, block: Block) -> LinkReading:
        def value(name: str) -> int | None:
            number = number_of(block, f"commwatch_pcie_{name}")
            return None if number is None else int(number)

        width_max, generation_max = self._maxima_of_port(device)
        return LinkReading(
            time=block.time,
            width=value("link_width_lanes"),
            expected_width=self._inventory.pcie_expected_lanes(device),
            width_max=of_both_ends(value("link_width_max_lanes"), width_max),
            generation=value("link_generation"),
            generation_max=of_both_ends(value("link_generation_max"), generation_max),
        )

    def _maxima_of_port(self, device: str) -> tuple[Value, Value]:
        """Lanes and generation that the port above a GPU can do, where sysfs shows them."""
        port = self._devices.ports.get(device)
        block = None if port is None else self._store.get(_DEVICES, port)
        if port is None or block is None:
            return None, None
        metric = "commwatch_pcie_device_link"
        return block.get(f"{metric}_width_max_lanes", port), block.get(f"{metric}_generation_max", port)

    def _judge_devices(self, collector: Collector) -> None:
        blocks = self._store.group(_DEVICES)
        if not blocks:
            self._store.drop_group(DEVICE_LINKS)
            return
        time = max(block.time for block in blocks.values())
        loaded = {pci_bus_id for (_, pci_bus_id), watch in self._watches.items() if watch.is_under_load(time)}
        verdicts = self._devices.update(blocks, loaded, time)
        self._store.put(DEVICE_LINKS, "", verdicts, time + collector.lifetime)
        self._report(verdicts)

    def _watch_of(self, labels: tuple[str, str]) -> GpuLinkWatch:
        watch = self._watches.get(labels)
        if watch is None:
            watch = self._watches[labels] = GpuLinkWatch(*labels, self._gap)
        watch.max_gap_seconds = self._gap
        return watch

    def _report(self, verdicts: Block) -> None:
        """Log what has become degraded, and what is as it should be again."""
        for (metric, labels), value in zip(verdicts.layout.series, verdicts.values, strict=True):
            if not metric.endswith("link_degraded"):
                continue
            device = labels[1] if metric == "commwatch_pcie_link_degraded" else labels[0]
            if value == 1 and labels not in self._degraded:
                self._degraded.add(labels)
                log.warning("a PCIe link is degraded", device=device, aspect=labels[-1])
            elif value == 0 and labels in self._degraded:
                self._degraded.discard(labels)
                log.info("a PCIe link is as it should be again", device=device, aspect=labels[-1])

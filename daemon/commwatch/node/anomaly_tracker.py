"""Follows, from run to run of the collectors, which counters cannot be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

import structlog

from commwatch.node.anomaly import BLANK, CounterWatch, FedWatch
from commwatch.node.run import Collector
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout
from commwatch_exporters.state_words import COUNTER_ANOMALIES

log = structlog.get_logger("commwatch.anomalies")

LOOK_SECONDS = 10.0
"""Between two looks at the counters of one device: none of the anomalies comes and goes quickly."""
GROUP = "counters_anomaly"
_PCIE_BYTES = ("pcie_transmit_bytes_total", "pcie_receive_bytes_total")


@dataclass
class _Watched:
    layout: Layout
    watch: CounterWatch
    looked_at: float = float("-inf")
    found: Mapping[tuple[str, str], int] = field(default_factory=dict)


class Anomalies:
    """The anomalies of all counters, put into the store while they last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watched: dict[tuple[str, str], _Watched] = {}
        """By collector and device."""
        self._fed: dict[str, FedWatch] = {}
        """By the PCI address of the GPU."""

    def after(self, collector: Collector, device: str, block: Block, *, failed: bool) -> None:
        """Take what one run of a collector gave for one device.

        Args:
            collector: the collector.
            device: its key of the device.
            block: what it gave.
            failed: whether something of the device could not be read: then a missing number is no blank.
        """
        key = (collector.name, device)
        watched = self._watched.get(key)
        if watched is None or watched.layout is not block.layout:
            watch = CounterWatch(block.layout, blanks=collector.source == "nvml")
            watched = self._watched[key] = _Watched(block.layout, watch)
        if failed or block.time - watched.looked_at < LOOK_SECONDS:
            return
        watched.looked_at = block.time
        if not watched.watch.is_needed:
            return
        found = watched.watch.update(block, self._silent(device) if collector.source == "nvml" else ())
        if collector.name == "nvml_gpm":
            found |= self._unfed(device, block)
        self._keep(collector, device, watched, found, block.time)

    def _silent(self, device: str) -> frozenset[str]:
        """The links of a GPU that were not read as active: their counters need not have a number."""
        block = self._store.get("nvml_nvlink", device)
        places = () if block is None else block.layout.families.get("commwatch_nvlink_link_state", ())
        return frozenset(
            f"{device}/{block.layout.series[place][1][2]}"
            for place in places
            if block is not None and block.values[place] != 1
        )

    def _unfed(self, device: str, block: Block) -> dict[tuple[str, str], int]:
        use = self._store.get("nvml_gpu", device)
        if use is None or not block.layout.series:
            return {}
        labels = block.layout.series[0][1][:2]
        sent, received = (block.get(f"commwatch_{counter}", *labels) for counter in _PCIE_BYTES)
        watch = self._fed.setdefault(device, FedWatch())
        blank = watch.update(block.time, use.get("commwatch_gpu_utilization_ratio", *labels), sent, received)
        return {(device, counter): BLANK for counter in _PCIE_BYTES} if blank else {}

    def _keep(
        self, collector: Collector, device: str, watched: _Watched, found: Mapping[tuple[str, str], int], time: float
    ) -> None:
        new = [
            (counter, code, part)
            for (part, counter), code in found.items()
            if watched.found.get((part, counter)) != code
        ]
        # A GPU in trouble has it on all its links at once: one line for each counter.
        for (counter, code), parts in groupby(sorted(new), key=lambda one: one[:2]):
            places = [part for _, _, part in parts]
            log.warning("a counter cannot be trusted", devices=places, counter=counter, state=COUNTER_ANOMALIES[code])
        name = f"{collector.name} {device}"
        if not found:
            self._store.drop(GROUP, name)
        else:
            series = tuple(
                ("commwatch_counters_anomaly", (collector.source, part, counter)) for part, counter in sorted(found)
            )
            kept = self._store.get(GROUP, name)
            layout = kept.layout if kept is not None and kept.layout.series == series else Layout(series)
            values = [found[key] for key in sorted(found)]
            self._store.put(GROUP, name, Block(layout, values, time), time + LOOK_SECONDS + collector.lifetime)
        watched.found = found

    def drop_absent(self) -> None:
        """Forget what is known of devices that are not read any more."""
        for collector, device in list(self._watched):
            if self._store.get(collector, device) is None:
                del self._watched[collector, device]
                self._store.drop(GROUP, f"{collector} {device}")
                self._fed.pop(device, None)

"""Follows, from run to run of the collectors, which counters cannot be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import structlog

from commwatch.node.anomaly import BLANK, CounterWatch, FedWatch, counter_of
from commwatch.node.gpu_block import number_of
from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Layout
from commwatch_exporters.state_words import COUNTER_ANOMALIES

log = structlog.get_logger("commwatch.anomalies")

LOOK_SECONDS = 10.0
"""Between two looks at the counters of a collector: none of the anomalies comes and goes quickly."""
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
    """At the last look; None before the first one."""


class Anomalies(Tracker):
    """The anomalies of all counters, put into the store while they last."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.declare(GROUP, silent=[_ANOMALY])
        self._watched: dict[str, dict[str, _Watched]] = {}
        """By collector, and by device."""
        self._due: dict[str, float] = {}
        """By collector: monotonic seconds of the next look."""
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

        A job that hangs in one call keeps its GPUs busy without feeding them: that all stand still says nothing of the
        counters.
        """
        job = self._job_of(device)
        links = self._store.get("nvlink_use", "")
        nvlink = () if links is None else zip(links.layout.series, links.values, strict=True)
        peers = (watch for other, watch in self._fed.items() if other != device and job & self._job_of(other))
        return any(watch.moved for watch in peers) or any(
            metric.endswith("utilization_ratio") and labels[1] == device and value for (metric, labels), value in nvlink
        )

    def _job_of(self, device: str) -> frozenset[int]:
        """What distinguishes the jobs on a GPU from others."""
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
        if not found:
            self._store.drop(GROUP, name)
        else:
            series = tuple((_ANOMALY, (collector.source, part, counter)) for part, counter in sorted(found))
            kept = self._store.get(GROUP, name)
            layout = kept.layout if kept is not None and kept.layout.series == series else Layout(series)
            values = [found[key] for key in sorted(found)]
            self._store.put(GROUP, name, Block(layout, values, time), time + LOOK_SECONDS + collector.lifetime)
        watched.found = found

    def on_tick(self, now: float) -> None:
        """Forget the anomalies of devices that are no longer read."""
        for collector, devices in self._watched.items():
            for device in devices.keys() - self._store.devices(collector):
                del devices[device]
                self._store.drop(GROUP, f"{collector} {device}")
                self._fed.pop(device, None)

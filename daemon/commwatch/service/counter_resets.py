"""Counts how often the counters of each device were seen to start again."""

from __future__ import annotations

from typing import Final

import structlog

from commwatch.node.rate import ResetWatch
from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.service.instruments import Instruments

log = structlog.get_logger("commwatch.pipeline")

_PORTS: Final = ("network", "ethtool", "rdma")
"""Collectors of network interfaces, each the only one of its source."""
_OWN_SUMS: Final = frozenset({"nvml_gpm", "kernel_log", "nccl_logs", "nccl_inspector"})
"""Their counters are sums of the source's own, which begin again with each worker: no reset of hardware."""


class CounterResets(Tracker):
    """The resets of all devices, among the metrics of the daemon itself."""

    def __init__(self, store: Store, instruments: Instruments) -> None:
        super().__init__(store)
        self._instruments = instruments
        self._watches: dict[str, dict[str, ResetWatch]] = {}
        """By collector and device."""

    def follows(self, collector: Collector) -> bool:
        """All whose counters are the hardware's."""
        return collector.name not in _OWN_SUMS

    def on_batch(self, outcome: Outcome) -> None:
        """Compare each reading with the one before."""
        collector = outcome.collector
        watches = self._watches.setdefault(collector.name, {})
        for device, block in outcome.collected.blocks.items():
            if not block.layout.counters:
                continue
            watch = watches.get(device)
            if watch is None:
                watch = watches[device] = ResetWatch()
                self._instruments.counter_resets.labels(collector.source, device)
            if watch.update(block):
                self._instruments.counter_resets.labels(collector.source, device).inc()
                log.info("counters started again", collector=collector.name, device=device)

    def on_tick(self, now: float) -> None:
        """Forget interfaces and RDMA devices that are gone: on some nodes they come and go by the thousand."""
        for name in _PORTS:
            watches = self._watches.get(name, {})
            for device in watches.keys() - self._store.devices(name):
                del watches[device]
                self._instruments.counter_resets.remove(name, device)

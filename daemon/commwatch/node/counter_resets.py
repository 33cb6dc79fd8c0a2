"""Counts how often the counters of each device were seen to start again."""

from __future__ import annotations

from typing import Final

import structlog

from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Block, Series, Value

log = structlog.get_logger("commwatch.pipeline")

GROUP: Final = "counter_resets"
_PORTS: Final = ("network", "ethtool", "rdma")
"""Collectors of network interfaces, each the only one of its source."""
_OWN_SUMS: Final = frozenset({"nvml_gpm", "kernel_log", "nccl_logs", "nccl_inspector"})
"""Their counters are sums of the source's own, which begin again with each worker: no reset of hardware."""


class CounterResets(Tracker):
    """The resets of all devices since the daemon began to read them.

    A counter that vanishes is compared with its last known value when it returns, so that the reset of a GPU counts
    although the GPU gave nothing in between. Counters that fall in one reading are one reset.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.declare(GROUP)
        self._last: dict[str, dict[str, dict[Series, int | float]]] = {}
        """By collector and device, of each counter the last number that was read."""
        self._shown: dict[Series, Value] = {}
        """Resets by source and device."""

    def follows(self, collector: Collector) -> bool:
        """All whose counters are the hardware's."""
        return collector.name not in _OWN_SUMS

    def on_batch(self, outcome: Outcome) -> None:
        """Compare each reading with the one before."""
        collector, before = outcome.collector, dict(self._shown)
        devices = self._last.setdefault(collector.name, {})
        for device, block in outcome.collected.blocks.items():
            if not block.layout.counters:
                continue
            total = self._shown.setdefault(_series(collector.source, device), 0) or 0
            if _fell(block, devices.setdefault(device, {})):
                self._shown[_series(collector.source, device)] = total + 1
                log.info("counters started again", collector=collector.name, device=device)
        if self._shown != before:
            self._store.show(GROUP, "", self._shown, outcome.time)

    def on_tick(self, now: float) -> None:
        """Forget interfaces and RDMA devices that are gone: on some nodes they come and go by the thousand."""
        before = len(self._shown)
        for name in _PORTS:
            devices = self._last.get(name, {})
            for device in devices.keys() - self._store.devices(name):
                del devices[device], self._shown[_series(name, device)]
        if len(self._shown) != before:
            self._store.show(GROUP, "", self._shown, now)


def _series(source: str, device: str) -> Series:
    return "commwatch_counters_reset_total", (source, device)


def _fell(block: Block, last: dict[Series, int | float]) -> bool:
    """Whether a counter has fallen since the number that it had last; takes the numbers of now."""
    fell = False
    for place in block.layout.counters:
        series, value = block.layout.series[place], block.values[place]
        if value is not None:
            fell = fell or value < last.get(series, 0)
            last[series] = value
    return fell

"""Keeps the totals of hardware events from run to run, and logs each new event with its meaning."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timezone

import structlog

from commwatch.node.hardware_events import RECENT_SECONDS, HardwareEvents, HardwareEventsState
from commwatch.node.inventory import Inventory
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Clock, Tracker
from commwatch.node.xids import meaning_of
from commwatch.readings import HardwareEvent
from commwatch.sources.kernel_log_lines import details

log = structlog.get_logger("commwatch.hardware")

GROUP = "hardware_events"
LOGGED_PER_RUN = 50
"""A log full of old events is read in one go; the rest is summed up in one line."""
_IDENTITY, _DEVICES = "nvml_identity", "pci"
_NVLINK5_FROM = 10
"""NVML's number of the first architecture with NVLink 5, for those whose name is not known."""


class HardwareLog(Tracker):
    """The totals of Xids, SXids and messages of the kernel log, in the store.

    Args:
        state: of an earlier daemon; it is changed in place.
        recent_seconds: as for ``HardwareEvents``.
        clock: usually the module ``time``.
    """

    collectors = (_IDENTITY, _DEVICES, "nvml_events", "kernel_log")
    """Two report who is here, two what happened."""

    def __init__(
        self, state: HardwareEventsState, store: Store, inventory: Inventory,
        recent_seconds: float = RECENT_SECONDS, clock: Clock = time,
    ) -> None:  # fmt: skip
        super().__init__(store)
        store.declare(GROUP)
        self._clock = clock
        self._inventory = inventory
        self._events = HardwareEvents(state, recent_seconds)

    @property
    def state(self) -> HardwareEventsState:
        """To keep over a restart: the totals, and how far the kernel log was read."""
        return self._events.state

    def resume(self) -> None:
        """Forget the recent events: those during maintenance were meant. The totals are kept."""
        self._events.forget_recent()
        self._store.put(GROUP, "", self._events.block(self._clock.monotonic()), float("inf"))

    def on_batch(self, outcome: Outcome) -> None:
        """Take what one run of a collector told, and look which devices there are."""
        events = outcome.collected.events
        # An event is counted with what is known at its time.
        looked = outcome.collector.name in (_IDENTITY, _DEVICES) and self._know()
        if events:
            self._announce(self._events.take(events))
            self.version = self._events.version
        is_new = events or looked or self._events.is_outdated(outcome.time)
        if is_new or self._store.get(GROUP, "") is None:
            self._store.put(GROUP, "", self._events.block(outcome.time), float("inf"))

    def _know(self) -> bool:
        gpus = {gpu.pci_bus_id: str(gpu.index) for gpu in self._inventory.known_gpus() if not gpu.is_replaced}
        infos = self._labels(_IDENTITY, "commwatch_gpu_info")
        nvlink5 = [labels[1] for labels in infos if _has_nvlink5(labels[5])]
        devices = self._labels(_DEVICES, "commwatch_pcie_device_info")
        switches = [labels[0] for labels in devices if labels[1] == "nvswitch"]
        return self._events.know(gpus, nvlink5, switches)

    def _labels(self, group: str, family: str) -> Iterable[tuple[str, ...]]:
        """Label values of the series of an info family."""
        for block in self._store.group(group).values():
            for position in block.layout.families.get(family, ()):
                yield block.layout.series[position][1]

    def _announce(self, events: list[HardwareEvent]) -> None:
        for event in events[-LOGGED_PER_RUN:]:
            known = meaning_of(event)
            said = details(event.kind, event.text)
            # The meaning has the severity of the usual case; where the driver itself says fatal, that goes before it.
            is_harmless = known is not None and known.severity == "info" and said.get("fatal") != "Fatal"
            say = log.info if is_harmless else log.warning
            say("hardware event", kind=event.kind, code=event.code, device=event.device, origin=event.origin,
                happened=datetime.fromtimestamp(event.time, timezone.utc).isoformat(timespec="milliseconds"),
                text=event.text, **said,
                **({} if known is None else {"name": known.name, "component": known.component,
                   "severity": known.severity, "meaning": known.meaning, "advice": known.advice}))  # fmt: skip
        if len(events) > LOGGED_PER_RUN:
            log.warning("more hardware events came before these", count=len(events) - LOGGED_PER_RUN)


def _has_nvlink5(architecture: str) -> bool:
    """Whether an architecture, by its name in ``commwatch_gpu_info``, is Blackwell or later."""
    if architecture.isdigit():
        return int(architecture) >= _NVLINK5_FROM
    return architecture in ("Blackwell", "Rubin")

"""Follows which GPUs fail every call: the driver lists them and answers, and nothing is read of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from commwatch.node.inventory import IDENTITY, Inventory
from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.readings import Reason

PULSE: Final = "nvml_gpu"
"""The collector that reads each GPU, whatever it supports."""
_OF_IDENTITY: Final = frozenset({"nvml_identity", "nvml_p2p"})
"""Their answers may be what the driver keeps of a GPU, so they do not show that it works."""
LASTS_SECONDS: Final = 9.0
"""Between two runs of ``PULSE`` at its usual interval, without the jitter. Probes ask twice within a second."""
_FAILURES: Final[frozenset[Reason]] = frozenset({"unreadable", "not_ready"})
"""Other reasons have a state of their own (``gpu_state``), or are no fault of the GPU: a missing right, starvation."""


@dataclass(slots=True)
class _Failing:
    read: float
    """Monotonic seconds at which something was read last; of a GPU that never was, those of the first failure."""
    first: float
    """The same of the first run that read nothing."""
    last: float
    """The same of the last one."""


class SilentGpus(Tracker):
    """The GPUs of which two runs in a row read nothing although the driver answered, and no other collector did."""

    def __init__(self, store: Store, inventory: Inventory) -> None:
        super().__init__(store)
        self._inventory = inventory
        self._read_at: dict[str, float] = {}
        self._failing: dict[str, _Failing] = {}

    @property
    def since(self) -> dict[str, float]:
        """These GPUs with the monotonic seconds of their last reading, by PCI address, or ``index:N`` without one."""
        if not self._failing:
            return {}
        return {device: one.read for device, one in self._failing.items() if one.last - one.first >= LASTS_SECONDS}

    def follows(self, collector: Collector) -> bool:
        """All that read through the driver."""
        return collector.source == "nvml"

    def on_batch(self, outcome: Outcome) -> None:
        """Take how one run of a collector of the driver went."""
        collected, collector, now = outcome.collected, outcome.collector.name, outcome.time
        if collected.unavailable is not None or any(one.reason == "starved" for one in collected.absences):
            return self.pause()  # a fault of the driver, or not judged
        if collector in _OF_IDENTITY or not (self._failing or collector == PULSE):
            return None
        read = {
            device
            for device, block in collected.blocks.items()
            if any(value is not None for value in block.values)
        }  # fmt: skip
        self._failing = {device: one for device, one in self._failing.items() if device not in read}
        if collector == PULSE:
            self._read_at.update(dict.fromkeys(read, now))
            address_of, listed = self._inventory.address_of, self._store.devices(IDENTITY)
            failed = {address_of(one.device, listed) for one in collected.absences if one.reason in _FAILURES}
            self._follow(failed - read - {""}, now, is_whole=not collected.is_cut_short)
        return None

    def pause(self) -> None:
        """Nothing is read, or nothing is judged now."""
        self._failing.clear()
        self._read_at.clear()

    def _follow(self, failed: set[str], now: float, *, is_whole: bool) -> None:
        if is_whole:  # what did not fail has answered, has another state, or is gone
            self._failing = {device: one for device, one in self._failing.items() if device in failed}
        for device in failed:
            self._failing.setdefault(device, _Failing(self._read_at.get(device, now), now, now)).last = now

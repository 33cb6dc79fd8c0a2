"""Tracks whether the NVIDIA driver can be used at all, from run to run of its collectors, and puts it into the
store."""

from __future__ import annotations

from typing import Final

from commwatch.node.gpus_on_bus import GpusOnBus
from commwatch.node.run import Collector, Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.readings import LOST_REASONS, WORKER_REASONS
from commwatch_exporters.state_words import DRIVER_FAULTS

GROUP: Final = "driver"
_IDENTITY, _PULSE = "nvml_identity", "nvml_gpu"
LASTS_SECONDS: Final = 20.0
"""A driver that is loaded again within this time is no fault: the page after it takes at most 35 s more."""
LOADS_SECONDS: Final = 60.0
"""Longest time that a driver may take to be loaded if it was not read yet, as the daemon starts with the node; and for
which NVML may fail as it is opened, for a reason that it does not name."""
SILENT_SECONDS: Final = 35.0
"""Longest time without a reading through a driver that opens: a GPU that hangs, and the replacement of the process that
asks it, take less."""
_OF_ONE_GPU: Final = LOST_REASONS | WORKER_REASONS
"""Why a GPU alone is not read: it has a state for these."""
_SAID_FOR: Final = 180.0
"""Seconds for which a word holds: three times the interval of the slowest collector of the driver."""


class DriverWatch(Tracker):
    """Whether GPUs can be read through the driver, and why not."""

    def __init__(self, store: Store, bus: GpusOnBus) -> None:
        super().__init__(store)
        store.declare(GROUP, [_IDENTITY])
        self._bus = bus
        self._was_read = False
        self._reason = ""
        self._since = 0.0
        """Monotonic seconds from which on the driver could not be used."""
        self._is_silent = False
        """Whether it opens, and its last run that should have read something of a GPU did not."""

    @property
    def lists_none(self) -> bool:
        """Whether the driver lists no GPU at all although it should."""
        return self._reason == "no_gpu"

    @property
    def hides_gpus(self) -> bool:
        """Whether the driver shows no GPU although it opens: then it is to blame, and not each GPU."""
        return self.lists_none or self._is_silent

    def follows(self, collector: Collector) -> bool:
        """All that read through the driver."""
        return collector.source == "nvml"

    def on_batch(self, outcome: Outcome) -> None:
        """Take how one run of a collector of the driver went."""
        if outcome.collected.unavailable is not None:
            self._is_silent = False
            reason = outcome.collected.unavailable.reason
            self._take(reason if reason in DRIVER_FAULTS else "unreadable", outcome.time)
        elif outcome.collector.name == _PULSE and (silence := _silence(outcome)):
            self._is_silent = True
            self._take(silence, outcome.time)
        elif self._is_silent and outcome.collector.name != _PULSE:
            return  # what others have kept of the GPUs is no reading
        elif any(absence.reason in WORKER_REASONS and not absence.device for absence in outcome.collected.absences):
            # The worker failed, and says nothing of the driver; what was starved begins the wait again.
            self._since = outcome.time if self._is_silent else self._since
        elif outcome.collector.name == _IDENTITY:
            has_gpus = bool(outcome.collected.blocks.keys() - {""} or outcome.collected.absences)
            self._take("" if has_gpus else "no_gpu", outcome.time)
        elif outcome.collected.blocks or outcome.collected.absences:
            self._take("", outcome.time)
        elif self.lists_none:
            self._take(self._reason, outcome.time)

    def pause(self) -> None:
        """The driver is let go."""
        self._reason, self._is_silent = "", False
        self._store.drop_group(GROUP)

    def _take(self, reason: str, now: float) -> None:
        if reason and not self._bus.is_driver_wanted(reason):
            return self.pause()
        if not reason:
            self._was_read, self._is_silent = True, False
        if reason and not self._reason:
            self._since = now
        self._reason = reason
        loads = reason == "unreadable" or (reason == "no_driver" and not self._was_read)
        lasts = SILENT_SECONDS if self._is_silent else LOADS_SECONDS if loads else LASTS_SECONDS
        if not reason:
            self._say("none", 0, now)
        elif now - self._since >= lasts:
            self._say(reason, 1, now)
        return None

    def _say(self, reason: str, flag: int, now: float) -> None:
        self._store.show(GROUP, "", {("commwatch_driver_unusable", (reason,)): flag}, now, _SAID_FOR)


def _silence(outcome: Outcome) -> str:
    """Why nothing was read of any GPU through a driver that opens; empty where something was, or it is not known.

    A GPU that is lost or hangs has a finding of its own, and what was starved is not judged.
    """
    collected = outcome.collected
    reasons = {one.reason for one in collected.absences if one.device}
    if collected.has_reading or any(one.reason == "starved" for one in collected.absences):
        return ""
    if not reasons.isdisjoint(_OF_ONE_GPU):
        return ""
    if reasons == {"no_permission"}:
        return "no_permission"
    return "calls_fail" if reasons or any(collected.blocks) else "no_answer"

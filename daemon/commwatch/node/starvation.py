"""Whether the node gives our processes too little CPU or memory for a missed deadline to say anything of a device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

LATE_SECONDS = 1.0
"""A timer of the daemon that comes this late: the daemon itself was not run. Measured on idle machines and beside a
full build: below 0.1 s."""
WAITED_SHARE = 0.2
"""A process that waited for a CPU for this share of its deadline: deadlines are 50 times what a reading takes, so less
delays no answer beyond one. One that hangs in a driver sleeps there, and waits for no CPU."""
STALL_RATIO = 0.2
"""Pressure of memory (PSI, average of 10 s) from which on a node thrashes; one that does not swap stays below 0.01."""
FAULTS_PER_SECOND = 1.0
"""A process that fetches so many of its pages from disk is itself among those that thrash. One that hangs in a driver
fetches none."""
HOLDS_SECONDS = 15.0
"""For so long after the last sign a node counts as starved: the average of 10 s is over then."""

Resource: TypeAlias = Literal["cpu", "memory", "time"]
"""What was short; time: the daemon was not run, for whatever reason, such as a virtual machine that was paused."""


class Use(NamedTuple):
    """What a process has had of the machine since its start."""

    time: float
    """Monotonic seconds."""
    ran: float
    """Seconds on a CPU."""
    waited: float
    """Seconds in which it could have run and had no CPU, up to the last time that it ran."""
    faults: int
    """Pages that were fetched from disk for it."""
    is_waiting: bool
    """It could run now: what it waits for now is not in ``waited`` yet."""


class Stall(NamedTuple):
    """Pressure of memory over the last 10 s, as shares of that time."""

    some: float
    """At least one task waited for memory."""
    full: float
    """All tasks that had something to do waited for memory."""


@dataclass(frozen=True, slots=True)
class Delays:
    """What the daemon measured at its last beat; None for what could not be read."""

    late_seconds: float = 0.0
    """How much later than planned the beat came."""
    waited_ratio: float | None = None
    """Share of the time since the beat before in which the daemon waited for a CPU."""
    stall: Stall | None = None


def read_use(procfs: Path, pid: int, now: float) -> Use | None:
    """What a process has had until now, from ``/proc/PID/schedstat`` and ``stat``; None where that cannot be read."""
    try:
        ran, waited = (procfs / str(pid) / "schedstat").read_text().split()[:2]
        fields = (procfs / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        # Who reads is running, and waits for nothing.
        return Use(now, int(ran) / 1e9, int(waited) / 1e9, int(fields[9]), fields[0] == "R" and pid != os.getpid())
    except (OSError, ValueError, IndexError):
        return None


def read_stall(procfs: Path) -> Stall | None:
    """The pressure of memory; None on a kernel that does not measure it."""
    try:
        words = (procfs / "pressure" / "memory").read_text().split()
        some, full = (float(word.removeprefix("avg10=")) / 100 for word in words if word.startswith("avg10="))
    except (OSError, ValueError):
        return None
    return Stall(some, full)


def waited_share(earlier: Use, later: Use) -> float:
    """Share of the time between two moments in which a process waited for a CPU."""
    seconds = later.time - earlier.time
    if seconds <= 0:
        return 0.0
    waited = later.waited - earlier.waited
    if later.is_waiting:  # since when is not known: at most all the time that it did not run
        waited = max(waited, seconds - (later.ran - earlier.ran))
    return waited / seconds


def short_of(late: float, earlier: Use | None, later: Use | None, stall: Stall | None) -> Resource | None:
    """What a process was short of between two moments; None where nothing excuses that it did not answer.

    The pressure of CPU (PSI) is not asked: it is above 0.9 on each healthy node whose cores are all busy.

    Args:
        late: seconds by which the daemon's own timer came too late.
        earlier: the process at the first moment; None where it was not read.
        later: the process at the second one.
        stall: pressure of memory at the second one.
    """
    if late >= LATE_SECONDS:
        return "time"
    if stall is not None and stall.full >= STALL_RATIO:
        return "memory"
    if earlier is None or later is None or later.time <= earlier.time:
        return None
    if waited_share(earlier, later) >= WAITED_SHARE:
        return "cpu"
    faults = (later.faults - earlier.faults) / (later.time - earlier.time)
    return "memory" if stall is not None and stall.some >= STALL_RATIO and faults >= FAULTS_PER_SECOND else None


class Starvation:
    """Knows whether the node is starved, from the daemon's beats and from deadlines that were missed."""

    def __init__(self, procfs: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            procfs: where processes show their state.
            monotonic: seconds.
        """
        self._procfs = procfs
        self._monotonic = monotonic
        self._own: Use | None = None
        self._seen_at = float("-inf")
        self.resource: Resource | None = None
        """What was short when it was seen last."""
        self.delays = Delays()

    @property
    def is_starved(self) -> bool:
        """Whether something was short within ``HOLDS_SECONDS``."""
        return self._monotonic() - self._seen_at < HOLDS_SECONDS

    @property
    def words(self) -> str:
        """``the node is starved of CPU``; empty while it is not."""
        return self.words_since(self._monotonic() - HOLDS_SECONDS)

    def words_since(self, moment: float) -> str:
        """The same, where something was short since a moment in monotonic seconds."""
        if self._seen_at <= moment:
            return ""
        return {
            "cpu": "the node is starved of CPU",
            "memory": "the node is starved of memory",
            "time": "the node is starved: the daemon itself was not run in time",
        }[self.resource or "time"]

    def beat(self, late: float) -> None:
        """Measure the daemon itself; call it at each beat.

        Args:
            late: seconds by which the beat came too late.
        """
        earlier, self._own = self._own, self.use_of(os.getpid())
        stall, late = read_stall(self._procfs), max(0.0, late)
        ratio = None if earlier is None or self._own is None else waited_share(earlier, self._own)
        self.delays = Delays(late, ratio, stall)
        self._note(short_of(late, earlier, self._own, stall))

    def use_of(self, pid: int) -> Use | None:
        """What a process has had until now, to be handed to ``excuses`` later."""
        return read_use(self._procfs, pid, self._monotonic())

    def excuses(self, pid: int, since: Use | None, seconds: float) -> bool:
        """Whether a process that did not answer within its deadline was starved meanwhile.

        Args:
            pid: of the process.
            since: what ``use_of`` gave when the deadline began.
            seconds: the deadline.
        """
        now = self._monotonic()
        late = 0.0 if since is None else now - since.time - seconds
        found = short_of(late, since, read_use(self._procfs, pid, now), read_stall(self._procfs))
        self._note(found)
        return found is not None

    def _note(self, resource: Resource | None) -> None:
        if resource is not None:
            self.resource, self._seen_at = resource, self._monotonic()

"""Whether the node gives our processes too little CPU or memory for a missed deadline to be evidence on a device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

LATE_SECONDS = 1.0
"""A timer of the daemon that comes this late: the daemon itself was not run. Measured on idle machines and beside a
full build: below 0.1 s."""
WAITED_SHARE = 0.2
"""A process that waited for a CPU for this share of its deadline: deadlines are 50 times what a reading takes, so less
delays no answer beyond one. One that hangs in a driver sleeps there, and waits for no CPU."""
STALL_RATIO = 0.2
"""Share of the time in which tasks wait for memory (PSI) from which on a node thrashes; without swapping it is 0.00."""
FAULTS_PER_SECOND = 1.0
"""A process that fetches this many of its pages from disk is itself among those that thrash. One that hangs in a driver
fetches none."""
HOLDS_SECONDS = 15.0
"""A node counts as starved for this long after the last sign: three beats."""

Resource: TypeAlias = Literal["cpu", "memory", "time"]
"""The missing resource; time: the daemon was not run, for whatever reason, such as a virtual machine that was
paused."""


class Use(NamedTuple):
    """A process's use of the machine since its start."""

    ran: float
    """Seconds on a CPU."""
    waited: float
    """Seconds in which it could have run and had no CPU, up to the last time that it ran."""
    faults: int
    """Pages that were fetched from disk for it."""
    is_waiting: bool
    """It could run now: what it waits for now is not in ``waited`` yet."""


class Stall(NamedTuple):
    """Pressure of memory (PSI) since the boot, in seconds."""

    some: float
    """In which at least one task waited for memory."""
    full: float
    """In which all tasks that had something to do waited for memory."""


class Sample(NamedTuple):
    """A process and the node at a moment; None for what could not be read."""

    time: float
    """Monotonic seconds."""
    use: Use | None
    stall: Stall | None


class Shares(NamedTuple):
    """Shares of the time between two samples; None for what could not be read."""

    cpu: float | None
    """In which the process waited for a CPU."""
    memory_some: float | None
    """In which at least one task of the node waited for memory."""
    memory_full: float | None
    """In which all of them did."""


def read_use(procfs: Path, pid: int) -> Use | None:
    """A process's use until now, from ``/proc/PID/schedstat`` and ``stat``; None if that cannot be read."""
    try:
        ran, waited = (procfs / str(pid) / "schedstat").read_text().split()[:2]
        fields = (procfs / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        # Who reads is running, and waits for nothing.
        return Use(int(ran) / 1e9, int(waited) / 1e9, int(fields[9]), fields[0] == "R" and pid != os.getpid())
    except (OSError, ValueError, IndexError):
        return None


def read_stall(procfs: Path) -> Stall | None:
    """The pressure of memory; None on a kernel that does not measure it.

    The totals and not the averages: a process that does nothing but wait for 2 s moves the average of 10 s to 0.18.
    """
    try:
        words = (procfs / "pressure" / "memory").read_text().split()
        some, full = (int(word.removeprefix("total=")) / 1e6 for word in words if word.startswith("total="))
    except (OSError, ValueError):
        return None
    return Stall(some, full)


def shares_of(earlier: Sample, later: Sample) -> Shares:
    """The shares of time spent waiting between two samples."""
    seconds = later.time - earlier.time
    cpu = some = full = None
    if seconds > 0 and earlier.use is not None and later.use is not None:
        waited = later.use.waited - earlier.use.waited
        if later.use.is_waiting:  # since when is not known: at most all the time that it did not run
            waited = max(waited, seconds - (later.use.ran - earlier.use.ran))
        cpu = waited / seconds
    if seconds > 0 and earlier.stall is not None and later.stall is not None:
        some = (later.stall.some - earlier.stall.some) / seconds
        full = (later.stall.full - earlier.stall.full) / seconds
    return Shares(cpu, some, full)


def short_of(late: float, earlier: Sample, later: Sample) -> Resource | None:
    """The resource that a process lacked between two samples; None if no lack excuses its missing answer.

    The pressure of CPU (PSI) is not used: it is above 0.9 on each healthy node whose cores are all busy.

    Args:
        late: seconds by which the daemon's own timer came too late.
        earlier: the process at the first moment.
        later: the process at the second one.
    """
    if late >= LATE_SECONDS:
        return "time"
    shares = shares_of(earlier, later)
    if shares.cpu is not None and shares.cpu >= WAITED_SHARE:
        return "cpu"
    if shares.memory_full is not None and shares.memory_full >= STALL_RATIO:
        return "memory"
    if shares.memory_some is None or earlier.use is None or later.use is None:
        return None
    faults = (later.use.faults - earlier.use.faults) / (later.time - earlier.time)
    return "memory" if shares.memory_some >= STALL_RATIO and faults >= FAULTS_PER_SECOND else None


class Starvation:
    """Knows whether the node is starved, from the daemon's beats and from deadlines that were missed."""

    def __init__(self, procfs: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            monotonic: seconds.
        """
        self._procfs = procfs
        self._monotonic = monotonic
        self._last: Sample | None = None
        """Of the daemon itself, at its last beat."""
        self._seen_at = float("-inf")
        self.resource: Resource | None = None
        """The resource that was short when last seen."""
        self.late_seconds = 0.0
        """How much later than planned the last beat came; while the node is starved, what the last sign showed."""
        self.shares = Shares(None, None, None)
        """Of the daemon itself, between its last two beats; while the node is starved, what the last sign showed."""

    @property
    def is_starved(self) -> bool:
        """Whether something was short within ``HOLDS_SECONDS``."""
        return self._monotonic() - self._seen_at < HOLDS_SECONDS

    @property
    def words(self) -> str:
        """``the node is starved of CPU``; empty while it is not."""
        return self.words_since(self._monotonic() - HOLDS_SECONDS)

    def now(self) -> float:
        """For ``words_since``, in monotonic seconds."""
        return self._monotonic()

    def words_since(self, moment: float) -> str:
        """The same, where something was short since a moment of ``now``."""
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
        now = self.sample(os.getpid())
        earlier, self._last = self._last or now, now
        self._note(max(0.0, late), earlier, now)

    def sample(self, pid: int) -> Sample:
        """A process now, to be handed to ``excuses`` later."""
        return Sample(self._monotonic(), read_use(self._procfs, pid), read_stall(self._procfs))

    def excuses(self, pid: int, since: Sample, seconds: float) -> bool:
        """Whether a process that did not answer within its deadline was starved meanwhile.

        Args:
            since: what ``sample`` gave when the deadline began.
        """
        now = self.sample(pid)
        return self._note(now.time - since.time - seconds, since, now)

    def _note(self, late: float, earlier: Sample, later: Sample) -> bool:
        """Take what was measured; returns whether something was short."""
        found = short_of(late, earlier, later)
        if found is not None:
            self.resource, self._seen_at = found, self._monotonic()
        if found is not None or not self.is_starved:
            self.late_seconds, self.shares = late, shares_of(earlier, later)
        return found is not None

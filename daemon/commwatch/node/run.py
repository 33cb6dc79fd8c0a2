"""A collector, how its runs went, and what one run gave."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from commwatch.readings import LOST_REASONS, WORKER_REASONS, Absence, HardwareEvent, LogErrors, SourceUnavailable
from commwatch_exporters.snapshot import Block

TEND_SECONDS = 5.0
"""Between two checks of which sources the node has; a reading of a shorter interval lives as long as one of this."""
AGAIN_SECONDS = 25.0
"""A collector that could not read something runs again after this time, where its interval is longer: one failed call
is over, or has failed twice, before a finding names it."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of one run of a collector, as blocks by device."""

    blocks: dict[str, Block]
    absences: list[Absence]
    duration: float
    """Seconds that the run took in the worker process."""
    events: list[HardwareEvent] = field(default_factory=list)
    occupants: dict[str, tuple[int, ...]] | None = None
    """Processes on the GPUs, as ``Batch.occupants``."""
    log_errors: list[LogErrors] = field(default_factory=list)
    resume: bytes | None = None
    """See ``Batch.resume``."""
    audit: bytes | None = None
    """See ``Batch.audit``."""
    collector: str = ""
    """Its name."""
    unavailable: SourceUnavailable | None = None
    """Set where the source as a whole could not be read; it is among the absences too."""
    began: float = math.inf
    """Monotonic seconds at which its run began; infinite where it read nothing, which answers whoever asked before."""
    is_part: bool = False
    """A device has a process of its own, which is late: the run has no result for that device."""

    @property
    def is_cut_short(self) -> bool:
        """Whether it lacks what a worker was to give: a device that is missing may be here all the same."""
        return self.is_part or any(absence.reason in WORKER_REASONS for absence in self.absences)

    @property
    def devices_read(self) -> frozenset[str]:
        """The devices, without those of which all that was asked failed."""
        failed = {one.device for one in self.absences}
        return frozenset(
            [name for name, one in self.blocks.items() if name not in failed or any(v is not None for v in one.values)]
        )

    @property
    def has_reading(self) -> bool:
        """Whether anything was read: a value of a device, or nothing failed where there is no device."""
        of_devices = [block for name, block in self.blocks.items() if name]
        if not of_devices:
            return not self.absences
        return any(value is not None for block in of_devices for value in block.values)


def failed(collector: str, absence: Absence, unavailable: SourceUnavailable | None = None) -> Collected:
    """The result of a run that read nothing."""
    return Collected({}, [absence], 0.0, collector=collector, unavailable=unavailable)


class Keeper:
    """Takes what a reader gives, and knows what it needs. This one keeps and knows nothing, as a command waits for each
    run itself."""

    def keep(self, collected: Collected) -> None:
        """Take what one run of a collector gave, or why it gave nothing."""

    def lose(self, collector: str, absence: Absence) -> None:
        """Drop everything about a device that does not answer; the next run reports it."""

    def worker_restarted(self, worker: str, reason: str) -> None:
        """Count a worker process that is replaced."""

    def worker_stuck(self, worker: str, count: int) -> None:
        """Show the number of processes that missed their deadline and have not come back."""

    def resume_point(self, sources: tuple[str, ...]) -> dict[str, bytes]:
        """The state from which a new process with these sources resumes, by source."""
        return {}

    def stuck_elsewhere(self, sources: tuple[str, ...]) -> int:
        """Number of processes that are not of the reader of these sources and hang in the same driver."""
        return 0


RunState: TypeAlias = Literal["new", "runs", "absent", "paused"]
"""``new``: not ordered yet; ``absent``: its source is not on this node; ``paused``: for maintenance, until it is known
what it is to read, or for good."""


@dataclass
class Collector:
    """One group of counters with its cadence, and how its last runs went."""

    name: str
    """As on the metrics: ``nvml_nvlink``."""
    source: str
    deadline: float
    """Seconds that a run may take."""
    interval: float
    """Seconds, as configured."""
    needs_release: bool
    """Whether it holds a driver or device file, or needs one that does, and so is paused during maintenance."""
    is_ready: Callable[[], bool] = lambda: True
    """Whether its inputs are known; it is paused until they are."""
    nothing: Callable[[], Collected | None] | None = None
    """Of audits, which are jobs of the scheduler with a process for each, whose memory is large for rare work: gives
    the result of a run for which no process is needed; None where one is."""
    devices_per_interval: int = 0
    """Devices that one interval is meant for; 0: any number."""
    state: RunState = "new"
    spread: int = 1
    """Intervals between two runs, for the number of its devices."""
    stretch: int = 1
    """The same, for the time that a run takes."""
    slow_runs: int = 0
    quick_runs: int = 0
    failing: frozenset[Absence] = frozenset()
    """The failures of the last run; a change of them is logged."""
    is_asked_again: bool = False
    """Whether the last run failed so that it is to run again soon."""
    duration: float = 0.0
    """Seconds that the last run took."""
    last_success: float | None = None
    """Wall clock seconds since 1970."""
    last_reading: float | None = None
    """Monotonic seconds of the last run that read anything; None: none did since it was started or resumed."""
    attempted: bool = False
    """Whether it has run since it was started or resumed."""
    seen: tuple[frozenset[str], frozenset[str]] | None = None
    """Devices of which the last run read anything, and those that it found gone or silent; an empty name is the source
    itself."""

    @property
    def current_interval(self) -> float:
        """Seconds between two runs that fail in nothing."""
        return self.interval * self.spread * self.stretch

    @property
    def due_after(self) -> float:
        """Seconds from the last run to the next."""
        interval = min(self.interval, AGAIN_SECONDS) if self.is_asked_again else self.interval
        return interval * self.spread * self.stretch

    @property
    def lifetime(self) -> float:
        """Seconds for which a reading counts as current."""
        return 3 * max(self.current_interval, TEND_SECONDS) + self.deadline


@dataclass
class Outcome:
    """The result of a run, for the analysis that follows."""

    collector: Collector
    collected: Collected
    time: float = 0.0
    """Monotonic seconds at the end of the run."""


def is_everywhere(absence: Absence) -> bool:
    """Whether a device that failed so in one collector fails in all."""
    return absence.reason == "deadline" or absence.reason in LOST_REASONS

"""A collector, how its runs went, and what one run gave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from commwatch.readings import LOST_REASONS, Absence, HardwareEvent, LogErrors, SourceUnavailable
from commwatch_exporters.snapshot import Block


@dataclass(frozen=True, slots=True)
class Collected:
    """What one run of a collector gave, as blocks by device."""

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


class AskedReader(Protocol):
    """What a collector asks: the worker processes behind some sources."""

    @property
    def deadline(self) -> float:
        """Seconds that a run may take."""

    @property
    def stuck_count(self) -> int:
        """Processes of it that hang in a driver."""

    def pids(self) -> list[int]:
        """Processes of it that are there, stuck ones included."""

    async def collect(self, collector: str) -> Collected:
        """Run one collector once.

        Raises:
            SourceUnavailable: its source cannot be read.
        """


@dataclass
class Collector:
    """One group of counters with its cadence, and how its last runs went."""

    name: str
    """As on the metrics: ``nvml_nvlink``."""
    key: str
    """As the source calls it: ``nvlink``."""
    source: str
    reader: AskedReader
    interval: float
    """Seconds, as configured."""
    needs_release: bool
    """Whether it holds a driver or device file, or needs one that does, and so rests during maintenance."""
    is_ready: Callable[[], bool] = lambda: True
    """Whether what it is to read is known; while not, it rests too."""
    stretch: int = 1
    slow_runs: int = 0
    quick_runs: int = 0
    failing: frozenset[Absence] = frozenset()
    """What could not be read at the last run; a change of it is an event of the log."""
    last_success: float | None = None
    """Wall clock seconds since 1970."""
    attempted: bool = False
    seen: tuple[frozenset[str], frozenset[str]] | None = None
    """Devices that the last run read, and those that it found gone or silent; an empty name is the source itself."""

    @property
    def current_interval(self) -> float:
        """Seconds between two runs now."""
        return self.interval * self.stretch

    @property
    def lifetime(self) -> float:
        """Seconds for which a reading counts as current."""
        return 3 * self.current_interval + self.reader.deadline


@dataclass
class Outcome:
    """What a run gave, for the analysis that follows."""

    collector: Collector
    collected: Collected
    unavailable: SourceUnavailable | None = None
    time: float = field(default=0.0)
    """Monotonic seconds at the end of the run."""


def is_everywhere(absence: Absence) -> bool:
    """Whether a device that failed so in one collector fails in all."""
    return absence.reason == "deadline" or absence.reason in LOST_REASONS

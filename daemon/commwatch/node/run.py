"""A collector, how its runs went, and what one run gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commwatch.readings import LOST_REASONS, Absence, HardwareEvent, LogErrors, SourceUnavailable
from commwatch_exporters.snapshot import Block

TAKE_SECONDS = 5.0
"""What a worker reads by itself is taken so often at least."""


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
    earlier: list[Collected] = field(default_factory=list)
    """What the worker had read by itself before and nobody had taken, the oldest first."""

    @property
    def devices_read(self) -> frozenset[str]:
        """The devices, without those of which all that was asked failed."""
        failed = {one.device for one in self.absences}
        return frozenset(
            name
            for name, block in self.blocks.items()
            if name not in failed or any(value is not None for value in block.values)
        )

    @property
    def has_reading(self) -> bool:
        """Whether anything was read: a value of a device, or nothing failed where there is no device."""
        of_devices = [block for name, block in self.blocks.items() if name]
        if not of_devices:
            return not self.absences
        return any(value is not None for block in of_devices for value in block.values)


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

    def take(self) -> dict[str, list[Collected]]:
        """What was read unasked since the last time, by collector, the oldest first."""

    def runs(self, collector: str, every: float) -> bool:
        """Whether a collector is run unasked each so many seconds, and nothing that was due is missing."""

    def listen(self, on_samples: Callable[[], None] | None) -> None:
        """Call this whenever something was read unasked; None: nobody is woken by it."""

    async def collect(self, collector: str, every: float = 0.0) -> Collected:
        """Run one collector once, and unasked each so many seconds from then on, where that is not 0.

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
    is_standing: bool = False
    """Whether the worker is to run it by itself after the first time, until something is wrong."""
    is_flowing: bool = False
    """Whether it does so now."""
    is_absent: bool = False
    """Whether its source was not on this node when it was to be run last."""
    stretch: int = 1
    slow_runs: int = 0
    quick_runs: int = 0
    failing: frozenset[Absence] = frozenset()
    """What could not be read at the last run; a change of it is an event of the log."""
    last_success: float | None = None
    """Wall clock seconds since 1970."""
    last_reading: float | None = None
    """Monotonic seconds of the last run that read anything; None: none did since it was started or resumed."""
    attempted: bool = False
    seen: tuple[frozenset[str], frozenset[str]] | None = None
    """Devices of which the last run read anything, and those that it found gone or silent; an empty name is the source
    itself."""

    @property
    def current_interval(self) -> float:
        """Seconds between two runs now."""
        return self.interval * self.stretch

    @property
    def lifetime(self) -> float:
        """Seconds for which a reading counts as current."""
        seen = max(self.current_interval, TAKE_SECONDS) if self.is_flowing else self.current_interval
        return 3 * seen + self.reader.deadline


@dataclass
class Outcome:
    """What a run gave, for the analysis that follows."""

    collector: Collector
    collected: Collected
    unavailable: SourceUnavailable | None = None
    time: float = field(default=0.0)
    """Monotonic seconds at the end of the run."""
    earlier: Sequence[Mapping[str, Block]] = ()
    """Blocks of runs that came together with this one, the oldest first."""

    @property
    def readings(self) -> Sequence[Mapping[str, Block]]:
        """The blocks of all runs that came together, the oldest first: for what moves from reading to reading."""
        return (*self.earlier, self.collected.blocks)


def is_everywhere(absence: Absence) -> bool:
    """Whether a device that failed so in one collector fails in all."""
    return absence.reason == "deadline" or absence.reason in LOST_REASONS

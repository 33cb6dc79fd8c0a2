"""The interface of a source: its construction and its results, which are readings, and absences with reasons."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from commwatch.config.settings import Sources
from commwatch.readings import Batch

Report: TypeAlias = Callable[[str], None]
"""Called with the device's key before each device is touched, and with "" after the last.

When a deadline is missed, the device last reported is the suspect.
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """The arguments of a source: the roots of the node's file systems, and the configuration."""

    sysfs: Path
    procfs: Path
    settings: Sources
    opt_in: frozenset[str] = frozenset()
    """Metrics that are read only if the configuration asks for them."""
    resume: bytes = b""
    """The state from which the source resumes: ``Batch.resume`` of an earlier process, or an ``AuditOrder``."""
    stand_in: Callable[[], Any] | None = None
    """Makes what answers in place of the kernel; None: the kernel itself is asked."""
    is_simulated: bool = False
    """Whether a simulated node answers, which has no device files."""
    kernel_log: int | None = None
    """Descriptor of the kernel log that this process was given; None: the source opens it."""
    monotonic: Callable[[], float] = time.monotonic
    """The clock by which the source waits, and leaves alone what was slow; seconds."""


class Source(ABC):
    """One origin of readings; lives in a worker process and may block there."""

    collectors: tuple[str, ...]
    """Names of what it can collect; each has its own cadence."""

    def __init__(self) -> None:
        self._report: Report = lambda device: None
        self._leave_out: frozenset[str] = frozenset()
        self._only: frozenset[str] | None = None

    @property
    def aliases(self) -> Mapping[str, str]:
        """Keys of devices by what they are called before their key is known, such as ``index:3``.

        Whoever names a device in ``leave_out`` or ``only`` names it by both.
        """
        return {}

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Connect to the origin and prepare.

        Args:
            report: see ``Report``; used in ``open`` and in every ``collect``.
            leave_out: devices that must not be touched in any way.
            only: where given, no other device may be touched.

        Raises:
            SourceUnavailable: the origin cannot be read at all; the worker tries again later.
        """
        self._report, self._leave_out, self._only = report, leave_out, only

    def _may_touch(self, device: str) -> bool:
        return device not in self._leave_out and (self._only is None or device in self._only)

    def _touched(self, devices: Iterable[str]) -> Iterator[str]:
        """Those that may be touched, each reported before."""
        for device in devices:
            if self._may_touch(device):
                self._report(device)
                yield device

    @abstractmethod
    def collect(self, collector: str) -> Batch:
        """Read one of ``collectors`` on all devices once.

        Raises:
            SourceUnavailable: as for ``open``.
        """

    def close(self) -> None:  # noqa: B027 - many keep nothing open between two runs
        """Let go of the origin; no device file stays open."""

"""What a source is and what it gives: readings, what it could not read, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from commwatch.readings import (
    Batch,
)

Report: TypeAlias = Callable[[str], None]
"""Called with the device's key before each device is touched, and with "" after the last.

When a deadline is missed, the device last reported is the suspect.
"""


class Source(Protocol):
    """One origin of readings; lives in a worker process and may block there."""

    @property
    def collectors(self) -> tuple[str, ...]:
        """Names of what it can collect; each has its own cadence."""

    @property
    def aliases(self) -> Mapping[str, str]:
        """Keys of devices by what they are called before their key is known, such as ``index:3``.

        Whoever names a device in ``leave_out`` or ``only`` names it by both.
        """

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Connect to the origin and prepare.

        Args:
            report: see ``Report``; used in ``open`` and in every ``collect``.
            leave_out: devices that must not be touched in any way.
            only: where given, no other device may be touched.

        Raises:
            SourceUnavailable: the origin cannot be read at all; the worker tries again later.
        """

    def collect(self, collector: str) -> Batch:
        """Read one group of counters on all devices once.

        Raises:
            SourceUnavailable: as for ``open``.
        """

    def close(self) -> None:
        """Let go of the origin; no device file stays open."""

"""Counts what the logs of jobs say, and finds the likeliest cause of what is seen within a minute."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from typing import Annotated

import msgspec

from commwatch.jobs.logs.categories import SIDES, Category
from commwatch.jobs.logs.lines import Finding, first_culprit
from commwatch.readings import LogErrors
from commwatch.state.records import Count, Timestamp, check_labels, check_unique
from commwatch_exporters.snapshot import Block, Layout

SPELL_SECONDS = 60.0
"""What is seen within so long after the first line belongs together."""
_FEWEST_WAITING = 2
"""Ranks that wait for one and the same: of two that name each other neither is the silent one."""
_LAYOUT = Layout(
    (metric, (category,))
    for metric in ("commwatch_nccl_log_errors_total", "commwatch_nccl_log_incidents_total")
    for category in SIDES
)


class Incident(msgspec.Struct):
    """Trouble of jobs that belongs together."""

    began: Timestamp
    """When its first line was read, seconds since 1970."""
    errors: list[LogErrors] = []
    """By kind, in the order in which the first line of each was read."""
    waiting: set[int] = set()
    """Ranks of which a call timed out."""

    def __post_init__(self) -> None:
        check_unique(((one.category, one.certain) for one in self.errors), "a kind of lines of an incident,")

    @property
    def culprit(self) -> Category:
        """The likeliest cause."""
        category = first_culprit(Finding(_category(one), one.certain) for one in self.errors)
        return "other" if category is None else category

    @property
    def first(self) -> LogErrors:
        """The first line with the likeliest cause."""
        category = self.culprit
        return next(one for one in self.errors if _category(one) == category)

    def take(self, errors: LogErrors) -> None:
        """Take in what one run found of a kind."""
        if errors.rank is not None:
            self.waiting.add(errors.rank)
        for at, known in enumerate(self.errors):
            if (known.category, known.certain) == (errors.category, errors.certain):
                self.errors[at] = LogErrors(
                    known.category, known.certain, known.count + errors.count, known.file, known.text
                )
                return
        self.errors.append(errors)


class NcclLogCountsState(msgspec.Struct):
    """What survives a restart of the daemon."""

    errors: dict[str, Count] = {}
    """Lines by category."""
    incidents: dict[str, Count] = {}
    """By the category of their likeliest cause."""
    devices: dict[str, Count] = {}
    """Lines by the RDMA device that they name, of those that this node has."""
    silent: Annotated[list[Count], msgspec.Meta(max_length=1024)] = []
    """Time-outs by the number of the GPU whose rank alone did not complain."""
    open: Incident | None = None

    def __post_init__(self) -> None:
        check_labels(self.devices)


class NcclLogCounts:
    """Totals of errors and of incidents.

    Args:
        state: what was kept from earlier runs; it is changed in place.
    """

    def __init__(self, state: NcclLogCountsState) -> None:
        self.state = state
        self._devices: tuple[tuple[str, ...], Layout] | None = None

    def take(
        self, errors: Iterable[LogErrors], now: float, devices: Collection[str] = (), gpus: int = 0
    ) -> list[Incident]:
        """Count what one run found; returns the incident that is over, if one is.

        Args:
            errors: in the order in which they were found.
            now: seconds since 1970.
            devices: RDMA devices that this node has; a log can name any.
            gpus: that this node has; one that is gone counts on.
        """
        kept = self.state.devices
        self.state.devices = {device: kept.get(device, 0) for device in sorted(devices)} or kept
        self.state.silent += [0] * (gpus - len(self.state.silent))
        over: list[Incident] = []
        current = self.state.open
        # A clock that was set back keeps no incident open.
        if current is not None and not 0 <= now - current.began < SPELL_SECONDS:
            over.append(current)
            category = current.culprit
            self.state.incidents[category] = self.state.incidents.get(category, 0) + 1
            if (gpu := silent_gpu(current.waiting, len(self.state.silent))) is not None:
                self.state.silent[gpu] += 1
            current = self.state.open = None
        for one in errors:
            category = _category(one)
            self.state.errors[category] = self.state.errors.get(category, 0) + one.count
            if one.hca in self.state.devices:
                self.state.devices[one.hca] += one.count
            if current is None:
                current = self.state.open = Incident(now)
            current.take(one)
        return over

    def block(self, time: float) -> Block:
        """All totals; a category that was not seen yet has 0, so that its first error is an increase.

        Args:
            time: monotonic seconds.
        """
        tables = (self.state.errors, self.state.incidents)
        return Block(_LAYOUT, [table.get(category, 0) for table in tables for category in SIDES], time)

    def device_block(self, time: float) -> Block:
        """The lines that name an RDMA device of this node, each from 0 on.

        Args:
            time: monotonic seconds.
        """
        names = tuple(self.state.devices)
        if self._devices is None or self._devices[0] != names:
            self._devices = names, Layout(("commwatch_nccl_log_device_errors_total", (name,)) for name in names)
        return Block(self._devices[1], list(self.state.devices.values()), time)

    def silent_block(self, time: float) -> Block:
        """Time-outs by the GPU whose rank alone was silent, each from 0 on.

        Args:
            time: monotonic seconds.
        """
        names = range(len(self.state.silent))
        return Block(
            Layout(("commwatch_nccl_log_silent_rank_incidents_total", (str(name),)) for name in names),
            list(self.state.silent),
            time,
        )


def silent_gpu(waiting: Set[int], gpus: int) -> int | None:
    """The GPU of the one rank of this node that did not complain, by its number; None where it is not one.

    Launchers number the ranks of a node one after the other, one for each GPU.
    """
    if len(waiting) != gpus - 1 or len(waiting) < _FEWEST_WAITING:
        return None
    first = min(waiting) // gpus * gpus
    missing = set(range(first, first + gpus)) - waiting
    return missing.pop() - first if len(missing) == 1 else None


def _category(errors: LogErrors) -> Category:
    """The category as one of the list, whatever came over the wire or out of a file."""
    return next((known for known in SIDES if known == errors.category), "other")

"""Keeps totals of the events in the logs of jobs, and logs the likeliest cause of the events within a minute."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Set
from typing import Annotated, NamedTuple

import msgspec
import structlog

from commwatch.jobs.logs.categories import SIDES, Category
from commwatch.jobs.logs.culprit import INCIDENT_SECONDS, Finding, first_culprit
from commwatch.jobs.logs.fallbacks import FALLBACKS, Needs
from commwatch.jobs.logs.position import LogsPosition
from commwatch.node.run import Outcome
from commwatch.node.store import Store, number_of
from commwatch.node.tracker import Tracker
from commwatch.readings import LogErrors
from commwatch.state.records import Count, Timestamp, check_labels, check_unique, decode
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Series, Value
from commwatch_exporters.state_words import RDMA_ACTIVE

log = structlog.get_logger("commwatch.job_logs")

SOURCE = "nccl_logs"
"""Of the source, and of its only collector."""
GROUP = "nccl_log_counts"
_PORTS = "rdma"
"""The collector whose devices are the ports of RDMA devices, ``mlx5_0:1``."""
_GPUS = "nvml_identity"
"""The collector whose devices are the GPUs."""

_MOST_LOGS, _MOST_OF_LOG = 512, 64
"""Logs whose last errors are remembered, and how many kinds of each."""
_FEWEST_WAITING = 2
"""Ranks that wait for one and the same: of two that name each other neither is the silent one."""


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
        category = first_culprit(Finding(category_of(one), one.certain) for one in self.errors)
        return "other" if category is None else category

    @property
    def first(self) -> LogErrors:
        """The first line with the likeliest cause."""
        category = self.culprit
        return next(one for one in self.errors if category_of(one) == category)

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


class LastErrors(NamedTuple):
    """Errors of one kind in one log, with less than a minute from one to the next."""

    first: float
    """When the first was read, monotonic seconds."""
    last: float
    errors: LogErrors
    """The last of them."""


class NcclLogCountsState(msgspec.Struct):
    """State that survives a restart of the daemon."""

    errors: dict[str, Count] = {}
    """Lines by category."""
    incidents: dict[str, Count] = {}
    """By the category of their likeliest cause."""
    devices: dict[str, Count] = {}
    """Lines by the RDMA device that they name, of those that this node has."""
    silent: Annotated[list[Count], msgspec.Meta(max_length=1024)] = []
    """Time-outs by the number of the GPU whose rank alone did not complain."""
    open: Incident | None = None
    fallbacks: dict[str, Count] = {}
    """Logs that show that a job left a transport which this node has, by kind."""

    def __post_init__(self) -> None:
        check_labels(self.devices)


def _silent_gpu(waiting: Set[int], gpus: int) -> int | None:
    """The GPU of the one rank of this node that did not complain, by its number; None where it is not one.

    Launchers number the ranks of a node one after the other, one for each GPU.
    """
    if len(waiting) != gpus - 1 or len(waiting) < _FEWEST_WAITING:
        return None
    first = min(waiting) // gpus * gpus
    missing = set(range(first, first + gpus)) - waiting
    return missing.pop() - first if len(missing) == 1 else None


def category_of(errors: LogErrors) -> Category:
    """The category as one of the list, whatever came over the wire or out of a file."""
    return next((known for known in SIDES if known == errors.category), "other")


class JobLogsState(msgspec.Struct):
    """State that survives a restart: the totals, and the positions in the logs at which they were counted."""

    counts: NcclLogCountsState = msgspec.field(default_factory=NcclLogCountsState)
    resume: str = ""
    """``Batch.resume`` of the source."""

    def __post_init__(self) -> None:
        if self.resume:
            decode(self.resume.encode(), LogsPosition)


class JobLogs(Tracker):
    """The totals of errors in the logs of jobs, in the store.

    Args:
        state: of an earlier daemon; it is changed in place.
    """

    collectors = (SOURCE,)

    def __init__(self, state: JobLogsState, store: Store) -> None:
        super().__init__(store)
        store.declare(GROUP, self.collectors)
        self._counts = state.counts
        self._resume = state.resume
        self._names = decode(state.resume.encode(), LogsPosition).names if state.resume else ()
        """That are being watched, as far as it will be known after a crash."""
        self._last: dict[str, dict[tuple[str, str, int | None], LastErrors]] = {}
        """By identity of the log, the one that was read last at the end; and by category, RDMA device and rank, in the
        order of the first."""

    @property
    def state(self) -> JobLogsState:
        """To keep over a restart."""
        return JobLogsState(self._counts, self._resume)

    @property
    def resume_point(self) -> dict[str, bytes]:
        """State from which a new process of the source resumes."""
        return {SOURCE: self._resume.encode()} if self._resume else {}

    def on_batch(self, outcome: Outcome) -> None:
        """Take what one run of the source found."""
        if outcome.collected.unavailable is not None:
            return
        if outcome.collected.resume is not None:
            self._keep_resume(outcome.collected.resume)
        self.version += bool(outcome.collected.log_errors)
        devices = {port.partition(":")[0] for port in self._store.group(_PORTS) if port}
        gpus = sum(1 for device in self._store.group(_GPUS) if device)
        errors = [one for one in outcome.collected.log_errors if not one.fallback]
        over = self._count(errors, time.time(), devices, gpus)
        for one in errors:
            self._remember(one, outcome.time)
        for one in outcome.collected.log_errors:
            if one.fallback in FALLBACKS:
                self._fall_back(one)
        if over is not None:
            _announce(over)
        self.show(outcome.time)

    def _remember(self, one: LogErrors, at: float) -> None:
        """Keep errors of which it is certain what they are about, and in which log they are."""
        if not one.certain or not one.log:
            return
        kinds = self._last[one.log] = self._last.pop(one.log, {})
        kind = one.category, one.hca, one.rank
        if kind in kinds and at - kinds[kind].last >= INCIDENT_SECONDS:
            del kinds[kind]
        first = kinds[kind].first if kind in kinds else at
        kinds[kind] = LastErrors(first, at, one)
        if len(kinds) > _MOST_OF_LOG:
            del kinds[min(kinds, key=lambda known: kinds[known].last)]
        if len(self._last) > _MOST_LOGS:
            del self._last[next(iter(self._last))]

    def errors_since(self, time: float, logs: Collection[str]) -> list[LastErrors]:
        """The last errors of each kind in some logs, the first one first.

        Args:
            time: monotonic seconds; those that were read last before it are left out.
            logs: by their identities.
        """
        found = [one for log in logs for one in self._last.get(log, {}).values() if one.last >= time]
        return sorted(found, key=lambda one: one.first)

    def _count(self, errors: Iterable[LogErrors], now: float, devices: Collection[str], gpus: int) -> Incident | None:
        """Count what one run found; returns the incident that is over, if one is.

        Args:
            errors: in the order in which they were found.
            now: seconds since 1970.
            devices: RDMA devices that this node has; a log can name any.
            gpus: that this node has; one that is gone counts on.
        """
        counts = self._counts
        counts.devices = {device: counts.devices.get(device, 0) for device in sorted(devices)} or counts.devices
        counts.silent += [0] * (gpus - len(counts.silent))
        over, current = None, counts.open
        # A clock that was set back keeps no incident open.
        if current is not None and not 0 <= now - current.began < INCIDENT_SECONDS:
            over = current
            counts.incidents[over.culprit] = counts.incidents.get(over.culprit, 0) + 1
            if (gpu := _silent_gpu(over.waiting, len(counts.silent))) is not None:
                counts.silent[gpu] += 1
            current = counts.open = None
        for one in errors:
            category = category_of(one)
            counts.errors[category] = counts.errors.get(category, 0) + one.count
            if one.hca in counts.devices:
                counts.devices[one.hca] += one.count
            if current is None:
                current = counts.open = Incident(now)
            current.take(one)
        return over

    def _fall_back(self, one: LogErrors) -> None:
        """Count a job that left a faster transport, where this node has it; one line of the log for each."""
        kind = next(kind for kind in FALLBACKS if kind == one.fallback)
        if self._has(FALLBACKS[kind].needs):
            self._counts.fallbacks[kind] = self._counts.fallbacks.get(kind, 0) + 1
            log.warning(
                "a job left a faster transport",
                kind=kind, happened=FALLBACKS[kind].abouts[0].happened, file=one.file, text=one.text)  # fmt: skip

    def _has(self, needs: Needs) -> bool:
        """Whether a job can have left a faster transport; False where that is not known."""
        if needs == "nvlink":
            return bool(self._store.holders("commwatch_nvlink_link_state"))
        if needs == "gpudirect" and any("GeForce" in name for name in self._gpu_names()):
            return False
        ports = self._store.group(_PORTS).values()
        return not needs or any(number_of(port, "commwatch_rdma_port_state") == RDMA_ACTIVE for port in ports)

    def _gpu_names(self) -> Iterator[str]:
        metric = "commwatch_gpu_info"
        place = CATALOGUE[metric].labels.index("name")
        for gpu in self._store.group(_GPUS).values():
            yield from (labels[place] for labels in gpu.labels(metric))

    def show(self, time: float) -> None:
        """Put all totals into the store, each from 0 on, so that its first error is an increase.

        Args:
            time: monotonic seconds.
        """
        for part, totals in self._totals():
            self._store.show(GROUP, part, totals, time)

    def _totals(self) -> Iterator[tuple[str, dict[Series, Value]]]:
        counts = self._counts
        tables = (("errors", counts.errors), ("incidents", counts.incidents))
        head = "commwatch_nccl_log"
        yield "", {(f"{head}_{name}_total", (one,)): table.get(one, 0) for name, table in tables for one in SIDES}
        fallen = ((one, counts.fallbacks.get(one, 0)) for one in FALLBACKS)
        yield "fallbacks", {(f"{head}_transport_fallbacks_total", (kind,)): count for kind, count in fallen}
        yield "devices", {(f"{head}_device_errors_total", (one,)): count for one, count in counts.devices.items()}
        silent = enumerate(counts.silent)
        yield "silent", {(f"{head}_silent_rank_incidents_total", (str(gpu),)): count for gpu, count in silent}

    def _keep_resume(self, resume: bytes) -> None:
        """Take over how far the logs were read; what is no such record would stop every process that follows."""
        try:
            position = decode(resume, LogsPosition)
        except (ValueError, RecursionError) as error:
            log.error("how far the logs of jobs were read is not known: the source returned no such record",
                      error=type(error).__name__)  # fmt: skip
        else:
            self._resume = resume.decode()
            if position.names != self._names:  # what is written into them from now on must not be taken for old
                self._names = position.names
                self.version += 1


def _announce(incident: Incident) -> None:
    """One line for trouble that belongs together, with the line that has the likeliest cause."""
    category, first = incident.culprit, incident.first
    is_hardware = SIDES[category] in ("network", "gpu", "nvlink", "host")
    (log.warning if is_hardware else log.info)(
        "trouble in the logs of jobs", category=category, side=SIDES[category], file=first.file, text=first.text,
        counts={one.category: one.count for one in incident.errors})  # fmt: skip

"""Keeps the totals of what the logs of jobs say from run to run, and logs each incident."""

from __future__ import annotations

import time

import msgspec
import structlog

from commwatch.jobs.logs.categories import SIDES
from commwatch.jobs.logs.counts import Incident, NcclLogCounts, NcclLogCountsState
from commwatch.jobs.logs.position import LogsPosition
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.state.records import decode

log = structlog.get_logger("commwatch.job_logs")

SOURCE = "nccl_logs"
"""Of the source, and of its only collector."""
GROUP = "nccl_log_counts"
_PORTS = "rdma"
"""The collector whose devices are the ports of RDMA devices, ``mlx5_0:1``."""
_GPUS = "nvml_identity"
"""The collector whose devices are the GPUs."""


class JobLogsState(msgspec.Struct):
    """What survives a restart: the totals, and how far the logs were read when they were these."""

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
        self._counts = NcclLogCounts(state.counts)
        self._resume = state.resume
        self._names = decode(state.resume.encode(), LogsPosition).names if state.resume else ()
        """That are being watched, as far as it will be known after a crash."""

    @property
    def state(self) -> JobLogsState:
        """To keep over a restart."""
        return JobLogsState(self._counts.state, self._resume)

    @property
    def resume_point(self) -> dict[str, bytes]:
        """What a new process of the source goes on from."""
        return {SOURCE: self._resume.encode()} if self._resume else {}

    def on_batch(self, outcome: Outcome) -> None:
        """Take what one run of the source found."""
        if outcome.unavailable is not None:
            return
        if outcome.collected.resume is not None:
            self._keep_resume(outcome.collected.resume)
        self.version += bool(outcome.collected.log_errors)
        devices = {port.partition(":")[0] for port in self._store.group(_PORTS) if port}
        gpus = sum(1 for device in self._store.group(_GPUS) if device)
        for incident in self._counts.take(outcome.collected.log_errors, time.time(), devices, gpus):
            _announce(incident)
        self._store.put(GROUP, "", self._counts.block(outcome.time), float("inf"))
        self._store.put(GROUP, "devices", self._counts.device_block(outcome.time), float("inf"))
        self._store.put(GROUP, "silent", self._counts.silent_block(outcome.time), float("inf"))

    def _keep_resume(self, told: bytes) -> None:
        """Take over how far the logs were read; what is no such record would stop every process that follows."""
        try:
            position = decode(told, LogsPosition)
        except (ValueError, RecursionError) as error:
            log.error("how far the logs of jobs were read is not known: the source returned no such record",
                      error=type(error).__name__)  # fmt: skip
        else:
            self._resume = told.decode()
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

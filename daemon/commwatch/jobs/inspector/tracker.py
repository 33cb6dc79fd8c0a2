"""The metrics that Inspector's files give of each GPU and job, under the labels of other metrics of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from commwatch.jobs.inspector.report import COLLECTOR, InspectorReport, ProcessReport
from commwatch.node.gpus_now import PROCESS_COLLECTOR
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.sources import files
from commwatch_exporters.snapshot import Series, Value

log = structlog.get_logger("commwatch.job_inspector")

GROUP: Final = "job_inspector"
_IDENTITY: Final = "nvml_identity"
_MOST_PROCESSES: Final = 256
"""Processes on GPUs whose users and ids are read."""
_OF_GPU: Final = {
    "share": "communication_ratio",
    "waits_seconds": "arrival_wait_seconds",
    "last_ratio": "last_arrival_ratio",
}
"""Metric by field of a report."""


class JobInspector(Tracker):
    """Puts what the reports of processes say into the store, by GPU.

    A report names a process by its own id. Of a process in a container that is not the id that the driver names: it is
    found by ``NSpid`` in its status, and counts only where one process alone has it. A file counts for processes of
    its owner alone: anybody can write the id of another one.
    """

    collectors = (COLLECTOR, PROCESS_COLLECTOR)

    def __init__(self, store: Store, procfs: Path) -> None:
        super().__init__(store)
        metrics = [f"commwatch_job_{name}" for name in (*_OF_GPU.values(), "last_communication_seconds")]
        store.declare(GROUP, self.collectors, holds=metrics)
        self._procfs = procfs
        self._identities: dict[int, tuple[int, int]] = {}
        """By process on a GPU its user, and its id in its own namespace."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take the reports of one run, or the list of processes."""
        if outcome.collector.name == PROCESS_COLLECTOR:
            pids = sorted({pid for pids in self._store.occupants.values() for pid in pids})[:_MOST_PROCESSES]
            if self._store.devices(COLLECTOR):  # else no process is opened
                self._identities = {pid: one for pid in pids if (one := self._identity(pid)) is not None}
            return
        if outcome.collected.audit is None:
            self._store.drop_group(GROUP)
            return
        try:
            reports = msgspec.json.decode(outcome.collected.audit, type=InspectorReport).processes
        except (ValueError, RecursionError) as error:
            log.error("what Inspector wrote is not known: the source returned no such record",
                      error=type(error).__name__)  # fmt: skip
            return
        shown = self._readings(reports)
        self._store.show(GROUP, "", shown, outcome.time, outcome.collector.lifetime)

    def _identity(self, pid: int) -> tuple[int, int] | None:
        """The user of a process, and its id in its own namespace; None where its status is not shown."""
        status = files.read_if_there(f"{self._procfs}/{pid}/status") or b""
        users = files.parse_users(status)
        return None if users is None else (users.real, files.parse_inner_pid(status) or pid)

    def _owner(self, pid: int) -> int | None:
        known = self._identities.get(pid)
        return None if known is None else known[0]

    def _readings(self, reports: Iterable[ProcessReport]) -> dict[Series, Value]:
        devices: dict[int, set[str]] = {}
        for device, occupants in self._store.occupants.items():
            for pid in occupants:
                devices.setdefault(pid, set()).add(device)
        labels, uuids = self._labels()
        shown: dict[Series, Value] = {}
        ages: dict[str, float] = {}
        """By the lowest GPU of each job, seconds since its newest record."""
        # Of two files with one id the later one is of the process that is there now.
        for report in sorted(reports, key=lambda one: -(one.newest_age or 0.0)):
            if report.uuid:
                by_uuid = uuids.get(report.uuid)
                pids = self._store.occupants.get(by_uuid or "", ())
                on = {by_uuid} if by_uuid and any(self._owner(pid) == report.owner for pid in pids) else set()
            else:
                on = self._devices_of(report, devices)
            on &= labels.keys()
            if len(on) == 1:  # what one process does on several GPUs cannot be divided
                (device,) = on
                for name, metric in _OF_GPU.items():
                    if (value := getattr(report, name)) is not None:
                        shown[f"commwatch_job_{metric}", labels[device]] = value
            if on and report.newest_age is not None:
                first = self._first_of_job(on, labels)
                ages[first] = min(report.newest_age, ages.get(first, report.newest_age))
        for device, age in ages.items():
            shown["commwatch_job_last_communication_seconds", labels[device]] = age
        return dict(sorted(shown.items()))

    def _devices_of(self, report: ProcessReport, devices: Mapping[int, set[str]]) -> set[str]:
        """The GPUs of the process of a report; none where no process or several may be meant."""
        found = [
            pid
            for pid, (owner, inner) in self._identities.items()
            if inner == report.pid and owner == report.owner and (report.is_here or pid != inner)
        ]
        return set(devices.get(found[0], ())) if len(found) == 1 else set()

    def _labels(self) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """The labels of each GPU by device, and the device by UUID."""
        labels: dict[str, tuple[str, ...]] = {}
        uuids: dict[str, str] = {}
        for device, block in self._store.group(_IDENTITY).items():
            for index, address, uuid, *_ in block.labels("commwatch_gpu_info"):
                labels[device] = index, address
                uuids[uuid] = device
        return labels, uuids

    def _first_of_job(self, on: Iterable[str], labels: Mapping[str, tuple[str, ...]]) -> str:
        """The lowest GPU of the job on some GPUs; of a job that no launcher names, of these."""
        jobs = {self._store.jobs.get(pid) for device in on for pid in self._store.occupants.get(device, ())} - {None}
        of_job = {
            device
            for device, occupants in self._store.occupants.items()
            if device in labels and any(self._store.jobs.get(pid) in jobs for pid in occupants)
        }
        return min(of_job | set(on), key=lambda device: int(labels[device][0]))

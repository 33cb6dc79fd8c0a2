"""Which job or pod is on each GPU, where the configuration asks for it: a label of the page names it."""

from __future__ import annotations

from typing import Final

import msgspec

from commwatch.jobs.settings.owner import Owner
from commwatch.jobs.settings.plan import SOURCE
from commwatch.jobs.settings.records import AuditRecord
from commwatch.node.gpus_now import PROCESS_COLLECTOR
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch_exporters.snapshot import Series, Value

GROUP: Final = "job_identity"
MOST_OWNERS: Final = 8
"""Of one GPU: more share none in earnest, and each is a series."""
_METRIC: Final = "commwatch_gpu_job_info"


class JobIdentity(Tracker):
    """Keeps the owners that the last audit found, and puts those of each GPU's processes into the store."""

    collectors = (PROCESS_COLLECTOR, SOURCE)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        store.declare(GROUP, self.collectors)
        self._owners: dict[int, Owner] = {}
        """By process."""
        self._lifetime = 0.0
        """Seconds for which a list of processes counts."""

    def on_batch(self, outcome: Outcome) -> None:
        """Take whose the processes are, or which processes are on the GPUs."""
        collector = outcome.collector
        if collector.name == SOURCE and outcome.collected.audit is not None:
            try:
                record = msgspec.json.decode(outcome.collected.audit, type=AuditRecord)
            except (ValueError, RecursionError):  # ``JobSettings`` says so
                return
            self._owners = {pid: one.owner for one in record.owners for pid in one.pids}
        elif collector.name == PROCESS_COLLECTOR:
            self._lifetime = collector.lifetime
        else:
            return
        self._store.retain(GROUP, self._store.occupants.keys())
        for device, pids in self._store.occupants.items():
            self._put(device, pids)

    def _put(self, device: str, pids: tuple[int, ...]) -> None:
        listed = self._store.get(PROCESS_COLLECTOR, device)
        owners = sorted({self._owners[pid] for pid in pids if pid in self._owners})[:MOST_OWNERS]
        if listed is None:
            self._store.drop(GROUP, device)
            return
        labels = listed.layout.series[0][1][:2]
        readings: dict[Series, Value] = {(_METRIC, (*labels, owner.scheduler, owner.job)): 1 for owner in owners}
        self._store.show(GROUP, device, readings, listed.time, self._lifetime)

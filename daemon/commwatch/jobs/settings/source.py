"""The source ``nccl_settings``: audits the settings of the processes on the GPUs on this node."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

import msgspec
from msgspec.structs import replace

from commwatch.jobs.settings.audit import audit_processes, read_facts, shortened
from commwatch.jobs.settings.facts import NodeFacts
from commwatch.jobs.settings.judge import remark_counts
from commwatch.jobs.settings.owner import read_owners
from commwatch.jobs.settings.records import AuditOrder, AuditRecord, UnreadProcess
from commwatch.jobs.settings.variables import known_variables
from commwatch.readings import Absence, Batch, DeviceReadings
from commwatch.sources.base import Origin, Source
from commwatch_exporters.snapshot import Series

READ, UNREAD = "commwatch_nccl_setting_read_processes", "commwatch_nccl_setting_unread_processes"
NODE = "node"
"""The device that the worker reports while it reads interfaces, ports and the PCIe tree."""


class NcclSettingsSource(Source):
    """Audits the processes that it is given. The devices of this source are processes, by their ids.

    Args:
        order: JSON of an ``AuditOrder``; empty: there is nothing to audit.
    """

    collectors = ("nccl_settings",)

    def __init__(self, order: bytes, sysfs: Path, procfs: Path) -> None:
        super().__init__()
        self._order = msgspec.json.decode(order, type=AuditOrder) if order else AuditOrder()
        self._sysfs, self._procfs = sysfs, procfs

    def collect(self, collector: str) -> Batch:
        """Audit once; see ``Source.collect``. Errors are reported without values, which their text may contain."""
        now = time.monotonic()
        try:
            audit = self._audit()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            detail = f"the audit failed: {type(error).__name__} in {Path(where.filename).name}, line {where.lineno}"
            return Batch(absences=[Absence("", "unreadable", detail)])
        if self._only is not None:
            return Batch()  # that it answered is all there is to know: the others are not judged with it
        counts = remark_counts(audit.remarks, known_variables())
        series: tuple[Series, ...] = (
            (READ, ()),
            (UNREAD, ()),
            *(("commwatch_nccl_setting_processes", (variable, code, severity)) for code, variable, severity in counts),
        )
        values = [audit.read, audit.unread_count, *counts.values()]
        return Batch([DeviceReadings("", now, series, values)], audit=msgspec.json.encode(shortened(audit)))

    def _audit(self) -> AuditRecord:
        wanted = [pid for pid in self._order.pids if self._may_touch(str(pid))]
        node = NodeFacts()
        if self._may_touch(NODE):
            self._report(NODE)
            node = read_facts(self._order.driver, self._sysfs, self._procfs)
        audit = audit_processes(wanted, node, self._procfs, self._report)
        silent = [UnreadProcess(pid, "no_answer") for pid in self._order.pids if str(pid) in self._leave_out]
        unread = (*silent, *audit.unread)
        owners = read_owners(wanted, self._procfs) if self._order.identity else ()
        return replace(audit, unread=unread, unread_count=len(unread), owners=owners)


def make_source(origin: Origin) -> NcclSettingsSource:
    """The processes that this one is ordered to audit."""
    return NcclSettingsSource(origin.resume, origin.sysfs, origin.procfs)

"""The NCCL settings of jobs: which processes to audit, when, and the result of the last audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog

from commwatch.jobs.settings.records import AuditOrder, AuditRecord, JobProcess, SettingRemark
from commwatch.lines import printable
from commwatch.node.gpus_now import PROCESS_COLLECTOR, GpusNow
from commwatch.node.run import Collected, Outcome
from commwatch.node.store import Store
from commwatch.node.topology.nvlink import stored_driver
from commwatch.node.tracker import Tracker
from commwatch.readings import WORKER_REASONS
from commwatch_exporters.snapshot import Block, Layout

log = structlog.get_logger("commwatch.job_settings")

SOURCE = "nccl_settings"
"""Of the source, and of its only collector."""
SOON_SECONDS = 1.0
APART_SECONDS = 30.0
"""Between two audits: a job starts its processes one after the other, and each audit starts a process of ours."""

OVERDUE_SECONDS = 30.0
"""An audit that has not begun within this time after it was due is requested again."""

_NOTHING = Layout((("commwatch_nccl_setting_read_processes", ()), ("commwatch_nccl_setting_unread_processes", ())))


class JobSettings(Tracker):
    """Plans the audits and keeps the last one, as bytes: few ever ask for it.

    Args:
        own: our own processes that may be on a GPU.
        run_in: has the collector run after this number of seconds.
        monotonic: seconds.
        identity: have each audit say whose the processes are.
    """

    collectors = (PROCESS_COLLECTOR, SOURCE)

    def __init__(
        self,
        store: Store,
        own: Callable[[], Iterable[int]],
        run_in: Callable[[float], None],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        identity: bool = False,
    ) -> None:
        super().__init__(store)
        store.declare(SOURCE, [SOURCE], silent=["commwatch_nccl_setting_processes"])
        self._gpus = GpusNow(store)
        self._own = own
        self._run_in = run_in
        self._monotonic = monotonic
        self._identity = identity
        self._last: dict[str, tuple[int, ...]] = {}
        """Processes by GPU. Those of one that has stopped answering may well go on, so it keeps what was read last."""
        self._ordered: frozenset[int] | None = None
        """The processes of the last audit."""
        self._ordered_at = float("-inf")
        self._due = float("-inf")
        """When the last requested audit is due; a new request before that would delay it."""
        self._has_failed = False
        """Whether the last audit has."""
        self._audit = b""
        self._audited_at: float | None = None
        self.places: Mapping[int, JobProcess] = {}
        """By process on a GPU its rank and where its dumps and logs are, as far as the last audit could read them."""

    def pids(self) -> frozenset[int] | None:
        """Processes on the GPUs but our own; None while those of no GPU are known."""
        found = self._gpus.occupants(float("-inf"))
        known = {gpu: pids for gpu, pids in found.items() if pids is not None}
        if not known:
            self._last.clear()
            return None
        self._last |= known
        return frozenset(pid for pids in self._last.values() for pid in pids) - frozenset(self._own())

    def is_ready(self) -> bool:
        """Whether it is known which processes to audit."""
        return self.pids() is not None

    def order(self) -> bytes:
        """JSON of the ``AuditOrder`` of now."""
        self._begin()
        return msgspec.json.encode(
            AuditOrder(tuple(sorted(self._ordered or ())), stored_driver(self._store), self._identity)
        )

    def nothing(self) -> Collected | None:
        """The empty audit while no process is on a GPU; None while there is one."""
        if self.pids():
            return None
        self._begin()
        block = Block(_NOTHING, [0, 0], self._monotonic())
        return Collected({"": block}, [], 0.0, audit=msgspec.json.encode(AuditRecord()))

    def _begin(self) -> None:
        self._ordered, self._ordered_at, self._due = self.pids(), self._monotonic(), float("-inf")

    def on_batch(self, outcome: Outcome) -> None:
        """Take an audit, or ask for one where its worker failed or other processes are on the GPUs."""
        if outcome.collector.name == SOURCE and outcome.collected.audit is not None:
            self._keep(outcome.collected.audit)
        elif outcome.collector.name == SOURCE:
            # A process that hangs ends the audit of all; the next one leaves it out, and need not wait for its turn.
            # One that fails by itself is made again once: it would go on failing, and each audit starts a process.
            failures = {absence.reason for absence in outcome.collected.absences}
            if failures & WORKER_REASONS or (failures and not self._has_failed):
                self._ask()
            self._has_failed = bool(failures)
        elif outcome.collector.name == PROCESS_COLLECTOR:
            self.look()

    def _keep(self, audit: bytes) -> None:
        self._has_failed = False
        try:
            record = msgspec.json.decode(audit, type=AuditRecord)
        except (ValueError, RecursionError) as error:
            log.error("the audit of NCCL settings is not taken: it is no such record", error=type(error).__name__)
            return
        self._audit, self._audited_at = audit, time.time()
        self.places = {one.pid: one for one in record.processes or ()}
        self._store.jobs = {pid: ranks[0] for ranks in record.jobs for pid in ranks}
        self._store.single_node = frozenset(record.single_node)

    def begin(self) -> None:
        """Ask for an audit where one is due: what was asked before the collectors were planned was not heard."""
        self._due = float("-inf")
        self.look()

    def look(self) -> None:
        """Have an audit made soon where other processes are on the GPUs than at the last one."""
        pids, now = self.pids(), self._monotonic()
        if pids is None:
            if self._ordered is not None:
                self._run_in(SOON_SECONDS)  # the collector finds that it has to pause
            self._ordered, self._due, self._audited_at, self._audit = None, float("-inf"), None, b""
            self.places = {}
        elif pids != self._ordered and now >= self._due + OVERDUE_SECONDS:
            self._ask()

    def _ask(self) -> None:
        now = self._monotonic()
        self._due = max(now + SOON_SECONDS, self._ordered_at + APART_SECONDS)
        self._run_in(self._due - now)

    @property
    def audited_at(self) -> float | None:
        """When the last audit ended, seconds since 1970; None where there is none that is current."""
        return self._audited_at

    def record(self) -> AuditRecord | None:
        """The last audit; None where there is none that is current."""
        if not self._audit:
            return None
        audit = msgspec.json.decode(self._audit, type=AuditRecord)
        remarks = tuple(map(_harmless, audit.remarks))
        return msgspec.structs.replace(audit, remarks=remarks, processes=msgspec.UNSET)


def _harmless(remark: SettingRemark) -> SettingRemark:
    """A remark as a terminal may show it, whatever became of the process that read the settings of others."""
    words = {
        name: value if value.isprintable() else printable(value)
        for name, value in msgspec.structs.asdict(remark).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(remark, **words)

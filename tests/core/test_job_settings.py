"""Audits of NCCL settings as the daemon plans them: of which processes, when, and what it keeps of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from commwatch.jobs.settings.records import AuditOrder, AuditRecord, JobProcess, SettingRemark
from commwatch.node.run import Collected, Outcome
from commwatch.readings import Absence
from commwatch.service.engine import Engine
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, block, collected, collector
from support.fed_daemon import FedDaemon

SOON_SECONDS, APART_SECONDS, OVERDUE_SECONDS = 1.0, 30.0, 30.0
"""After a change, from one audit to the next, and after which one that was not made is asked for again."""

REMARK = SettingRemark("p2p_off", "NCCL_P2P_DISABLE", "harmful", "Words.", "Take it out.", "environment", 1, (7,))


class Node:
    """Two GPUs whose processes a test sets."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self.own: list[int] = []
        patched.setattr(Engine, "_own_ranks", lambda engine: self.own)
        self.daemon = FedDaemon(folder, patched)
        self.clock, self.store, self.settings = (
            self.daemon.clock,
            self.daemon.engine.store,
            self.daemon.engine.job_settings,
        )
        for index, slot in enumerate(SLOTS):
            labels = CATALOGUE["commwatch_gpu_info"].labels
            info = ("commwatch_gpu_info", (str(index), slot, *[""] * (len(labels) - 2)))
            self.store.put("nvml_identity", slot, block({info: 1}), float("inf"))

    @property
    def planned(self) -> list[float]:
        """Seconds after which an audit was asked for, each time."""
        return [delay for name, delay in self.daemon.jobs.moved if name == "nccl_settings"]

    def ran(self, name: str, found: Collected) -> None:
        """A run of a collector."""
        self.daemon.engine.pipeline.on_batch(Outcome(collector(name), found, time=self.clock.now))

    def read(self, first: tuple[int, ...], second: tuple[int, ...] | None = ()) -> None:
        """A run of the collector that lists processes; None: that GPU does not answer."""
        occupants = {slot: pids for slot, pids in zip(SLOTS, (first, second), strict=True) if pids is not None}
        for index, slot in enumerate(SLOTS):
            if slot in occupants:
                count: dict[Series, Value] = {
                    ("commwatch_gpu_compute_processes", (str(index), slot)): len(occupants[slot])
                }
                self.store.put("nvml_processes", slot, block(count), float("inf"))
            else:
                self.store.drop("nvml_processes", slot)
        self.store.occupants = occupants
        self.ran("nvml_processes", collected())

    def audit(self, record: AuditRecord | None = None) -> tuple[int, ...]:
        """The collector of settings runs; whom it is told to audit."""
        order = msgspec.json.decode(self.settings.order(), type=AuditOrder)
        found = Collected({}, [], 0.1, audit=msgspec.json.encode(record or AuditRecord()))
        self.ran("nccl_settings", found)
        return order.pids


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_nobody_is_audited_before_the_driver_has_listed_processes(node: Node) -> None:
    """Not known is not none: the collector rests, and says nothing."""
    assert not node.settings.is_ready()
    assert node.settings.record() is None

    node.read(())
    assert node.settings.is_ready()


def test_without_a_process_on_a_gpu_none_of_ours_is_started(node: Node) -> None:
    """The daemon knows the answer itself."""
    node.read((), ())
    found = node.settings.nothing()

    assert found is not None
    assert list(found.blocks[""].values) == [0, 0]
    node.read((7,))
    assert node.settings.nothing() is None


def test_an_audit_follows_each_change_of_the_processes(node: Node) -> None:
    """Soon, but not sooner than half a minute after the one before; none while nothing changes, and none put off."""
    node.read((7,), (8,))
    assert node.planned == [SOON_SECONDS]
    assert node.audit() == (7, 8)

    node.read((7,), (8,))
    assert node.planned == [SOON_SECONDS]
    node.clock.now += 10
    node.read((7,), (8, 9))
    assert node.planned == [SOON_SECONDS, APART_SECONDS - 10]
    node.read((7,), (9,))
    assert len(node.planned) == 2
    assert node.audit() == (7, 9)
    node.clock.now += 600
    node.read((7,), ())
    assert node.planned[2:] == [SOON_SECONDS]


def test_an_audit_that_was_not_made_is_asked_for_again(node: Node) -> None:
    """When it is overdue, or when the daemon has planned its collectors and hears only then."""
    node.read((7,))
    node.settings.begin()
    assert node.planned == [SOON_SECONDS] * 2

    node.read((7,))
    assert len(node.planned) == 2
    node.clock.now += SOON_SECONDS
    node.read((7,))
    assert len(node.planned) == 2
    node.clock.now += OVERDUE_SECONDS
    node.read((7,))
    assert len(node.planned) == 3


@pytest.mark.parametrize(
    ("absence", "more"),
    [(Absence("7", "deadline", "no answer"), 1), (Absence("", "unreadable", "the audit failed"), 0)],
)
def test_an_audit_that_failed_is_made_again_soon(node: Node, absence: Absence, more: int) -> None:
    """The processes are still the same and the turn of the collector is far off, but nobody was audited: one failure is
    over before a finding names it. One that fails by itself again waits for its turn: each try starts a process."""
    node.read((7, 8))
    node.settings.order()
    node.clock.now += 10
    node.ran("nccl_settings", collected(None, absence))

    assert node.planned == [SOON_SECONDS, APART_SECONDS - 10]
    assert node.settings.audited_at is None
    node.settings.order()
    node.ran("nccl_settings", collected(None, absence))
    assert len(node.planned) == 2 + more
    node.audit()
    node.read((7, 8))
    assert len(node.planned) == 2 + more
    node.ran("nccl_settings", collected(None, absence))
    assert len(node.planned) == 3 + more


def test_our_own_ranks_are_not_audited(node: Node) -> None:
    """A probe comes and goes without an audit."""
    node.read((7,))
    node.audit()
    planned = list(node.planned)
    node.own = [41, 42]
    node.read((7, 41), (42,))

    assert node.planned == planned
    assert node.audit() == (7,)


def test_processes_of_a_gpu_that_stops_answering_are_audited_on(node: Node) -> None:
    """They may well go on: a hung GPU closes no finding on their settings."""
    node.read((7,), (8,))
    node.read((7,), None)
    assert node.audit() == (7, 8)

    node.read((7,), ())
    assert node.audit() == (7,)


def test_what_was_said_is_kept_until_the_processes_are_not_known(node: Node) -> None:
    """During maintenance nothing is known of them; afterwards they are audited again."""
    node.read((7,))
    record = AuditRecord(read=1, remarks=(REMARK,))
    node.audit(record)
    assert node.settings.record() == record

    node.store.drop_group("nvml_processes")
    node.settings.look()
    assert (node.settings.record(), node.settings.audited_at) == (None, None)
    assert not node.settings.is_ready()
    planned = len(node.planned)
    node.read((7,))
    assert len(node.planned) == planned + 1


@pytest.mark.parametrize(
    "told", [b"\xff", b"[]", b'{"jobs": [["7"]]}', b'{"remarks": ' * 50_000], ids=lambda told: told[:20]
)
def test_an_audit_that_is_none_is_not_kept(node: Node, told: bytes) -> None:
    """Whatever a worker tells, the last audit stands."""
    node.read((7,))
    node.audit(AuditRecord(1))
    with capture_logs() as logged:
        node.ran("nccl_settings", Collected({}, [], 0.1, audit=told))

    assert [one["event"].partition(":")[0] for one in logged] == ["the audit of NCCL settings is not taken"]
    assert node.settings.record() == AuditRecord(1)


def test_the_places_of_processes_are_the_daemons_alone(node: Node) -> None:
    """No document has them."""
    node.read((7,))
    node.audit(AuditRecord(1, processes=(JobProcess(7, 3, "ab"),)))
    assert node.settings.places == {7: JobProcess(7, 3, "ab")}
    assert b"processes" not in msgspec.json.encode(node.settings.record())
    node.read((), None)
    node.store.occupants = {}
    node.store.drop("nvml_processes", SLOTS[0])
    node.settings.look()
    assert node.settings.places == {}


def test_the_words_of_an_audit_do_no_harm_on_a_terminal(node: Node) -> None:
    """Nor does a job without processes."""
    node.read((7,))
    node.audit(AuditRecord(1, remarks=(msgspec.structs.replace(REMARK, words="a\x1b[2Jb\n"),), jobs=((), (7,))))
    audit = node.settings.record()

    assert audit is not None
    assert [one.words for one in audit.remarks] == ["a?[2Jb?"]
    assert node.store.jobs == {7: 7}

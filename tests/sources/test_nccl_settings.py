"""The source of NCCL settings: what leaves it, what it does not reach, and what it says when something goes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from commwatch.jobs.flight_recorder.files import series_of
from commwatch.jobs.settings import audit as settings_audit
from commwatch.jobs.settings.audit import AUDIT_SECONDS, audit_environment, audit_file, audit_processes, shortened
from commwatch.jobs.settings.facts import NodeFacts, RdmaPort
from commwatch.jobs.settings.process_environment import UnreadReason
from commwatch.jobs.settings.records import AuditOrder, AuditRecord, JobProcess
from commwatch.readings import Batch
from commwatch.sources.base import Source
from support.processes import ProcessTable
from support.sources import source_of

READ, UNREAD = "commwatch_nccl_setting_read_processes", "commwatch_nccl_setting_unread_processes"
NODE = "node"
PROCESSES = "commwatch_nccl_setting_processes"
SWITCHED = NodeFacts(gpus=2, peer_levels=frozenset({"NVL"}), peers_unknown=False)
"""Two GPUs joined by NVLink."""


@pytest.fixture
def table(tmp_path: Path) -> ProcessTable:
    return ProcessTable(tmp_path / "proc")


def source(table: ProcessTable, *pids: int) -> Source:
    order = msgspec.json.encode(AuditOrder(pids))
    return source_of("nccl_settings", table.root.parent / "sys", table.root, resume=order)


def collect(one: Source, leave_out: frozenset[str] = frozenset()) -> tuple[Batch, list[str]]:
    """One run, and what it said to be touching."""
    touched: list[str] = []
    one.open(touched.append, leave_out, None)
    return one.collect("nccl_settings"), touched


def counted(batch: Batch) -> dict[tuple[str, tuple[str, ...]], object]:
    (readings,) = batch.readings
    return dict(zip(readings.series, readings.values, strict=True))


def record(batch: Batch) -> AuditRecord:
    assert batch.audit is not None
    return msgspec.json.decode(batch.audit, type=AuditRecord)


def test_names_and_verdicts_leave_the_source_and_values_do_not(table: ProcessTable) -> None:
    """Counts by known names for the page; for the node's own commands also a name as it was written, and the advice."""
    secret = {"NCCL_BUFFSIZE": "54321", "NCCL_PROTTO": "sekrit1", "NCCL_COMM_ID": "10.9.8.7:1", "TOKEN": "sekrit2"}
    table.add(11, secret, rank=0)
    table.add(12, {"NCCL_BUFFSIZE": "54321"}, rank=1)
    batch, touched = collect(source(table, 11, 12, 13))

    found = counted(batch)
    assert (found[READ, ()], found[UNREAD, ()]) == (2, 0)
    assert found[PROCESSES, ("NCCL_BUFFSIZE", "buffer_small", "suspicious")] == 2
    assert found[PROCESSES, ("other", "misspelt", "useless")] == 1
    assert found[PROCESSES, ("NCCL_COMM_ID", "ranks_differ", "harmful")] == 1
    remarks = {(one.variable, one.code): one for one in record(batch).remarks}
    assert remarks["NCCL_PROTTO", "misspelt"].next_step == "Did you mean NCCL_PROTO?"
    assert remarks["NCCL_BUFFSIZE", "buffer_small"].pids == (11, 12)
    everything = f"{batch.readings}{batch.audit!r}"
    assert [value for value in (*secret.values(), "sekrit") if value in everything] == []
    assert touched == [NODE, "11", "12", "13", ""]


def test_a_process_that_ended_is_neither_read_nor_unread(table: ProcessTable) -> None:
    """One that may not be read, or that wrote over its environment, is unread; none of these is clean."""
    table.add(11)
    table.add(12)
    (table.root / "12/environ").write_text("train: epoch 3\0")
    batch, _ = collect(source(table, 11, 12, 99))

    assert (counted(batch)[READ, ()], counted(batch)[UNREAD, ()]) == (1, 1)
    assert [(one.pid, one.reason) for one in record(batch).unread] == [(12, "overwritten")]


def test_what_kept_an_earlier_look_waiting_is_left_out(table: ProcessTable) -> None:
    """A process counts as unread. Without the node nothing is said that needs it."""
    table.add(11, {"NCCL_SOCKET_IFNAME": "nowhere0"})
    table.add(12)
    (table.root.parent / "sys/class/net/eth0").mkdir(parents=True)
    whole, _ = collect(source(table, 11, 12))
    assert (PROCESSES, ("NCCL_SOCKET_IFNAME", "interface_missing", "harmful")) in counted(whole)

    batch, touched = collect(source(table, 11, 12), frozenset({"12", NODE}))
    assert counted(batch) == {(READ, ()): 1, (UNREAD, ()): 1}
    assert [(one.pid, one.reason) for one in record(batch).unread] == [(12, "no_answer")]
    assert "12" not in touched


def test_a_process_of_its_own_for_a_suspect_says_nothing_of_the_others(table: ProcessTable) -> None:
    """It only shows whether the suspect answers again."""
    table.add(11)
    one = source(table, 11, 12)
    one.open(lambda device: None, frozenset(), frozenset({"12"}))

    batch = one.collect("nccl_settings")
    assert (batch.readings, batch.audit, batch.absences) == ([], None, [])


def test_a_failure_tells_no_value(table: ProcessTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error's own words may hold one: its kind and place are enough."""

    def fail(*_: object) -> None:
        raise ValueError("NCCL_COMM_ID=sekrit")

    table.add(11)
    monkeypatch.setattr(settings_audit, "judge_process", fail)
    batch, _ = collect(source(table, 11))

    (absence,) = batch.absences
    assert (batch.readings, absence.reason) == ([], "unreadable")
    assert "ValueError" in absence.detail
    assert "sekrit" not in absence.detail


def ticking(step: float) -> Iterator[float]:
    return count(0.0, step)


def test_an_audit_ends_in_time_however_many_processes_there_are(table: ProcessTable) -> None:
    """What was not reached is unread."""
    pids = range(100, 120)
    for pid in pids:
        table.add(pid)
    clock = ticking(AUDIT_SECONDS / 10)
    audit = audit_processes(pids, NodeFacts(), table.root, monotonic=lambda: next(clock))

    assert audit.read == 0
    assert [one.reason for one in audit.unread] == ["not_reached"] * 20
    clock = ticking(AUDIT_SECONDS / 30)
    audit = audit_processes(pids, NodeFacts(), table.root, monotonic=lambda: next(clock))
    assert 0 < audit.read < 20
    assert audit.read + len(audit.unread) == 20


def test_names_that_a_job_makes_up_by_the_thousand_are_not_judged(table: ProcessTable) -> None:
    """And what is told of fewer of them stays short."""
    table.add(11, {f"NCCL_X{number}": "1" for number in range(5000)})
    table.add(12, {f"NCCL_MADE_UP_NAME_{number}": "1" for number in range(400)})
    audit = audit_processes((11, 12), NodeFacts(), table.root)

    assert [(one.pid, one.reason) for one in audit.unread] == [(11, "too_long")]
    told = shortened(audit)
    assert len(told.remarks) + told.remarks_left_out == 400
    assert told.remarks_left_out > 0


def test_the_audit_knows_the_rank_of_a_process_and_where_its_dumps_are(tmp_path: Path) -> None:
    """A container sees the folder at another path, and a link in it leads to no file of the node. Behind a digit the
    rank cannot be told from the name, which all jobs of such names would share."""
    table = ProcessTable(tmp_path / "proc")
    for pid, variables in {
        11: {"TORCH_FR_DUMP_TEMP_FILE": "/dumps/job7_rank_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/nowhere/x"},
        12: {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/link/job7_rank_"},
        13: {"TORCH_FR_DUMP_TEMP_FILE": "/nowhere/x"},
        14: {"TORCH_FR_DUMP_TEMP_FILE": "dumps/x"},
        15: {"TORCH_FR_DUMP_TEMP_FILE": "/dumps/4821"},
        16: {},
    }.items():
        table.add(pid, variables, rank=pid - 11 if pid < 16 else None)
        (table.root / f"{pid}/root/dumps").mkdir()
        (table.root / f"{pid}/root/link").symlink_to("/dumps")
    audit = audit_processes(range(11, 17), NodeFacts(), table.root)
    folders = [(table.root / f"{pid}/root/dumps").stat() for pid in (11, 12)]
    series = [series_of((one.st_dev, one.st_ino), "job7_rank_3") for one in folders]
    assert audit.processes == (*(JobProcess(11 + rank, rank, one) for rank, one in enumerate([*series, "", "", ""])),)


def test_an_environment_and_a_file_are_audited_like_a_process(tmp_path: Path) -> None:
    """For a command: the remarks are about what was given, and no process."""
    (tmp_path / "nccl.conf").write_text("NCCL_P2P_DISABLE=1\n")
    ports = (RdmaPort("mlx5_0", 1, active=True, link_layer="InfiniBand"),)

    given = audit_environment({"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}, NodeFacts(rdma_ports=ports))
    assert [(one.code, one.pids) for one in given.remarks] == [("rdma_off", ())]
    file = audit_file(tmp_path / "nccl.conf", SWITCHED)
    assert ("p2p_off", "harmful") in {(one.code, one.severity) for one in file.remarks}
    assert (given.read, file.read) == (1, 1)


def test_every_reason_why_a_process_is_unread_is_documented() -> None:
    """The table of the page names them all, and no other."""
    document = (Path(__file__).parents[2] / "docs/using/nccl-settings.md").read_text(encoding="utf-8")
    _, _, table = document.partition("| reason | when |")
    reasons = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)

    assert sorted(reasons) == sorted(get_args(UnreadReason))

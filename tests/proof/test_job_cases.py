"""Ten cases of jobs, end to end: the simulated node's signals, real gloo ranks as its processes, and the answers.

``pytest -s`` prints the table of docs/using/stuck-jobs.md. The clock of the node is the test's; the CPU time of the
ranks is scaled to it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commwatch.findings.finding import Finding
from commwatch.jobs import ranks as process_table
from commwatch.jobs import stuck
from commwatch.jobs.asked import SECONDS_APART, ProcessTable, ask_sources
from commwatch.jobs.evidence import SuspectedJob
from commwatch_rehearsal.simulation import device_functions
from support.gloo_ranks import ALIKE, RANKS, Ranks
from support.simulated_daemon import SimulatedDaemon, rehearsed

BEGIN, VICTIM = 780.0, 2
PORT_DOWN = BEGIN - 10
JOB = "".join(f"- {{fault: job, at: 1m, gpu: {gpu}, nvlink_utilization: 0.3}}\n" for gpu in range(RANKS))
HANGS = "".join(f"- {{fault: job_phase, phase: hang, at: 13m, gpu: {gpu}}}\n" for gpu in range(RANKS))
ONE_AWAY = HANGS + f"- {{fault: job_phase, phase: data_stall, gpu: {VICTIM}, at: 13m}}\n"
"""The victim's GPU is idle, the kernels of the others wait."""
CHECKPOINT = "".join(
    f"- {{fault: job_phase, phase: checkpoint, at: 13m, until: 33m, gpu: {gpu}}}\n" for gpu in range(RANKS)
)
FALLBACK = (
    "- {fault: nccl_setting, at: 0s, variable: WORLD_SIZE, value: 16}\n"
    "- {fault: job, at: 13m, nvlink_utilization: 0.1, rdma_utilization: 0.0, ethernet_utilization: 0.5}\n"
)
LOG = (
    "[2026-01-01 10:13:05] node1:41:77 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
    "[2026-01-01 10:13:05] node1:41:77 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n"
    "[2026-01-01 10:13:05] node1:41:77 [0] NCCL INFO Using network Socket\n"
    "[2026-01-01 10:13:05] node1:41:77 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/Socket/0\n"
    "[2026-01-01 10:13:05] node1:41:77 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 16 cudaDev 0 nvmlDev 0 "
    "busId 1b000 commId 0x3f2a - Init COMPLETE\n"
)


class Case(NamedTuple):
    """One row of the table."""

    faults: str
    """After 13 min."""
    kind: str = ""
    """How the real ranks behave; empty: none are needed."""
    codes: tuple[str, ...] = ()
    """Findings on the job at the end."""
    unit: str = ""
    """Words that the daemon says with its unit's rights; empty: it names no rank."""
    root: str = ""
    """The same of diagnose as root."""
    cause: str = ""
    """Code of the first cause."""
    job: str = JOB
    """Faults that make it work until then."""
    preset: str = "h100x8"
    log: str = ""
    minutes: float = 19.0
    """Until when it is played."""
    within: float = 60.0
    """Seconds after the last payload, or the begin of the fault, by which the first finding is there."""


STUCK = ("job_stuck",)
CASES = {
    "1 stopped rank": Case(ONE_AWAY, "stopped", ("job_stopped",), "", "is stopped"),
    "2 rank killed": Case(ONE_AWAY, "killed", STUCK, "has ended", "has ended"),
    "3 endless loop": Case(ONE_AWAY, "loop", STUCK, "computes on the CPU", "computes on the CPU"),
    "4 sleep before the collective": Case(ONE_AWAY, "sleep", STUCK, "", "it sleeps"),
    "5 blocked open of a file": Case(ONE_AWAY, "open", STUCK, "", "waits for a file"),
    "6 mismatched collective": Case(HANGS, "mismatch", STUCK),
    "7 port down in the middle of a job": Case(
        HANGS + "- {fault: rdma_port_down, device: mlx5_3, at: 12m50s}\n", "", STUCK, cause="rdma_port_down",
        preset="h100x8ndr",
    ),
    "8 symmetric hang": Case(HANGS, "symmetric", STUCK),
    "9 silent socket fallback": Case(
        FALLBACK, "", ("job_over_tcp",), cause="nccl_transport_fallback", job="", preset="h100x8ndr", log=LOG,
        within=120.0,
    ),
    "10 checkpoint of 20 min": Case(CHECKPOINT, minutes=34.0),
}  # fmt: skip


class Played(NamedTuple):
    """What was said."""

    first: float | None
    """Seconds from the begin to the first finding on the job."""
    named: float | None
    """Seconds from the begin until the daemon named a rank."""
    findings: dict[str, Finding]
    """On the job, open at the end."""
    opened: dict[str, float]
    """By code, seconds since the boot at which a finding opened first."""
    root: str
    """The answer of diagnose about the process table."""


@contextmanager
def ranks_of(kind: str, folder: Path) -> Iterator[Ranks | None]:
    """Real ranks in a folder of their own; none where the case needs none."""
    if not kind:
        yield None
        return
    folder.mkdir()
    made = Ranks(folder)
    try:
        yield made
    finally:
        made.end()


def read_with_rights_of_the_unit(node: SimulatedDaemon) -> Callable[[Path, int], Any]:
    """Reads real processes as the daemon's unit may, their CPU time in seconds of the node."""
    known: dict[int, tuple[float, float, float, float]] = {}

    def read(procfs: Path, pid: int) -> process_table.RankSample | None:
        one = process_table.read_rank(Path("/proc"), pid)
        if one is None or not one.state:
            return one
        real, now = time.monotonic(), node.time
        before = known.get(pid, (real, now, one.cpu, one.cpu))
        share = (one.cpu - before[2]) / (real - before[0]) if real > before[0] else 0.0
        scaled = before[3] + share * (now - before[1])
        known[pid] = real, now, one.cpu, scaled
        return one._replace(cpu=scaled, where="", call="")

    return read


def play(case: Case, folder: Path, patched: pytest.MonkeyPatch) -> Played:
    """A case, from the boot of the node to its end."""
    folder.mkdir(exist_ok=True)
    faults = case.job + case.faults
    with (
        ranks_of(case.kind, folder / "ranks") as ranks,
        rehearsed(case.preset, folder, patched, faults, job_log=case.log) as node,
    ):
        if ranks is not None:
            pids = ranks.pids
            patched.setattr(device_functions, "job_process", lambda hardware, place, at: pids[place])
            patched.setattr(stuck, "read_rank", read_with_rights_of_the_unit(node))
        first = named = None
        findings: dict[str, Finding] = {}
        root = ""
        while node.time < 60 * case.minutes:
            if ranks is not None and node.time == BEGIN:
                ranks.begin(case.kind, VICTIM, 300)
            for seconds in (8, 1):
                node.time += seconds
                node.run("nvml_nvlink")
            node.time += 1
            node.write_log()
            node.run()
            node.look()
            if ranks is not None and BEGIN <= node.time < BEGIN + 120:
                time.sleep(0.3)  # so that CPU time passes
            open_now = {one.code: one for one in node.verdict.findings if one.code.startswith(("job_", "nccl_"))}
            if open_now and first is None and node.time >= BEGIN:
                first = node.time - BEGIN
            if named is None and any("differs from its peers" in one.detail for one in open_now.values()):
                named = node.time - BEGIN
            jobs = node.answers.jobs().jobs
            if ranks is not None and jobs and not root and node.time >= BEGIN + 60:
                root = asked_as_root(jobs)
            findings = open_now
        opened = {one.code: one.seconds for one in reversed(node.changes) if one.event == "opened"}
        return Played(first, named, findings, opened, root)


def asked_as_root(jobs: tuple[SuspectedJob, ...]) -> str:
    """The answer of diagnose."""
    table = ProcessTable(Path("/proc"), pause=lambda seconds: time.sleep(SECONDS_APART / 2))
    [answers] = ask_sources(jobs, [table]).values()
    return answers[0].words


@pytest.mark.parametrize("name", CASES)
def test_each_case_has_its_answer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the source that knows it, in time, and nothing that is wrong."""
    case = CASES[name]
    if case.kind:
        pytest.importorskip("torch")
        if os.geteuid():
            pytest.skip("only root sees where the ranks of others wait")
    played = play(case, tmp_path / "case", monkeypatch)
    details = "; ".join(one.detail for one in played.findings.values() if one.detail)
    causes = [(one.code, one.since) for finding in played.findings.values() for one in finding.causes]
    print(
        f"\n{name}: first word after {played.first} s, rank named by the daemon after {played.named} s; "
        f"{', '.join(played.findings) or 'nothing'}; {details or '-'}; {causes}; root: {played.root or '-'}"
    )
    assert tuple(played.findings) == case.codes
    assert (played.first is None) == (not case.codes)
    assert played.first is None or played.first <= case.within
    # The reading of that moment shows it.
    assert played.opened.get("rdma_port_down", PORT_DOWN) <= PORT_DOWN + 60
    assert played.opened.get("job_over_tcp", BEGIN) <= BEGIN + 120
    assert case.unit in details
    assert bool(case.unit) == ("differs" in details)
    if case.kind:
        assert (
            (f"GPU{VICTIM}" in played.root and case.root in played.root) if case.root else "none alone" in played.root
        )
    assert (causes[0][0] if causes else "") == case.cause
    assert case.kind not in ALIKE or not played.named

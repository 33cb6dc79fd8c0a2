"""A command reads the dumps of a job that moves no data by itself: where its environments name them, of this pause."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commwatch.__main__ import main
from commwatch.jobs import in_child
from commwatch.jobs.asked import ask_sources
from commwatch.jobs.evidence import JobEvidence, JobRank, SuspectedJob
from commwatch.jobs.flight_recorder import asked
from commwatch.jobs.flight_recorder.asked import Dumps
from commwatch.units import time_of_day
from support.diagnoses import component, finding, healthy, known_of
from support.flight_recorder import call, dump, pickled
from support.processes import ProcessTable

PIDS = (101, 102, 103, 104)
NOW = 1_800_000_000.0
SILENT = 90.0
"""Seconds since the last payload."""
WORDS = (
    "Flight Recorder (dump 07:59:00 UTC): rank 3 did not call all_reduce 9 of group 0 (default_pg), in which ranks 0-2 "
    "wait; rank 3 is on GPU3"
)


ASK = in_child.ask


class Job:
    """Four ranks whose dumps lie in a folder; rank 3 did not make the last call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "dumps"
        self.folder.mkdir()
        (folder / "proc").mkdir()
        self.table = ProcessTable(folder / "proc")
        for rank, pid in enumerate(PIDS):
            self.process(pid, rank, f"{self.folder}/mine_rank_")
        self.write()

    def process(self, pid: int, rank: int | None, path: str, *, state: str = "S", started: int = 900) -> None:
        name = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" if rank == 0 else "TORCH_FR_DUMP_TEMP_FILE"
        self.table.add(pid, {name: path}, rank=rank)
        root = self.table.root / f"{pid}/root"
        if not root.is_symlink():
            root.rmdir()
            root.symlink_to("/")
        stat = f"{pid} (x) {state} 1{' 0' * 9} 5 0{' 0' * 6} {started}{' 0' * 29}"
        (self.table.root / f"{pid}/stat").write_text(stat)
        users = f"Uid:\t{os.geteuid()}\t0\t0\t0\n"
        (self.table.root / f"{pid}/status").write_text(f"Name:\tx\n{users}voluntary_ctxt_switches:\t1\n")

    def write(self, name: str = "mine", *, written: float = NOW - 60, called: float = NOW - SILENT) -> None:
        for rank in range(4):
            calls = [call("all_reduce", one, at=called - 9 + one, done=one < 9) for one in range(1, 10 - (rank == 3))]
            file = self.folder / f"{name}_rank_{rank}"
            file.write_bytes(pickled(dump(calls)))
            os.utime(file, (written, written))

    def said(
        self, *known: str, pids: tuple[int, ...] = PIDS, others: tuple[int, ...] = (), working: tuple[int, ...] = ()
    ) -> list[str]:
        jobs = [
            SuspectedJob(SILENT, tuple(JobRank(PIDS.index(pid), f"gpu{pid}", pid, True, 9.0) for pid in these))
            for these in (pids, others)
            if these
        ]
        words = ask_sources(jobs, [Dumps(self.table.root, known, working, lambda: NOW)])
        return [one.words for some in words.values() for one in some]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Environments and folders, which take a child process, are read in this one."""
    monkeypatch.setattr(in_child, "ask", in_child.answer)
    return Job(tmp_path)


def test_the_dumps_that_the_environments_name_are_judged(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside them lie those of another job; which rank is on which GPU is known by the environments, too."""
    monkeypatch.setattr(in_child, "ask", ASK)
    job.write("other", called=NOW)
    assert job.said() == [WORDS]


@pytest.mark.parametrize("source", ["inspector", "flight_recorder"])
def test_diagnose_reads_them_unless_the_daemon_has_such_words(
    source: str, job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are shown once."""
    now = time.time()
    job.write(written=now - 60, called=now - SILENT)
    evidence = JobEvidence(source, "Flight Recorder (dump, as the daemon read it)")
    stuck = finding(code="job_stuck", component=component("process", "gpu101", "job"), job_evidence=(evidence,))
    ranks = tuple(JobRank(rank, f"gpu{pid}", pid, True, 9.0) for rank, pid in enumerate(PIDS))
    known = replace(known_of(healthy(findings=(stuck,))), jobs=(SuspectedJob(SILENT, ranks),))
    monkeypatch.setattr("commwatch.diagnosis.known.ask", lambda *_: known)
    monkeypatch.setattr("commwatch.state.client.of_the_only_daemon", lambda config: config)
    monkeypatch.setattr("commwatch.jobs.asked.SECONDS_APART", 0.0)
    main(["diagnose", "--json", "--path.procfs", str(job.table.root), "--path.state", str(job.folder)])
    [found] = json.loads(capsys.readouterr().out)["findings"]
    said = [one["words"].partition(")")[0] for one in found["job_evidence"] if one["source"] != "proc"]
    dump = f"Flight Recorder (dump {time_of_day(now - 60)}"
    assert said == ([dump, evidence.words[:-1]] if source == "inspector" else [evidence.words[:-1]])


def _container(job: Job) -> None:
    for pid in PIDS:
        root = job.table.root / f"{pid}/root"
        root.unlink()
        root.mkdir()
        (root / str(job.folder).lstrip("/")).mkdir(parents=True)


def _unread(job: Job) -> None:
    for pid in PIDS:
        (job.table.root / f"{pid}/environ").unlink()


def _no_dumps(job: Job) -> None:
    for file in job.folder.iterdir():
        file.unlink()


def _links(job: Job) -> None:
    for file in list(job.folder.iterdir()):
        file.rename(job.folder.parent / file.name)
        file.symlink_to(job.folder.parent / file.name)


def _each(change: Callable[[Job, int, int], Any]) -> Callable[[Job], Any]:
    return lambda job: [change(job, pid, rank) for rank, pid in enumerate(PIDS)]


@pytest.mark.parametrize(
    "change",
    [
        _container, _unread, _no_dumps, _links, lambda job: job.folder.rename(f"{job.folder}.old"),
        _each(lambda job, pid, rank: job.process(pid, rank, f"{job.folder}/mine_rank_", started=950)),
        _each(lambda job, pid, rank: job.process(pid, rank, f"{job.folder}/mine_rank_", state="D")),
        _each(lambda job, pid, rank: job.process(pid, rank, f"{job.folder}/own{rank}_rank_")),
        _each(lambda job, pid, rank: job.process(pid, rank, "dumps/mine_rank_")),
        lambda job: job.write(written=NOW - SILENT - 1),
        lambda job: job.write(called=NOW - SILENT - 61),
        lambda job: job.write(written=NOW + 61),
    ],
    ids=["another folder in a container", "no rights", "none", "links", "no folder", "other processes", "hung",
         "of others", "a relative path", "written before the last payload", "of an earlier hang", "of the future"],
)  # fmt: skip
def test_without_dumps_of_this_job_and_pause_nothing_is_said(job: Job, change: Callable[[Job], Any]) -> None:
    change(job)
    assert job.said() == []


def test_dumps_of_two_jobs_are_not_mixed(job: Job) -> None:
    """Under one name they can be of either; without a launcher several names can be of several jobs."""
    assert job.said(pids=PIDS[:2], others=PIDS[2:]) == []
    assert job.said(pids=PIDS[:2], working=PIDS[2:]) == []
    job.process(110, None, f"{job.folder}/other_rank_")
    assert job.said(working=(110, 111)) == [WORDS]
    for pid in PIDS[2:]:
        job.process(pid, None, f"{job.folder}/mine_rank_")
    assert len(job.said()) == 1
    job.process(PIDS[3], None, f"{job.folder}/other_rank_")
    assert job.said() == []


def test_more_dumps_than_a_moment_allows_are_not_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a file of another user."""
    monkeypatch.setattr(asked, "MOST_DUMPS", 4)
    assert job.said() == [WORDS]
    monkeypatch.setattr(asked, "MOST_DUMPS", 3)
    assert job.said() == []
    monkeypatch.setattr(asked, "MOST_DUMPS", 4)
    status = job.table.root / f"{PIDS[0]}/status"
    status.write_text(status.read_text().replace(f"Uid:\t{os.geteuid()}", "Uid:\t4711"))
    assert job.said() == []


def test_folders_that_fit_the_name_are_not_entered(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may make any number of them in a folder of all, and of links to one with many files."""
    entered: list[str] = []
    scandir = os.scandir

    def enter(path: str) -> Any:
        entered.append(path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", enter)
    inside = job.folder / "mine_rank_folder"
    inside.mkdir()
    for number in range(9):
        (job.folder / f"mine_rank_link{number}").symlink_to(inside)
    assert job.said() == [WORDS]
    assert [one for one in entered if str(one).startswith(str(job.folder))] == [str(job.folder)]


@pytest.mark.parametrize(("limit", "why"), [(asked, "not all of them came in time"), (in_child, "no answer in 0 s")])
def test_of_dumps_that_are_not_read_in_time_that_alone_is_said(
    limit: Any, why: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were read would show the ranks of the others as silent."""
    monkeypatch.setattr(in_child, "ask", ASK)
    monkeypatch.setattr(limit, "MOST_SECONDS" if limit is asked else "SECONDS", 0.0)
    [words] = job.said()
    assert words.startswith(f"Flight Recorder: the dumps of the job were not read ({why}")


def test_no_pickle_is_loaded_in_this_process(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child with limits reads them."""
    monkeypatch.setattr("pickle.loads", lambda *_: pytest.fail("unpickled"))
    monkeypatch.setattr("commwatch.jobs.flight_recorder.reading.parse", lambda *_: pytest.fail("read here"))
    (job.folder / "mine_rank_0").write_bytes(b"cos\nsystem\n(S'touch /tmp/unpickled'\ntR.")
    os.utime(job.folder / "mine_rank_0", (NOW - 60, NOW - 60))
    assert all("rank 3" in one for one in job.said())

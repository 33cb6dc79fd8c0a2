"""The processes of a job that moves no data, as a command reads them: a name with its rights, or why there is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commwatch.jobs import in_child
from commwatch.jobs.asked import SECONDS_APART, ProcessTable, ask_sources
from commwatch.jobs.evidence import JobRank, SuspectedJob

PIDS = (101, 102, 103, 104)
GPU = "0000:{}:00.0"
WAITS = ("futex_wait_queue", "202 0x1")


class Processes:
    """Four ranks in a folder; a clock moves by pauses."""

    def __init__(self, procfs: Path) -> None:
        self.procfs = procfs
        self.now = 0.0
        self.later: Callable[[], Any] = lambda: None
        """Called in the second pause."""
        (procfs / "2").mkdir()
        (procfs / "2/comm").write_text("kthreadd\n")
        for pid in PIDS:
            self.write(pid)

    def write(self, pid: int, state: str = "S", wait: tuple[str, str] = WAITS, *, ticks: int = 5, name: str = "a) (b",
              started: int = 900) -> None:  # fmt: skip
        folder = self.procfs / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} ({name}) {state} 1{' 0' * 9} {ticks} 0{' 0' * 6} {started}{' 0' * 29}")
        (folder / "status").write_text("Name:\tx\nThreads:\t5000\nvoluntary_ctxt_switches:\t1\n")
        (folder / "environ").write_bytes(f"RANK={pid - 98}\0WORLD_SIZE=8\0LOCAL_RANK={pid - 101}\0TOKEN=x\0".encode())
        for file, text in zip(("wchan", "syscall"), wait, strict=True):
            (folder / file).write_text(text)

    def hide_where(self) -> None:
        for pid in PIDS:
            for file in ("wchan", "syscall", "environ"):
                (self.procfs / str(pid) / file).unlink()

    def pause(self, seconds: float) -> None:
        assert seconds == SECONDS_APART
        self.now += seconds
        if self.now == 2 * SECONDS_APART:
            self.later()

    def asked(self, started: float = 9.0, busy: tuple[int, ...] = PIDS, *, identity: bool = False) -> str:
        ranks = tuple(
            JobRank(place, GPU.format(place), pid, pid in busy, started) for place, pid in enumerate(PIDS)
        )  # fmt: skip
        table = ProcessTable(self.procfs, identity=identity, pause=self.pause, monotonic=lambda: self.now)
        [evidence] = ask_sources([SuspectedJob(90.0, ranks)], [table])[GPU.format(0)]
        assert evidence.source == "proc"
        return evidence.words


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    """What takes a child process is read in this one."""
    monkeypatch.setattr(in_child, "ask", in_child.answer)
    return Processes(tmp_path)


def test_the_rank_is_named_with_rank_gpu_and_rights(ranks: Processes) -> None:
    """By its environment, of which nothing else is shown."""
    ranks.write(103, wait=("wait_for_partner", "257 0x1"))
    words = ranks.asked()

    assert words.startswith("rank 5 of 8 on GPU2 (process 103, local rank 2) differs from its 3 peers: it waits for")
    assert "read as " in words
    assert words.endswith(": state, CPU time, switches and where each waits)")
    assert "TOKEN" not in words


def test_without_an_environment_the_order_of_gpus_counts(ranks: Processes) -> None:
    """The answer names that, and the rights that were missing."""
    ranks.hide_where()
    ranks.write(103, "T", ("0", ""))
    (ranks.procfs / "103/environ").unlink()
    words = ranks.asked()

    assert "GPU2 (number 2 by the order of GPU indices, its environment shows no rank; process 103)" in words
    assert "it is stopped by a signal or a debugger" in words
    assert "switches only; root and the job's user see where each waits, too" in words


def test_a_process_whose_files_do_not_answer_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file server that is gone: opening a pipe waits for ever too. The rank is named by its GPU."""
    ranks = Processes(tmp_path)
    monkeypatch.setattr(in_child, "SECONDS", 0.2)
    ranks.write(103, "T")
    (ranks.procfs / "103/environ").unlink()
    os.mkfifo(ranks.procfs / "103/environ")

    assert (
        "GPU2 (number 2 by the order of GPU indices, what its files say was not read: no answer in 0.2 s; a file "
        "server may be gone; process 103)" in ranks.asked()
    )


def test_the_owner_is_named_where_the_configuration_asks_for_it(ranks: Processes) -> None:
    """From the cgroup."""
    ranks.write(103, "T")
    (ranks.procfs / "103/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4711/step_0\n")
    assert "slurm job 4711" in ranks.asked(identity=True)
    ranks.now = 0.0
    assert "4711" not in ranks.asked()


def _gone(ranks: Processes) -> None:
    for file in (ranks.procfs / "103").iterdir():
        file.unlink()
    (ranks.procfs / "103").rmdir()


def _hidden(ranks: Processes) -> None:
    _gone(ranks)
    (ranks.procfs / "2/comm").unlink()


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (lambda ranks: None, "of 4 ranks none alone differs"),
        (lambda ranks: ranks.write(103, "Z"), "it has ended"),
        (_gone, "it has ended"),
        (lambda ranks: ranks.write(103, "T", started=950), "other processes than those of the daemon"),
        (_hidden, "do not all show"),
        (lambda ranks: ranks.write(103, "T", name="a\n) \x1b[31m {{x}} (T"), "it is stopped"),
        (lambda ranks: (ranks.procfs / "103/stat").write_text("rubbish"), "do not all show"),
    ],
    ids=["alike", "zombie", "gone", "pid used again", "hidden", "name with newline, ANSI and braces", "half a file"],
)
def test_hostile_and_changing_process_tables_name_nobody_else(
    ranks: Processes, happens: Callable[[Processes], Any], words: str
) -> None:
    """Another PID namespace, hidepid and a number that is used again are said, and no name is made up."""
    happens(ranks)
    said = ranks.asked()

    assert words in said
    assert said.isprintable()


def test_a_number_that_is_used_again_between_two_samples_names_nobody(ranks: Processes) -> None:
    """It was another process at the last sample."""
    ranks.later = lambda: ranks.write(103, "T", started=950)
    assert "other processes than those of the daemon" in ranks.asked()


def test_the_only_rank_whose_kernel_waits_is_not_named(ranks: Processes) -> None:
    """The GPUs of the others are idle: they have not arrived."""
    ranks.write(103, wait=("hrtimer_nanosleep", "230 0x1"))
    assert "it sleeps" in ranks.asked()
    ranks.now = 0.0
    assert "none alone differs" in ranks.asked(busy=(103,))

"""A rank's CPU time comes after that of everybody else."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from commwatch.probes.priority import RANK_NICENESS, let_others_go_first
from commwatch.probes.process import RankProcess


def autogroup_of(pid: int) -> str:
    """What the kernel says of a process's session; empty where it does not weigh sessions."""
    path = Path(f"/proc/{pid}/autogroup")
    return path.read_text() if path.exists() else ""


def test_a_rank_is_started_at_the_lowest_priority_with_its_session() -> None:
    """A started rank has nice 19, and its session too where Linux weighs sessions; ours stay as they were."""
    own = os.getpriority(os.PRIO_PROCESS, 0)

    async def started() -> tuple[int, str]:
        rank = RankProcess.start([sys.executable, "-c", "input()"], 0, {}, Path("/proc"))
        try:
            return os.getpriority(os.PRIO_PROCESS, rank.pid), autogroup_of(rank.pid)
        finally:
            assert await rank.end()
            rank.reap()

    niceness, autogroup = asyncio.run(started())

    assert niceness == RANK_NICENESS
    # The kernel refuses more than ten changes a second to those without privileges.
    assert autogroup == "" or os.geteuid() != 0 or autogroup.strip().endswith(f"nice {RANK_NICENESS}")
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_the_session_is_told_what_the_process_is(tmp_path: Path) -> None:
    """The session's nice value is written where the kernel keeps it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    (tmp_path / str(pid)).mkdir()
    (tmp_path / str(pid) / "autogroup").touch()
    try:
        let_others_go_first(pid, tmp_path)
    finally:
        os.waitpid(pid, 0)

    assert (tmp_path / str(pid) / "autogroup").read_text() == "19"


def test_a_kernel_without_autogroups_or_a_rank_that_has_ended_is_no_error(tmp_path: Path) -> None:
    """Where there is no such file, or no such process any more, nothing happens."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

    let_others_go_first(pid, tmp_path)

    assert list(tmp_path.iterdir()) == []

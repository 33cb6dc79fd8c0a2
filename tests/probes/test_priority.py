"""A rank lets others go first on the CPU while it starts, and measures as everybody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commwatch.probes.cycle import process
from commwatch.probes.cycle.priority import RANK_NICENESS, go_on, let_others_go_first, near_cpus, parse_cpus
from commwatch.probes.cycle.process import RankProcess
from commwatch.probes.rank_plan import PhaseEvent, RankEvent, RankPlan, event_line

PLAN = RankPlan(
    backend="gloo", rank=0, ranks=1, device=None, rendezvous_file="", steps=(), timed_seconds=1.0,
    collective_timeout=1.0,
)  # fmt: skip
ALL_CAPABILITIES, NO_CAPABILITIES = "000001ffffffffff", "0000000000000000"


def says(*events: RankEvent) -> list[str]:
    """The command line of a process that reads its plan, says this, and stays until its input ends."""
    lines = b"".join(event_line(event) for event in events).decode()
    code = f"import sys; sys.stdin.readline(); sys.stdout.write({lines!r}); sys.stdout.flush(); sys.stdin.read()"
    return [sys.executable, "-c", code]


def test_a_rank_has_less_weight_than_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A started rank is nicer than the process that started it, whose own nice value stays as it was."""
    monkeypatch.setattr(process, "let_others_go_first", let_others_go_first)
    own = os.getpriority(os.PRIO_PROCESS, 0)

    async def niceness_of_a_rank() -> int:
        rank = RankProcess.start(says(), 0, {}, Path("/proc"))
        try:
            return os.getpriority(os.PRIO_PROCESS, rank.pid)
        finally:
            assert await rank.end()
            rank.reap()

    assert asyncio.run(niceness_of_a_rank()) == min(own + RANK_NICENESS, 19)
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


CONFINED = """
import os, subprocess
from commwatch.commands.run import _confine
from commwatch.config.settings import Process
all_cores = os.sched_getaffinity(0)
_confine(Process(cpus=str(min(all_cores))))
from commwatch.probes.cycle.priority import let_others_go_first
with subprocess.Popen(["sleep", "60"], start_new_session=True) as rank:
    let_others_go_first(rank.pid)
    print(os.sched_getaffinity(0) == {min(all_cores)}, os.sched_getaffinity(rank.pid) == all_cores)
    rank.kill()
"""


def test_ranks_of_a_daemon_that_keeps_to_some_cores_have_all() -> None:
    """``process.cpus`` is for the daemon and its readers; what is measured is not to wait for one core."""
    paths = ":".join(path for path in sys.path if path)
    answer = subprocess.run(
        [sys.executable, "-c", CONFINED], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )

    assert answer.stdout.split() == ["True", "True"], answer.stderr


def test_only_the_start_comes_after_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session goes on at the weight of others once the rank enters a later phase, and is set so once."""
    told: list[str] = []
    monkeypatch.setattr("commwatch.probes.cycle.process.let_others_go_first", lambda pid: told.append("others first"))
    monkeypatch.setattr("commwatch.probes.cycle.process.go_on", lambda pid: told.append("go on"))

    async def phases_of_a_rank() -> None:
        command = says(PhaseEvent("start"), PhaseEvent("rendezvous"), PhaseEvent("setup"), PhaseEvent("measure"))
        rank = RankProcess.start(command, 0, {}, Path("/proc"))
        listening = asyncio.create_task(rank.listen(PLAN, lambda: told.append(rank.phase)))
        try:
            while "measure" not in told:
                await asyncio.sleep(0.005)
        finally:
            assert await rank.end()
            rank.reap()
            await listening

    asyncio.run(phases_of_a_rank())

    assert told[:6] == ["others first", "start", "go on", "rendezvous", "setup", "measure"]


@pytest.fixture
def pid() -> Iterator[int]:
    """Of a process that has ended and is not reaped yet: nobody's priority changes, whoever else is there."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process.pid


@pytest.mark.parametrize(
    ("capabilities", "during", "after"),
    [
        (ALL_CAPABILITIES, "10", "0"),
        # The kernel might refuse to set it back, and the rank would measure behind the others.
        (NO_CAPABILITIES, "as it was", "as it was"),
    ],
)
def test_the_session_of_a_rank_is_set_where_it_can_be_set_back(
    tmp_path: Path, pid: int, capabilities: str, during: str, after: str
) -> None:
    """With the privilege it is set to 10 and back to 0; where a kernel weighs no sessions, nothing is made."""
    autogroup = tmp_path / str(pid) / "autogroup"
    for name in ("self", str(pid)):
        (tmp_path / name).mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tcommwatch\nCapEff:\t{capabilities}\n")
    autogroup.write_text("as it was")

    let_others_go_first(pid, tmp_path)
    assert autogroup.read_text() == during
    go_on(pid, tmp_path)
    assert autogroup.read_text() == after

    autogroup.unlink()
    autogroup.parent.rmdir()
    let_others_go_first(pid, tmp_path)
    go_on(pid, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["self"]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,64", {0, 1, 2, 64}), ("7", {7}), *((text, set()) for text in ("", "0-", "-3", "a", "1;2", "1,,2", "0x3"))],
)
def test_cpus_of_the_gpus_own_numa_node(tmp_path: Path, text: str, cpus: set[int]) -> None:
    """As the kernel lists them of a PCI device; whatever is no such list names none, and of an unknown one none is."""
    device = tmp_path / "bus/pci/devices/0000:17:00.0"
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text(f"{text}\n")

    assert near_cpus("0000:17:00.0", tmp_path) == parse_cpus(text) == cpus
    assert near_cpus("0000:18:00.0", tmp_path) == frozenset()

"""The look at a node during a cycle: strangers, jobs and holds end it; our ranks and what was there before do not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from commwatch.node.gpus_now import GpusNow
from commwatch.node.store import Store
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.gate.watch import Halt, NodeWatch, session_of
from commwatch_exporters.snapshot import Block, Layout

GPUS = (("0", "0000:17:00.0"), ("1", "0000:3d:00.0"))
OURS = frozenset({501, 502})
NOW = 1_900_000_000.0


class Node:
    """Two GPUs whose processes a test sets; each look reads them again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wall = NOW
        self.monotonic = 100.0
        self.processes: dict[str, tuple[int, ...] | None] = {device: () for _, device in GPUS}
        """By PCI address; None: cannot be read."""
        self.reads = 0
        self.answers = True
        """Whether the driver answers at all."""
        self.hold = HoldFile(folder)
        self.store = Store()
        for index, device in GPUS:
            identity = Layout([("commwatch_gpu_info", (index, device, f"GPU-{index}", "", "NVIDIA Test", "Hopper"))])
            self.store.put("nvml_identity", device, Block(identity, (1,), 0.0), float("inf"))

    def tick(self) -> float:
        """The clock goes on whenever it is asked."""
        self.monotonic += 0.01
        return self.monotonic

    async def read(self) -> None:
        self.reads += 1
        if not self.answers:
            return
        now = self.tick()
        known = {device: pids for device, pids in self.processes.items() if pids is not None}
        self.store.occupants = known
        for index, device in GPUS:
            layout = Layout([("commwatch_gpu_compute_processes", (index, device))])
            count = len(known[device]) if device in known else None
            self.store.put("nvml_processes", device, Block(layout, (count,), now), float("inf"))

    def watch(self, *, gpus: bool = True, slurm: bool = False) -> NodeWatch:
        return NodeWatch(
            self.hold,
            gpus=GpusNow(self.store) if gpus else None,
            read_processes=self.read,
            cgroups=self.folder / "cgroup" if slurm else None,
            procfs=self.folder / "proc",
            now=lambda: self.wall,
            monotonic=self.tick,
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def look(watch: NodeWatch, ours: frozenset[int] = OURS) -> Halt | None:
    return asyncio.run(watch(ours))


def test_a_quiet_node_lets_a_cycle_go_on(node: Node) -> None:
    """Our own ranks on the GPUs are no strangers; each look reads again."""
    watch = node.watch()
    assert look(watch) is None

    node.processes = {"0000:17:00.0": (501,), "0000:3d:00.0": (502, 501)}
    assert look(watch) is None
    assert node.reads == 2


def test_a_rank_that_has_ended_is_no_stranger(node: Node) -> None:
    """The driver may list it for a moment longer than we do."""
    watch = node.watch()
    node.processes["0000:17:00.0"] = (501, 502)
    assert look(watch) is None

    assert look(watch, frozenset({501})) is None
    assert look(node.watch(), frozenset({501})) is not None  # the cycle after it has other ranks


def test_children_of_our_ranks_are_ours(node: Node) -> None:
    """A process in the session of a rank was started by it; one of another session was not."""
    for pid, session in ((601, 501), (602, 77)):
        (node.folder / f"proc/{pid}").mkdir(parents=True)
        (node.folder / f"proc/{pid}/stat").write_text(f"{pid} (python3 (x) y) S 501 501 {session} 0 -1\n")
    watch = node.watch()

    node.processes["0000:17:00.0"] = (501, 601)
    assert look(watch) is None
    node.processes["0000:17:00.0"] = (501, 602)
    assert look(watch) == Halt("process_appeared", "process 602 came to GPU 0000:17:00.0")


@pytest.mark.parametrize("lost", ["list", "driver"])
def test_what_cannot_be_read_ends_the_cycle(node: Node, lost: str) -> None:
    """A GPU whose processes are not known may have a job; what an earlier look found says nothing of now."""
    watch = node.watch()
    assert look(watch) is None
    if lost == "list":
        node.processes["0000:17:00.0"] = None
    else:
        node.answers = False

    assert look(watch) == Halt("gpu_unknown", "the processes of GPU 0000:17:00.0 could not be read")


@pytest.mark.parametrize("first", [(501,), None])
def test_a_stranger_ends_the_cycle(node: Node, first: tuple[int, ...] | None) -> None:
    """The process and its GPU are named; the second of two GPUs counts as the first, and says more than one that could
    not be read."""
    watch = node.watch()
    node.processes = {"0000:17:00.0": first, "0000:3d:00.0": (502, 4711)}

    assert look(watch) == Halt("process_appeared", "process 4711 came to GPU 0000:3d:00.0")


def test_a_hold_in_force_ends_the_cycle(node: Node) -> None:
    """Also one from before the cycle, which the gate may have missed; before any GPU is asked."""
    node.hold.hold(600.0, NOW - 10)
    watch = node.watch()

    assert look(watch) == Halt("requested", "the node is held for a job for another 590 s")
    node.wall = NOW + 590
    assert look(watch) is None
    assert node.reads == 1


def test_a_hold_by_the_prolog_of_the_own_job_ends_nothing(node: Node) -> None:
    """It held the node for this cycle; a later request is for somebody else."""
    prolog = node.hold.hold(600.0, NOW - 10)
    watch = replace(node.watch(), own_hold=prolog.since)
    assert look(watch) is None

    node.hold.hold(1.0, NOW - 1)
    assert look(watch) == Halt("requested", "the node is held for a job for another 590 s")


def test_a_request_without_a_hold_ends_the_cycle_that_it_met(node: Node) -> None:
    """``--hold 0s``: the cycle under way gives way, the next one does not."""
    node.hold.hold(0.0, NOW - 100)
    watch = node.watch()
    assert look(watch) is None

    node.hold.hold(0.0, NOW)
    assert look(watch) == Halt("requested", "commwatch yield asked for the GPUs")
    assert look(node.watch()) is None


def test_a_job_of_slurm_ends_the_cycle(node: Node) -> None:
    """Its cgroup is enough, before it has touched a GPU; where Slurm has no say it is not looked for."""
    watch, blind = node.watch(slurm=True), node.watch()
    assert look(watch) is None

    (node.folder / "cgroup/system.slice/slurmstepd.scope/job_17/step_0").mkdir(parents=True)
    assert look(watch) == Halt("scheduler_busy", "Slurm job 17 came to this node")
    assert look(blind) is None


def test_a_cycle_without_gpus_asks_none(node: Node) -> None:
    """gloo gives way to a hold and to a job alone."""
    watch = node.watch(gpus=False)
    node.processes["0000:17:00.0"] = (4711,)
    assert look(watch) is None
    assert node.reads == 0

    node.hold.hold(5.0, NOW)
    assert look(watch) is not None


def test_sessions_of_real_processes() -> None:
    """A process that leads a session, its child, and none."""
    with subprocess.Popen(
        ["/bin/sh", "-c", "/bin/sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        try:
            assert session_of(Path("/proc"), leader.pid) == leader.pid
            assert session_of(Path("/proc"), child) == leader.pid
            assert session_of(Path("/proc"), os.getpid()) == os.getsid(0)
        finally:
            os.killpg(leader.pid, 9)
    assert session_of(Path("/nonexistent"), 1) is None


def test_a_look_is_cheap(node: Node) -> None:
    """It is made every 0.3 s beside a measurement: without the driver's own time, far below a hundredth of that."""
    watch = node.watch(slurm=True)

    async def looks() -> float:
        await watch(OURS)
        started = time.process_time()
        for _ in range(50):
            await watch(OURS)
        return (time.process_time() - started) / 50

    assert asyncio.run(looks()) < 3e-3

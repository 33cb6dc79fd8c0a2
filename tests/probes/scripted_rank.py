"""A rank process that misbehaves as its argument says; protocol and phases are those of production, without torch."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from commwatch.probes.cycle import rank
from commwatch.probes.cycle.measure import RankError
from commwatch.probes.rank_plan import RankPlan, Step

SCRIPT = json.loads(sys.argv[1])


def hang() -> None:
    """Wait, as for a peer that does not come; other threads run."""
    time.sleep(600)


def hold() -> None:
    """Sit in a foreign call that keeps the interpreter's lock, as a call into a broken driver may: no thread runs.

    From the moment on at which the script's file is there, if it names one.
    """
    sys.setswitchinterval(600)
    library = ctypes.PyDLL(None)
    if "held" in SCRIPT:
        library.creat(SCRIPT["held"].encode(), 0o600)
    library.sleep(600)


def deaf() -> None:
    """As ``hold``, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hold()


def crash() -> None:
    sys.stderr.write("the driver said no\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    os._exit(0)


def throw() -> None:
    raise ValueError("unexpected")


def nccl_error() -> None:
    raise RankError("nccl_error", "said so")


def no_torch() -> None:
    raise RankError("no_torch", "said so")


def noise() -> None:
    """Print as NCCL does."""
    os.write(1, b"NCCL version 2.27.5\n")


def garbage() -> None:
    """Write to the pipe of the events something that is none."""
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        if int(descriptor.name) > 2 and descriptor.is_fifo():
            os.write(int(descriptor.name), b"{not json\n")


def offspring() -> None:
    """Start a child that would outlive the rank."""
    child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    Path(SCRIPT["file"]).write_text(str(child.pid))


def environment() -> None:
    """Write down the environment."""
    Path(SCRIPT["file"]).write_text(json.dumps(dict(os.environ)))


def tempt() -> None:
    """Leave a file that all may read in the private folder, and write down who can look at it."""
    folder = Path(os.environ["HOME"])
    (folder / "result").write_text("mine")
    (folder / "result").chmod(0o666)
    stranger = os.fork()
    if stranger == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.listdir(folder)
        except PermissionError:
            os._exit(7)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1])
    Path(SCRIPT["file"]).write_text(json.dumps([folder.stat().st_mode & 0o777, os.geteuid(), code]))


def note_set_up() -> None:
    """Leave a line that ``test_gates`` reads as a diary."""
    Path(SCRIPT["file"]).write_text("0 0\n")


BEHAVIOURS: dict[str, Callable[[], None]] = {
    behaviour.__name__: behaviour
    for behaviour in (
        hang, hold, deaf, crash, leave, throw, nccl_error, no_torch, noise, garbage, offspring, note_set_up,
        environment, tempt,
    )
}  # fmt: skip


def misbehave(phase: str, plan: RankPlan) -> None:
    """Do what the script says, if this is a phase (of several with spaces between) and the rank for it; null stands
    for all ranks."""
    if phase in SCRIPT.get("phase", "").split() and SCRIPT.get("rank", 0) in (plan.rank, None):
        BEHAVIOURS[SCRIPT["what"]]()


class ScriptedGroup:
    """Calls take a millisecond for latency and ten for bandwidth, and nothing is really sent."""

    torch_version = "scripted"
    nccl_version = "2.27.5"

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan
        misbehave("start", plan)

    def rendezvous(self) -> None:
        misbehave("rendezvous", self._plan)

    def first_call(self) -> None:
        misbehave("setup", self._plan)

    def time_calls(self, step: Step, calls: int) -> float:
        if "diary" in SCRIPT:
            with Path(SCRIPT["diary"]).open("a") as diary:
                diary.write(f"{self._plan.rank} {self._plan.steps.index(step)}\n")
        misbehave("measure", self._plan)
        slowness: float = SCRIPT.get("slowness", 1.0) if self._plan.rank == SCRIPT.get("rank", 0) else 1.0
        return (0.001 if step.purpose == "latency" else 0.01) * slowness

    def slowest(self, step: Step, seconds: float) -> float:
        return seconds

    def exact(self, step: Step) -> bool:
        return bool(step.size_bytes != SCRIPT.get("wrong_bytes"))

    def close(self) -> None:
        misbehave("close", self._plan)

    def clock(self) -> float:
        return time.perf_counter()

    def abort(self) -> None:
        if "aborted" in SCRIPT:
            Path(SCRIPT["aborted"], str(self._plan.rank)).touch()
        misbehave("abort", self._plan)


if __name__ == "__main__":
    rank.main(ScriptedGroup)

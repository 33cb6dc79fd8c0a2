"""A job that is suspected is only looked at: no call of the daemon or of diagnose is aimed at one of its processes.

``pytest -s`` prints what was seen. The node is simulated; the processes of its job are real gloo ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from commwatch.jobs.ranks import read_rank
from support.daemon import Daemon, environment, is_reader, running
from support.gloo_ranks import GAPS, RANKS, Ranks
from support.waiting import until

FIRST_PID, VICTIM = 4_100_000, 2
"""Of the simulated job; and the rank that does not arrive."""
FORBIDDEN = (
    "ptrace", "process_vm_readv", "process_vm_writev", "perf_event_open", "process_madvise", "process_mrelease",
    "pidfd_getfd", "kcmp", "migrate_pages", "move_pages", "sched_setaffinity", "setpriority", "prlimit64",
)  # fmt: skip
"""Calls that halt another process, read or change it."""
SIGNALS = ("kill", "tkill", "tgkill", "pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
ASK = """
import sys
from pathlib import Path
from commwatch.jobs.asked import ProcessTable, ask_sources
from commwatch.jobs.evidence import JobRank, SuspectedJob
from commwatch.jobs.flight_recorder.asked import Dumps
from commwatch.jobs.ranks import read_rank
proc = Path("/proc")
ranks = [
    JobRank(gpu, f"gpu {gpu}", pid, True, read_rank(proc, pid).started)
    for gpu, pid in enumerate(map(int, sys.argv[1:]))
]
print(ask_sources([SuspectedJob(90.0, tuple(ranks))], [ProcessTable(proc), Dumps(proc)]))
"""
"""What diagnose does with a suspected job; of a simulated one it reads nothing."""
HALTING_FILES = {"mem", "stack", "pagemap", "clear_refs", "smaps", "smaps_rollup", "numa_maps"}
"""Files of a process that are read under the lock of its memory, or by tracing it."""
JOB = "".join(f"- {{fault: job, at: 0s, gpu: {gpu}, nvlink_utilization: 0.3}}\n" for gpu in range(RANKS))
HANG = "".join(
    f"- {{fault: job_phase, phase: {'data_stall' if gpu == VICTIM else 'hang'}, at: 110s, gpu: {gpu}}}\n"
    for gpu in range(RANKS)
)
RATIO = 3.0
"""Far above noise between medians; a process that is halted shows a hundredfold."""


class Call(NamedTuple):
    """A line of strace."""

    name: str
    arguments: str


def traced(text: str) -> list[Call]:
    """The calls in the output of strace -f, each as it begins."""
    return [Call(*one) for one in re.findall(r"^\d+ +(\w+)\((.*)$", text, re.MULTILINE)]


def of_whom(call: Call) -> int:
    """The process that a call sends a signal to, or opens; a file descriptor counts as none."""
    first = re.match(r"-?\d+", call.arguments)
    return int(first[0]) if first and call.name != "pidfd_send_signal" else 0


def pids_in(arguments: str) -> Iterator[int]:
    """The numbers that are folders of a path, or of the folder in which a file is opened."""
    return map(int, re.findall(r"/(\d+)", arguments))


def strace(log: Path, *target: str) -> list[str]:
    """The command that traces a program or processes, and the processes that it starts."""
    calls = ",".join((*FORBIDDEN, *SIGNALS, "openat"))
    return ["strace", "-f", "-qq", "-y", "-e", "signal=none", "-e", f"trace={calls}", "-o", str(log), *target]


@contextmanager
def attached(daemon: Daemon, log: Path) -> Iterator[None]:
    """Trace a daemon with all its processes and those that they start."""
    pids = [*filter(is_reader, daemon.children()), daemon.process.pid]  # the last one is attached to at the end
    tracer = subprocess.Popen(strace(log, *(word for pid in pids for word in ("-p", str(pid)))))
    try:
        until(lambda: "TracerPid:\t0" not in Path(f"/proc/{pids[-1]}/status").read_text())
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()


def lend(procfs: Path, pids: Sequence[int]) -> None:
    """Let the process table of the simulated node show real processes as those of its job."""
    for place, pid in enumerate(pids):
        folder = procfs / str(FIRST_PID + place)
        shutil.rmtree(folder)
        folder.symlink_to(f"/proc/{pid}")


def longest_gaps(path: Path) -> list[tuple[float, float]]:
    """End and longest gap of each window, in seconds."""
    lines = path.read_text().splitlines()[:-1]
    return [(float(end), float(gap)) for end, gap in map(str.split, lines)]


def compared(what: str, without: Sequence[float], during: Sequence[float]) -> float:
    """How many times as long the median gap is; printed with its numbers."""
    before, after = statistics.median(without), statistics.median(during)
    print(
        f"\n{what}: longest gap of a window, median {after * 1e3:.2f} ms of {len(during)} against "
        f"{before * 1e3:.2f} ms of {len(without)}; highest {max(during) * 1e3:.1f} and {max(without) * 1e3:.1f} ms"
    )
    return after / before


@pytest.mark.skipif(shutil.which("strace") is None, reason="apt-get install strace")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads where the ranks of others wait")
def test_no_call_is_aimed_at_a_process_of_a_suspected_job(tmp_path: Path) -> None:
    """Neither by the daemon, from before the suspicion until it names the rank, nor by diagnose."""
    pytest.importorskip("torch")
    (tmp_path / "ranks").mkdir()
    (tmp_path / "faults.yaml").write_text(JOB + HANG)
    (tmp_path / "thresholds.yaml").write_text("job_stuck_payload_seconds: {value: 60}\n")
    config = tmp_path / "commwatch.yaml"
    config.write_text(f"thresholds: {tmp_path}/thresholds.yaml\nprobes: {{enabled: false}}\n")
    arguments = ("--simulate", "h100x8", "--simulate.faults", f"{tmp_path}/faults.yaml", "--config.file", str(config))
    ranks = Ranks(tmp_path / "ranks")
    try:
        ranks.begin("gaps", VICTIM)
        with running(tmp_path, *arguments) as daemon:
            [procfs] = daemon.state.glob("*/procfs")
            daemon.until((procfs / str(FIRST_PID + RANKS - 1) / "stat").exists)
            lend(procfs, ranks.pids)
            with attached(daemon, tmp_path / "daemon.strace"):
                daemon.until(lambda: daemon.count("job_odd_rank"), 400)
                suspected_at = time.monotonic() - max(daemon.series("job_stuck_seconds").values()) + 30
                named = daemon.series("job_odd_rank")
                time.sleep(15)
        asked = subprocess.run(
            strace(tmp_path / "diagnose.strace", sys.executable, "-c", ASK, *map(str, ranks.pids)),
            env=environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        gaps = longest_gaps(tmp_path / "ranks/gaps")
    finally:
        ranks.end()

    print(f"\nthe daemon names {dict(next(iter(named)))}")
    assert f"on GPU{VICTIM}" in asked.stdout, asked.stdout + asked.stderr
    pids = {*ranks.pids, *range(FIRST_PID, FIRST_PID + RANKS)}
    for who in ("daemon", "diagnose"):
        calls = traced((tmp_path / f"{who}.strace").read_text())
        aimed = [one for one in calls if one.name in SIGNALS and (abs(of_whom(one)) in pids or of_whom(one) == -1)]
        opened = [one for one in calls if one.name == "openat" and pids & set(pids_in(one.arguments))]
        names = Counter(one.arguments.split('"')[1].rpartition("/")[2] for one in opened)
        print(f"{who}: {Counter(one.name for one in calls if one.name != 'openat')}; files of the ranks: {dict(names)}")
        assert not [one for one in calls if one.name in FORBIDDEN and not is_of_itself(one)]
        assert not aimed
        assert {"stat", "wchan"} <= names.keys()
        assert not names.keys() & HALTING_FILES
        assert all("O_RDONLY" in one.arguments for one in opened)

    ratio = compared(
        "daemon",
        [gap for end, gap in gaps if end < suspected_at],
        [gap for end, gap in gaps if end >= suspected_at],
    )
    assert ratio < RATIO


def is_of_itself(call: Call) -> bool:
    """Whether a process asks for its own limits, niceness or cores."""
    own = {"prlimit64": r"0,", "setpriority": r"PRIO_PROCESS, 0,", "sched_setaffinity": r"0,"}
    return call.name in own and re.match(own[call.name], call.arguments) is not None


@pytest.mark.parametrize("threads", [1, 5000])
def test_reading_a_process_does_not_keep_it_from_running(threads: int, tmp_path: Path) -> None:
    """Read all the time, and not once in 10 s, beside a reader of another process; a halt of 50 ms would show."""
    start = "import threading\nthreading.stack_size(65536)\nstop = threading.Event()\n" + (
        f"for _ in range({threads - 1}): threading.Thread(target=stop.wait, daemon=True).start()\n"
    )
    loop = subprocess.Popen([sys.executable, "-c", f"{start}{GAPS}\nmeasure_gaps({str(tmp_path / 'gaps')!r}, 0.1)"])
    spent: dict[str, list[tuple[float, float]]] = {"itself": [], "loop": [], "halt": []}
    reads = 0

    def read(pid: int) -> None:
        nonlocal reads
        one = read_rank(Path("/proc"), pid)
        assert one is not None
        assert one.state
        reads += pid == loop.pid

    def halt() -> None:
        loop.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        loop.send_signal(signal.SIGCONT)

    def play(kind: str, action: Callable[[], None]) -> None:
        begin = time.monotonic()
        while time.monotonic() < begin + 0.5:
            action()
        spent[kind].append((begin, time.monotonic()))

    try:
        until(lambda: (tmp_path / "gaps").exists() and len(longest_gaps(tmp_path / "gaps")) > 10)
        assert len(os.listdir(f"/proc/{loop.pid}/task")) == threads
        for _ in range(20):
            play("itself", lambda: read(os.getpid()))
            play("loop", lambda: read(loop.pid))
        play("halt", halt)
        time.sleep(0.3)
    finally:
        loop.kill()
        loop.wait()

    gaps = longest_gaps(tmp_path / "gaps")
    seen = {
        kind: [gap for end, gap in gaps if any(begin + 0.1 <= end <= close for begin, close in those)]
        for kind, those in spent.items()
    }
    seconds = sum(close - begin for begin, close in spent["loop"])
    ratio = compared(f"{threads} threads, {reads / seconds:.0f} readings a second", seen["itself"], seen["loop"])
    assert ratio < RATIO
    assert max(seen["halt"]) > 0.04

"""Real gloo ranks of which one does not arrive at a collective: it is named, and none is named where all are alike.

Each case is sampled twice: by this test, which is root or the user of the ranks, and by a process of another user,
which sees what the daemon's unit sees.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from commwatch.jobs.ranks import SAMPLES, OddRank, RankSample, odd_rank, read_rank

RANKS, REPEATS, APART = 4, 10, 1.0
NOBODY = 65534
FAULTS = {"stopped": "stopped", "loop": "spinning", "sleep": "sleeping", "open": "waiting_for_file"}
"""Ways not to arrive, with the reason that names them."""
UNSEEN = {"child": "sleeping", "socket": "sleeping"}
"""Kinds that were added after the rule was done: a rank waits for its child, or for an answer."""
BY_THE_UNIT = ("stopped", "loop")
"""Ways that state, CPU time and switches show."""
ALIKE = ("mismatch", "symmetric", "camps")

RANK = """
import os, signal, socket, subprocess, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

class Released(Exception):
    pass

def released(*_):
    raise Released

signal.signal(signal.SIGUSR1, released)
torch.set_num_threads(1)
rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
tensor = torch.ones(4096)

def away(kind):
    try:
        if kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "loop":
            while True:
                pass
        elif kind == "sleep":
            time.sleep(3600)
        elif kind == "open":
            open(f"{folder}/fifo")
        elif kind == "child":
            subprocess.run(["sleep", "3600"])
        elif kind == "socket":
            ours, theirs = socket.socketpair()
            ours.recv(1)
    except Released:
        pass

print("ready", flush=True)
for line in sys.stdin:
    kind, victim = line.split()
    for _ in range(15):
        dist.all_reduce(tensor)
    if kind in ("mismatch", "symmetric", "camps"):
        group = dist.new_group(timeout=timedelta(seconds=8))
        dist.all_reduce(tensor, group=group)
        try:
            if kind == "mismatch" and rank == int(victim):
                dist.broadcast(tensor, (rank + 1) % size, group=group)
            elif kind == "symmetric":
                dist.recv(tensor, (rank + 1) % size, group=group)
            elif kind == "camps" and rank % 2:
                time.sleep(8)
            else:
                dist.all_reduce(tensor, group=group)
        except RuntimeError:
            pass
    else:
        if rank == int(victim):
            away(kind)
        dist.all_reduce(tensor)
    print("done", flush=True)
"""


class Seen(NamedTuple):
    """What was named in a case, with either rights."""

    full: OddRank | None
    unit: OddRank | None


class Ranks:
    """The ranks of one job, which play one case after the other."""

    def __init__(self, folder: Path) -> None:
        os.mkfifo(folder / "fifo")
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(RANKS), str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        self.await_all()

    @property
    def pids(self) -> list[int]:
        return [one.pid for one in self.processes]

    def await_all(self) -> None:
        for one in self.processes:
            assert _stream(one.stdout).readline(), "a rank has ended"

    def play(self, kind: str, victim: int) -> Seen:
        for one in self.processes:
            stream = _stream(one.stdin)
            stream.write(f"{kind} {victim}\n")
            stream.flush()
        time.sleep(1.5)
        full, unit = [], []
        for number in range(SAMPLES):
            time.sleep(APART if number else 0.0)
            full.append((time.monotonic(), _read(self.pids)))
            unit.append((time.monotonic(), _read_as_nobody(self.pids)))
        if kind not in ALIKE:
            os.kill(self.pids[victim], signal.SIGCONT if kind == "stopped" else signal.SIGUSR1)
        self.await_all()
        return Seen(odd_rank(full), odd_rank(unit))

    def end(self) -> None:
        for one in self.processes:
            one.kill()
            one.wait()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _read(pids: Sequence[int]) -> dict[int, RankSample]:
    found = {pid: read_rank(Path("/proc"), pid) for pid in pids}
    return {pid: one for pid, one in found.items() if one is not None}


def _read_as_nobody(pids: Sequence[int]) -> dict[int, RankSample]:
    """The same by a process that is neither root nor the user of the ranks."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, pickle.dumps({pid: tuple(one) for pid, one in _read(pids).items()}))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        found = pickle.loads(stream.read())  # noqa: S301 - of our own fork
    os.waitpid(child, 0)
    return {pid: RankSample(*one) for pid, one in found.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four gloo ranks, started once: what keeps one of them away can be ended."""
    pytest.importorskip("torch")
    if os.geteuid():
        pytest.skip("only root can read as another user")
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("kind", [*FAULTS, *UNSEEN])
def test_the_rank_that_does_not_arrive_is_named(ranks: Ranks, kind: str) -> None:
    """Ten times, another rank each time, by root or the job's user; nobody else is named, with either rights."""
    full = unit = wrong = 0
    for number in range(REPEATS):
        victim = number % RANKS
        seen = ranks.play(kind, victim)
        right = (ranks.pids[victim], (FAULTS | UNSEEN)[kind])
        full += seen.full is not None and seen.full[:2] == right and seen.full.is_full
        unit += seen.unit is not None and seen.unit[:2] == right and not seen.unit.is_full
        wrong += sum(one is not None and one.pid != right[0] for one in seen)
    print(f"{kind}: {full} of {REPEATS} as root, {unit} of {REPEATS} as another user, {wrong} wrong")
    assert wrong == 0
    assert full == REPEATS
    assert unit == (REPEATS if kind in BY_THE_UNIT else 0)


@pytest.mark.parametrize("kind", ALIKE)
def test_nobody_is_named_where_no_rank_differs(ranks: Ranks, kind: str) -> None:
    """A mismatched collective, all that wait for each other, and two camps, ten times each, with either rights."""
    seen = [ranks.play(kind, number % RANKS) for number in range(REPEATS)]
    named = [one for pair in seen for one in pair if one is not None]
    print(f"{kind}: {len(named)} names")
    assert not named

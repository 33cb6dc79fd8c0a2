"""Real ranks over gloo on this machine's CPU, of which one can be kept from arriving at a collective."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

RANKS = 4
ALIKE = ("mismatch", "symmetric", "camps")
"""Cases in which no rank differs: they end by a time-out of the group."""

GAPS = """
import time

def measure_gaps(path, window=0.25):
    file = open(path, "w", buffering=1)
    last = begin = time.monotonic()
    longest = 0.0
    while True:
        now = time.monotonic()
        longest = max(longest, now - last)
        last = now
        if now - begin >= window:
            file.write(f"{now} {longest}\\n")
            last = begin = time.monotonic()
            longest = 0.0
"""
"""A loop that writes for each window its end, in monotonic seconds, and for how long it did not run at most."""

RANK = (
    GAPS
    + """
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
        elif kind == "gaps":
            measure_gaps(f"{folder}/gaps")
        elif kind == "sleep":
            time.sleep(3600)
        elif kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
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
    kind, victim, seconds = line.split()
    for _ in range(15):
        dist.all_reduce(tensor)
    if kind in ("mismatch", "symmetric", "camps"):
        group = dist.new_group(timeout=timedelta(seconds=int(seconds)))
        dist.all_reduce(tensor, group=group)
        try:
            if kind == "mismatch" and rank == int(victim):
                dist.broadcast(tensor, (rank + 1) % size, group=group)
            elif kind == "symmetric":
                dist.recv(tensor, (rank + 1) % size, group=group)
            elif kind == "camps" and rank % 2:
                time.sleep(int(seconds))
            else:
                dist.all_reduce(tensor, group=group)
        except RuntimeError:
            pass
    else:
        if rank == int(victim):
            away(kind)
        try:
            dist.all_reduce(tensor)
        except RuntimeError:
            signal.pause()  # as ranks of NCCL whose peer is killed go on waiting
    print("done", flush=True)
"""
)


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
        """By rank."""
        return [one.pid for one in self.processes]

    def await_all(self) -> None:
        """Wait until each has ended its case."""
        for one in self.processes:
            assert _stream(one.stdout).readline(), "a rank has ended"

    def begin(self, kind: str, victim: int, seconds: int = 8) -> None:
        """Have them play a case, and wait until all stand still.

        Args:
            kind: a way not to arrive, or one of ``ALIKE``.
            victim: the rank that does not arrive.
            seconds: after which a case of ``ALIKE`` ends by itself.
        """
        for one in self.processes:
            if one.poll() is not None:
                continue
            stream = _stream(one.stdin)
            stream.write(f"{kind} {victim} {seconds}\n")
            stream.flush()
        time.sleep(1.5)

    def release(self, kind: str, victim: int) -> None:
        """End the case."""
        if kind not in ALIKE:
            os.kill(self.pids[victim], signal.SIGCONT if kind == "stopped" else signal.SIGUSR1)
        self.await_all()

    def end(self) -> None:
        """Kill them."""
        for one in self.processes:
            one.kill()
            one.communicate()


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream

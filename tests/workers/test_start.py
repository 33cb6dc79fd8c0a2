"""Worker processes that were forked early: in a process of its own, because a process with threads is not to fork."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.daemon import environment

_TOOLS = """
import os, signal, socket, time
from pathlib import Path
import msgspec
from commwatch.workers.start import Spares
from commwatch.workers.wire import ProgressMark, WorkerPlan, frame


def start():
    ours, theirs = socket.socketpair()
    mark = ProgressMark.create()
    process = spares.start(theirs.fileno(), mark.descriptor)
    theirs.close()
    return process, ours


def code_of(process):
    while process.poll() is None:
        time.sleep(0.01)
    return process.poll()


def there(pid):
    return Path(f"/proc/{pid}").exists()
"""
_PARENT = """
listening = socket.create_server(("127.0.0.1", 0))
spares = Spares(2)
pid = spares.pids()[-1]
first, connection = start()
[other] = spares.pids()
spares.end()
print("waits for ever" if there(other) else "ended")
plan = WorkerPlan((), b"{}", "/sys", "/proc", (), None, None)
connection.sendall(frame(msgspec.msgpack.encode(plan)))
assert first.pid == pid
assert first.poll() is None
while not Path(f"/proc/{pid}/comm").read_text().startswith("commwatch-"):
    time.sleep(0.01)
links = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
inode = os.fstat(listening.fileno()).st_ino
print("listens too" if f"socket:[{inode}]" in links else "holds its own")
connection.close()
print("code", code_of(first))
second, connection = start()
assert b"NOTIFY_SOCKET" not in Path(f"/proc/{second.pid}/environ").read_bytes()
own = b"workers.child" in Path(f"/proc/{second.pid}/cmdline").read_bytes()
print("interpreter of its own" if own else "forked")
second.kill()
print("code", code_of(second))
"""


def _end_of(script: str) -> list[str]:
    """The lines that a script writes; it writes no errors, and leaves nothing open."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**environment(), "NOTIFY_SOCKET": "/run/n"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_process_forked_early_becomes_a_worker_and_later_ones_are_started_anew() -> None:
    """It holds nothing of the daemon's and ends with its connection. Once those left over are ended, the next one gets
    an interpreter of its own."""
    assert _end_of(_TOOLS + _PARENT) == ["ended", "holds its own", "code 0", "interpreter of its own", "code -9"]


_CASES = {
    "a start that fails leaves none behind": """
try:
    with Spares(2) as spares:
        pids = spares.pids()
        raise OSError
except OSError:
    print(spares.pids(), [there(pid) for pid in pids])
""",
    "one that somebody has killed is passed over, and no zombie": """
with Spares(2) as spares:
    other, killed = spares.pids()
    os.kill(killed, signal.SIGKILL)
    while Path(f"/proc/{killed}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    process, _connection = start()
    print(process.pid == other, there(killed))
    process.kill()
""",
    "one that is stopped is ended too": """
with Spares(1) as spares:
    [pid] = spares.pids()
    os.kill(pid, signal.SIGSTOP)
print(there(pid))
""",
    "SIGCHLD is ignored by the parent": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with Spares(2) as spares:
    [other, _] = spares.pids()
    process, _connection = start()
    process.kill()
    print(code_of(process))
    process.kill()
print(there(other))
""",
    "a system that is full gives no more": """
fork, forks = os.fork, []


def full():
    if forks:
        raise BlockingIOError
    forks.append(fork())
    return forks[0]


os.fork = full
open_before = len(os.listdir("/proc/self/fd"))
with Spares(3) as spares:
    print(len(spares.pids()), len(os.listdir("/proc/self/fd")) - open_before)
""",
}
_ENDS = ("[] [False, False]", "True False", "False", "0\nFalse", "1 1")


@pytest.mark.parametrize(("case", "end"), list(zip(_CASES, _ENDS, strict=True)))
def test_those_that_wait_end_whatever_happens(case: str, end: str) -> None:
    """None is left when the daemon's start fails, and none that was ended elsewhere stays a zombie."""
    assert _end_of(_TOOLS + _CASES[case]) == end.splitlines()

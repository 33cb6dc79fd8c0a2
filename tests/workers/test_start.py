"""Worker processes that were forked early: in a process of its own, because a process with threads is not to fork."""

from __future__ import annotations

import subprocess
import sys

from support.daemon import environment

_PARENT = """
import os, socket, time
from pathlib import Path
import msgspec
from commwatch.workers.start import Spares
from commwatch.workers.wire import ProgressMark, WorkerPlan, frame

listening = socket.create_server(("127.0.0.1", 0))
spares = Spares(2)
pid = spares.pids()[-1]


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


first, connection = start()
[other] = spares.pids()
spares.end()
print("ended" if not Path(f"/proc/{other}").exists() else "waits for ever")
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


def test_a_process_forked_early_becomes_a_worker_and_later_ones_are_started_anew() -> None:
    """It holds nothing of the daemon's and ends with its connection. Once those left over are ended, the next one gets
    an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _PARENT],
        env={**environment(), "NOTIFY_SOCKET": "/run/n"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["ended", "holds its own", "code 0", "interpreter of its own", "code -9"]

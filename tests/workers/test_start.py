"""Worker processes that were forked early: in a process of its own, because a process with threads is not to fork."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from commwatch.config.settings import KernelLogSection, Sources, section_json
from commwatch.workers.start import start_python
from commwatch.workers.wire import Order, ProgressMark, WireBatch, WorkerPlan, frame, take_frames
from support.daemon import environment
from support.passes import in_one_pass
from support.waiting import until

_TOOLS = """
import os, signal, socket, time
from pathlib import Path
import msgspec
from commwatch.workers.start import Spares, take_kernel_log
from commwatch.workers.wire import Inbox, Order, ProgressMark, WireBatch, WorkerPlan, frame


def start(kernel_log=None):
    ours, theirs = socket.socketpair()
    mark = ProgressMark.create()
    process = spares.start(theirs.fileno(), mark.descriptor, kernel_log)
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
plan = WorkerPlan("reader", ())
connection.sendall(frame(msgspec.msgpack.encode(plan)))
assert first.pid == pid
assert first.poll() is None
while not Path(f"/proc/{pid}/comm").read_text().startswith("commwatch-"):
    time.sleep(0.01)
links = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
inode = os.fstat(listening.fileno()).st_ino
print("stands in", os.readlink(f"/proc/{pid}/cwd"))
print("listens too" if f"socket:[{inode}]" in links else "holds its own")
connection.close()
print("code", code_of(first))
second, connection = start()
while not (words := Path(f"/proc/{second.pid}/cmdline").read_bytes()):  # exec says that it went well before it is over
    time.sleep(0.01)
assert b"NOTIFY_SOCKET" not in Path(f"/proc/{second.pid}/environ").read_bytes()
own = b"workers.child" in words
print("interpreter of its own" if own else "forked")
second.send_signal(signal.SIGKILL)
print("code", code_of(second))
"""


def _end_of(script: str, standard_input: int = subprocess.DEVNULL) -> list[str]:
    """The lines that a script writes; it writes no errors, and leaves nothing open."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**environment(), "NOTIFY_SOCKET": "/run/n"},
        stdin=standard_input,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_process_forked_early_becomes_a_worker_and_later_ones_are_started_anew() -> None:
    """It stands in the root folder, holds nothing of the daemon's and ends with its connection. Once those left over
    are ended, the next one gets an interpreter of its own."""
    lines = _end_of(_TOOLS + _PARENT)
    assert lines == ["ended", "stands in /", "holds its own", "code 0", "interpreter of its own", "code -9"]


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
    process.send_signal(signal.SIGKILL)
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
    process.send_signal(signal.SIGKILL)
    print(code_of(process))
    process.send_signal(signal.SIGKILL)
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


@in_one_pass("case, end", list(zip(_CASES, _ENDS, strict=True)))
def test_those_that_wait_end_whatever_happens(case: str, end: str) -> None:
    """None is left when the daemon's start fails, and none that was ended elsewhere stays a zombie."""
    assert _end_of(_TOOLS + _CASES[case]) == end.splitlines()


_KERNEL_LOG = """
def holds_it(pid):
    folder = Path(f"/proc/{pid}/fd")
    return "/dev/kmsg" in {os.readlink(one) for one in folder.iterdir()}


def is_read_to_its_end():
    try:
        os.read(kernel_log, 8192)
    except BlockingIOError:
        return True
    return False


kernel_log = take_kernel_log()
print("standard input is now", os.readlink("/proc/self/fd/0"))
program = os.spawnv(os.P_NOWAIT, "/bin/sleep", ["sleep", "60"])
with Spares(1) as spares:
    for kind in ("forked", "anew"):
        plan = WorkerPlan("host", ("kernel_log",))
        process, connection = start(kernel_log)
        connection.sendall(frame(msgspec.msgpack.encode(plan)))
        os.lseek(kernel_log, 0, os.SEEK_SET)
        connection.sendall(frame(msgspec.msgpack.encode(Order("kernel_log", now=True))))
        [message] = Inbox(connection).take()
        batch = msgspec.msgpack.decode(message, type=WireBatch)
        print(kind, batch.unavailable, holds_it(process.pid), is_read_to_its_end())
        connection.close()
        code_of(process)
    process, connection = start()
    connection.sendall(frame(msgspec.msgpack.encode(WorkerPlan("reader", ()))))
    while b"workers.child" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        time.sleep(0.01)
    print("another reader:", holds_it(process.pid), "a program:", holds_it(program))
    process.send_signal(signal.SIGKILL)
    code_of(process)
os.kill(program, signal.SIGKILL)
os.waitpid(program, 0)
"""


def test_a_worker_reads_the_kernel_log_by_the_descriptor_that_the_daemon_was_started_with() -> None:
    """Be it forked early or started as a new interpreter; other workers and other programs do not get it."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY)
    except OSError as error:
        pytest.skip(str(error))
    try:
        lines = _end_of(_TOOLS + _KERNEL_LOG, log)
    finally:
        os.close(log)
    assert lines == [
        "standard input is now /dev/null",
        "forked None True True",
        "anew None True True",
        "another reader: False a program: False",
    ]


@in_one_pass("standard_input", ["pipe", "/dev/null", "closed"])
def test_any_other_standard_input_is_left_as_it_is(standard_input: str) -> None:
    """A terminal, a pipe or nothing: then the source opens the log itself."""
    script = "print(take_kernel_log(), os.path.lexists('/proc/self/fd/0'))"
    if standard_input == "closed":
        script = f"os.close(0)\nprint(take_kernel_log())\nos.open(os.devnull, os.O_RDONLY)\n{script}"
    given = subprocess.PIPE if standard_input == "pipe" else subprocess.DEVNULL

    assert _end_of(_TOOLS + script, given)[-1] == "None True"


def test_a_worker_that_was_given_up_reads_nothing_more(tmp_path: Path) -> None:
    """It may share the kernel log with the next one, to which the new records belong."""
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    end = os.open(log, os.O_RDWR | os.O_NONBLOCK)
    settings = section_json(Sources(kernel_log=KernelLogSection(path=str(log))))
    plan = WorkerPlan("host", ("kernel_log",), settings)
    ours, theirs = socket.socketpair()
    mark = ProgressMark.create()
    with ours, theirs:
        worker = start_python(theirs.fileno(), mark.descriptor)
        worker.send_signal(signal.SIGSTOP)
        os.write(end, b"4,1,0,-;a record\n")
        for message in (plan, Order("kernel_log", 5.0, now=True)):
            ours.sendall(frame(msgspec.msgpack.encode(message)))
    worker.send_signal(signal.SIGCONT)

    until(lambda: worker.poll() is not None)
    assert (worker.poll(), os.read(end, 100)) == (0, b"4,1,0,-;a record\n")
    mark.close()
    os.close(end)


def test_a_worker_whose_source_cannot_be_read_runs_nothing_more_where_it_is_to_rest() -> None:
    """It waits for the order to end, whatever else is due or ordered."""
    plan = WorkerPlan("nvml", ("nvml",), rest_when_unavailable=True)
    orders = [Order(name, 0.01, now=True) for name in ("nvml_gpu", "nvml_identity")]
    ours, theirs = socket.socketpair()
    mark = ProgressMark.create()
    with ours:
        with theirs:
            worker = start_python(theirs.fileno(), mark.descriptor)
        ours.sendall(b"".join(frame(msgspec.msgpack.encode(one)) for one in (plan, *orders)))
        come = bytearray(ours.recv(2**16))
        ours.sendall(frame(msgspec.msgpack.encode(Order("nvml_gpu", 0.01, now=True))))
        ours.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ours.recv(2**16)
        ours.settimeout(None)
        ours.sendall(frame(msgspec.msgpack.encode(Order(""))))
        until(lambda: worker.poll() is not None)
    (batch,) = [msgspec.msgpack.decode(one, type=WireBatch) for one in take_frames(come)]
    assert (batch.unavailable is not None, worker.poll()) == (True, 0)
    mark.close()

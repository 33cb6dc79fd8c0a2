"""The filter of system calls of a process that reads what jobs wrote: its program on paper, and in force."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import msgspec
import pytest

from commwatch.config.settings import NcclLogsSection, Sources, section_json
from commwatch.workers.reader import Reader, ReaderSettings
from commwatch.workers.seccomp import (
    HARMLESS,
    KERNEL,
    LOOKED_INTO,
    MACHINES,
    NETWORK,
    PRIVILEGES,
    PROCESSES,
    SHARED,
    SIGNALLING,
    WRITING,
    filter_program,
)
from commwatch.workers.sources import READERS
from commwatch.workers.wire import Order, ProgressMark, WorkerPlan, frame
from support.core import in_loop
from support.daemon import environment
from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS

ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSED, ABSENT = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
HEADERS = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")
REMAINS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "mmap": (9, 222), "poll": (7, None), "ppoll": (271, 73),
    "sendto": (44, 206), "recvfrom": (45, 207), "futex": (202, 98), "exit_group": (231, 94), "getdents64": (217, 61),
    "readv": (19, 65), "pread64": (17, 67), "prlimit64": (302, 261), "getrandom": (318, 278),
}  # fmt: skip
"""What a worker needs."""


def judged(machine: str, number: int, *arguments: int, architecture: int | None = None, may_write: bool = False) -> int:
    """What the kernel's virtual machine would return for a call: the few instructions of it that a filter may use."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    own = MACHINES[machine][1] if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, own, 0, *given)
    program = list(struct.iter_unpack("=HBBI", filter_program(machine, may_write=may_write)))
    assert len(program) <= 4096
    place, accumulator = 0, 0
    while True:
        code, true, false, k = program[place]
        place += 1
        if code == 0x06:
            return int(k)
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            place += true if holds else false


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_refused_and_what_remains(machine: str) -> None:
    """Sockets, programs, other processes, privileges and writing are refused; what a reader does is not."""
    column = MACHINES[machine][0]
    for table in (NETWORK, PROCESSES, SHARED, PRIVILEGES, KERNEL, WRITING):
        for name, numbers in table.items():
            if (number := numbers[column]) is not None:
                assert judged(machine, number) == REFUSED, name
    for name, numbers in REMAINS.items():
        if (number := numbers[column]) is not None:
            assert judged(machine, number) == ALLOW, name


NAMED = {
    "sockets, connections, messages with descriptors": "socket socketpair connect bind listen accept4 sendmsg recvmsg",
    "programs, processes, signals and ptrace": "execve execveat kill tgkill rt_sigqueueinfo pidfd_send_signal ptrace",
    "memory by a key, and of other processes": "shmget shmat semget msgget mq_open process_vm_readv process_vm_writev "
    "pidfd_getfd process_madvise setpriority sched_setscheduler",
    "user, capabilities, name spaces and mounts": "setuid setgid setresuid setgroups capset unshare setns chroot "
    "pivot_root mount umount2 move_mount fsopen",
    "BPF, io_uring, keys, modules": "bpf io_uring_setup io_uring_enter add_key keyctl init_module finit_module "
    "kexec_load perf_event_open userfaultfd",
    "making, renaming, removing, changing files": "mkdirat unlinkat renameat2 linkat symlinkat mknodat fchmod fchmodat "
    "fchown fchownat truncate ftruncate fallocate utimensat setxattr removexattr copy_file_range",
}
"""What SECURITY.md says is refused, by the names of the kernel's manual."""


@in_one_pass("machine", MACHINES)
@in_one_pass("what", NAMED)
def test_each_kind_of_call_is_refused(machine: str, what: str) -> None:
    """None of a kind is forgotten in the lists."""
    known = {name: numbers for table in (NETWORK, PROCESSES, SHARED, PRIVILEGES, KERNEL, WRITING)
             for name, numbers in table.items()}  # fmt: skip
    for name in NAMED[what].split():
        number = known[name][MACHINES[machine][0]]
        assert number is not None
        assert judged(machine, number) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_on_opening_and_on_new_processes(machine: str) -> None:
    """A file is opened for reading alone, and a thread may begin but no process."""
    column = MACHINES[machine][0]
    opening, cloning = LOOKED_INTO["openat"][column], LOOKED_INTO["clone"][column]
    assert opening is not None
    assert cloning is not None
    read = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_DIRECTORY
    assert judged(machine, opening, 0, 0, read) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_RDONLY | os.O_TRUNC, os.O_TMPFILE | os.O_RDWR):
        assert judged(machine, opening, 0, 0, flags) == REFUSED
        assert judged(machine, opening, 0, 0, flags, may_write=True) == ALLOW
    assert judged(machine, cloning, 0x3D0F00) == ALLOW  # what glibc asks for a thread
    assert judged(machine, cloning, 17) == REFUSED  # SIGCHLD alone: fork
    for name in ("prlimit64", "sched_setaffinity"):
        assert judged(machine, LOOKED_INTO[name][column] or 0, 0) == ALLOW
        assert judged(machine, LOOKED_INTO[name][column] or 0, os.getppid()) == REFUSED, "another process"
    for name in ("openat2", "clone3"):
        assert judged(machine, LOOKED_INTO[name][column] or 0) == ABSENT


@pytest.mark.parametrize("machine", MACHINES)
def test_no_descriptor_is_a_way_to_other_processes_or_to_a_driver(machine: str) -> None:
    """The owner of a descriptor gets signals, of any number; requests of ioctl are those that Python's files make."""
    column = MACHINES[machine][0]
    fcntl_, ioctl = LOOKED_INTO["fcntl"][column], LOOKED_INTO["ioctl"][column]
    assert fcntl_ is not None
    assert ioctl is not None
    for command in SIGNALLING:
        assert judged(machine, fcntl_, 3, command) == REFUSED
    for command in (fcntl.F_GETFL, fcntl.F_SETFL, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD):
        assert judged(machine, fcntl_, 3, command) == ALLOW
    for request in HARMLESS:
        assert judged(machine, ioctl, 3, request) == ALLOW
    for request in (
        termios.TIOCSTI,
        termios.FIOASYNC,
        0x8901,
        0x8902,
        0x40086602,
        0xC00846D6,
    ):  # owners, chattr, NVIDIA
        assert judged(machine, ioctl, 3, request) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
def test_other_numbers_are_no_way_around(machine: str) -> None:
    """Neither those of 32-bit programs, nor x32, nor calls that are newer than this list."""
    assert judged(machine, 11, architecture=0x40000003) == KILL
    assert judged(machine, 0x40000000 | 41) == REFUSED
    assert judged(machine, 460) == ABSENT


@pytest.mark.skipif(not all(map(os.path.exists, HEADERS)), reason="needs the kernel's headers for programs")
def test_the_numbers_are_those_of_the_kernel() -> None:
    """Of both machines, as its headers have them."""
    for column, header in enumerate(HEADERS):
        text = Path(header).read_text(encoding="utf-8")
        known = {name: int(number) for name, number in re.findall(r"define __NR(?:3264)?_(\w+)\s+(\d+)\s", text)}
        for table in (NETWORK, PROCESSES, SHARED, PRIVILEGES, KERNEL, WRITING, LOOKED_INTO, REMAINS):
            assert {name: numbers[column] for name, numbers in table.items()} == {
                name: known.get(name) for name in table
            }


TRIES = """
import ctypes, fcntl, json, os, resource, signal, socket, struct, sys, termios, threading
from commwatch.workers.seccomp import confine
ends = socket.socketpair()
why = confine()
if why:
    print(json.dumps(why)); sys.exit()
def attempt(what):
    try:
        what()
    except OSError as error:
        return error.errno
    return 0
library = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(library, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
done = []
thread = threading.Thread(target=done.append, args=(1,)); thread.start(); thread.join()
print(json.dumps({
    "internet": attempt(socket.socket), "unix": attempt(lambda: socket.socket(socket.AF_UNIX)),
    "pair": attempt(socket.socketpair), "fork": attempt(os.fork),
    "exec": attempt(lambda: os.execv("/bin/true", ["true"])),
    "kill": attempt(lambda: os.kill(os.getppid(), 0)), "trace": attempt(lambda: call("ptrace", 16, os.getppid(), 0, 0)),
    "owner": attempt(lambda: fcntl.fcntl(ends[0], fcntl.F_SETOWN, os.getppid())),
    "signal": attempt(lambda: fcntl.fcntl(ends[0], fcntl.F_SETSIG, signal.SIGKILL)),
    "owner by ioctl": attempt(lambda: fcntl.ioctl(ends[0], 0x8901, struct.pack("i", os.getppid()))),
    "type on a terminal": attempt(lambda: fcntl.ioctl(ends[0], termios.TIOCSTI, b"x")),
    "memory": attempt(lambda: call("process_vm_readv", os.getppid(), 0, 0, 0, 0, 0)),
    "shared memory": attempt(lambda: call("shmget", 4711, 4096, 0o1600)),
    "write": attempt(lambda: open(sys.argv[1] + "/new", "w")),
    "append": attempt(lambda: open(sys.argv[1] + "/log", "a")),
    "remove": attempt(lambda: os.unlink(sys.argv[1] + "/log")), "become": attempt(lambda: os.setuid(65534)),
    "limit": attempt(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU)),
    "read": attempt(lambda: open(sys.argv[1] + "/log").read()), "list": attempt(lambda: os.listdir(sys.argv[1])),
    "thread": done,
}))
"""


def test_in_force_nothing_but_reading_works(tmp_path: Path) -> None:
    """A process that took the filter upon itself, as root; it says so where this kernel has none."""
    (tmp_path / "log").write_text("NCCL WARN")
    output = subprocess.run(
        [sys.executable, "-c", TRIES, str(tmp_path)], env=environment(), capture_output=True, text=True, check=True
    ).stdout
    found = json.loads(output)
    if isinstance(found, str):
        pytest.skip(f"this kernel confines no process: {found}")
    works = {name: found.pop(name) for name in ("read", "list", "thread")}

    assert works == {"read": 0, "list": 0, "thread": [1]}
    assert found == dict.fromkeys(found, errno.EPERM)


ELSEWHERE = """
import os, sys
here = os.uname()
os.uname = lambda: os.uname_result((*here[:4], "riscv64"))
from commwatch.workers.child import run
sys.exit(run(int(sys.argv[1]), int(sys.argv[2])))
"""


def test_where_there_is_no_filter_the_reader_works_and_says_why(tmp_path: Path) -> None:
    """On a machine whose numbers are not known, which stands for a kernel without it: one line, and the log is read."""
    log = tmp_path / "job.log"
    log.touch()
    settings = section_json(Sources(nccl_logs=NcclLogsSection(paths=(str(log),))))
    plan = WorkerPlan("jobs", ("nccl_logs",), settings, confined=True)
    ours, theirs = socket.socketpair()
    mark = ProgressMark.create()
    with ours, theirs:
        numbers = (theirs.fileno(), mark.descriptor)
        reader = subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE, *map(str, numbers)],
            env=environment(), pass_fds=numbers, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        for message in (plan, Order("nccl_logs", now=True)):
            ours.sendall(frame(msgspec.msgpack.encode(message)))
        ours.settimeout(PATIENCE_SECONDS)
        assert int.from_bytes(ours.recv(4, socket.MSG_WAITALL), "little") > 0
        assert "Seccomp:\t0" in Path(f"/proc/{reader.pid}/status").read_text()
        ours.sendall(frame(msgspec.msgpack.encode(Order(""))))
        _, said = reader.communicate(timeout=PATIENCE_SECONDS)
    mark.close()
    (line,) = said.splitlines()

    assert reader.returncode == 0
    assert json.loads(line)["reason"] == "no numbers of system calls are known for riscv64"


def status_of(pid: int) -> str:
    """The status of a process in the kernel."""
    return Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


def test_the_readers_of_job_files_are_confined_and_read(tmp_path: Path) -> None:
    """The worker itself, on a real node: its status tells of the filter, and it finds what is added to a log."""
    assert {row.name for row in READERS if row.confined} == {"jobs", "settings"}
    log = tmp_path / "job.log"
    log.touch()
    settings = section_json(Sources(nccl_logs=NcclLogsSection(paths=(str(log),))))
    reader = Reader(
        ReaderSettings(WorkerPlan("jobs", ("nccl_logs",), settings, confined=True), 60.0, 60.0),
    )

    async def body() -> None:
        try:
            assert (await reader.now("nccl_logs")).log_errors == []
            log.write_text("node7:41:77 [0] init.cc:1 NCCL WARN Cuda failure 999 'unknown error'\n")
            (found,) = (await reader.now("nccl_logs")).log_errors
            assert found.category == "cuda"
            status = status_of(*reader.pids())
            if "Seccomp:\t2" not in status:
                pytest.skip("this kernel confines no process; the worker reads without a filter")
            assert "NoNewPrivs:\t1" in status
        finally:
            await reader.stop(60.0)
        assert reader.pids() == []

    in_loop(body)

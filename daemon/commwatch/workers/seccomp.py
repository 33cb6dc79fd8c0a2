"""A filter of system calls for a process that only reads: no network, no program, no other process, no writing.

Source of forms and numbers: seccomp(2), linux/filter.h, linux/seccomp.h, linux/audit.h, asm/unistd_64.h and
asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Final

Numbers = dict[str, tuple[int | None, int | None]]
"""Number of a system call on x86_64 and on aarch64; None where it has none."""

NETWORK: Final[Numbers] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "sendmsg": (46, 211), "sendmmsg": (307, 269), "recvmsg": (47, 212),
    "recvmmsg": (299, 243), "setsockopt": (54, 208),
}  # fmt: skip
"""``sendto`` and ``recvfrom`` remain: the worker talks to the daemon by them, over the one socket that it has."""
PROCESSES: Final[Numbers] = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "kcmp": (312, 272), "setpgid": (109, 154), "setsid": (112, 157), "setpriority": (141, 140),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
SHARED: Final[Numbers] = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
}  # fmt: skip
"""Memory, semaphores and queues that processes of one user share by a key."""
PRIVILEGES: Final[Numbers] = {
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capset": (126, 91), "personality": (135, 92), "chroot": (161, 51),
    "pivot_root": (155, 41), "mount": (165, 40), "umount2": (166, 39), "setns": (308, 268), "unshare": (272, 97),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
}  # fmt: skip
KERNEL: Final[Numbers] = {
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "lookup_dcookie": (212, 18), "vhangup": (153, 58), "memfd_secret": (447, 447),
    "fanotify_init": (300, 262),
}  # fmt: skip
WRITING: Final[Numbers] = {
    "creat": (85, None), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None),
    "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None), "mknodat": (259, 33),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "fchownat": (260, 54), "truncate": (76, 45), "ftruncate": (77, 46),
    "fallocate": (285, 47), "utime": (132, None), "utimes": (235, None), "utimensat": (280, 88),
    "futimesat": (261, None), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "copy_file_range": (326, 285),
}  # fmt: skip
"""Calls that change the file system; opening a file for writing is among them, recognised by its flags."""
LOOKED_INTO: Final[Numbers] = {
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "clone": (56, 220), "clone3": (435, 435),
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "fcntl": (72, 25), "ioctl": (16, 29),
}  # fmt: skip
"""Refused or not by their arguments; of openat2 and clone3 these are out of a filter's reach, so there are none here:
the C library then falls back to the older ones."""
FIRST_UNKNOWN: Final = 448
"""Calls of kernels later than 5.14 are not there; the numbers of both machines are the same from 424 on."""

SIGNALLING: Final = (8, 10, 15, 1024, 1026)
"""Commands of fcntl that make the kernel send a signal, to any process of this user: F_SETOWN, F_SETSIG, F_SETOWN_EX,
F_SETLEASE, F_NOTIFY."""
HARMLESS: Final = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""The requests of ioctl that remain, as Python's files and sockets make them: TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD,
FIONBIO, FIONCLEX, FIOCLEX. No driver is reached through a device that was opened to read."""

MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By ``os.uname().machine``: column of the tables, and AUDIT_ARCH of the machine."""

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CLONE_THREAD: Final = 0x00010000
_ANY_PROCESS: Final = 0xFFFFFFFF
_X32: Final = 0x40000000

# struct seccomp_data: the number at 0, the architecture at 4, six arguments of 64 bits from 16 on, low half first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_INSTRUCTION: Final = struct.Struct("=HBBI")

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


def confine(*, may_write: bool = False) -> str:
    """Put the filter into force for this process and all that it becomes; there is no way back.

    Args:
        may_write: files may be written and made, as a simulated node does.

    Returns:
        Why there is none on this machine; empty: it is in force.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        return f"no numbers of system calls are known for {machine}"
    import ctypes  # only where a process is confined: it takes memory

    code = filter_program(machine, may_write=may_write)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    program = Program(len(code) // _INSTRUCTION.size, code)
    library = ctypes.CDLL(None, use_errno=True)
    nothing = ctypes.c_ulong(0)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing, nothing, nothing):
        return f"PR_SET_NO_NEW_PRIVS: {os.strerror(ctypes.get_errno())}"
    if library.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), nothing, nothing):
        return f"PR_SET_SECCOMP: {os.strerror(ctypes.get_errno())}"
    return ""


def filter_program(machine: str, *, may_write: bool = False) -> bytes:
    """The filter for one of ``MACHINES`` as the kernel takes it: instructions of 8 bytes."""
    return b"".join(_INSTRUCTION.pack(*one) for one in _instructions(*MACHINES[machine], may_write))


def _instructions(column: int, architecture: int, may_write: bool) -> Iterator[tuple[int, int, int, int]]:
    refuse, absent = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS
    # Another set of numbers, as of 32-bit programs: nothing of ours makes such calls.
    yield (_LOAD, 0, 0, _ARCHITECTURE)
    yield (_EQUAL, 1, 0, architecture)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER)
    yield from _when(_AT_LEAST, _X32, refuse)
    yield from _when(_AT_LEAST, FIRST_UNKNOWN, absent)
    refused = [NETWORK, PROCESSES, SHARED, PRIVILEGES, KERNEL, *([] if may_write else [WRITING])]
    for number in _numbers(refused, column):
        yield from _when(_EQUAL, number, refuse)
    for name in ("openat2", "clone3"):
        yield from _when(_EQUAL, LOOKED_INTO[name][column] or 0, absent)
    for name, place in (("open", 1), ("openat", 2)):
        opening = LOOKED_INTO[name][column]
        if opening is not None and not may_write:
            yield from _when_argument(opening, place, _WRITES, refuse, _ALLOW)
    for name in ("prlimit64", "sched_setaffinity"):  # of itself only, which is process 0
        yield from _when_argument(LOOKED_INTO[name][column] or 0, 0, _ANY_PROCESS, refuse, _ALLOW)
    yield from _when_argument(LOOKED_INTO["clone"][column] or 0, 0, _CLONE_THREAD, _ALLOW, refuse)
    yield from _when_command(LOOKED_INTO["fcntl"][column] or 0, SIGNALLING, refuse, _ALLOW)
    yield from _when_command(LOOKED_INTO["ioctl"][column] or 0, HARMLESS, _ALLOW, refuse)
    yield (_RETURN, 0, 0, _ALLOW)


def _numbers(tables: Iterable[Numbers], column: int) -> Iterator[int]:
    return (number for table in tables for numbers in table.values() if (number := numbers[column]) is not None)


def _when(test: int, value: int, then: int) -> Iterator[tuple[int, int, int, int]]:
    """Return if the test holds, else go on."""
    yield (test, 0, 1, value)
    yield (_RETURN, 0, 0, then)


def _when_argument(
    number: int, place: int, bits: int, then: int, otherwise: int
) -> Iterator[tuple[int, int, int, int]]:
    """For one call return by whether an argument has any of these bits; go on for all others."""
    yield (_EQUAL, 0, 4, number)
    yield (_LOAD, 0, 0, _ARGUMENTS + 8 * place)
    yield (_ANY_BIT, 0, 1, bits)
    yield (_RETURN, 0, 0, then)
    yield (_RETURN, 0, 0, otherwise)


def _when_command(
    number: int, commands: tuple[int, ...], then: int, otherwise: int
) -> Iterator[tuple[int, int, int, int]]:
    """For one call return by whether its second argument is one of these; go on for all others."""
    yield (_EQUAL, 0, 2 * len(commands) + 2, number)
    yield (_LOAD, 0, 0, _ARGUMENTS + 8)
    for command in commands:
        yield from _when(_EQUAL, command, then)
    yield (_RETURN, 0, 0, otherwise)

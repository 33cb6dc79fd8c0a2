"""Starts worker processes: those that the daemon forked early, which share its memory, or an interpreter each."""

from __future__ import annotations

import os
import signal
import socket
import stat
from contextlib import suppress
from typing import Final, NoReturn, Protocol

from commwatch.children import INHERITED, NOTHING, clean_environment, own_module, start
from commwatch.footprint import spare_the_garbage_collector
from commwatch.workers.child import run

_NOT_OF_WORKERS = ("NOTIFY_SOCKET", "WATCHDOG_USEC")
"""Variables of the environment that are meant for the daemon alone."""

_KERNEL_LOG: Final = os.makedev(1, 11)
"""The number of ``/dev/kmsg`` on every Linux."""


def take_kernel_log() -> int | None:
    """The kernel log, where this process was started with it as its standard input; None where it was not.

    So it comes from systemd, which opens it before it takes from the process what that needs. It is moved to a
    descriptor that no child inherits unless it is handed on. Call before any process is started.
    """
    try:
        standard_input = os.fstat(0)
    except OSError:  # closed
        return None
    if not stat.S_ISCHR(standard_input.st_mode) or standard_input.st_rdev != _KERNEL_LOG:
        return None
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return descriptor


class Process(Protocol):
    """A worker process."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code; None while it is there."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it is there."""


class Launch(Protocol):
    """Starts a worker process."""

    def __call__(self, connection: int, mark: int, kernel_log: int | None = None) -> Process:
        """Start one with its ends of the connection and of the mark, and with the kernel log if it is to read that and
        does not open it itself.

        Raises:
            OSError: no process can be started.
        """


class Spares:
    """Processes that were forked from this one while it was small, and wait to become workers.

    As a context manager: at its end none of them waits any more.
    """

    def __init__(self, count: int) -> None:
        """Fork them, or as many as the system allows.

        Call before there is a thread, and early: they share what is imported so far.
        """
        spare_the_garbage_collector()
        self._waiting: list[tuple[_Forked, socket.socket]] = []
        with suppress(OSError):  # the system is full; a worker that gets an interpreter of its own says so
            for _ in range(count):
                self._fork()

    def __enter__(self) -> Spares:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                _wait_for_work(theirs)
        self._waiting.append((_Forked(pid), ours))

    def pids(self) -> list[int]:
        """Those that still wait."""
        return [process.pid for process, _ in self._waiting]

    def start(self, connection: int, mark: int, kernel_log: int | None = None) -> Process:
        """See ``Launch``. Once all have become workers, further ones get an interpreter of their own."""
        while self._waiting:
            process, control = self._waiting.pop()
            with control, suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(control, [b"+"], _handed(connection, mark, kernel_log))
                return process
            process.end()  # somebody else has killed it
        return start_python(connection, mark, kernel_log)

    def end(self) -> None:
        """End those that still wait; they hold nothing and are gone at once."""
        while self._waiting:
            process, control = self._waiting.pop()
            control.close()
            process.end()


class _Forked:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        self._wait(os.WNOHANG)
        return self._code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        self._wait()

    def _wait(self, options: int = 0) -> None:
        if self._code is not None:
            return
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # SIGCHLD is ignored since our start: the kernel keeps no exit codes
            pid, status = self.pid, 0
        self._code = os.waitstatus_to_exitcode(status) if pid else None


def _wait_for_work(control: socket.socket) -> NoReturn:
    """Be a spare process; leaves nothing of the daemon open but its standard error."""
    code = 1
    try:
        os.setsid()  # Ctrl-C on a terminal is for the daemon alone
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != control.fileno():
                with suppress(OSError):  # the listing itself has one
                    os.close(descriptor)
        for name in _NOT_OF_WORKERS:
            os.environ.pop(name, None)
        _, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        code = run(*descriptors) if descriptors else 0
    finally:  # whatever happens, the daemon's own code is not to go on here
        os._exit(code)


def _handed(connection: int, mark: int, kernel_log: int | None) -> list[int]:
    """The descriptors of a worker, as ``child.run`` takes them."""
    return [connection, mark] if kernel_log is None else [connection, mark, kernel_log]


def start_python(connection: int, mark: int, kernel_log: int | None = None, *, quiet: bool = False) -> Process:
    """See ``Launch``: in an interpreter of its own; returns once it has called exec, which takes about a millisecond.

    Args:
        quiet: it writes nothing to our standard error, so that a stuck one does not hold that open after us.
    """
    handed = _handed(connection, mark, kernel_log)
    return start(
        own_module("commwatch.workers.child", *map(str, handed)),
        clean_environment(os.environ),
        stderr=NOTHING if quiet else INHERITED,
        descriptors=handed,
    )

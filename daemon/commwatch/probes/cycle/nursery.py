"""A process that has imported torch once, and from which the ranks of many cycles are forked.

The import takes seconds of a core, and a run between nodes starts its ranks several times. Nothing of torch runs in the
nursery, which so has one thread and no CUDA. A rank is forked twice: its parent ends at once, and it becomes a child of
the member, which asked to adopt what descends from it (``PR_SET_CHILD_SUBREAPER``). So the member ends and reaps it as
one that it started itself. The nursery is killed with the member.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import IO, NoReturn

from commwatch.children import start
from commwatch.probes.cycle.priority import let_others_go_first

_FORK_SECONDS = 5.0
"""For a fork and its answer: tens of milliseconds on a free core."""
_MESSAGE_BYTES = 2**17
_MOST_DESCRIPTORS = 16
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class NurseryError(OSError):
    """No rank came of it."""


class ForkedRank:
    """A rank that the nursery forked, as ``children.Child`` is one that was started."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    def wait(self) -> int:
        """Reap it; its exit status, or minus the number of the signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class Nursery:
    """The nursery as its member sees it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it; it imports torch meanwhile.

        Args:
            command: of the process.
            environment: of the ranks, as far as it matters while torch is imported.

        Raises:
            OSError: the process could not be made.
        """
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = own
        self._forking = threading.Lock()
        self._ready: bool | None = None
        try:
            with theirs:
                self._process = start(
                    [*command, str(theirs.fileno()), str(os.getpid())], environment, descriptors=[theirs.fileno()]
                )
        except OSError:
            own.close()
            raise
        _adopt(self)
        let_others_go_first(self._process.pid)

    async def ready(self, seconds: float) -> bool:
        """Wait until ranks can be forked; False where torch is not there, or has not been imported in time."""
        if self._ready is None:
            self._socket.setblocking(False)
            said = b""
            with suppress(OSError, asyncio.TimeoutError):
                said = await asyncio.wait_for(
                    asyncio.get_running_loop().sock_recv(self._socket, _MESSAGE_BYTES), seconds
                )
            self._ready = said == b"ready"
            self._socket.settimeout(_FORK_SECONDS)
            if not self._ready:
                self.close()
        return self._ready

    def fork(self, environment: Mapping[str, str], errors: int, inherited: Collection[int]) -> ForkedRank:
        """Fork a rank; blocks for some milliseconds.

        Args:
            environment: its whole one.
            errors: descriptor of its standard error.
            inherited: descriptors that it gets under the numbers that they have here.

        Raises:
            NurseryError: there is no rank.
            OSError: there are no pipes for it.
        """
        request = {"environment": dict(environment), "descriptors": list(inherited)}
        (its_input, to_it), (from_it, its_output) = os.pipe(), os.pipe()
        stdin, stdout = os.fdopen(to_it, "wb", 0), os.fdopen(from_it, "rb", 0)
        try:
            with self._forking:
                socket.send_fds(
                    self._socket, [json.dumps(request).encode()], [its_input, its_output, errors, *inherited]
                )
                answer = self._socket.recv(_MESSAGE_BYTES)
            return ForkedRank(int(answer), stdin, stdout)
        except (OSError, ValueError) as error:
            stdin.close()
            stdout.close()
            self.close()  # what it would answer next belongs to this request
            raise NurseryError(f"the process from which ranks are forked gave none: {error}") from error
        finally:
            os.close(its_input)
            os.close(its_output)

    def close(self) -> None:
        """End it; ranks that it forked live on."""
        self._ready = False
        self._socket.close()
        self._process.kill()
        self._process.wait()
        _adopt_no_more(self)


_open: set[Nursery] = set()
_counting = threading.Lock()


def _adopt(nursery: Nursery) -> None:
    with _counting:
        _open.add(nursery)
        _control(_PR_SET_CHILD_SUBREAPER, 1)


def _adopt_no_more(nursery: Nursery) -> None:
    """Ranks that are here stay our children."""
    with _counting:
        _open.discard(nursery)
        _control(_PR_SET_CHILD_SUBREAPER, int(bool(_open)))


# --- in the nursery ---


def serve(become_rank: Callable[[], NoReturn]) -> None:
    """Import torch, and fork ranks as long as the member asks for them."""
    connection, member = socket.socket(fileno=int(sys.argv[-2])), int(sys.argv[-1])
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != member:
        return  # it has died before it would have been seen
    from commwatch.probes.cycle import rank_torch  # noqa: F401 - what is imported once

    connection.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, _MOST_DESCRIPTORS)
        if not message:
            return
        connection.send(str(_fork_twice(connection, message, descriptors, become_rank)).encode())
        for one in descriptors:
            os.close(one)


def _fork_twice(
    connection: socket.socket, message: bytes, descriptors: list[int], become_rank: Callable[[], NoReturn]
) -> int:  # fmt: skip
    """The process id of a rank whose parent has ended."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            if os.fork():
                os._exit(0)
            os.setsid()  # before it is known: who ends it signals its group
            os.write(writing, str(os.getpid()).encode())
            connection.close()
            os.close(reading)
            os.close(writing)
            _dress(json.loads(message), descriptors)
            become_rank()
        except BaseException:
            sys.excepthook(*sys.exc_info())  # the last words of a rank
        finally:
            os._exit(1)
    os.close(writing)
    os.waitpid(between, 0)
    with os.fdopen(reading, "rb") as pipe:
        return int(pipe.read())


def _dress(request: Mapping[str, object], descriptors: Sequence[int]) -> None:
    """Make this process what one is that was started with a command: folder, environment, descriptors."""
    os.chdir("/")
    own, wanted = request["environment"], request["descriptors"]
    assert isinstance(own, dict)  # noqa: S101 - by the member, whose code this is
    assert isinstance(wanted, list)  # noqa: S101
    os.environ.clear()
    os.environ.update(own)
    tempfile.tempdir = None  # that of the environment, not of the import
    above = max((2, *wanted)) + 1  # of a number that is wanted, the copy would be overwritten, or closed
    aside = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, above) for one in descriptors]
    for one in descriptors:
        os.close(one)
    for one, number in zip(aside, (0, 1, 2, *wanted), strict=True):
        os.dup2(one, number)
        os.close(one)


def _control(option: int, value: int) -> None:
    """prctl(2).

    Raises:
        OSError: the kernel has no such option.
    """
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


if __name__ == "__main__":
    from commwatch.probes.cycle.rank import main

    serve(main)

"""A daemon asked over HTTP, by every command: its answers are bounded, in time, and printable, whoever gives them."""

from __future__ import annotations

import errno
import http.client
import os
import re
import socket
import stat
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode
from commwatch.regular_file import open_folder
from commwatch.state.answer import MOST_BYTES, decode_answer
from commwatch.state.directory import API, SOCKET_NAME, state_path
from commwatch_exporters.listen import peer_of

_CONNECT_PAUSE = 0.01
_LOOK_SECONDS = 5.0
"""For all simulated nodes together."""
_SHORTEST_LOOK = 0.05
_MOST_NODES = 64
"""Most simulated nodes that are checked in one state directory."""
_NODE = re.compile(r"simulated-[A-Za-z0-9._-]{1,64}(?<!\.yaml)(?<!\.yml)")
_TOO_LONG = "a request has at most 65536 bytes"


class DaemonAbsent(CommwatchError):
    """No daemon answers.

    Args:
        fact: without what to do.
    """

    exit_code = ExitCode.NO_DAEMON

    def __init__(self, fact: str, hint: str = "") -> None:
        super().__init__(f"{fact}; {hint}" if hint else fact)
        self.fact = fact


class Connection(http.client.HTTPConnection):
    """HTTP to a daemon. Neither redirects nor proxies are followed."""

    def __init__(self, host: str, port: int | None = None) -> None:
        super().__init__(host, port)
        self.is_late = threading.Event()
        self._in_use: socket.socket | None = None
        """The socket from which an answer is read: the library forgets a connection that ends with its answer."""

    def exchange(
        self, method: str, target: str, headers: dict[str, str], seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """One request, and the status and body of its answer: at most a byte more than ``MOST_BYTES``.

        Args:
            target: path and query.
            headers: beside those of every request.
            seconds: for all of it, connecting included: a socket's own limit would hold for a single byte.

        Raises:
            TimeoutError: that was not enough.
            OSError: the other side is not there, or leaves.
            http.client.HTTPException: its answer cannot be read.
        """
        is_late = self.is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            if (sock := self.sock or self._in_use) is not None:
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's own, which its reader cannot bear

        self.timeout, self._in_use = seconds, None
        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            with suppress(BrokenPipeError):  # who refuses us may have said why
                self.request(method, target, body, headers)
            self._in_use = self.sock
            answer = self.getresponse()
            content = answer.read(MOST_BYTES + 1)
        except (http.client.HTTPException, OSError) as error:
            if is_late.is_set():
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()
        if is_late.is_set():
            raise TimeoutError
        return answer.status, content

    def connect(self) -> None:
        """Connect; not after the deadline, though a name may have several addresses."""
        super().connect()
        if self.is_late.is_set():
            raise TimeoutError


class _SocketConnection(Connection):
    """HTTP to the daemon of a state directory, over its control socket."""

    def __init__(self, state: Path) -> None:
        super().__init__("localhost")
        self._state = state

    def connect(self) -> None:
        """Connect.

        Whoever may write the directory can put anything there. Only a socket is taken, not a link to that of another
        program, and only one at which root, the directory's owner or this user listens.

        Raises:
            OSError: there is none, it is not ours to use, or time is up.
            CommwatchError: another user listens.
        """
        until = time.monotonic() + float(self.timeout or 0)
        folder = open_folder(self._state, os.O_PATH)
        try:
            place = os.open(SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                if not stat.S_ISSOCK(os.fstat(place).st_mode):
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "it is no socket")
                self.sock = socket.socket(socket.AF_UNIX)
                _connect(self.sock, f"/proc/self/fd/{place}", until)
                if (peer := peer_of(self.sock)).uid not in (0, os.geteuid(), os.fstat(folder).st_uid):
                    raise CommwatchError(
                        f"{self._state / SOCKET_NAME}: user {peer.uid} listens there, who is neither root nor the "
                        "owner of the state directory; nothing is asked"
                    )
            finally:
                os.close(place)
        finally:
            os.close(folder)


def _connect(connection: socket.socket, path: str, until: float) -> None:
    while True:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left)
        try:
            return connection.connect(path)
        except BlockingIOError:  # others wait to be let in, as many as the kernel keeps
            time.sleep(min(_CONNECT_PAUSE, left))


def ask_daemon(state: Path, operation: str, timeout: float = 5.0) -> dict[str, Any]:
    """Ask the daemon of a state directory.

    Args:
        timeout: seconds for the whole answer.

    Raises:
        DaemonAbsent: none answers there.
        CommwatchError: it answers with an error, or we may not ask.
    """
    return _asked(state, "GET", operation, None, timeout)


def hand_to_daemon(
    state: Path, operation: str, document: msgspec.Struct | None = None, timeout: float = 5.0
) -> dict[str, Any]:
    """Have the daemon of a state directory do something.

    Args:
        document: that it takes, at most 64 KiB as JSON.
        timeout: seconds for the whole answer.

    Raises:
        DaemonAbsent: none answers there.
        CommwatchError: it does not take it, or we may not ask.
    """
    return _asked(state, "POST", operation, b"" if document is None else msgspec.json.encode(document), timeout)


def _asked(state: Path, method: str, operation: str, body: bytes | None, timeout: float) -> dict[str, Any]:
    connection = _SocketConnection(state)
    try:
        status, content = connection.exchange(method, API + operation, {}, timeout, body)
        answer = {"error": _TOO_LONG} if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else decode_answer(content)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        hint = "see systemctl status commwatch; or give its --path.state, and --simulate NODE of a simulated node"
        raise DaemonAbsent(f"no commwatch daemon runs with the state directory {state}", hint) from error
    except PermissionError as error:
        raise CommwatchError(
            f"{state / SOCKET_NAME}: {error.strerror}; run this as root or as the daemon's user"
        ) from error
    except TimeoutError as error:
        raise CommwatchError(f"the daemon of {state} did not answer within {timeout:.3g} s") from error
    except http.client.RemoteDisconnected as error:
        raise CommwatchError(f"the daemon of {state} closed the connection without an answer") from error
    except http.client.BadStatusLine as error:
        if str(error).startswith("{"):  # one JSON line was the answer of commwatch 0.1.0
            raise CommwatchError(
                f"the daemon of {state} is of an older version than this command; "
                "restart it: systemctl restart commwatch"
            ) from error
        raise CommwatchError(f"the answer of the daemon of {state} cannot be used: it is no HTTP") from error
    except OSError as error:
        raise CommwatchError(f"the daemon of {state} closed the connection: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CommwatchError(f"the answer of the daemon of {state} cannot be used: {error}") from error
    except http.client.HTTPException as error:
        raise CommwatchError(f"the answer of the daemon of {state} cannot be used: {error!r}") from error
    finally:
        connection.close()
    if "error" in answer:
        raise CommwatchError(f"the daemon says: {answer['error']}")
    return answer


def of_the_only_daemon(config: Config) -> Config:
    """The configuration of the simulated node whose daemon is the only one here, where no node was named.

    For read-only commands: a command that acts on a node must never act on another one. Standard error says which it
    is.
    """
    state = state_path(config)
    if config.simulation.preset or _is_served(state, time.monotonic() + _LOOK_SECONDS):
        return config
    # Whoever owns the directory chooses the names in it.
    found = islice((path for path in state.glob("simulated-*") if _NODE.fullmatch(path.name)), _MOST_NODES)
    until = time.monotonic() + _LOOK_SECONDS
    served = [path.name.removeprefix("simulated-") for path in found if _is_served(path, until)]
    if len(served) != 1:
        return config
    print(
        f"No daemon of this node runs; that of the simulated node {served[0]} answers: none of it is real.",
        file=sys.stderr,
    )
    return msgspec.structs.replace(config, simulation=msgspec.structs.replace(config.simulation, preset=served[0]))


def _is_served(state: Path, until: float) -> bool:
    """Whether a daemon answers there until a time, monotonic seconds, as far as we may know."""
    try:
        ask_daemon(state, "inventory", max(_SHORTEST_LOOK, until - time.monotonic()))
    except DaemonAbsent:
        return False
    except CommwatchError:
        return True  # what is wrong with it is for the question itself to say
    return True

"""The recorders of a live process, over the unix socket of torch's worker server, which its job has to open.

Source: ``torch/csrc/distributed/c10d/control_plane/WorkerServer.cpp``; the job sets ``TORCH_WORKER_SERVER_SOCKET`` and
calls ``torch.distributed.elastic.control_plane.worker_main()``. Only the user of the process and root can connect. It
is asked on demand alone: the handlers copy what is recorded, and change nothing.
"""

from __future__ import annotations

import http.client
import os
import socket
import stat
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from commwatch.jobs.settings.process_environment import parse_environment
from commwatch.regular_file import open_folder
from commwatch.state.client import Connection
from commwatch_exporters.listen import peer_of

SECONDS: Final = 10.0
"""For one answer."""
_VARIABLE: Final = "TORCH_WORKER_SERVER_SOCKET"
_HANDLERS: Final = ("dump_nccl_trace_json", "fr_trace_json", "torchcomms_fr_trace_json")
"""Of NCCL's recorder, of those of other backends, and of torchcomms; a process has those that it was built with."""
_MOST_ENVIRONMENT_BYTES: Final = 4 * 2**20


class NoServer(Exception):
    """A process cannot be asked: it is gone, belongs to another user, or opened no socket; the message says which."""


class Unresponsive(Exception):
    """A process that should answer did not; the message says how."""


def rank_and_socket(pid: int, procfs: Path) -> tuple[int, Path]:
    """The rank of a process, and where its worker server listens.

    Raises:
        NoServer: see there.
    """
    process = procfs / str(pid)
    try:
        with open(process / "environ", "rb") as file:
            data = file.read(_MOST_ENVIRONMENT_BYTES)
        folder = os.readlink(process / "cwd")
    except FileNotFoundError:
        raise NoServer("it does not exist") from None
    except OSError as error:
        raise NoServer(f"{error.strerror}; ask as its user or as root") from None
    found = parse_environment(data, lambda name: name in (_VARIABLE, "RANK"))
    if not found.get(_VARIABLE):
        raise NoServer(
            f"it was started without {_VARIABLE}: its recorder can be read from its dumps only "
            "(docs/using/flight-recorder.md)"
        )
    rank = found.get("RANK", "")
    if not (rank.isascii() and rank.isdigit() and len(rank) < 7):
        raise NoServer("it was started without RANK, so that its rank is not known")
    # As the process sees its files, which may be those of a container.
    return int(rank), process / "root" / os.path.join(folder, found[_VARIABLE]).lstrip("/")


def ask(pid: int, path: Path) -> Iterator[bytes]:
    """The dumps of a process as JSON, one for each of its recorders.

    Args:
        path: see ``rank_and_socket``.

    Raises:
        NoServer: nothing listens there, or another process does.
        Unresponsive: it gave no answer.
    """
    for handler in _HANDLERS:
        connection = _Connection(pid, path)
        try:
            status, body = connection.exchange("POST", f"/handler/{handler}", {}, SECONDS)
        except TimeoutError:
            raise Unresponsive(f"no answer within {SECONDS:.0f} s") from None
        except (http.client.HTTPException, OSError) as error:
            raise Unresponsive(f"{getattr(error, 'strerror', None) or type(error).__name__}") from None
        finally:
            connection.close()
        if status == HTTPStatus.OK:
            yield body
        elif status != HTTPStatus.NOT_FOUND:
            raise Unresponsive(f"its handler {handler} answers {status}")


class _Connection(Connection):
    """HTTP to the worker server of one process, and to no other program that listens at its path."""

    def __init__(self, pid: int, path: Path) -> None:
        super().__init__("localhost")
        self._pid, self._path = pid, path

    def connect(self) -> None:
        """Connect.

        Raises:
            NoServer: there is no socket, or another process or user listens there.
            OSError: it cannot be reached.
        """
        try:
            folder = open_folder(self._path.parent, os.O_PATH)
        except OSError as error:
            raise NoServer(f"{self._path}: {error.strerror}") from None
        try:
            place = os.open(self._path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            raise NoServer(f"{self._path}: {error.strerror}") from None
        finally:
            os.close(folder)
        try:
            if not stat.S_ISSOCK(os.fstat(place).st_mode):
                raise NoServer(f"{self._path} is no socket")
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(SECONDS)
            self.sock.connect(f"/proc/self/fd/{place}")
        except ConnectionRefusedError:  # its file outlives the server, which may have been an earlier process's
            raise NoServer(f"{self._path}: nothing listens there") from None
        finally:
            os.close(place)
        # The path is the job's word: it may lead to a program of root that takes orders from root.
        if (peer := peer_of(self.sock)).pid != self._pid:
            raise NoServer(f"{self._path}: process {peer.pid} listens there, not {self._pid}; nothing is asked")

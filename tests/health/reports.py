"""A node whose daemon says what a test wants: its reports, its control socket, its Slurm, and the command."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from commwatch.__main__ import main
from commwatch.diagnosis.health.counts import read_counts
from commwatch.findings.api_documents import FindingsDocument
from commwatch.findings.finding import Cause, Component, Evidence, Finding
from commwatch.state.control import _short_path
from commwatch.state.directory import SOCKET_NAME
from health.scontrol import NODE, Scontrol, shown
from support.findings import cause as cause_of
from support.findings import finding

NOW = 1_700_000_000.0
LOOKED = NOW - 4.0
LINK = Component("nvlink", "0000:17:00.0/3", "GPU0 link 3", frozenset({"0000:17:00.0"}))


def fault(code: str, *, last_seen: float | None = LOOKED, events: tuple[str, ...] = ()) -> Finding:
    """A finding of a code at link 3 of GPU0, seen at the last look."""
    evidence = tuple(Evidence("events", 1.0, event=event) for event in events)
    return finding(code, LINK, NOW - 300, evidence, last_seen=last_seen, seen_seconds=300.0)


def cause(code: str, *, last_seen: float | None = LOOKED) -> Cause:
    """The same as the cause of a finding."""
    return cause_of(code, LINK, last_seen=last_seen, seen_seconds=300.0)


def report(*faults: Finding | Cause, **changes: Any) -> FindingsDocument:
    """What a daemon says that looked four seconds ago; causes stand under a finding of information."""
    causes = tuple(one for one in faults if isinstance(one, Cause))
    above = [replace(fault("probe_step", last_seen=None), causes=causes)] if causes else []
    findings = (*(one for one in faults if isinstance(one, Finding)), *above)
    known: dict[str, Any] = {"version": "1", "time": NOW, "simulated": None, "maintenance": None, "thresholds": ""}
    known |= {"looked_at": LOOKED, "failing_rules": ()}
    return FindingsDocument(**{**known, **changes}, findings=findings)


def document(*codes: str, cause: str = "", age: float = 4.0, **about: Any) -> dict[str, Any]:
    """What the daemon's control socket answers now.

    Args:
        codes: of the findings.
        cause: code of what explains the first.
        age: seconds since the last look.
        about: other fields of the document.
    """
    now = time.time()
    evidence = (Evidence("links down", 1.0),)
    causes = (cause_of(cause, LINK, evidence=evidence, last_seen=now - age),) if cause else ()
    findings = tuple(
        finding(code, LINK, now - 300, evidence, causes=causes if not place else (), last_seen=now - age)
        for place, code in enumerate(codes)
    )
    known: dict[str, Any] = {"version": "1", "time": now, "simulated": None, "maintenance": None}
    known |= {"thresholds": "0" * 12, "looked_at": now - age, "failing_rules": ()}
    answer = FindingsDocument(**{**known, **about}, findings=findings)
    return msgspec.json.decode(msgspec.json.encode(answer), type=dict[str, Any])


def asked_by(connection: socket.socket) -> str:
    """The operation that a command asks for over HTTP."""
    head = b""
    while b"\r\n\r\n" not in head and (part := connection.recv(65_536)):
        head += part
    return head.split(b" ", 2)[1].decode().rpartition("/")[2]


def said(content: bytes) -> bytes:
    """An answer over HTTP that ends with the connection."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + content


@contextlib.contextmanager
def answering(state: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """A control socket whose every connection is handled by a function, in a thread of its own."""
    state.mkdir(exist_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    with _short_path(state) as path:
        listening.bind(path)
    listening.listen()
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
        (state / SOCKET_NAME).unlink()


@contextlib.contextmanager
def daemon_saying(state: Path, told: dict[str, Any]) -> Iterator[None]:
    """A daemon that gives this document, whatever it is asked."""

    def answer(connection: socket.socket) -> None:
        asked_by(connection)
        connection.sendall(said(msgspec.json.encode(told)))

    with answering(state, answer):
        yield


class Node:
    """A state directory, a Slurm whose node may be drained, and the command.

    Args:
        folder: for its files.
        require: a profile that the command asks for each time.
    """

    def __init__(self, folder: Path, require: str = "") -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir()
        self.slurm = Scontrol(folder, shown())
        self._require = ("--require", require) if require else ()
        settings = {
            "probes": {"slurm_node": NODE},
            "paths": {"sysfs": str(folder / "sys")},
            "sources": {"kernel_log": {"enabled": False}},
        }
        (folder / "commwatch.yaml").write_text(json.dumps(settings))

    def check(self, *arguments: str) -> int:
        """Exit code of the command."""
        config = ("--path.state", str(self.state), "--config.file", str(self.folder / "commwatch.yaml"))
        return main(["healthcheck", *config, *self._require, *arguments])

    def told(self, answer: dict[str, Any], *arguments: str) -> int:
        """Exit code of the command where a daemon says this."""
        with daemon_saying(self.state, answer):
            return self.check(*arguments)

    @contextlib.contextmanager
    def saying(self, **answers: Any) -> Iterator[None]:
        """A daemon with an answer for each operation; none closes the connection."""

        def answer(connection: socket.socket) -> None:
            given = answers.get(asked_by(connection))
            if given is not None:
                connection.sendall(said(msgspec.json.encode(given)))

        with answering(self.state, answer):
            yield

    @property
    def counts(self) -> dict[str, int]:
        """The unknowns that were counted, by reason."""
        return read_counts(self.state)


def made_node(folder: Path, monkeypatch: pytest.MonkeyPatch, require: str = "") -> Node:
    """A node without a daemon, of which nothing is known yet."""
    made = Node(folder, require)
    for name in ("COMMWATCH_SIMULATE", "COMMWATCH_PATH_STATE", "COMMWATCH_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(made.slurm.programs))
    return made

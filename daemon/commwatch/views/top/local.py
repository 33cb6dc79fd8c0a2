"""The daemon of this node: over its control socket, or where that is closed to us, over its endpoint."""

from __future__ import annotations

import socket
from pathlib import Path

from commwatch.config.settings import Config
from commwatch.errors import CommwatchError
from commwatch.findings.api_documents import FindingsDocument, ProbesDocument, SnapshotDocument
from commwatch.state.answer import document_of
from commwatch.state.control import ask_daemon
from commwatch.state.directory import state_path
from commwatch.views.top.frame import Documents
from commwatch.views.top.remote import Endpoint

DEADLINE_SECONDS = 5.0


class LocalDaemon:
    """Asks the daemon of the state directory.

    A user who may not use its control socket, or has a state directory of his own, is given what the endpoint returns
    everyone; not where the command line or the configuration says which daemon is meant.
    """

    def __init__(self, config: Config) -> None:
        self.name = socket.gethostname()
        self._state = state_path(config)
        self._port = None if config.paths.state or config.simulation.preset else _port(config)
        self._endpoint: Endpoint | None = None

    def ask(self) -> Documents:
        """What it says now.

        Raises:
            DaemonAbsent: none answers.
            CommwatchError: one does, and not as it should.
        """
        try:
            return _ask_socket(self._state)
        except CommwatchError:
            if self._port is None:
                raise
            try:
                return self._ask_endpoint(self._port)
            except CommwatchError:
                pass  # the socket is what was meant: its error says what to do
            raise

    def close(self) -> None:
        """Let go of the endpoint, where that was asked."""
        if self._endpoint is not None:
            self._endpoint.close()

    def _ask_endpoint(self, port: int) -> Documents:
        if self._endpoint is None:
            self._endpoint = Endpoint(f"http://127.0.0.1:{port}")
        return self._endpoint.ask()


def _ask_socket(state: Path) -> Documents:
    return Documents(
        findings=document_of(ask_daemon(state, "findings", DEADLINE_SECONDS), FindingsDocument),
        probes=document_of(ask_daemon(state, "probes", DEADLINE_SECONDS), ProbesDocument),
        snapshot=document_of(ask_daemon(state, "snapshot", DEADLINE_SECONDS), SnapshotDocument),
    )


def _port(config: Config) -> int | None:
    """The first port that the configuration serves on; None where it serves on none."""
    ports = [int(address.rpartition(":")[2]) for address in config.web.listen_addresses]
    return next((port for port in ports if port), None)

"""The daemon whose state is shown: that of this node, or another over TLS, with certificates and a password."""

from __future__ import annotations

import base64
import http.client
import os
import re
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, UsageError
from commwatch.findings.api_documents import FindingsDocument, ProbesDocument, SnapshotDocument
from commwatch.state.answer import MOST_BYTES, decode_answer, document_of
from commwatch.state.client import Connection, DaemonAbsent, ask_daemon
from commwatch.state.directory import API, state_path
from commwatch.views.top.frame import Documents

DEADLINE_SECONDS = 5.0
"""For connecting, and for the whole of an answer."""
_LONGEST_PASSWORD = 4096
_DEFAULT_PORT = 28029
_ABOUT_US = re.compile("ALERT_(CERTIFICATE|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE)")
"""OpenSSL's names of the alerts of a server that requires another certificate, or any."""
_Document = TypeVar("_Document", bound=msgspec.Struct)


class Refused(CommwatchError):
    """The endpoint does not accept our name, password or certificate; asking again changes nothing."""


class Endpoint:
    """The endpoint of a daemon.

    The connection is kept, so that a refresh every two seconds costs the daemon one handshake in all. Neither redirects
    nor proxies are followed: the password goes to the named host alone.
    """

    def __init__(self, url: str, context: ssl.SSLContext | None = None, authorization: str = "") -> None:
        """
        Args:
            url: ``http://HOST:PORT`` or ``https://HOST:PORT``, and behind a proxy a path.
            context: for TLS; None: the authorities that the system trusts.
            authorization: value of that header; empty for none.

        Raises:
            UsageError: the address cannot be understood.
        """
        parts, port = _split(url)
        self.name = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Accept": "application/json"} | ({"Authorization": authorization} if authorization else {})
        host = parts.hostname or ""
        self._connection = Connection(host, port) if parts.scheme == "http" else _TlsConnection(host, port, context)

    def ask(self) -> Documents:
        """The current documents of the daemon.

        Raises:
            DaemonAbsent: nothing answers there.
            Refused: it wants another name, password or certificate.
            CommwatchError: it answers with something else.
        """
        return _documents(self._get)

    def close(self) -> None:
        """Give the connection up; the next question makes a new one."""
        self._connection.close()

    def _get(self, name: str, kind: type[_Document]) -> _Document:
        path = API + name
        status, body = self._answer(path)
        if status in (401, 403):
            raise Refused(f"{self.name}: {status} {http.client.responses[status]}: name, password or certificate is "
                          "not accepted; see --user, --password-file and --cert-file")  # fmt: skip
        if status != http.client.OK:
            raise CommwatchError(f"{self.name}{path}: {status} {http.client.responses.get(status, '')}".rstrip())
        try:
            return document_of(decode_answer(body), kind)
        except (ValueError, RecursionError, CommwatchError) as error:
            raise CommwatchError(f"{self.name}{path}: no document of this version of commwatch: {error}") from error

    def _answer(self, path: str) -> tuple[int, bytes]:
        while True:
            is_kept = self._connection.sock is not None
            try:
                status, body = self._connection.exchange("GET", self._prefix + path, self._headers, DEADLINE_SECONDS)
                if len(body) > MOST_BYTES:
                    raise http.client.HTTPException(f"the answer is larger than {MOST_BYTES >> 20} MiB")
                return status, body
            except (http.client.HTTPException, OSError) as error:
                self.close()
                # The server ends what is idle for long, and one that was restarted has forgotten the connection: then
                # a new one is tried.
                if not is_kept or not isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                    raise self._error_of(error) from error

    def _error_of(self, error: Exception) -> CommwatchError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return Refused(f"{self.name}: its certificate is not trusted ({error.verify_message}); see --ca-file")
        if isinstance(error, ssl.SSLError) and _ABOUT_US.search(error.reason or ""):
            return Refused(f"{self.name}: our certificate is not accepted ({error.reason}); see --cert-file")
        if isinstance(error, ssl.SSLError):
            return CommwatchError(f"{self.name}: TLS failed: {error.reason or error}")
        if isinstance(error, TimeoutError):
            return CommwatchError(f"{self.name} did not answer within {DEADLINE_SECONDS:g} s")
        if isinstance(error, OSError):
            return DaemonAbsent(f"{self.name}: {error.strerror or error}")
        return CommwatchError(f"{self.name}: no HTTP answer that can be read: {error!r}")


class _TlsConnection(Connection):
    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self._context = context or ssl.create_default_context()

    def connect(self) -> None:
        """Connect and shake hands."""
        super().connect()
        encrypted = self._context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = encrypted  # before the handshake, which the deadline may have to end
        encrypted.do_handshake()


class LocalDaemon:
    """Asks the daemon of the state directory: over its control socket, or where that is closed to us, its endpoint.

    A user who may not use its control socket, or has a state directory of his own, gets the public answers of the
    endpoint, unless the command line or the configuration names the daemon.
    """

    def __init__(self, config: Config) -> None:
        self.name = socket.gethostname()
        self._state = state_path(config)
        port = None if config.paths.state or config.simulation.preset else _port(config)
        self._endpoint = None if port is None else Endpoint(f"http://127.0.0.1:{port}")

    def ask(self) -> Documents:
        """The current documents of the daemon.

        Raises:
            DaemonAbsent: none answers.
            CommwatchError: one does, and not as it should.
        """
        try:
            return _documents(lambda name, kind: document_of(ask_daemon(self._state, name, DEADLINE_SECONDS), kind))
        except CommwatchError:
            if self._endpoint is None:
                raise
            with suppress(CommwatchError):  # the socket is what was meant: its error says what to do
                return self._endpoint.ask()
            raise

    def close(self) -> None:
        """Let go of the endpoint, where that was asked."""
        if self._endpoint is not None:
            self._endpoint.close()


Source: TypeAlias = "Endpoint | LocalDaemon"


def _port(config: Config) -> int | None:
    """The first port that the configuration serves on; None where it serves on none."""
    ports = [int(address.rpartition(":")[2]) for address in config.web.listen_addresses]
    return next((port for port in ports if port), None)


class _Get(Protocol):
    def __call__(self, name: str, kind: type[_Document], /) -> _Document:
        """The document of a name."""


def _documents(get: _Get) -> Documents:
    return Documents(
        findings=get("findings", FindingsDocument),
        probes=get("probes", ProbesDocument),
        snapshot=get("snapshot", SnapshotDocument),
    )


def _split(url: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORT
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url}: expected http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError(f"--url {parts.scheme}://...: no name, password, query or fragment here; see --user")
    return parts, port


def basic_authorization(user: str, password: str) -> str:
    """The header's value for a name and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def read_password(file: Path) -> str:
    """The password in a file, without the line's end.

    Raises:
        UsageError: it cannot be read, or everyone can read it.
    """
    try:
        with file.open(encoding="utf-8") as stream:
            if os.fstat(stream.fileno()).st_mode & stat.S_IROTH:
                raise UsageError(f"{file}: everyone can read this password; chmod o-r it")
            password = stream.read(_LONGEST_PASSWORD + 1).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: the password cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(password) > _LONGEST_PASSWORD:
        raise UsageError(f"{file}: longer than {_LONGEST_PASSWORD} characters, which is no password")
    return password


def tls_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """The TLS context of a client: trusted authorities, and the client's own certificate.

    Args:
        ca_file: of the authorities to trust; empty: those of the system.
        cert_file: of our certificate; empty for none.
        key_file: of its key; empty: it is in the same file.

    Raises:
        UsageError: one of the files cannot be used.
    """
    named = ca_file
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if cert_file:
            named = cert_file
            context.load_cert_chain(cert_file, key_file or None, password=_no_password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UsageError(f"{named}: this certificate or its key cannot be used: {reason}") from error
    return context


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; give one that is not")

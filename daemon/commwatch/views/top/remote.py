"""A daemon asked over HTTP: TLS with certificates of one's own, basic authentication, and no way to another host."""

from __future__ import annotations

import base64
import http.client
import os
import re
import socket
import ssl
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from commwatch.errors import CommwatchError, UsageError
from commwatch.findings.api_documents import FindingsDocument, ProbesDocument, SnapshotDocument
from commwatch.state.answer import MOST_BYTES, decode_answer, document_of
from commwatch.state.control import DaemonAbsent
from commwatch.views.top.frame import Documents

DEADLINE_SECONDS = 5.0
"""For connecting, and for the whole of an answer."""
_LONGEST_PASSWORD = 4096
_DEFAULT_PORT = 28029
_ABOUT_US = re.compile("ALERT_(CERTIFICATE|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE)")
"""OpenSSL's names of what a server says that wants another certificate, or any."""
_Document = TypeVar("_Document", bound=msgspec.Struct)


class Refused(CommwatchError):
    """The endpoint does not accept our name, password or certificate; asking again changes nothing."""


class Endpoint:
    """The endpoint of a daemon.

    The connection is kept, so that one who looks every two seconds costs the daemon one handshake. Neither redirects
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
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._connection = http.client.HTTPConnection(parts.hostname or "", port, timeout=DEADLINE_SECONDS)

    def ask(self) -> Documents:
        """What it says now.

        Raises:
            DaemonAbsent: nothing answers there.
            Refused: it wants another name, password or certificate.
            CommwatchError: it answers with something else.
        """
        return Documents(
            findings=self._get("/api/v1/findings", FindingsDocument),
            probes=self._get("/api/v1/probes", ProbesDocument),
            snapshot=self._get("/api/v1/snapshot", SnapshotDocument),
        )

    def close(self) -> None:
        """Give the connection up; the next question makes a new one."""
        self._connection.close()

    def _get(self, path: str, kind: type[_Document]) -> _Document:
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
        is_kept = self._connection.sock is not None
        try:
            return self._exchange(path)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            # The server ends what is idle for long; and one that was restarted has forgotten the connection.
            if not is_kept or not isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                raise self._told(error) from error
        try:
            return self._exchange(path)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise self._told(error) from error

    def _exchange(self, path: str) -> tuple[int, bytes]:
        """One request and its answer, at the deadline at the latest: the socket's own holds for a single byte."""
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            if (sock := self._connection.sock) is not None:
                with suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's own, which its reader cannot bear

        timer = threading.Timer(DEADLINE_SECONDS, give_up)
        timer.daemon = True
        timer.start()
        try:
            answer = self._request(path, is_late)
        except (http.client.HTTPException, OSError) as error:
            if is_late.is_set():
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()
        if is_late.is_set():
            raise TimeoutError
        return answer

    def _request(self, path: str, is_late: threading.Event) -> tuple[int, bytes]:
        connection = self._connection
        if connection.sock is None:
            self._open(is_late)
        connection.request("GET", self._prefix + path, headers=self._headers)
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise http.client.HTTPException(f"the answer is larger than {MOST_BYTES >> 20} MiB")
        return answer.status, body

    def _open(self, is_late: threading.Event) -> None:
        connection, encrypted = self._connection, None
        connection.connect()
        if self._context is not None:
            encrypted = self._context.wrap_socket(
                connection.sock, server_hostname=connection.host, do_handshake_on_connect=False
            )
            connection.sock = encrypted  # before the handshake, which the deadline may have to end
        if is_late.is_set():  # while there was nothing to shut down: a name may have several addresses
            raise TimeoutError
        if encrypted is not None:
            encrypted.do_handshake()

    def _told(self, error: Exception) -> CommwatchError:
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
    """What is trusted, and who we are.

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

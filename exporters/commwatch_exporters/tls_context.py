"""TLS: from PEM texts and choices to a context of the standard library, and whose client certificates are taken."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

CIPHERS = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
"""Cipher suites of TLS 1.2: OpenSSL's names by those of Go, which users of exporters write."""

TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Those of TLS 1.3, which neither Go nor Python lets anyone choose."""

CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
"""OpenSSL's names of curves by those of Go."""

VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}

_VERIFY = {"none": ssl.CERT_NONE, "if given": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


_SESSIONS_OF_A_CONTEXT = 32  # of TLS 1.2, up to 11 kB each: it would keep 20,000, and Python cannot forbid it


class TlsError(Exception):
    """A certificate, key or choice cannot be used.

    Args:
        part: ``cert``, ``key``, ``client_ca``, ``cipher_suites`` or ``curve_preferences``.
        problem: The error, and the valid values.
    """

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(f"{part}: {problem}")
        self.part = part
        self.problem = problem


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificate, key and policy of a TLS server."""

    certificate: bytes
    """PEM; the server's own certificate first, then the chain to the root."""
    key: bytes = field(repr=False)
    """PEM, not encrypted."""
    client_ca: bytes = b""
    """PEM; client certificates must lead to one of these."""
    client_certificates: Literal["none", "if given", "required"] = "none"
    lowest: str = "TLS12"
    highest: str = "TLS13"
    ciphers: tuple[str, ...] = ()
    """Keys of ``CIPHERS``, best first; empty: Python's own choice. They count for TLS 1.2."""
    prefer_own_ciphers: bool = True
    curve: str = ""
    """A key of ``CURVES``; empty: OpenSSL's own choice."""


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a server.

    Raises:
        TlsError: a part cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.lowest]
    context.maximum_version = VERSIONS[settings.highest]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could have the server work again and again
    if not settings.prefer_own_ciphers:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    # A client that says no goodbye before it ends its side is answered all the same: HTTP knows where a request ends.
    context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)  # from OpenSSL 3 on
    context.set_alpn_protocols(["http/1.1"])
    if settings.ciphers:
        try:
            context.set_ciphers(":".join(CIPHERS[name] for name in settings.ciphers))
        except ssl.SSLError as error:
            raise TlsError("cipher_suites", "this OpenSSL offers none of them; leave some of GCM_SHA256") from error
    if settings.curve:
        try:
            context.set_ecdh_curve(CURVES[settings.curve])
        except (ssl.SSLError, ValueError) as error:  # X25519 with OpenSSL 1.1, for one
            raise TlsError("curve_preferences", "this OpenSSL does not offer it; leave it out") from error
    _take_certificate(context, settings.certificate, settings.key)
    context.verify_mode = _VERIFY[settings.client_certificates]
    if settings.client_ca:
        _take_client_ca(context, settings.client_ca)
    return context


def _take_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    for part, what, text, mark in (
        ("cert", "certificate", certificate, b"-----BEGIN CERTIFICATE-----"),
        ("key", "private key", key, b"PRIVATE KEY-----"),
    ):
        if mark not in text:
            raise TlsError(part, f"holds no {what} in PEM form (-----BEGIN ...)")
    try:
        # Both are read once and then handed over as one file, so that no change of a file can come between them.
        with _as_file(key + b"\n" + certificate) as path:
            context.load_cert_chain(path, password=_no_password)
    except _EncryptedKeyError as error:
        raise TlsError("key", "is encrypted, and a daemon has nobody to ask; write it without a pass phrase") from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError("key", "does not belong to the certificate; give the pair that was made together") from error
        reason = (error.reason or "not known").lower().replace("_", " ")
        raise TlsError("cert", f"certificate or key cannot be used: {reason}") from error


def _take_client_ca(context: ssl.SSLContext, client_ca: bytes) -> None:
    try:
        # Bundles name their authorities beside the certificates, in signs that Python's ssl does not take.
        context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:  # ValueError: empty
        raise TlsError("client_ca", "holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)") from error
    # Any certificate in the file is trusted for what it signed, also one that another has signed, as in Go.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


class _EncryptedKeyError(Exception):
    """OpenSSL asks for a pass phrase."""


def _no_password() -> str:
    raise _EncryptedKeyError


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path under which OpenSSL finds some bytes, which never reach a disk."""
    with open(os.memfd_create("pem"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


class TlsEntry:
    """Puts TLS upon the sockets of new clients; see ``make_context``.

    Args:
        allowed_names: Alternative names of client certificates that may come in; empty: any that we trust.
    """

    def __init__(self, settings: TlsSettings, allowed_names: frozenset[str] = frozenset()) -> None:
        self._allowed_names = allowed_names
        self._settings = settings
        self._context = make_context(settings)

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """A socket in place of a non-blocking one, whose handshake is still to come.

        Raises:
            OSError: the client is gone.
        """
        if self._context.session_stats()["number"] >= _SESSIONS_OF_A_CONTEXT:
            self._context = make_context(self._settings)
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def check_name(self, sock: ssl.SSLSocket) -> None:
        """Look at a client's certificate after its handshake.

        Raises:
            OSError: it has no name of the list, where there is one.
        """
        if self._allowed_names and not client_is_allowed(sock.getpeercert(), self._allowed_names):
            raise PermissionError("no name of its certificate is in client_allowed_sans")


def client_is_allowed(certificate: Mapping[str, Any] | None, allowed: frozenset[str]) -> bool:
    """Whether one of the alternative names of a client's certificate is in a list."""
    names = (certificate or {}).get("subjectAltName", ())
    return any(_name_text(kind, value) in allowed for kind, value, *_ in names)


def _name_text(kind: str, value: str) -> str | None:
    """An alternative name as users write it; None for kinds that cannot be listed."""
    if kind == "IP Address":
        return canonical_address(value)
    return value if kind in ("DNS", "email", "URI") else None


def canonical_address(text: str) -> str:
    """An IP address in its one shortest form; any other text as it is."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_ntop(family, socket.inet_pton(family, text.strip()))
        except (OSError, ValueError):
            continue
    return text

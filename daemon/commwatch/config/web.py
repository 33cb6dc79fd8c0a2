"""The web configuration file: exporter-toolkit's format, as operators of exporters know it.

A setting that cannot be applied is an error if it would admit more clients than intended, and a note if it only gives
less than intended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from commwatch.config.web_file import HttpSection, RateSection, TlsSection, WebReader
from commwatch.errors import did_you_mean
from commwatch.units import parse_duration

if TYPE_CHECKING:
    from commwatch_exporters.tls_context import TlsSettings

_HEADER_VALUES = {"X-Content-Type-Options": ("nosniff",), "X-Frame-Options": ("deny", "sameorigin")}
_CLIENT_CERTIFICATES: dict[str, Literal["none", "if given", "required"]] = {
    "NoClientCert": "none",
    "VerifyClientCertIfGiven": "if given",
    "RequireAndVerifyClientCert": "required",
}


@dataclass(frozen=True)
class WebConfig:
    """The contents of the file, ready for use."""

    tls: TlsSettings | None
    """None: plain HTTP."""
    allowed_names: frozenset[str]
    """Alternative names of client certificates that are let in; empty: any."""
    headers: dict[str, str]
    users: dict[bytes, bytes] = field(repr=False)
    """bcrypt hashes by name; empty: no password is required."""
    rate_limit: tuple[float, int] | None
    """Seconds for one more request, and requests at once."""
    files: tuple[Path, ...]
    seen: tuple[tuple[int, ...], ...]
    """The attributes of these files (``look_of``), at the latest when they were read."""
    notes: tuple[str, ...]
    """Settings in the file that have no effect, one line each."""


def read_web_config(path: Path) -> WebConfig:
    """Read the file, and the certificates that it names.

    Raises:
        ConfigError: something cannot be used, with file, line, key and what would be right.
    """
    reader = WebReader(path)
    section = reader.file.tls_server_config
    tls, allowed_names = None, frozenset[str]()
    if section is not None and section != TlsSection():
        tls, allowed_names = _tls(reader, section)
    headers = _http(reader)
    users = _users(reader)
    rate_limit = _rate(reader)
    return WebConfig(
        tls, allowed_names, headers, users, rate_limit, tuple(reader.files), tuple(reader.seen), tuple(reader.notes)
    )


def _tls(reader: WebReader, section: TlsSection) -> tuple[TlsSettings, frozenset[str]]:
    from commwatch_exporters.tls_context import TlsError, TlsSettings, canonical_address, make_context

    certificate, key, client_ca = (reader.pem(part) for part in ("cert", "key", "client_ca"))
    for part, text in (("cert", certificate), ("key", key)):
        if not text:
            problem = f"is missing; set it, or leave tls_server_config out for plain HTTP ({part} holds the PEM itself)"
            raise reader.error(problem, "tls_server_config", f"{part}_file")
    if section.key:
        reader.keep_secret(reader.path, "tls_server_config", "key")
    client_certificates = _client_certificates(reader, section, has_ca=bool(client_ca))
    lowest, highest = _versions(reader, section)
    settings = TlsSettings(
        certificate, key, client_ca, client_certificates, lowest, highest,
        _ciphers(reader, section), section.prefer_server_cipher_suites, _curve(reader, section),
    )  # fmt: skip
    try:
        make_context(settings)
    except TlsError as error:
        in_file = getattr(section, f"{error.part}_file", "")
        raise reader.error(error.problem, "tls_server_config", error.part + ("_file" if in_file else "")) from error
    return settings, frozenset(canonical_address(name) for name in section.client_allowed_sans or ())


def _client_certificates(
    reader: WebReader, section: TlsSection, *, has_ca: bool
) -> Literal["none", "if given", "required"]:
    policy = section.client_auth_type
    here = ("tls_server_config", "client_auth_type")
    if policy not in _CLIENT_CERTIFICATES:
        raise reader.error(
            f"{policy} takes any certificate, whoever signed it, and is not offered; possible: "
            f"{', '.join(_CLIENT_CERTIFICATES)}. Only the last keeps others out",
            *here,
        )
    wanted = _CLIENT_CERTIFICATES[policy]
    if has_ca and wanted == "none":
        name = "client_ca_file" if section.client_ca_file else "client_ca"
        problem = "has no effect without client_auth_type: RequireAndVerifyClientCert; set that, or leave this out"
        raise reader.error(problem, "tls_server_config", name)
    if not has_ca and wanted != "none":
        raise reader.error(f"{policy} needs client_ca_file, which says whose certificates are taken", *here)
    if section.client_allowed_sans is not None:
        where = ("tls_server_config", "client_allowed_sans")
        if wanted != "required":
            raise reader.error("needs client_auth_type: RequireAndVerifyClientCert", *where)
        if not section.client_allowed_sans:
            raise reader.error("is empty, so that nobody could come in; name whom to let in, or leave it out", *where)
    return wanted


def _versions(reader: WebReader, section: TlsSection) -> tuple[str, str]:
    for name in ("min_version", "max_version"):
        if (version := getattr(section, name)) in ("TLS10", "TLS11"):
            problem = f"{version} is broken and not offered; possible: TLS12, TLS13"
            raise reader.error(problem, "tls_server_config", name)
    if section.min_version > section.max_version:
        raise reader.error(f"is above max_version, {section.max_version}", "tls_server_config", "min_version")
    return section.min_version, section.max_version


def _ciphers(reader: WebReader, section: TlsSection) -> tuple[str, ...]:
    from commwatch_exporters.tls_context import CIPHERS, TLS13_CIPHERS

    named = section.cipher_suites or ()
    for position, name in enumerate(named):
        here = ("tls_server_config", "cipher_suites", position)
        if name in TLS13_CIPHERS:
            reader.note(f"{name} belongs to TLS 1.3, whose three suites cannot be chosen and are all on", *here)
        elif name not in CIPHERS:
            raise reader.error(_one_of("cipher suite of TLS 1.2 that is offered", name, tuple(CIPHERS)), *here)
    chosen = tuple(name for name in named if name in CIPHERS)
    whole = ("tls_server_config", "cipher_suites")
    if named and not chosen and section.min_version == "TLS12":
        raise reader.error("names no suite of TLS 1.2; add one, or set min_version: TLS13", *whole)
    if chosen and section.min_version == "TLS13":
        reader.note("has no effect: min_version is TLS13, whose suites cannot be chosen", *whole)
    return chosen


def _curve(reader: WebReader, section: TlsSection) -> str:
    from commwatch_exporters.tls_context import CURVES

    named = section.curve_preferences or ()
    for position, name in enumerate(named):
        if name not in CURVES:
            problem = _one_of("curve that is offered", name, tuple(CURVES))
            raise reader.error(problem, "tls_server_config", "curve_preferences", position)
    if len(named) > 1:
        problem = "names several, and Python's TLS takes one or its own choice; keep one, or leave this out"
        raise reader.error(problem, "tls_server_config", "curve_preferences")
    return named[0] if named else ""


def _one_of(what: str, name: str, possible: Sequence[str]) -> str:
    hint = did_you_mean(name, possible, f"possible: {', '.join(possible)}")
    return f"{name} is no {what}; {hint}"


def _http(reader: WebReader) -> dict[str, str]:
    section = reader.file.http_server_config or HttpSection()
    if section.http2:
        reader.note("HTTP/2 is not offered; clients are served over HTTP/1.1", "http_server_config", "http2")
    headers: dict[str, str] = {}
    for name, given in (section.headers or {}).items():
        value = given or ""
        here = ("http_server_config", "headers", name)
        possible = _HEADER_VALUES.get(name)
        if value and possible and value not in possible:
            raise reader.error(f"{value!r} is not possible; possible: {', '.join(possible)}", *here)
        if value != value.strip() or not (value.isascii() and (value.isprintable() or not value)):
            raise reader.error("expected one line of plain ASCII without spaces around it", *here)
        headers[name] = value
    return headers


def _users(reader: WebReader) -> dict[bytes, bytes]:
    given = reader.file.basic_auth_users or {}
    if not given:
        return {}
    from commwatch_exporters.passwords import hash_problem

    for name, hashed in given.items():
        if ":" in name:
            raise reader.error("a user's name holds no colon", "basic_auth_users", name)
        if problem := hash_problem(hashed.encode()):
            raise reader.error(problem, "basic_auth_users", name)
    reader.keep_secret(reader.path, "basic_auth_users")
    return {name.encode(): hashed.encode() for name, hashed in given.items()}


def _rate(reader: WebReader) -> tuple[float, int] | None:
    section = reader.file.rate_limit or RateSection()
    try:
        interval = 0.0 if section.interval == 0 else parse_duration(section.interval)
    except ValueError as error:
        raise reader.error(str(error), "rate_limit", "interval") from error
    if not interval:
        if section.burst:
            reader.note("has no effect without an interval", "rate_limit", "burst")
        return None
    if section.burst < 1:
        raise reader.error("must be at least 1, or no request would ever be answered", "rate_limit", "burst")
    return interval, section.burst

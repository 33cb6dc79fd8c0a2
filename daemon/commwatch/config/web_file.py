"""The keys of a web configuration file, and reading it with what it names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from commwatch.config.settings import Section
from commwatch.config.yaml_file import decode, read_yaml
from commwatch.errors import ConfigError

HeaderName: TypeAlias = Literal[
    "Content-Security-Policy", "Strict-Transport-Security", "X-Content-Type-Options", "X-Frame-Options",
    "X-XSS-Protection",
]  # fmt: skip
_LONGEST_FILE = 1 << 20


class TlsSection(Section, frozen=True):
    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: Literal[
        "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "RequireClientCert", "VerifyClientCertIfGiven",
        "RequireAndVerifyClientCert",
    ] = "NoClientCert"  # fmt: skip
    client_allowed_sans: tuple[str, ...] | None = None
    min_version: Literal["TLS10", "TLS11", "TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS10", "TLS11", "TLS12", "TLS13"] = "TLS13"
    cipher_suites: tuple[str, ...] | None = None
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] | None = None


class HttpSection(Section, frozen=True):
    http2: bool | None = None
    headers: dict[HeaderName, str | None] | None = None


class RateSection(Section, frozen=True):
    """A token bucket for each client address."""

    interval: str | int = 0
    burst: int = 0


class WebFile(Section, frozen=True):
    """The whole file; a section without anything in it counts as none."""

    tls_server_config: TlsSection | None = None
    http_server_config: HttpSection | None = None
    basic_auth_users: dict[str, str] | None = None
    rate_limit: RateSection | None = None


class WebReader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = [path]
        self.seen = [look_of(path)]
        self.document = read_yaml(path)
        self.file = decode(self.document, WebFile)
        self.notes: list[str] = []

    def error(self, problem: str, *steps: str | int) -> ConfigError:
        return self.document.error(steps, problem)

    def note(self, problem: str, *steps: str | int) -> None:
        self.notes.append(str(self.document.error(steps, problem)))

    def keep_secret(self, path: Path, *steps: str | int) -> None:
        """Refuse a file with a secret in it that every user may read."""
        try:
            mode = path.stat().st_mode & 0o777
        except OSError as error:  # it has gone meanwhile
            raise self.error(f"{path} cannot be read: {error.strerror}", *steps) from error
        if mode & 0o004:
            problem = f"is secret, and every user can read {path} (mode {mode:04o}); chmod 0640 {path}"
            raise self.error(problem, *steps)

    def pem(self, part: str) -> bytes:
        """The text of ``cert``, ``key`` or ``client_ca``, from the file or from another that it names; may be empty."""
        section = self.file.tls_server_config or TlsSection()
        inline, name = getattr(section, part), getattr(section, f"{part}_file")
        if inline and name:
            raise self.error(f"is set, and so is {part}; keep one", "tls_server_config", f"{part}_file")
        if not name:
            return str(inline).encode()
        path = self.path.parent / name
        self.files.append(path)
        self.seen.append(look_of(path))  # before it is read: a change between the two is seen the next time
        try:
            if part == "key":
                self.keep_secret(path, "tls_server_config", "key_file")
            with path.open("rb") as file:
                return bytes(file.read(_LONGEST_FILE))
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror}"
            raise self.error(problem, "tls_server_config", f"{part}_file") from error


def look_of(path: Path) -> tuple[int, ...]:
    """File attributes that change when a file, or the target of a link, is written or replaced; empty if there is
    none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode

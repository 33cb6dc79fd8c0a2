"""The web configuration in force: put before the endpoint, and read again when it or a certificate changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

import structlog

from commwatch.config.web import WebConfig, read_web_config
from commwatch.config.web_file import look_of
from commwatch.errors import ConfigError
from commwatch_exporters.gate import Gate
from commwatch_exporters.http_server import Access, HttpServer
from commwatch_exporters.listen import split_address
from commwatch_exporters.passwords import Passwords
from commwatch_exporters.shares import ClientRates
from commwatch_exporters.tls_context import TlsEntry

log = structlog.get_logger("commwatch.web")

LOOK_SECONDS = 5.0
"""Call ``WebAccess.look`` at this interval."""

_CLIENT_CERTIFICATES = ("none", "if given", "required")  # each asks for more than the one before


class WebAccess:
    """Access control of the HTTP server, from the web configuration file.

    Args:
        path: The web configuration file.
        server: The server that it protects.
        show_success: Called after each reading with whether the files could be used.

    Raises:
        ConfigError: the file, or one that it names, cannot be used.
    """

    def __init__(self, path: Path, server: HttpServer, show_success: Callable[[bool], None]) -> None:
        self._path = path
        self._server = server
        self._show_success = show_success
        self._problem = ""
        self._notes: tuple[str, ...] = ()
        self._rate_limit: tuple[float, int] | None = None
        self._rates: ClientRates | None = None
        self._passwords: Passwords | None = None
        self.config: WebConfig | None = None
        """In force."""
        self._seen: tuple[tuple[int, ...], ...] = ()
        self._take(read_web_config(path))

    def read_soon(self) -> None:
        """Read the files again at the next ``look`` in any case, without waiting for files that may be slow."""
        self._seen = ()  # so that they have changed since

    async def look(self) -> None:
        """Read again if a file has changed since, or if it could not be used the last time."""
        if self._problem != "" or await asyncio.to_thread(self._have_changed):
            await self.reread()

    def _have_changed(self) -> bool:
        return tuple(look_of(path) for path in self._files) != self._seen

    async def reread(self) -> None:
        """Read again; what cannot be used, or would open a door, changes nothing."""
        try:
            config = await asyncio.to_thread(read_web_config, self._path)
            self._refuse_to_open(config)
        except ConfigError as error:
            if str(error) != self._problem:
                log.error("the new web configuration is not used; the old one stays in force", error=str(error))
            self._problem = str(error)
            self._show_success(False)
        else:
            log.info("the web configuration has been read again")
            self._problem = ""
            self._take(config)

    def close(self) -> None:
        """Compare no more passwords."""
        if self._passwords is not None:
            self._passwords.close()

    def _refuse_to_open(self, config: WebConfig) -> None:
        if self.config is not None and (key := _opened(self.config, config)):
            problem = (
                "asks less of clients than what is in force, as a file does of which only a part is written. "
                "If it is meant, restart the daemon"
            )
            raise ConfigError(str(self._path), None, key, problem)

    def _take(self, config: WebConfig) -> None:
        access = self._access(config)  # first: where it fails, the files count as not yet seen
        before, self.config = self.config, config
        self._files, self._seen = config.files, config.seen
        for note in config.notes:
            if note not in self._notes:
                log.warning("a setting of the web configuration has no effect", setting=note)
        self._notes = config.notes
        self._server.let_in(access)
        if before is not None and _asked_by_tls(before) != _asked_by_tls(config):
            self._server.hang_up()  # who was let in before might not be let in now
        self._show_success(True)

    def _access(self, config: WebConfig) -> Access:
        """The server's access settings from a configuration."""
        tls = None if config.tls is None else TlsEntry(config.tls, config.allowed_names)
        if config.rate_limit != self._rate_limit:
            self._rate_limit = config.rate_limit
            self._rates = None if config.rate_limit is None else ClientRates(*config.rate_limit)
        if config.users:
            # Kept over changes of the file: what has been found out about an unchanged hash stays true.
            self._passwords = self._passwords or Passwords()
            self._passwords.use(config.users)
        admit = None
        if config.users or self._rates is not None:
            admit = Gate(self._passwords if config.users else None, self._rates)
        certified = config.tls is not None and config.tls.client_certificates == "required"
        return Access(tls, admit, identifies=bool(config.users) or certified, headers=config.headers)


def who_reads(addresses: Sequence[str], web: WebConfig | None) -> str:
    """Who can read the endpoint, in words.

    Args:
        addresses: numeric ones that it listens on, with their ports, and paths of unix sockets.
        web: the web configuration; None without one.
    """
    if not addresses:
        return "nobody: no port is open"
    asked = []
    if web is not None and web.tls is not None and web.tls.client_certificates == "required":
        asked.append("a client certificate")
    if web is not None and web.users:
        asked.append("a password")
    is_local = all(_is_file(one) or ip_address(split_address(one)[0]).is_loopback for one in addresses)
    who = "this machine" if is_local else "whoever reaches the port"
    return f"{who}, with {' and '.join(asked)}" if asked else f"{who}, without a password"


def url_of(address: str, host_name: str, web: WebConfig | None) -> str:
    """The URL of the node's page on an address, by the host's name where it is every address of the host; the path of a
    unix socket as it is."""
    if _is_file(address):
        return address
    host, port = split_address(address)
    name = host_name if ip_address(host).is_unspecified else f"[{host}]" if ":" in host else host
    return f"http{'s' if web is not None and web.tls is not None else ''}://{name}:{port}/"


def _is_file(address: str) -> bool:
    """Whether it is the path of a unix socket."""
    return not address.rpartition(":")[2].isdigit()


def _opened(old: WebConfig, new: WebConfig) -> str:
    """The key with which a new configuration would ask less of whoever comes in; empty where it asks no less."""
    if old.tls is not None and new.tls is None:
        return "tls_server_config"
    if old.users and not new.users:
        return "basic_auth_users"
    if old.tls is None or new.tls is None:
        return ""
    asked_before, asked = (_CLIENT_CERTIFICATES.index(tls.client_certificates) for tls in (old.tls, new.tls))
    if asked < asked_before:
        return "tls_server_config.client_auth_type"
    return "tls_server_config.client_allowed_sans" if old.allowed_names and not new.allowed_names else ""


def _asked_by_tls(config: WebConfig) -> object:
    """The settings that a client satisfies once for all requests of its connection."""
    tls = config.tls
    return None if tls is None else (tls.client_certificates, tls.client_ca, config.allowed_names)

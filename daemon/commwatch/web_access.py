"""The web configuration in force: put before the endpoint, and read again when it or a certificate changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from commwatch.errors import ConfigError
from commwatch.web_config import WebConfig, read_web_config
from commwatch.web_file import look_of
from commwatch_exporters.http_server import Access, HttpServer

if TYPE_CHECKING:
    from commwatch_exporters.passwords import Passwords
    from commwatch_exporters.rate_limit import TokenBucket

log = structlog.get_logger("commwatch.web")

LOOK_SECONDS = 5.0
"""Between two looks whether a file has changed."""


class WebAccess:
    """Who comes in, and how.

    Args:
        path: The web configuration file.
        server: What it stands before.
        tell: Told after each reading whether the files could be used.

    Raises:
        ConfigError: the file, or one that it names, cannot be used.
    """

    def __init__(self, path: Path, server: HttpServer, tell: Callable[[bool], None]) -> None:
        self._path = path
        self._server = server
        self._tell = tell
        self._problem = ""
        self._notes: tuple[str, ...] = ()
        self._rate_limit: tuple[float, int] | None = None
        self._bucket: TokenBucket | None = None
        self._passwords: Passwords | None = None
        self._take(read_web_config(path))

    async def watch(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except Exception:
                log.exception("the look at the web configuration failed")  # a defect of ours; certificates go on

    async def look(self) -> None:
        """Read again if a file has changed since, or could not be used the last time."""
        if self._problem != "" or await asyncio.to_thread(self._have_changed):
            await self.reread()

    def _have_changed(self) -> bool:
        return tuple(look_of(path) for path in self._files) != self._seen

    async def reread(self) -> None:
        """Read again; what cannot be used changes nothing."""
        try:
            config = await asyncio.to_thread(read_web_config, self._path)
        except ConfigError as error:
            if str(error) != self._problem:
                log.error("the new web configuration is not used; the old one stays in force", error=str(error))
            self._problem = str(error)
            self._tell(False)
        else:
            log.info("the web configuration has been read again")
            self._problem = ""
            self._take(config)

    def close(self) -> None:
        """Compare no more passwords."""
        if self._passwords is not None:
            self._passwords.close()

    def _take(self, config: WebConfig) -> None:
        self._files, self._seen = config.files, config.seen
        for note in config.notes:
            if note not in self._notes:
                log.warning("a setting of the web configuration has no effect", setting=note)
        self._notes = config.notes
        self._server.let_in(self._access(config))
        self._tell(True)

    def _access(self, config: WebConfig) -> Access:
        """What the server needs; modules that a plain endpoint can do without are loaded here."""
        wrap, admit = None, None
        if config.tls is not None:
            from commwatch_exporters.tls_link import TlsEntry

            wrap = TlsEntry(config.tls, config.allowed_names)
        if config.rate_limit != self._rate_limit:
            self._rate_limit, self._bucket = config.rate_limit, _bucket(config.rate_limit)
        if config.users:
            from commwatch_exporters.passwords import Passwords

            # Kept over changes of the file: what has been found out about an unchanged hash stays true.
            self._passwords = self._passwords or Passwords()
            self._passwords.use(config.users)
        if config.users or self._bucket is not None:
            from commwatch_exporters.gate import Gate

            admit = Gate(self._passwords if config.users else None, self._bucket)
        return Access(wrap, admit, config.headers)


def _bucket(rate_limit: tuple[float, int] | None) -> TokenBucket | None:
    if rate_limit is None:
        return None
    from commwatch_exporters.rate_limit import TokenBucket

    return TokenBucket(*rate_limit)

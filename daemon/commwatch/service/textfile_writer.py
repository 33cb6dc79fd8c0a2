"""Keeps the textfile current: a page at an interval, written where a directory that hangs holds nothing up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from commwatch.config.settings import Textfile
from commwatch.state.replace import replace_file

log = structlog.get_logger("commwatch.textfile")

_STOP_SECONDS = 1.0


class TextfileWriter:
    """Writes the same text as a scrape to a file, and removes the file when the daemon stops.

    node_exporter would expose a file that stays as current forever, as it checks no age. If the daemon was killed, only
    the time of the file shows it (``node_textfile_mtime_seconds``).
    """

    def __init__(self, page: Callable[[], bytes]) -> None:
        self._page = page
        self._file: Path | None = None
        """The file that we write, until it is removed."""
        self._thread: threading.Thread | None = None
        """The last thing that was done to a file; it may hang there. Only one runs."""
        self._is_stopped = False
        self._trouble = ""
        """The last logged problem; empty while there is none."""

    async def write(self, settings: Textfile) -> None:
        """Write, or move or remove what was written where the settings in force ask for another file or none."""
        file = Path(settings.path) if settings.path else None
        if self._is_stopped or (file is None and self._file is None):
            return
        if self._is_busy():
            self._warn("the last write has not come back")
            return
        page = b"" if file is None else self._page()
        self._start(self._replace, self._file, file, page)
        self._file = file

    async def stop(self) -> None:
        """Take the file away, unless that hangs, and write no other: a reload under way may still ask for one."""
        self._is_stopped = True
        if self._file is None:
            return
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _STOP_SECONDS)
        if not self._is_busy():
            removing = self._start(self._remove, self._file)
            await asyncio.to_thread(removing.join, _STOP_SECONDS)
        self._file = None

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self, work: Callable[..., None], *given: object) -> threading.Thread:
        # The end of the process does not wait for it, as it does for the threads of the event loop.
        thread = threading.Thread(target=work, args=given, name="textfile", daemon=True)
        self._thread = thread
        thread.start()
        return thread

    # --- in the thread ---

    def _replace(self, old: Path | None, new: Path | None, page: bytes) -> None:
        if old is not None and old != new:
            self._remove(old)
        if new is not None:
            self._write(new, page)

    def _write(self, file: Path, page: bytes) -> None:
        try:
            replace_file(file, page, 0o644)  # node_exporter is another user
        except OSError as error:
            self._warn(error.strerror or str(error))
        else:
            if self._trouble:
                self._trouble = ""
                log.info("the textfile is written again", file=str(file))

    def _remove(self, file: Path) -> None:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the textfile cannot be removed and will look old", file=str(file), error=error.strerror)

    def _warn(self, trouble: str) -> None:
        """Log once what is wrong, until it is well or something else is wrong."""
        if trouble != self._trouble:
            self._trouble = trouble
            file = str(self._file)
            log.warning("the textfile is not written; it is tried again at each interval", file=file, error=trouble)

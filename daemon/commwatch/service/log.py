"""The log: one event per change of state, JSON under systemd or in a pipe, readable on a terminal."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from commwatch.config.settings import Log
from commwatch.lines import printable

_JOURNAL_LEVELS = {"debug": 7, "info": 6, "warning": 4, "warn": 4, "error": 3, "exception": 3, "critical": 2}


def _journal_prefix(logger: WrappedLogger, method: str, line: EventDict | str) -> str:
    """Prefix the line with its level, in the form that journald parses."""
    return f"<{_JOURNAL_LEVELS.get(method, 6)}>{line}"


def _level_first(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    head = {key: event.pop(key) for key in ("time", "level", "msg", "logger") if key in event}
    return {**head, **event}


def _harmless(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Texts that a terminal shows as text: lines of jobs and of the kernel log are among them. JSON has escapes."""
    return {
        key: printable(value) if isinstance(value, str) and key != "exception" and not value.isprintable() else value
        for key, value in event.items()
    }


def configure_logging(settings: Log, stream: TextIO | None = None) -> None:
    """Send our own records and those of third parties the same way; keys time, level, msg, logger, then the fields.

    Args:
        stream: None: standard error as it is at the call.
    """
    stream = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    final: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if settings.format == "json" or (settings.format == "auto" and not stream.isatty()):
        final += [structlog.processors.EventRenamer("msg"), _level_first, structlog.processors.JSONRenderer()]
    else:
        colors = stream.isatty() and "NO_COLOR" not in os.environ
        final += [_harmless, structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time")]
    if "JOURNAL_STREAM" in os.environ and not stream.isatty():
        final.append(_journal_prefix)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=final))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    structlog.configure(
        processors=[*shared[:2], *shared[3:], structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )

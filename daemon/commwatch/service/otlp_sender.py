"""Sends what a scrape would show to an OpenTelemetry collector, in a thread that holds nothing up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from commwatch import __version__
from commwatch.config.settings import Otlp

if TYPE_CHECKING:
    from commwatch_exporters.metrics_page import Families
    from commwatch_exporters.otlp import OtlpClient

log = structlog.get_logger("commwatch.otlp")

_SWITCH_SECONDS = 0.0005
"""How long an export may keep the interpreter from the event loop, which asks for it after each call of the system.
By Python's own 5 ms, the median of scrapes during exports was 6 ms in place of 2."""


def why_no_otlp() -> str:
    """Why nothing can be sent from this installation; empty if it can."""
    try:
        import commwatch_exporters.otlp  # noqa: F401  # only here: it takes memory that most daemons need not
    except ImportError as error:
        return f"metrics.otlp.endpoint needs OpenTelemetry: pip install 'commwatch[otlp]' ({error})"
    return ""


class OtlpSender:
    """Sends at each call, and drops what a collector does not take: the next one has the same counters."""

    def __init__(self, families: Callable[[], Families]) -> None:
        self._families = families
        self._client: OtlpClient | None = None
        self._endpoint = ""
        """That the client sends to."""
        self._thread: threading.Thread | None = None
        """The last export; the end of the process does not wait for it. Only one runs."""
        self._failing = ""
        """The endpoint that exports do not reach."""

    async def send(self, settings: Otlp) -> None:
        """Begin an export, if there is a collector and the last one is over."""
        if not settings.endpoint:
            self._client, self._failing = None, ""
            return
        if self._thread is not None and self._thread.is_alive():
            self._report(settings.endpoint, "the last export has not come back")
            return
        self._thread = threading.Thread(
            target=self._export, args=(settings.endpoint, self._families()), name="otlp", daemon=True
        )
        self._thread.start()

    def _export(self, endpoint: str, families: Families) -> None:
        try:
            self._report(endpoint, why_no_otlp() or self._client_of(endpoint).send(families))
        except Exception as error:  # a defect of ours or of the library, which returns what goes wrong on the way
            self._report(endpoint, f"{type(error).__name__}: {error}")

    def _client_of(self, endpoint: str) -> OtlpClient:
        from commwatch_exporters.otlp import OtlpClient

        sys.setswitchinterval(_SWITCH_SECONDS)
        if self._client is None or endpoint != self._endpoint:
            self._client, self._endpoint = OtlpClient(endpoint, __version__), endpoint
        return self._client

    def _report(self, endpoint: str, problem: str) -> None:
        """Log once that exports to an endpoint fail, and once that they arrive again."""
        if problem and endpoint != self._failing:
            log.warning("the metrics are not sent; it is tried again at each interval", error=problem)
        elif not problem and self._failing:
            log.info("the metrics are sent again")
        self._failing = endpoint if problem else ""

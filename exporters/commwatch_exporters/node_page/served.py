"""The node's page as the endpoint serves it: rendered when someone asks, and at most once a second."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import NamedTuple

from commwatch_exporters.node.model import Node
from commwatch_exporters.node_page.records import Status
from commwatch_exporters.snapshot import Snapshot

KEPT_SECONDS = 1.0
"""For so long everybody gets the same page: readers, however many or hostile, take little from the scrapes."""
_GZIP_LEVEL, _GZIP_WRAPPER = 1, 31


class _Kept(NamedTuple):
    until: float
    """Monotonic seconds."""
    plain: bytes
    compressed: bytes


class ServedPage:
    """The page of a node, in both forms: one that loads itself again and one that stands still."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        status: Callable[[], Status],
        telemetry_path: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is rendered.

        Args:
            snapshot: all that is current.
            status: what the daemon says beside it.
            telemetry_path: where the metrics are.
            monotonic: seconds of a clock that never steps.
        """
        self._snapshot = snapshot
        self._status = status
        self._telemetry_path = telemetry_path
        self._monotonic = monotonic
        self._node = Node()
        self._kept: dict[bool, _Kept] = {}

    def page(self, *, refreshes: bool, compressed: bool) -> bytes:
        """The page as UTF-8, compressed with gzip where that is wanted."""
        now = self._monotonic()
        kept = self._kept.get(refreshes)
        if kept is None or now >= kept.until:
            # Imported at the first request: most daemons are only scraped.
            from commwatch_exporters.node_page.page import render_node_page

            self._node.show(self._snapshot())
            page = render_node_page(self._node, self._status(), self._telemetry_path, refreshes=refreshes)
            plain = page.encode("utf-8", "replace")
            kept = self._kept[refreshes] = _Kept(now + KEPT_SECONDS, plain, _gzip(plain))
        return kept.compressed if compressed else kept.plain


def _gzip(plain: bytes) -> bytes:
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WRAPPER)
    return compressor.compress(plain) + compressor.flush()

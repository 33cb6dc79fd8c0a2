"""The node's page as the endpoint serves it: rendered when someone asks, and at most once a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from commwatch_exporters.node.model import Node
from commwatch_exporters.node_page.records import Status
from commwatch_exporters.shared_body import SharedBody
from commwatch_exporters.snapshot import Snapshot


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
        self._node = Node()
        self._pages = {
            refreshes: SharedBody(partial(self._render, refreshes=refreshes), monotonic) for refreshes in (True, False)
        }

    def page(self, *, refreshes: bool, compressed: bool) -> bytes:
        """The page as UTF-8, compressed with gzip where that is wanted."""
        return self._pages[refreshes].get(gzip=compressed)

    def _render(self, *, refreshes: bool) -> bytes:
        # Imported at the first request: most daemons are only scraped.
        from commwatch_exporters.node_page.page import render_node_page

        self._node.show(self._snapshot())
        page = render_node_page(self._node, self._status(), self._telemetry_path, refreshes=refreshes)
        return page.encode("utf-8", "replace")

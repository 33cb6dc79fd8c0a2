"""The metrics page: what the process says of itself, by prometheus_client, and what is known of the node, in bulk."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.registry import Collector

from commwatch_exporters.negotiation import Format, accepts_gzip, choose_format
from commwatch_exporters.node_collector import NodeCollector
from commwatch_exporters.selection import PROCESS_METRICS, selected
from commwatch_exporters.snapshot import Snapshot

KEPT_SECONDS = 1.0
"""Until there is another snapshot, everybody gets the same page for so long: what the process says of itself changes
meanwhile."""
_GZIP_LEVEL = 1  # 4 times faster than level 6 on this text, for a sixth more bytes


class Page(NamedTuple):
    """An answer to a scrape."""

    content_type: str
    body: bytes
    is_gzip: bool


def of_this_process() -> CollectorRegistry:
    """A registry that holds what the kernel says of this process, and refuses a series that it has already."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    return registry


class MetricsPage:
    """Renders the page of a node.

    Args:
        snapshot: What is known of it now.
        own: What this process says of itself; the node's part leaves these families out.
        monotonic: Seconds of a clock that never steps.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        own: CollectorRegistry | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot = snapshot
        self._own = of_this_process() if own is None else own
        self._monotonic = monotonic
        self._own_names = frozenset(f"{family.name}{_SUFFIXES.get(family.type, '')}" for family in self._own.collect())
        self._node = NodeCollector(snapshot, without=self._own_names)
        self.registry = CollectorRegistry(auto_describe=True)
        """All that is on the page."""
        for collector in (self._own, self._node):
            self.registry.register(collector)
        self._of: Snapshot | None = None
        self._until = 0.0
        self._bodies: dict[tuple[Format, bool], bytes] = {}
        """What was rendered of one snapshot, at most as long ago as it is kept."""

    def answer(self, accept: str, accept_encoding: str, query: str) -> Page:
        """The page for a client.

        Args:
            accept: Its header Accept, or nothing.
            accept_encoding: Its header Accept-Encoding, or nothing.
            query: Of the target, as it was sent.

        Raises:
            SelectionError: the query names no page.
        """
        page_format, is_gzip = choose_format(accept), accepts_gzip(accept_encoding)
        families = selected(query) if query else None
        if families is None:
            body = self._shared(page_format, is_gzip=is_gzip)
        else:  # made for each request: what is kept must not grow with what clients think of
            body = self._render(self._snapshot(), page_format, is_gzip=is_gzip, families=families)
        return Page(page_format.content_type, body, is_gzip)

    def textfile(self) -> bytes:
        """The page as text 0.0.4 for node_exporter, without ``process_*``.

        It has these of itself, and a second one of that name and no other label is an error of its whole page.
        """
        snapshot = self._snapshot()
        return self._text(snapshot, Format.TEXT, None, self._own_names - PROCESS_METRICS)

    def _shared(self, page_format: Format, *, is_gzip: bool) -> bytes:
        snapshot, now = self._snapshot(), self._monotonic()
        if snapshot is not self._of or now >= self._until:
            self._of, self._until, self._bodies = snapshot, now + KEPT_SECONDS, {}
        body = self._bodies.get((page_format, is_gzip))
        if body is None:
            body = self._bodies[page_format, is_gzip] = self._render(snapshot, page_format, is_gzip=is_gzip)
        return body

    def _render(
        self, snapshot: Snapshot, page_format: Format, *, is_gzip: bool, families: frozenset[str] | None = None
    ) -> bytes:
        own_names = self._own_names if families is None else self._own_names & families
        page = self._text(snapshot, page_format, families, own_names)
        return gzip.compress(page, _GZIP_LEVEL, mtime=0) if is_gzip else page

    def _text(
        self, snapshot: Snapshot, page_format: Format, families: Collection[str] | None, own_names: frozenset[str]
    ) -> bytes:
        own_names -= snapshot.unexported
        own: Collector = self._own
        if own_names != self._own_names:
            own = self._own.restricted_registry(own_names)
        return self._node.text(snapshot, page_format, families).encode() + page_format.encode(own)


_SUFFIXES = {"counter": "_total", "info": "_info"}
"""Of the samples of a family, by its type."""

"""The metrics page: the process's own metrics, by prometheus_client, and those of the node, in bulk.

A scrape names groups of metrics as for node_exporter: ``collect[]`` and ``exclude[]``.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from http import HTTPStatus
from itertools import chain
from typing import TypeAlias
from urllib.parse import parse_qsl

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from commwatch_exporters.catalogue import SECTIONS
from commwatch_exporters.catalogue.metric import SUFFIXES
from commwatch_exporters.http_server import Request, Response
from commwatch_exporters.node_collector import Format, NodeCollector
from commwatch_exporters.snapshot import Snapshot

Families: TypeAlias = Iterator[Family]
OWN_SECONDS = 5.0
"""Highest age of the process's own metrics: the library takes as long for 150 samples as ours for 3,000. If a part of
the node comes or goes, which often changes them, they are read again at once."""

PROCESS_METRICS = frozenset(sample.name for family in PROCESS_COLLECTOR.collect() for sample in family.samples)
"""Metrics that prometheus_client reads about this process."""

GROUPS: Mapping[str, frozenset[str]] = {
    **{title.lower().replace(" ", "_"): frozenset(metric.name for metric in rows) for title, rows in SECTIONS.items()},
    "process": PROCESS_METRICS,
}
"""Families by group: the sections of docs/reference/metrics.md."""

_MOST_FIELDS = 64
_GZIP = ("Content-Encoding", "gzip")
_GZIP_LEVEL = 1  # 3 times faster than level 6 on a page, for a seventh more bytes
_GZIP_REFUSED = re.compile(r"\bgzip\s*;\s*q=0(\.0*)?\s*(,|$)", re.IGNORECASE)


def choose_format(accept: str) -> Format:
    """OpenMetrics where the client names it, else text; never a version or an escaping that we do not write."""
    try:
        _, content_type = choose_encoder(accept)
    except TypeError:  # a version that is no number
        return Format.TEXT
    return Format.OPENMETRICS if content_type.startswith("application/openmetrics-text") else Format.TEXT


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the client takes gzip; the library does not know that it may refuse it with ``q=0``."""
    return gzip_accepted(accept_encoding) and not _GZIP_REFUSED.search(accept_encoding)


class SelectionError(ValueError):
    """The query names no page; the message says why."""


def selected(query: str) -> frozenset[str] | None:
    """The families that a query asks for; None for all.

    Args:
        query: of the request's target, as it was sent; what is neither ``collect[]`` nor ``exclude[]`` has no effect.

    Raises:
        SelectionError: a group is unknown, both are given, or there are too many fields.
    """
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise SelectionError(f"more than {_MOST_FIELDS} fields in the query") from error
    collected = {value for name, value in fields if name == "collect[]"}
    excluded = {value for name, value in fields if name == "exclude[]"}
    if collected and excluded:
        raise SelectionError("collect[] and exclude[] do not go together")
    if unknown := sorted((collected | excluded) - GROUPS.keys()):
        raise SelectionError(f"no group {unknown[0][:64]!a}; there are {', '.join(GROUPS)}")
    if not collected and not excluded:
        return None
    return frozenset().union(*(GROUPS[name] for name in collected or GROUPS.keys() - excluded))


class MetricsPage:
    """Renders the page of a node.

    Args:
        own: The program's own metrics, beside ``process_*``; the node's part leaves these families out.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        own: CollectorRegistry | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot = snapshot
        self._own = CollectorRegistry(auto_describe=True)
        """Metrics about this process."""
        ProcessCollector(registry=self._own)
        if own is not None:
            self._own.register(own)
        self._monotonic = monotonic
        self._own_names = frozenset(f"{family.name}{SUFFIXES.get(family.type, '')}" for family in self._own.collect())
        self._node = NodeCollector(snapshot, without=self._own_names)
        self.registry = CollectorRegistry(auto_describe=True)
        """All that is on the page."""
        for collector in (self._own, self._node):
            self.registry.register(collector)
        self._layouts: object = None
        self._until = 0.0
        self._own_texts: dict[Format, bytes] = {}
        """The last message of the process about itself, until then and while the node has the same series."""
        self._of: Snapshot | None = None
        self._bodies: dict[Format, Body] = {}
        """Whole pages with that text, of this snapshot."""

    def answer(self, request: Request) -> Response:
        """The page as the client takes it, whole or of the groups that it asks for; 400 where its query names none."""
        page_format = choose_format(request.headers.get("accept", ""))
        try:
            families = selected(request.query)
        except SelectionError as error:
            return Response(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
        if families is None:
            return self._whole(page_format).answer(request)
        # Made for each request: what is kept must not grow with what clients think of.
        snapshot = self._snapshot()
        own = self._own_text(snapshot, page_format, self._own_names & families)
        return _body(self._node.text(snapshot, page_format, families).encode() + own, page_format).answer(request)

    def textfile(self) -> bytes:
        """The page as text 0.0.4 for node_exporter, without ``process_*``.

        It has these of itself, and a second one of that name and no other label is an error of its whole page.
        """
        snapshot = self._snapshot()
        own = self._own_text(snapshot, Format.TEXT, self._own_names - PROCESS_METRICS)
        return self._node.text(snapshot, Format.TEXT).encode() + own

    def families(self) -> Families:
        """What the page shows as of this call. Another thread may take it, in which those of the node are made."""
        snapshot = self._snapshot()
        own = list(self._own.restricted_registry(self._own_names - snapshot.unexported).collect())
        return chain(NodeCollector(lambda: snapshot, without=self._own_names).collect(), own)

    def _whole(self, page_format: Format) -> Body:
        snapshot, now = self._snapshot(), self._monotonic()
        if now >= self._until or snapshot.layouts != self._layouts:
            self._until, self._layouts, self._own_texts, self._of = now + OWN_SECONDS, snapshot.layouts, {}, None
        if snapshot is not self._of:
            self._of, self._bodies = snapshot, {}
        if page_format not in self._own_texts:
            self._own_texts[page_format] = self._own_text(snapshot, page_format, self._own_names)
        if page_format not in self._bodies:
            page = self._node.text(snapshot, page_format).encode() + self._own_texts[page_format]
            self._bodies[page_format] = _body(page, page_format)
        return self._bodies[page_format]

    def _own_text(self, snapshot: Snapshot, page_format: Format, names: frozenset[str]) -> bytes:
        """The process's own metrics, with the end marker."""
        names -= snapshot.unexported
        own: Collector = self._own
        return page_format.encode(own if names == self._own_names else self._own.restricted_registry(names))


class Body:
    """A body, plain or compressed; it is compressed once."""

    def __init__(self, plain: bytes, content_type: str, varies_by: str = "Accept-Encoding") -> None:
        self._plain = plain
        self._content_type = content_type
        self._vary = ("Vary", varies_by)

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self._plain, _GZIP_LEVEL, mtime=0)

    def answer(self, request: Request) -> Response:
        """As the client takes it."""
        if not accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(HTTPStatus.OK, self._plain, self._content_type, (self._vary,))
        return Response(HTTPStatus.OK, self._compressed, self._content_type, (self._vary, _GZIP))


def _body(page: bytes, page_format: Format) -> Body:
    return Body(page, page_format.content_type, "Accept, Accept-Encoding")

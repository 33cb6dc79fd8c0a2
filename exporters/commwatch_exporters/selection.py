"""Which groups of metrics a scrape asks for: ``collect[]`` and ``exclude[]``, as node_exporter has them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from prometheus_client import PROCESS_COLLECTOR

from commwatch_exporters.catalogue import SECTIONS

PROCESS_METRICS = frozenset(sample.name for family in PROCESS_COLLECTOR.collect() for sample in family.samples)
"""What prometheus_client reads of this process itself."""

GROUPS: Mapping[str, frozenset[str]] = {
    **{title.lower().replace(" ", "_"): frozenset(metric.name for metric in rows) for title, rows in SECTIONS.items()},
    "process": PROCESS_METRICS,
}
"""Families by group: the sections of docs/reference/metrics.md."""

_MOST_FIELDS = 64


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

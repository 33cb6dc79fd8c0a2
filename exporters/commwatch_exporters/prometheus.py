"""Renders a snapshot as a Prometheus page: text 0.0.4 or OpenMetrics 1.0.0."""

from __future__ import annotations

import enum
import logging
import zlib
from collections.abc import Collection, Sequence
from functools import cache

from commwatch_exporters.catalogue import CATALOGUE, Metric
from commwatch_exporters.own_process import FAMILIES, own_use
from commwatch_exporters.selection import PROCESS
from commwatch_exporters.snapshot import Block, Snapshot, format_number

_log = logging.getLogger("commwatch.web")


class Format(enum.Enum):
    """A format of the page; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def render(
    snapshot: Snapshot, page_format: Format, *, gzip: bool = False, families: Collection[str] | None = None
) -> bytes:
    """The page, plain or as one gzip member; the whole one is made once for a snapshot, format and encoding.

    Args:
        snapshot: what is shown.
        page_format: in which format.
        gzip: compress it.
        families: only these, ``selection.PROCESS`` for those of this process. Such a page is made for each request:
            what is kept must not grow with what clients think of.
    """
    page = snapshot.renderings.get((page_format, gzip)) if families is None else None
    if page is None:
        page = _text(snapshot, page_format, families).encode()
        if gzip:
            compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WRAPPER)
            page = compressor.compress(page) + compressor.flush()
        if families is None:
            snapshot.renderings[page_format, gzip] = page
    return page


def openmetrics_family(metric: Metric) -> str:
    """The name that OpenMetrics metadata carry: without ``_total`` of a counter and ``_info`` of an info."""
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    return metric.name.removesuffix(suffix)


def process_metrics(page_format: Format) -> str:
    """The ``process_*`` families of this process, read now."""
    lines = []
    for name, value in own_use().items():
        metric_type, help_text = FAMILIES[name]
        family = name if page_format is Format.TEXT else name.removesuffix("_total")
        lines.append(f"# HELP {family} {help_text}\n# TYPE {family} {metric_type}\n{name} {format_number(value)}\n")
    return "".join(lines)


def node_text(snapshot: Snapshot, page_format: Format, families: Collection[str] | None = None) -> str:
    """Headers with lines of all families, or of some, in the order of the catalogue, but those of this process."""
    hidden = snapshot.unexported.union(snapshot.hidden)
    pieces = []
    for name, metric in CATALOGUE.items():
        if name in hidden or not (families is None or name in families):
            continue
        blocks = snapshot.family_blocks(name)
        if name in snapshot.repeated:
            texts = _lines_without_repeats(blocks, name)
        else:
            texts = [block.text(name) for block in blocks]
        if any(texts):
            pieces += (_header(metric, page_format), *texts)
    return "".join(pieces)


def _text(snapshot: Snapshot, page_format: Format, families: Collection[str] | None) -> str:
    process = process_metrics(page_format) if families is None or PROCESS in families else ""
    end = "# EOF\n" if page_format is Format.OPENMETRICS else ""
    return node_text(snapshot, page_format, families) + process + end


def _lines_without_repeats(blocks: Sequence[Block], family: str) -> list[str]:
    """The lines of a family, each series once: some readers refuse the whole page for one series given twice."""
    lines: dict[str, str] = {}
    for block in blocks:
        for position in block.layout.families[family]:
            value = block.values[position]
            prefix = block.layout.prefixes[position]
            if value is None:
                continue
            if prefix in lines:
                _report_repeat(family)
            else:
                lines[prefix] = f"{prefix}{format_number(value)}\n"
    return list(lines.values())


@cache
def _report_repeat(family: str) -> None:
    """Log a series given twice, once per family: the cache remembers which."""
    _log.error("%s: two blocks give the same series; the first one is exposed", family)


@cache
def _header(metric: Metric, page_format: Format) -> str:
    help_text = metric.text.replace("\\", "\\\\").replace("\n", "\\n")
    if page_format is Format.TEXT:
        metric_type = "gauge" if metric.type == "info" else metric.type
        return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {metric_type}\n"
    family = openmetrics_family(metric)
    help_text = help_text.replace('"', '\\"')
    unit = f"# UNIT {family} {metric.unit}\n" if metric.unit and family.endswith(f"_{metric.unit}") else ""
    return f"# TYPE {family} {metric.type}\n{unit}# HELP {family} {help_text}\n"


_GZIP_LEVEL, _GZIP_WRAPPER = 1, 31
"""4 times faster than level 6 on this text, for a sixth more bytes."""

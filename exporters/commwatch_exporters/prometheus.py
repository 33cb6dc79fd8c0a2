"""Renders a snapshot as a Prometheus page: text 0.0.4 or OpenMetrics 1.0.0."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from functools import cache, lru_cache

from prometheus_client import ProcessCollector

from commwatch_exporters.catalogue import CATALOGUE, Metric
from commwatch_exporters.page_parts import Part, PartCache, join, join_gzip
from commwatch_exporters.snapshot import Block, Layout, Snapshot, format_number

_log = logging.getLogger("commwatch.web")


class Format(enum.Enum):
    """A format of the page; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def render(snapshot: Snapshot, page_format: Format, *, gzip: bool = False) -> bytes:
    """The whole page, plain or as one gzip member; made once for a snapshot, format and encoding."""
    page = snapshot.renderings.get((page_format, gzip))
    if page is None:
        parts = _parts(snapshot, page_format)
        page = snapshot.renderings[page_format, gzip] = join_gzip(parts) if gzip else join(parts)
    return page


def openmetrics_family(metric: Metric) -> str:
    """The name that OpenMetrics metadata carry: without ``_total`` of a counter and ``_info`` of an info."""
    suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
    return metric.name.removesuffix(suffix)


def process_metrics(page_format: Format) -> str:
    """The ``process_*`` families of this process, read from /proc/self now, which takes 50 µs."""
    lines = []
    for family in PROCESS_COLLECTOR.collect():
        is_total = page_format is Format.TEXT and family.type == "counter"
        name = f"{family.name}_total" if is_total else family.name
        lines.append(f"# HELP {name} {family.documentation}\n# TYPE {name} {family.type}\n")
        lines.extend([f"{sample.name} {format_number(sample.value)}\n" for sample in family.samples])
    return "".join(lines)


def _parts(snapshot: Snapshot, page_format: Format) -> list[Part]:
    headers = _HEADERS[page_format]
    repeated = _repeated_families(tuple([block.layout for block in snapshot.blocks]))
    parts = []
    for family, header in headers.items():
        blocks = snapshot.family_blocks(family)
        if not blocks:
            continue
        if family in repeated:
            texts = _lines_without_repeats(blocks, family)
        else:
            texts = [text for block in blocks if (text := block.text(family))]
        if texts:
            parts.append(header)
            parts.append(_family_parts.part(family, texts))
    parts.append(Part(process_metrics(page_format).encode()))
    if page_format is Format.OPENMETRICS:
        parts.append(_END_PART)
    return parts


@lru_cache(maxsize=8)
def _repeated_families(layouts: tuple[Layout, ...]) -> frozenset[str]:
    """The families of which two layouts name the same series. Layouts live long, so this is seldom computed."""
    first_seen: dict[object, Layout] = {}
    repeated = set()
    for layout in layouts:
        for family, positions in layout.families.items():
            for position in positions:
                if first_seen.setdefault(layout.series[position], layout) is not layout:
                    repeated.add(family)
    return frozenset(repeated)


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


def _header(metric: Metric, page_format: Format) -> str:
    help_text = metric.text.replace("\\", "\\\\").replace("\n", "\\n")
    if page_format is Format.TEXT:
        metric_type = "gauge" if metric.type == "info" else metric.type
        return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {metric_type}\n"
    family = openmetrics_family(metric)
    help_text = help_text.replace('"', '\\"')
    unit = f"# UNIT {family} {metric.unit}\n" if metric.unit and family.endswith(f"_{metric.unit}") else ""
    return f"# TYPE {family} {metric.type}\n{unit}# HELP {family} {help_text}\n"


_HEADERS = {
    page_format: {name: Part(_header(metric, page_format).encode()) for name, metric in CATALOGUE.items()}
    for page_format in Format
}
_END_PART = Part(b"# EOF\n")
_family_parts = PartCache()

PROCESS_COLLECTOR = ProcessCollector(registry=None)
"""prometheus_client's reader of this process."""

"""Renders a snapshot as a Prometheus page: text 0.0.4 or OpenMetrics 1.0.0."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache

from commwatch_exporters.catalogue import CATALOGUE, Metric
from commwatch_exporters.own_process import FAMILIES, own_use
from commwatch_exporters.page_parts import Part, join, join_gzip
from commwatch_exporters.selection import PROCESS
from commwatch_exporters.snapshot import Block, Layout, Snapshot, format_number

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
        families: only these, ``selection.PROCESS`` for those of this process. Such a page is joined for each request,
            from the same parts: what is kept must not grow with what clients think of.
    """
    if families is not None:
        some = _parts(snapshot, page_format, families)
        return join_gzip(some) if gzip else join(some)
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
    """The ``process_*`` families of this process, read now."""
    lines = []
    for name, value in own_use().items():
        metric_type, help_text = FAMILIES[name]
        family = name if page_format is Format.TEXT else name.removesuffix("_total")
        lines.append(f"# HELP {family} {help_text}\n# TYPE {family} {metric_type}\n{name} {format_number(value)}\n")
    return "".join(lines)


def family_parts(snapshot: Snapshot, page_format: Format, families: Collection[str] | None = None) -> list[Part]:
    """Headers with lines of all families, or of some, but those of this process."""
    parts = _PAGES[page_format].parts(snapshot)
    return list(parts.values()) if families is None else [parts[name] for name in parts if name in families]


def _parts(snapshot: Snapshot, page_format: Format, families: Collection[str] | None = None) -> list[Part]:
    parts = family_parts(snapshot, page_format, families)
    if families is None or PROCESS in families:
        parts.append(_process_part(page_format, round(time.monotonic() / _PROCESS_SECONDS)))
    if page_format is Format.OPENMETRICS:
        parts.append(_END_PART)
    return parts


@lru_cache(maxsize=len(Format))
def _process_part(page_format: Format, _period: int) -> Part:
    return Part(process_metrics(page_format).encode())


class _Page:
    """The families of a page as they were rendered last: from one snapshot to the next few change."""

    def __init__(self, page_format: Format) -> None:
        self._headers = {name: _header(metric, page_format) for name, metric in CATALOGUE.items()}
        self._layouts: Sequence[Layout] = ()
        self._blocks: Sequence[Block] = ()
        """Of the last snapshot."""
        self._hidden: frozenset[str] = frozenset()
        self._places: dict[str, Sequence[int]] = {}
        """Which blocks hold series of each family that is shown."""
        self._repeated: frozenset[str] = frozenset()
        self._parts: dict[str, Part] = {}
        """Of each family as it was rendered last."""

    def parts(self, snapshot: Snapshot) -> Mapping[str, Part]:
        """Header and lines of all families that have any, in the order of the catalogue."""
        blocks, layouts = snapshot.blocks, snapshot.layouts
        hidden = snapshot.unexported.union(snapshot.hidden)
        if hidden != self._hidden or (layouts is not self._layouts and layouts != self._layouts):
            self._lay_out(snapshot, hidden)
            rendered = {family: self._render(blocks, family) for family in self._places}
            self._parts = {family: part for family, part in rendered.items() if part is not None}
        else:
            self._render_changed(blocks)
        self._blocks = blocks
        return self._parts

    def _lay_out(self, snapshot: Snapshot, hidden: frozenset[str]) -> None:
        self._layouts, self._hidden = snapshot.layouts, hidden
        holders = snapshot.holders
        self._places = {family: holders[family] for family in CATALOGUE if family in holders and family not in hidden}
        self._repeated = _repeated_families(snapshot.layouts)

    def _render_changed(self, blocks: Sequence[Block]) -> None:
        changed: set[str] = set()
        for block, before in zip(blocks, self._blocks, strict=True):
            if block is not before:
                changed.update(block.changed_since(before))
        appeared = False
        for family in changed.intersection(self._places):
            part = self._render(blocks, family)
            if part is None:
                self._parts.pop(family, None)
            else:
                appeared |= family not in self._parts
                self._parts[family] = part
        if appeared:  # into its place on the page
            self._parts = {family: self._parts[family] for family in self._places if family in self._parts}

    def _render(self, blocks: Sequence[Block], family: str) -> Part | None:
        holders = [blocks[place] for place in self._places[family]]
        if family in self._repeated:
            texts = _lines_without_repeats(holders, family)
        else:
            texts = [text for block in holders if (text := block.text(family))]
        if not texts:
            return None
        plain, known = "".join([self._headers[family], *texts]).encode(), self._parts.get(family)
        return known if known is not None and known.plain == plain else Part(plain)


def _repeated_families(layouts: Iterable[Layout]) -> frozenset[str]:
    """The families of which two layouts name the same series."""
    layouts = list(layouts)
    if len(set().union(*(layout.index for layout in layouts))) == sum(len(layout.series) for layout in layouts):
        return frozenset()  # as a rule; half the time of the search below
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


_PROCESS_SECONDS = 5.0
"""How old the values of this process may be: reading it takes a quarter of the time of a whole page."""
_END_PART = Part(b"# EOF\n")
_PAGES = {page_format: _Page(page_format) for page_format in Format}

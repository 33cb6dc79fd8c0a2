"""Writes docs/reference/metrics.md: ``python -m commwatch_exporters.documentation``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from commwatch_exporters.catalogue import SECTIONS, Metric
from commwatch_exporters.own_process import FAMILIES

FILE = Path("docs/reference/metrics.md")
_INTRODUCTION = """\
# Metrics

Every metric of the page. This file is generated: change `exporters/commwatch_exporters/catalogue/`, then run
`make docs`.

A value that was not read is absent: never 0, never the last one. An info's value is always 1. Units are in the names.
OpenMetrics shows counters without `_total` and infos without `_info` in their metadata; the series' names are the same.
A metric marked opt-in is exposed only where `metrics.opt_in` of the configuration names it.
A histogram has the series `_bucket` (with the label `le`), `_sum` and `_count`.
"inventory" is the one kept in the state directory.
"""


def document(groups: Mapping[str, Iterable[Metric]]) -> str:
    """The text of docs/reference/metrics.md: one table for each group of metrics."""
    sections = [_section(title, members) for title, members in groups.items() if members]
    return "\n".join([_INTRODUCTION, *sections, _process_section()])


def _section(title: str, metrics: Iterable[Metric]) -> str:
    rows = [
        f"| `{metric.name}` | {metric.type} | {', '.join(f'`{label}`' for label in metric.labels)} "
        f"| {_cell(metric.help)}{' Opt-in.' if metric.opt_in else ''} | {_cell(metric.origin)} |\n"
        for metric in metrics
    ]
    head = "| name | type | labels | what it says | origin |\n| --- | --- | --- | --- | --- |\n"
    return f"## {title}\n\n{head}{''.join(rows)}"


def _process_section() -> str:
    rows = [f"| `{name}` | {metric_type} | {_cell(text)} |\n" for name, (metric_type, text) in FAMILIES.items()]
    head = "| name | type | what it says |\n| --- | --- | --- |\n"
    note = "Read from `/proc/self` of the daemon, at most five seconds before the scrape.\n\n"
    return f"## Process of the daemon\n\n{note}{head}{''.join(rows)}"


def _cell(text: str) -> str:
    """A text as Markdown shows it in a table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    FILE.write_text(document(SECTIONS), encoding="utf-8")

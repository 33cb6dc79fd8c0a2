"""The list of all metrics: docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import PROCESS_COLLECTOR

from commwatch_exporters.catalogue import Metric
from commwatch_exporters.catalogue.metric import SUFFIXES

FILE = Path("docs/reference/metrics.md")
_INTRODUCTION = """\
# Metrics

Every metric of the page. This file is generated: change `exporters/commwatch_exporters/catalogue/`, then run
`make docs`.

A value that was not read is absent: never 0, never the last one. Names say the type: `_total` is a counter, `_info` an
info (always 1), anything else a gauge, unless its row says otherwise. Where `gpu` is a label, `pci_bus_id` is too.
An opt-in metric is exposed only where `metrics.opt_in` names it. "inventory" is the one kept in the state directory.
"""


def page(groups: Mapping[str, Iterable[Metric]]) -> str:
    """The text of docs/reference/metrics.md: one table for each group of metrics."""
    sections = [_section(title, members) for title, members in groups.items() if members]
    return "\n".join([_INTRODUCTION, *sections, _process_section()])


def _section(title: str, metrics: Iterable[Metric]) -> str:
    rows = [
        f"| `{metric.name}` | {_labels(metric)} | {_cell(metric.help)}{_remark(metric)} | {_cell(metric.origin)} |\n"
        for metric in metrics
    ]
    head = "| name | labels | what it says | origin |\n| --- | --- | --- | --- |\n"
    return f"## {title}\n\n{head}{''.join(rows)}"


def _labels(metric: Metric) -> str:
    """Without the address that goes with each GPU."""
    shown = [label for label in metric.labels if label != "pci_bus_id" or "gpu" not in metric.labels]
    return ", ".join(f"`{label}`" for label in shown)


def _remark(metric: Metric) -> str:
    """What neither the name nor the text says."""
    usual = next((kind for kind, suffix in SUFFIXES.items() if metric.name.endswith(suffix)), "gauge")
    kind = "" if metric.type == usual else f" A {metric.type}."
    return f"{kind}{' Opt-in.' if metric.opt_in else ''}"


def _process_section() -> str:
    families = list(PROCESS_COLLECTOR.collect())
    rows = [f"| `{one.name}` | {_cell(family.documentation)} |\n" for family in families for one in family.samples]
    head = "| name | what it says |\n| --- | --- |\n"
    when = "at most five seconds before the page was rendered, as the section before"
    note = f"Read from `/proc/self` of the daemon, {when}.\n\n"
    return f"## Process of the daemon\n\n{note}{head}{''.join(rows)}"


def _cell(text: str) -> str:
    """A text as Markdown shows it in a table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")

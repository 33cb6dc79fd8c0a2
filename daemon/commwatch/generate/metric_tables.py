"""The list of all metrics: docs/reference/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import PROCESS_COLLECTOR

from commwatch_exporters.catalogue import Metric
from commwatch_exporters.catalogue.metric import RECENT_RISE, SUFFIXES

FILE = Path("docs/reference/metrics.md")
_INTRODUCTION = """\
# Metrics

Every metric of the page. This file is generated: change `exporters/commwatch_exporters/catalogue/`, then run
`make docs`.

A value that was not read is absent: it is never 0 and never the last one. The name gives the type: `_total` is a
counter, `_info` an info (always 1), and anything else a gauge, unless its entry says otherwise. The second line of an
entry is the origin; an entry without one has that of the entry above. Fields, GPM metrics and functions whose names
begin with nvml are those of NVML; "inventory" is the file in the state directory. Where `gpu` is a label, `pci_bus_id`
is another. An opt-in metric is exposed only where `metrics.opt_in` names it. A recent rise is that of the last 5
minutes (`event_window_seconds`) since the daemon started; the series is there only while there is one.
"""
_NOTES = {
    "RDMA": "Paths that do not begin with a slash are below /sys/class/infiniband/*/ports/*.",
    "Utilisation": (
        "The last 10 min and hour of a job are those in which the same processes were on the GPU; before that, its"
        " metrics are absent."
    ),
    "Ethernet": "Names after mlx5, bnxt, ice, i40e and ena are statistics of these drivers by ethtool.",
}
"""Notes on the entries of a section."""
_SAID_ABOVE = re.compile(r"sysfs /sys/class/infiniband/\*/ports/\*/|sysfs (?=/sys)|NVML (?=field|nvml|GPM)|ethtool: ")
"""How an origin begins, where the introduction or a note says it."""


def page(groups: Mapping[str, Iterable[Metric]]) -> str:
    """The text of docs/reference/metrics.md: one list for each group of metrics."""
    sections = [_section(title, members) for title, members in groups.items() if members]
    return "\n".join([_INTRODUCTION, *sections, _process_section()])


def _section(title: str, metrics: Iterable[Metric]) -> str:
    rows, above = [], ""
    for metric in metrics:
        text, origin = f"{_plain(metric.help)}{_remark(metric)}", _plain(_SAID_ABOVE.sub("", metric.origin))
        if metric.help == RECENT_RISE:
            text, origin = f"Recent rise of `{metric.name.removesuffix('_recent')}_total`.", ""
        shown = f"<br>{origin}" if origin not in ("", above) else ""
        rows.append(f"- `{metric.name}{_labels(metric)}`: {text}{shown}\n")
        above = origin
    note = f"{_plain(_NOTES[title])}\n\n" if title in _NOTES else ""
    return f"## {title}\n\n{note}{''.join(rows)}"


def _labels(metric: Metric) -> str:
    """As PromQL writes them, without the address that goes with each GPU."""
    shown = [label for label in metric.labels if label != "pci_bus_id" or "gpu" not in metric.labels]
    return f"{{{','.join(shown)}}}" if shown else ""


def _remark(metric: Metric) -> str:
    """The type, where the name does not give it, and whether the metric is opt-in."""
    usual = next((kind for kind, suffix in SUFFIXES.items() if metric.name.endswith(suffix)), "gauge")
    kind = "" if metric.type == usual else f" A {metric.type}."
    return f"{kind}{' Opt-in.' if metric.opt_in else ''}"


def _process_section() -> str:
    names = [f"- `{one.name}`\n" for family in PROCESS_COLLECTOR.collect() for one in family.samples]
    note = (
        "These metrics are those of prometheus-client, from `/proc/self`. They and those of the section before are at"
        " most five seconds old.\n\n"
    )
    return f"## Process of the daemon\n\n{note}{''.join(names)}"


def _plain(text: str) -> str:
    """A text that Markdown shows as it is."""
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("<", "&lt;")

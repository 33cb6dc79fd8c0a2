"""Every counter that is read, and where it comes from; the tables of docs/reference/counters.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from commwatch.sources import network
from commwatch.sources.ethtool.table import DRIVERS
from commwatch.sources.nvml.fields import COUNTERS
from commwatch.sources.nvml.fields.row import CallReport, Counter, FieldCounter, GpmCounter
from commwatch.sources.pci import aer
from commwatch.sources.rdma import counters as rdma
from commwatch_exporters.catalogue import CATALOGUE

FILE = Path("docs/reference/counters.md")
BEGIN, END = "<!-- tables: written by make docs -->", "<!-- end of tables -->"
_GENERATIONS = {"all": "all", "nvlink_1_to_4": "NVLink 1 to 4", "nvlink_5_up": "NVLink 5 and later"}
_ELSEWHERE = "other sources"
"""Metrics that no table of a source names: one reader gives them as a whole."""
_WITHOUT_TABLE = (
    "gpu_p2p_status", "gpu_xid_events_total", "gpu_last_xid_timestamp_seconds", "gpu_driver_events_total",
    "nvswitch_sxid_events_total", "kernel_log_gpu_messages_total", "kernel_log_losses_total", "service_running",
    "rdma_port_state", "rdma_port_phys_state", "rdma_port_speed_bytes_per_second", "rdma_port_width_lanes",
    "pcie_device_link_generation", "pcie_device_link_width_lanes",
)  # fmt: skip


class Entry(NamedTuple):
    counter: str
    source: str
    generations: str
    metric: str
    """Full name."""


def sections() -> dict[str, list[Entry]]:
    """All lines by source."""
    return {
        "NVML": [entry for row in COUNTERS for entry in _nvml(row)],
        "PCIe: AER in sysfs": [
            *(Entry(file, "bus/pci/devices/*", "all", "commwatch_pcie_aer_errors_total")
              for file in aer.DEVICE_FILES.values()),
            *(Entry(file, "root ports", "all", "commwatch_pcie_aer_root_port_errors_total")
              for file in aer.ROOT_PORT_FILES.values()),
        ],
        "RDMA ports in sysfs": [
            Entry(row.file, f"ports/N/{row.folder}", "all" if row.is_common else "one vendor", row.metric)
            for row in rdma.COUNTERS
        ],
        "Network interfaces in sysfs": [
            Entry(row.file, "class/net/*", "all", row.metric) for row in network.COUNTERS
        ],
        "ethtool": [
            Entry(row.name.strip(), "SIOCETHTOOL", name, f"commwatch_{row.metric}")
            for name, driver in DRIVERS.items()
            for row in driver.rows
        ],
        _ELSEWHERE: [
            Entry(name, CATALOGUE[f"commwatch_{name}"].origin, "all", f"commwatch_{name}") for name in _WITHOUT_TABLE
        ],
    }  # fmt: skip


def tables() -> str:
    """The generated part of the document: the counters that the origin of their metric does not name.

    There is a list for each source and generation, and a line for each metric.
    """
    parts = []
    for title, entries in sections().items():
        counters: dict[str, dict[str, dict[str, None]]] = {}
        for entry in entries:
            if entry.counter.rpartition("/")[2] not in _words_of_origin(entry.metric):
                counters.setdefault(entry.generations, {}).setdefault(entry.metric, {})[entry.counter] = None
        for generations, metrics in counters.items():
            heading = title if generations == "all" else f"{title}: {generations}"
            parts.append(f"\n### {heading}\n\n")
            parts += [_line(metric, names) for metric, names in metrics.items()]
    return "".join(parts)


def _words_of_origin(metric: str) -> set[str]:
    """The words by which docs/reference/metrics.md gives the origin of a metric, and the metric's name itself."""
    return {*re.findall(r"[\w.]+", CATALOGUE[metric].origin), metric.removeprefix("commwatch_")}


def page(document: str) -> str:
    head, _, rest = document.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables()}\n{END}{tail}"


def _nvml(row: Counter) -> Iterator[Entry]:
    """The lines of one row of NVML's tables."""
    if isinstance(row, FieldCounter):
        source = f"field {row.field}"
    elif isinstance(row, GpmCounter):
        source = f"GPM metric {row.number}"
    else:
        arguments = "".join(f", {argument}" for argument in row.arguments)
        source = f"{row.call.__name__}{f' ({arguments[2:]})' if arguments else ''}"
    generations = "Hopper and later" if isinstance(row, GpmCounter) else _GENERATIONS[row.generations]
    series = row.series if isinstance(row, CallReport) else ((row.metric, row.labels),)
    for metric in dict.fromkeys(metric for metric, _ in series):
        yield Entry(row.name, source, generations, metric)


def _line(name: str, counters: Iterable[str]) -> str:
    metric = CATALOGUE[name]
    names = ", ".join(f"`{counter}`" for counter in counters)
    return f"- `{metric.name.removeprefix('commwatch_')}`{' (opt-in)' if metric.opt_in else ''}: {names}\n"

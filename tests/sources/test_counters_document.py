"""docs/reference/counters.md: every counter that is read, and where it comes from; held against the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from commwatch.sources import network
from commwatch.sources.ethtool.table import DRIVERS
from commwatch.sources.nvml.fields import COUNTERS
from commwatch.sources.nvml.fields.row import CallReport, Counter, FieldCounter, GpmCounter
from commwatch.sources.pci import aer
from commwatch.sources.rdma import counters as rdma
from commwatch_exporters.catalogue import CATALOGUE

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "docs" / "reference" / "counters.md"
BEGIN, END = "<!-- tables: written by tests/sources/test_counters_document.py -->", "<!-- end of tables -->"
GENERATIONS = {"all": "all", "nvlink_1_to_4": "NVLink 1 to 4", "nvlink_5_up": "NVLink 5 and later"}
ELSEWHERE = "other sources"
"""Metrics that no table of a source names: they are told by one reader as a whole."""
WITHOUT_TABLE = (
    "gpu_p2p_status", "gpu_xid_events_total", "gpu_last_xid_timestamp_seconds", "gpu_driver_events_total",
    "nvswitch_sxid_events_total", "kernel_log_gpu_messages_total", "kernel_log_losses_total", "service_running",
    "rdma_port_state", "rdma_port_phys_state", "rdma_port_speed_bytes_per_second", "rdma_port_width_lanes",
    "pcie_device_link_generation", "pcie_device_link_width_lanes",
)  # fmt: skip


_WORD = re.compile(r"[A-Za-z0-9_/]+(?:\.[A-Za-z0-9_/]+)*")


class Entry(NamedTuple):
    """One line of the document."""

    counter: str
    source: str
    generations: str
    metric: str
    """Full name."""


def nvml(row: Counter) -> Iterator[Entry]:
    """The lines of one row of NVML's tables."""
    if isinstance(row, FieldCounter):
        source = f"field {row.field}"
    elif isinstance(row, GpmCounter):
        source = f"GPM metric {row.number}"
    else:
        arguments = "".join(f", {argument}" for argument in row.arguments)
        source = f"{row.call.__name__}{f' ({arguments[2:]})' if arguments else ''}"
    generations = "Hopper and later" if isinstance(row, GpmCounter) else GENERATIONS[row.generations]
    series = row.series if isinstance(row, CallReport) else ((row.metric, row.labels),)
    for metric in dict.fromkeys(metric for metric, _ in series):
        yield Entry(row.name, source, generations, metric)


def sections() -> dict[str, list[Entry]]:
    """All lines by source."""
    return {
        "NVML": [entry for row in COUNTERS for entry in nvml(row)],
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
        ELSEWHERE: [
            Entry(name, CATALOGUE[f"commwatch_{name}"].origin, "all", f"commwatch_{name}") for name in WITHOUT_TABLE
        ],
    }  # fmt: skip


Words: TypeAlias = dict[str, frozenset[str]]
"""The words of each file of tests."""


@pytest.fixture(scope="module")
def words() -> Words:
    """By folder and name; the recorded pages count as one file, and so do the trees that many tests read."""
    texts = {
        f"{file.parent.name}/{file.stem.removeprefix('test_')}": file.read_text(encoding="utf-8")
        for file in TESTS.rglob("test_*.py")
        if file != Path(__file__)
    }
    texts["infiniband_trees"] = (TESTS / "support" / "infiniband.py").read_text(encoding="utf-8")
    texts["golden_pages"] = "".join(file.read_text(encoding="utf-8") for file in (TESTS / "golden").glob("*.txt"))
    return {name: frozenset(_WORD.findall(text)) for name, text in texts.items()}


def naming(entry: Entry, words: Words) -> list[str]:
    """The tests that name a counter or its metric, the metric with or without prefix."""
    names = {entry.metric, entry.metric.removeprefix("commwatch_"), entry.counter}
    return sorted(name for name, these in words.items() if not names.isdisjoint(these))


def tables() -> str:
    """The generated part of the document: what follows each other and makes the same metric shares a line."""
    parts = []
    for title, entries in sections().items():
        parts.append(f"\n### {title}\n\n| counter | read from | on | metric |\n")
        parts.append("| --- | --- | --- | --- |\n")
        parts += [line(list(alike)) for _, alike in groupby(dict.fromkeys(entries), lambda one: one[2:])]
    return "".join(parts)


def line(entries: Sequence[Entry]) -> str:
    """One line of a table: the counters of one metric and generation."""
    metric = CATALOGUE[entries[0].metric]
    counters = ", ".join(f"`{entry.counter}`" for entry in entries)
    sources = ", ".join(dict.fromkeys(entry.source for entry in entries)).replace("|", "\\|").replace("*", "\\*")
    generations = entries[0].generations.removeprefix("all")
    opt_in = " (opt-in)" if metric.opt_in else ""
    return f"| {counters} | {sources} | {generations} | `{metric.name.removeprefix('commwatch_')}`{opt_in} |\n"


def with_tables(document: str, text: str) -> str:
    """The document with its generated part replaced."""
    head, _, rest = document.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"


def test_the_document_is_current(request: pytest.FixtureRequest) -> None:
    """Every counter has its line; after a change: pytest tests/sources/test_counters_document.py --update-golden."""
    document = DOCUMENT.read_text(encoding="utf-8")
    expected = with_tables(document, tables())
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(expected, encoding="utf-8")
        document = expected
    assert document == expected


def test_every_counter_is_tested(words: Words) -> None:
    """There is no counter whose metric no test names."""
    entries: Iterable[Entry] = (entry for group in sections().values() for entry in group)
    assert [entry.counter for entry in entries if not naming(entry, words)] == []

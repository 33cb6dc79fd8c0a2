"""The topology as text: matrix, NICs, PCIe tree, expected bandwidth and findings, as lines of styled segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from commwatch.lines import HEADING, WIDTH, Line, Segment, columns
from commwatch.node.topology.bandwidth import path_bandwidth
from commwatch.node.topology.findings import TopologyFinding, findings
from commwatch.node.topology.measured import Measured
from commwatch.node.topology.model import Nic, Topology
from commwatch.node.topology.paths import CLASSES, MEANINGS, Path, all_paths, cpus_of, nearest_nics, numa_of, path
from commwatch.node.topology.text_measured import STYLES, measured_lines, unmeasured_lines
from commwatch.node.topology.text_tree import tree
from commwatch.units import format_rate

_NOT_KNOWN = "N/A"


def topology_lines(topology: Topology, measured: Measured | str = "") -> Iterator[Line]:
    """Everything that is said of a machine."""
    if not topology.ends:
        yield [("No GPU and no network adapter was found on the PCI bus.", "")]
        return
    if not topology.gpus:
        reason = f": {topology.driver_note}" if topology.driver_note else ""
        yield from ([(text, "")] for text in wrap(f"No GPU was found{reason}.", WIDTH))
        yield []
    yield from _matrix(topology)
    yield []
    yield from _legend(topology)
    yield from _nics(topology)
    yield from _nearest(topology)
    yield []
    yield [("PCIe tree", HEADING)]
    yield from ([one] for one in tree(topology))
    yield from _bandwidths(topology)
    known = measured if isinstance(measured, Measured) else None
    if len(topology.gpus) > 1:
        yield from measured_lines(topology, known) if known else unmeasured_lines(str(measured))
    yield from _findings(findings(topology, known))


# --- the matrix ---


def _matrix(topology: Topology) -> Iterator[Line]:
    titles = [*(end.label for end in topology.ends), "CPU affinity", "NUMA"]
    rows: list[list[Segment]] = [[("", ""), *((title, HEADING) for title in titles)]]
    for end in topology.ends:
        ways = [path(topology, end, other) for other in topology.ends]
        numa = numa_of(topology, end.address)
        cells = [(way.label, STYLES.get(way.kind, "")) for way in ways]
        tail = [(cpus_of(topology, end.address) or _NOT_KNOWN, ""), (_NOT_KNOWN if numa is None else str(numa), "")]
        rows.append([(end.label, HEADING), *cells, *tail])
    yield from columns(rows)


def _legend(topology: Topology) -> Iterator[Line]:
    """The classes that occur."""
    kinds = {"X", *(way.kind for way in all_paths(topology, topology.ends))}
    yield [("Legend", HEADING)]
    for kind in CLASSES:
        if kind in kinds:
            shown = "NV#" if kind == "NV" else kind
            yield [(f"  {shown:<5}", STYLES.get(kind, "")), (MEANINGS[kind], "")]


# --- NICs ---


def _nics(topology: Topology) -> Iterator[Line]:
    shown = topology.fabric_nics
    if shown:
        yield []
        yield [("NICs", HEADING)]
    for nic in shown:
        yield [(f"  {nic.label}: ", HEADING), (_nic_text(nic), "")]
    others = [nic for nic in topology.nics if nic not in shown]
    if others:
        names = ", ".join("/".join(nic.interfaces) or nic.address for nic in others)
        yield [(f"  without RDMA, not in the matrix: {names}", "")]


def _nic_text(nic: Nic) -> str:
    names = ", ".join((*nic.rdma_devices, *nic.interfaces)) or "no driver"
    text = f"{names} ({nic.address})"
    if nic.virtual_functions:
        named = [name for one in nic.virtual_functions for name in (*one.rdma_devices, *one.interfaces)]
        more = f": {', '.join(named)}" if named else ""
        text += f", {len(nic.virtual_functions)} virtual functions{more}"
    return text


def _nearest(topology: Topology) -> Iterator[Line]:
    groups: dict[str, list[str]] = {}
    for gpu in topology.gpus:
        near = nearest_nics(topology, gpu)
        if near is not None:
            text = f"{', '.join(nic.label for nic in near.nics)} ({near.kind})"
            groups.setdefault(text, []).append(gpu.label)
    if groups:
        yield []
        yield [("Nearest NIC", HEADING)]
        yield from ([(f"  {' '.join(labels)}: {text}", "")] for text, labels in groups.items())


# --- bandwidth ---


def _bandwidths(topology: Topology) -> Iterator[Line]:
    """One line for all pairs of the same class that should carry the same."""
    groups: dict[tuple[str, str, str, str, str], list[Path]] = {}
    for way in all_paths(topology, topology.ends):
        if isinstance(way.source, Nic):
            continue
        between = "GPU-NIC" if isinstance(way.target, Nic) else "GPU-GPU"
        expected = path_bandwidth(topology, way)
        if expected is None:
            key = (way.label, between, "not known", "not known", way.pci.note or "a link on the way is not known")
        else:
            now = ""
            if expected.narrowed_bytes_per_second < expected.bytes_per_second:
                now = f"; {format_rate(expected.narrowed_bytes_per_second)} with the lanes of now"
            rates = format_rate(expected.bytes_per_second), format_rate(expected.nominal_bytes_per_second)
            key = (way.label, between, *rates, expected.basis + now)
        groups.setdefault(key, []).append(way)
    if not groups:
        return
    yield []
    yield [("Expected bandwidth, one direction (by NCCL's planning figures, not measured)", HEADING)]
    rows: list[list[Segment]] = [[("  path", ""), ("between", ""), ("expected", ""), ("nominal", ""), ("limit", "")]]
    order = {kind: place for place, kind in enumerate(CLASSES)}
    for key, ways in sorted(groups.items(), key=lambda one: (one[0][1], order[one[1][0].kind], one[0])):
        label, *rest = key
        rows.append([(f"  {label}", STYLES.get(ways[0].kind, "")), *((text, "") for text in rest)])
    yield from columns(rows)


# --- findings ---


def _findings(found: Sequence[TopologyFinding]) -> Iterator[Line]:
    yield []
    yield [("What is uneven, and what it means", HEADING)]
    if not found:
        yield [("  Nothing.", "")]
    for one in found:
        for place, text in enumerate(wrap(one.text, WIDTH - 4)):
            yield [("  - " if place == 0 else "    ", ""), (text, "yellow")]
        yield from ([(f"    {text}", "")] for text in wrap(one.meaning, WIDTH - 4))

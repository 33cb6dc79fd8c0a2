"""The topology as text: matrix, NICs, PCIe tree, expected bandwidth and findings, as lines of styled segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from commwatch.lines import HEADING, WIDTH, Line, Segment, columns
from commwatch.node.topology.bandwidth import path_bandwidth
from commwatch.node.topology.findings import TopologyFinding, findings
from commwatch.node.topology.measured import Measured
from commwatch.node.topology.model import Endpoint, Nic, NodeTopology, Topology
from commwatch.node.topology.paths import CLASSES, MEANINGS, Path, all_paths, cpus_of, nearest_nics, numa_of, path
from commwatch.node.topology.text_measured import STYLES, measured_lines, unmeasured_lines
from commwatch.node.topology.text_tree import tree
from commwatch.units import format_rate

_NOT_KNOWN = "N/A"


def node_lines(topology: Topology, number: int, measured: Measured | str = "") -> Iterator[Line]:
    """Everything that is said of one machine."""
    node = topology.nodes[number]
    if len(topology.nodes) > 1:
        yield [(f"node{number}", HEADING)]
    ends = topology.endpoints(number)
    if not ends:
        yield [("No GPU and no network adapter was found on the PCI bus.", "")]
        return
    if not node.gpus:
        reason = f": {node.driver_note}" if node.driver_note else ""
        yield from ([(text, "")] for text in wrap(f"No GPU was found{reason}.", WIDTH))
        yield []
    yield from _matrix(topology, ends)
    yield []
    yield from _legend(topology, ends)
    yield from _nics(node)
    yield from _nearest(topology, number)
    yield []
    yield [("PCIe tree", HEADING)]
    yield from ([one] for one in tree(node))
    yield from _bandwidths(topology, ends)
    known = measured if isinstance(measured, Measured) else None
    if len(topology.gpu_endpoints(number)) > 1:
        yield from measured_lines(topology, known) if known else unmeasured_lines(str(measured))
    yield from _findings(findings(topology, number, known))


# --- the matrix ---


def _matrix(topology: Topology, ends: Sequence[Endpoint]) -> Iterator[Line]:
    node = topology.nodes[ends[0].node]
    labels = [topology.label(end) for end in ends]
    rows: list[list[Segment]] = [[("", ""), *((label, HEADING) for label in labels)]]
    rows[0] += [("CPU affinity", HEADING), ("NUMA", HEADING)]
    for end, label in zip(ends, labels, strict=True):
        ways = [path(topology, end, other) for other in ends]
        address = topology.part(end).address
        numa = numa_of(node, address)
        cells = [(way.label, STYLES.get(way.kind, "")) for way in ways]
        tail = [(cpus_of(node, address) or _NOT_KNOWN, ""), (_NOT_KNOWN if numa is None else str(numa), "")]
        rows.append([(label, HEADING), *cells, *tail])
    yield from columns(rows)


def _legend(topology: Topology, ends: Sequence[Endpoint]) -> Iterator[Line]:
    """The classes that occur."""
    kinds = {path(topology, first, second).kind for first in ends for second in ends}
    yield [("Legend", HEADING)]
    for kind in CLASSES:
        if kind in kinds:
            shown = "NV#" if kind == "NV" else kind
            yield [(f"  {shown:<5}", STYLES.get(kind, "")), (MEANINGS[kind], "")]


# --- NICs ---


def _nics(node: NodeTopology) -> Iterator[Line]:
    shown = node.fabric_nics
    if shown:
        yield []
        yield [("NICs", HEADING)]
    for nic in shown:
        yield [(f"  {nic.label}: ", HEADING), (_nic_text(nic), "")]
    others = [nic for nic in node.nics if nic not in shown]
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


def _nearest(topology: Topology, number: int) -> Iterator[Line]:
    groups: dict[str, list[str]] = {}
    for end in topology.gpu_endpoints(number):
        near = nearest_nics(topology, end)
        if near is not None:
            text = f"{', '.join(nic.label for nic in near.nics)} ({near.kind})"
            groups.setdefault(text, []).append(topology.label(end))
    if groups:
        yield []
        yield [("Nearest NIC", HEADING)]
        yield from ([(f"  {' '.join(labels)}: {text}", "")] for text, labels in groups.items())


# --- bandwidth ---


def _bandwidths(topology: Topology, ends: Sequence[Endpoint]) -> Iterator[Line]:
    """One line for all pairs of the same class that should carry the same."""
    groups: dict[tuple[str, str, str, str, str], list[Path]] = {}
    for way in all_paths(topology, ends):
        if (way.source.kind, way.target.kind) == ("nic", "nic"):
            continue
        between = "GPU-GPU" if way.target.kind == "gpu" else "GPU-NIC"
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

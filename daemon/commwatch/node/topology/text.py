"""The topology as text: matrix, NICs, PCIe tree, expected bandwidth and findings, as lines of styled segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

from commwatch.lines import HEADING, WIDTH, Line, Segment, columns
from commwatch.node.topology.bandwidth import path_bandwidth
from commwatch.node.topology.findings import TopologyFinding, findings
from commwatch.node.topology.measured import Measured, classes_measured
from commwatch.node.topology.model import End, Nic, PciDevice, Topology
from commwatch.node.topology.paths import (
    CLASSES,
    MEANINGS,
    Path,
    all_paths,
    cpus_of,
    narrowed,
    nearest_nics,
    numa_of,
    path,
    uplink,
)
from commwatch.sources.files import is_pci_address
from commwatch.units import format_bytes, format_rate, format_seconds

_NOT_KNOWN = "N/A"

_BAD = "bold red"
STYLES = {
    "X": "dim",
    "NV": "green",
    "PIX": "cyan",
    "PXB": "cyan",
    "PHB": "yellow",
    "NODE": "yellow",
    "SYS": "red",
    "?": "magenta",
}
"""Of the path classes, as rich names styles."""


def topology_lines(topology: Topology, measured: Measured | str = "") -> Iterator[Line]:
    """The whole answer about a machine, as text."""
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


def tree(node: Topology) -> Iterator[tuple[str, str]]:
    """Text and style of each line. Ports are left out: a device is shown below its switch or host bridge."""
    hosts: dict[str, None] = {}
    for device in node.devices.values():
        if not is_pci_address(device.parent):
            hosts.setdefault(device.parent)
    for host in sorted(hosts):
        numbers = {one.numa_node for one in node.devices.values() if one.parent == host}
        known = sorted(number for number in numbers if number is not None)
        numa = f"NUMA node {'/'.join(map(str, known))}" if known else "NUMA node not known"
        yield f"  {host or 'not in the PCI tree'} ({numa})", ""
        yield from _below(node, host, 2)


def _below(node: Topology, parent: str, depth: int) -> Iterator[tuple[str, str]]:
    for device in node.devices.values():
        if device.parent != parent:
            continue
        if device.role in ("root_port", "switch_downstream"):
            yield from _below(node, device.address, depth)
            continue
        yield _line(node, device, depth)
        yield from _below(node, device.address, depth + 1)


def _line(node: Topology, device: PciDevice, depth: int) -> tuple[str, str]:
    parts: tuple[End, ...] = (*node.gpus, *node.nics)
    names = {"switch_upstream": "PCIe switch", "nvswitch": "NVSwitch", "gpu": "GPU", "nic": "NIC"}
    label = next((part.label for part in parts if part.address == device.address), names.get(device.role, "bridge"))
    link = uplink(node, device)
    if link is None or link.generation_max is None or link.lanes_max is None:
        return f"{'  ' * depth}{label} {device.address}  link not known", ""
    text = f"{'  ' * depth}{label} {device.address}  gen {link.generation_max} x{link.lanes_max}"
    if not narrowed(device, link):
        return text, ""
    return f"{text}  DEGRADED: now gen {link.generation} x{link.lanes}", _BAD


def measured_lines(topology: Topology, measured: Measured) -> Iterator[Line]:
    """One line for each path label: what was expected, what was measured, and when."""
    matrix = measured.matrix
    yield []
    yield [("Measured, one direction", HEADING)]
    version = f", NCCL {matrix.nccl_version}" if matrix.nccl_version and matrix.backend == "nccl" else ""
    size = format_bytes(matrix.bandwidth_bytes)
    how = f"{format_seconds(max(0.0, measured.age_seconds))} ago, backend {matrix.backend}{version}, {size} a message"
    yield from ([(f"  {text}", "")] for text in wrap(f"{how}; each pair in both directions, not at once", WIDTH - 2))
    rows: list[list[Segment]] = [[("  path", ""), ("pairs", ""), ("expected", ""), ("bandwidth", ""), ("latency", "")]]
    for one in classes_measured(topology, measured):
        cells = (
            str(one.count),
            _range(one.expected, format_rate) or "not known",
            _range(one.bandwidths, format_rate) or "-",
            _range(one.latencies, format_seconds) or "-",
        )
        rows.append([(f"  {one.label}", STYLES.get(one.kind, "")), *((cell, "") for cell in cells)])
    yield from columns(rows)


def _range(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """``3.1 GB/s to 9.8 GB/s``; one value where all print alike; empty without any."""
    if not values:
        return ""
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} to {high}"


def unmeasured_lines(reason: str) -> Iterator[Line]:
    """Why nothing measured is shown, and how to get it."""
    yield []
    yield [("Measured, one direction", HEADING)]
    how = (
        "To measure: commwatch probe --pairs --json > pairs.json, then commwatch topology --pairs pairs.json; a daemon "
        "that runs measures once a day."
    )
    reason = reason or "nothing is known"
    text = f"{reason[:1].upper()}{reason[1:].rstrip('.')}. {how}"
    yield from ([(f"  {line}", "")] for line in wrap(text, WIDTH - 2))

"""The topology as ``commwatch topology --json`` prints it; its schema is stable within a version."""

from __future__ import annotations

import msgspec

from commwatch.node.topology.bandwidth import Bandwidth, path_bandwidth
from commwatch.node.topology.findings import TopologyFinding, findings
from commwatch.node.topology.measured import Measured
from commwatch.node.topology.model import Gpu, NumaNode, NvLink, Topology, VirtualFunction
from commwatch.node.topology.pair_matrix import PairCell
from commwatch.node.topology.paths import Path, all_paths, cpus_of, narrowed, nearest_nics, numa_of, uplink

SCHEMA_VERSION = 1
"""Grows when something is taken away or changes its meaning; additions leave it as it is."""


class LinkDocument(msgspec.Struct, kw_only=True, frozen=True):
    """The PCIe link of a device with the port above it; null where not known."""

    generation: int | None
    lanes: int | None
    generation_max: int | None
    lanes_max: int | None
    narrowed: bool


class DeviceDocument(msgspec.Struct, kw_only=True, frozen=True):
    """A function of the PCIe tree."""

    pci_bus_id: str
    role: str
    parent: str
    numa_node: int | None
    link: LinkDocument | None
    """null within a switch and for a root port."""


class GpuDocument(msgspec.Struct, kw_only=True, frozen=True):
    label: str
    index: int | None
    pci_bus_id: str
    name: str
    uuid: str
    architecture: str
    numa_node: int | None
    cpu_affinity: str
    nvlinks: tuple[NvLink, ...] | None
    """null where not read."""
    nvlinks_active: int | None
    nearest_nics: list[str]
    nearest_nic_class: str | None


class NicDocument(msgspec.Struct, kw_only=True, frozen=True):
    """A network adapter function."""

    label: str
    pci_bus_id: str
    rdma_devices: tuple[str, ...]
    interfaces: tuple[str, ...]
    virtual_functions: tuple[VirtualFunction, ...]
    numa_node: int | None
    cpu_affinity: str


class MeasuredWayDocument(msgspec.Struct, kw_only=True, frozen=True):
    """Measurements of one direction of a path; null if not measured."""

    bytes_per_second: float | None
    both_ways_bytes_per_second: float | None
    """While as much flows back."""
    latency_seconds: float | None
    expected_bytes_per_second: float | None
    """For the size that was measured."""


class MeasuredPathDocument(msgspec.Struct, kw_only=True, frozen=True):
    forward: MeasuredWayDocument | None
    """From source to target."""
    back: MeasuredWayDocument | None


class MeasurementDocument(msgspec.Struct, kw_only=True, frozen=True):
    """The pair matrix that the measured values are from."""

    taken_at: float
    """Seconds since 1970."""
    age_seconds: float
    backend: str
    nccl_version: str
    latency_bytes: int
    bandwidth_bytes: int


class PathDocument(msgspec.Struct, kw_only=True, frozen=True):
    """The way between two ends."""

    source: str
    target: str
    path_class: str = msgspec.field(name="class")
    """NV, PIX, PXB, PHB, NODE, SYS or ?."""
    nvlinks: int
    pci_class: str
    """Class of the path without NVLink."""
    bridges: int
    expected: Bandwidth | None
    measured: MeasuredPathDocument | None
    """null where nothing is known."""
    note: str


class NodeDocument(msgspec.Struct, kw_only=True, frozen=True):
    node: int
    driver_read: bool
    driver_note: str
    gpus: list[GpuDocument]
    nics: list[NicDocument]
    nvswitches: tuple[str, ...]
    pci_devices: list[DeviceDocument]
    numa_nodes: tuple[NumaNode, ...]
    paths: list[PathDocument]
    """Each pair of GPUs and fabric NICs once."""
    measurement: MeasurementDocument | None
    """null where no measured values are known."""
    measurement_note: str
    """Why there are none; empty where there are."""
    findings: tuple[TopologyFinding, ...]


class Document(msgspec.Struct, kw_only=True, frozen=True):
    schema_version: int
    simulated: bool
    nodes: list[NodeDocument]
    problems: tuple[str, ...]
    """Inputs that could not be read."""


def document(
    topology: Topology, *, simulated: bool, problems: tuple[str, ...] = (), measured: Measured | str = ""
) -> Document:
    """The document of a topology.

    Args:
        simulated: none of it is real.
        problems: what could not be read.
        measured: between the GPUs, or why nothing is known.
    """
    node = _node(topology, measured)
    return Document(schema_version=SCHEMA_VERSION, simulated=simulated, nodes=[node], problems=problems)


def _node(node: Topology, measured: Measured | str) -> NodeDocument:
    known = measured if isinstance(measured, Measured) else None
    return NodeDocument(
        node=0,
        driver_read=node.driver_read,
        driver_note=node.driver_note,
        gpus=[_gpu(node, gpu) for gpu in node.gpus],
        nics=[
            NicDocument(
                label=nic.label,
                pci_bus_id=nic.address,
                rdma_devices=nic.rdma_devices,
                interfaces=nic.interfaces,
                virtual_functions=nic.virtual_functions,
                numa_node=numa_of(node, nic.address),
                cpu_affinity=cpus_of(node, nic.address),
            )
            for nic in node.nics
        ],
        nvswitches=node.nvswitches,
        pci_devices=_devices(node),
        numa_nodes=node.numa_nodes,
        paths=[
            PathDocument(
                source=way.source.label,
                target=way.target.label,
                path_class=way.kind,
                nvlinks=way.nvlinks,
                pci_class=way.pci.kind,
                bridges=way.pci.bridges,
                expected=path_bandwidth(node, way),
                measured=_measured_path(known, way),
                note=way.pci.note,
            )
            for way in all_paths(node, node.ends)
        ],
        measurement=None if known is None else _measurement(known),
        measurement_note=measured if isinstance(measured, str) else "",
        findings=findings(node, known),
    )


def _measurement(measured: Measured) -> MeasurementDocument:
    matrix = measured.matrix
    return MeasurementDocument(
        taken_at=matrix.taken_at,
        age_seconds=measured.age_seconds,
        backend=matrix.backend,
        nccl_version=matrix.nccl_version,
        latency_bytes=matrix.latency_bytes,
        bandwidth_bytes=matrix.bandwidth_bytes,
    )


def _measured_path(measured: Measured | None, way: Path) -> MeasuredPathDocument | None:
    if measured is None:
        return None
    forward, back = (
        _measured_way(measured.cells.get(ends)) for ends in ((way.source, way.target), (way.target, way.source))
    )
    return None if forward is None and back is None else MeasuredPathDocument(forward=forward, back=back)


def _measured_way(cell: PairCell | None) -> MeasuredWayDocument | None:
    if cell is None:
        return None
    return MeasuredWayDocument(
        bytes_per_second=cell.bandwidth,
        both_ways_bytes_per_second=cell.both_ways_bandwidth,
        latency_seconds=cell.latency_seconds,
        expected_bytes_per_second=cell.expected_bandwidth,
    )


def _gpu(node: Topology, gpu: Gpu) -> GpuDocument:
    near = nearest_nics(node, gpu)
    return GpuDocument(
        label=gpu.label,
        index=gpu.index,
        pci_bus_id=gpu.address,
        name=gpu.name,
        uuid=gpu.uuid,
        architecture=gpu.architecture,
        numa_node=numa_of(node, gpu.address),
        cpu_affinity=cpus_of(node, gpu.address),
        nvlinks=gpu.nvlinks,
        nvlinks_active=None if gpu.nvlinks is None else sum(link.active for link in gpu.nvlinks),
        nearest_nics=[nic.label for nic in near.nics] if near is not None else [],
        nearest_nic_class=near.kind if near is not None else None,
    )


def _devices(node: Topology) -> list[DeviceDocument]:
    found = []
    for address, device in node.devices.items():
        link = uplink(node, device)
        shown = None
        if link is not None:
            shown = LinkDocument(
                generation=link.generation,
                lanes=link.lanes,
                generation_max=link.generation_max,
                lanes_max=link.lanes_max,
                narrowed=narrowed(device, link),
            )
        found.append(
            DeviceDocument(
                pci_bus_id=address, role=device.role, parent=device.parent, numa_node=device.numa_node, link=shown
            )
        )
    return found

"""The expected rate of a path between two endpoints, one direction, and its source; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from commwatch.node.capacity import (
    HOST_MEMORY_SHARE,
    nominal_nvlink_rate,
    pcie_rate,
    planned_nvlink_rate,
    planned_pcie_rate,
    planned_socket_rate,
)
from commwatch.node.topology.model import Gpu, PcieLink, Topology
from commwatch.node.topology.paths import Path, links_between, through_host_memory

BandwidthSource: TypeAlias = Literal["nccl_nvlink", "nccl_pcie", "nccl_socket"]


_EMULATED_BELOW = 1e9
"""Bytes per second, as NCCL plans: no link to a GPU or adapter of a machine that computes is so slow."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The expected rate of a path, bytes per second in one direction. No measurement."""

    bytes_per_second: float
    """By NCCL's planning figures, with every link at the best that both of its ends can do, and less through the host's
    memory."""
    nominal_bytes_per_second: float
    """By the links' nominal rates: the upper bound."""
    narrowed_bytes_per_second: float
    """As the first, with the lanes that the PCIe links have now."""
    source: BandwidthSource
    """The limiting part of the path."""
    basis: str
    """How the first figure comes about, for the operator."""


def path_bandwidth(topology: Topology, way: Path) -> Bandwidth | None:
    """The expected rate of a path; None if a link on it is not known."""
    if way.kind == "X":
        return None
    return _over_nvlink(way) if way.kind == "NV" else _over_pcie(topology, way)


def is_emulated(node: Topology, link: PcieLink) -> bool:
    """Whether a link is the emulated one of a virtual machine, whose rate has no meaning.

    NCCL plans by the smaller ``max_link_speed`` and ``max_link_width`` of both ends, lanes times their rate
    (``src/graph/xml.cc``, ``topo.cc``); a speed that the kernel calls unknown counts as generation 3, no lanes as 16.
    """
    if not node.virtual or link.generation_max is None or not link.lanes_max:
        return False
    planned = planned_pcie_rate(link.generation_max, link.lanes_max)
    return planned is not None and planned < _EMULATED_BELOW


def _over_nvlink(way: Path) -> Bandwidth | None:
    ends = way.source, way.target
    links = [link for gpu in ends if isinstance(gpu, Gpu) for link in gpu.nvlinks or () if link.active]
    planned = [rate for link in links if (rate := planned_nvlink_rate(link.version)) is not None]
    nominal = [rate for link in links if (rate := nominal_nvlink_rate(link.line_rate, link.version)) is not None]
    if not planned or not nominal:
        return None
    rate = min(planned) * way.nvlinks
    basis = f"{way.nvlinks} NVLinks × {min(planned) / 1e9:g} GB/s"
    return Bandwidth(rate, min(nominal) * way.nvlinks, rate, "nccl_nvlink", basis)


def _over_pcie(node: Topology, way: Path) -> Bandwidth | None:
    best: list[tuple[float, float, PcieLink]] = []
    now: list[float] = []
    by_host = through_host_memory(node, way)
    for device, link in links_between(node, way):
        if link.generation_max is None or link.lanes_max is None or is_emulated(node, link):
            return None
        planned, nominal = (rate(link.generation_max, link.lanes_max) for rate in (planned_pcie_rate, pcie_rate))
        narrowed = planned_pcie_rate(link.generation_max, link.lanes or link.lanes_max)
        if planned is None or nominal is None or narrowed is None:
            return None
        share = HOST_MEMORY_SHARE if by_host and device.role == "gpu" else 1.0
        best.append((share * planned, nominal, link))
        now.append(share * narrowed)
    if not best:
        return None
    planned, nominal, link = min(best, key=lambda one: one[0])
    source: BandwidthSource = "nccl_pcie"
    basis = f"PCIe gen {link.generation_max} x{link.lanes_max}"
    if by_host:
        basis += ", through host memory"
    if way.kind in ("SYS", "?"):
        cpu = node.cpu
        socket = None if cpu is None else planned_socket_rate(cpu.vendor, cpu.family, cpu.model)
        if socket is None:
            basis += "; link between CPUs: no figure"
        elif way.kind == "?":
            basis += "; less between CPUs"
        elif socket < planned:
            source, basis = "nccl_socket", "the link between the CPUs"
            return Bandwidth(socket, nominal, min(socket, *now), source, basis)
    return Bandwidth(planned, nominal, min(now), source, basis)

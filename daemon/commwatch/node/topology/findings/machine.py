"""The record of a finding, and the view of one machine for the finders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from commwatch.node.topology.measured import Measured
from commwatch.node.topology.model import End, Topology
from commwatch.node.topology.paths import CLASSES, Path, PathClass, all_paths, path

FindingCode: TypeAlias = Literal[
    "gpu_groups",
    "gpu_without_near_nic",
    "gpu_without_index",
    "gpu_without_path",
    "link_narrowed",
    "link_below_siblings",
    "link_emulated",
    "measured_nearer_slower",
    "measured_slow_pair",
    "nvlink_no_bridge",
    "nvlink_fabric_down",
    "nvlink_uneven",
    "nvlink_unknown",
    "nvlink_refused",
    "peers_refused",
    "numa_unknown",
    "tree_flat",
]


@dataclass(frozen=True, slots=True)
class TopologyFinding:
    """Something uneven or unknown."""

    code: FindingCode
    components: tuple[str, ...]
    """Labels or PCI addresses of the parts that it is about."""
    text: str
    """The observation."""
    meaning: str
    """The consequence for the user."""


class NodeView:
    """One machine with its ways between GPUs, computed once."""

    def __init__(self, node: Topology, measured: Measured | None = None) -> None:
        self.measured = measured
        """Measurements between the GPUs; None if there are none."""
        self.node = node
        self.ways = all_paths(node, node.gpus)
        """Between the GPUs, each pair once."""

    def way(self, first: End, second: End) -> Path:
        """The way between two ends."""
        return path(self.node, first, second)

    def cuda_list(self, gpus: Iterable[End]) -> str:
        """``0,2``: the GPUs for CUDA_VISIBLE_DEVICES under CUDA_DEVICE_ORDER=PCI_BUS_ID.

        Empty where the driver does not have one of them, or does not number its GPUs in PCI order.
        """
        numbers = [gpu.index for gpu in gpus]
        addresses = [gpu.address for gpu in self.node.gpus if gpu.index is not None]
        return "" if None in numbers or addresses != sorted(addresses) else ",".join(map(str, numbers))


def labels(ends: Iterable[End]) -> tuple[str, ...]:
    return tuple(end.label for end in ends)


def named(names: Sequence[str]) -> str:
    """``GPU0, GPU1 and GPU2``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def have(names: Sequence[object]) -> str:
    """``has`` or ``have``."""
    return "has" if len(names) == 1 else "have"


def classes(kinds: Iterable[PathClass]) -> str:
    """``NODE/SYS``, the nearest first."""
    found = set(kinds)
    return "/".join(kind for kind in CLASSES if kind in found)


def label_of(node: Topology, address: str) -> str:
    """The part at a PCI address as the operator knows it."""
    parts: tuple[End, ...] = (*node.gpus, *node.nics)
    part = next((part for part in parts if part.address == address), None)
    return f"the device at {address}" if part is None else f"{part.label} ({address})"

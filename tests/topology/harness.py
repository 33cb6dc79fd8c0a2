"""What the tests of topologies share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from commwatch.node.topology.build import build_topology
from commwatch.node.topology.model import Gpu, NvLink, Topology
from commwatch.node.topology.nvlink import DriverFacts
from commwatch.node.topology.paths import path
from commwatch.node.topology.sysfs import read_sysfs

NO_DRIVER = DriverFacts(note="no_driver: no library")


def topology(root: Path, driver: DriverFacts = NO_DRIVER) -> Topology:
    """The topology of a tree, without driver unless one is given."""
    return build_topology(read_sysfs(root, root / "proc"), driver)


def driver(*gpus: Gpu) -> DriverFacts:
    """A driver that has these GPUs."""
    return DriverFacts(gpus)


def gpu(index: int, address: str, links: Iterable[NvLink] = ()) -> Gpu:
    """A GPU with these links."""
    return Gpu(address, index, "NVIDIA Test", f"GPU-{index}", "Ampere", tuple(links))


def links(count: int, to: str = "", *, state: int = 1, kind: str = "gpu", version: str = "3.1") -> list[NvLink]:
    """Links that lead to one place."""
    return [NvLink(number, state, version, kind, to) for number in range(count)]


def matrix(topology: Topology) -> str:
    """The cells of the matrix, a line for each row."""
    ends = topology.ends
    return "\n".join(" ".join(path(topology, end, other).label for other in ends) for end in ends)


def codes(found: Sequence[object]) -> list[str]:
    """The codes of findings."""
    return [getattr(one, "code") for one in found]  # noqa: B009 - any record with a code

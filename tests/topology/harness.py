"""What the tests of topologies share."""

from __future__ import annotations

import io
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from commwatch.config.settings import Config, Paths
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.document import NodeDocument, PathDocument, document
from commwatch.node.topology.measured import Measured
from commwatch.node.topology.model import Gpu, NvLink, Topology
from commwatch.node.topology.nvlink import DriverFacts
from commwatch.node.topology.sysfs import read_sysfs
from support.command_line import run_command

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


def shown(found: Topology, measured: Measured | str = "") -> NodeDocument:
    """The machine in the document."""
    [node] = document(found, simulated=False, measured=measured).nodes
    return node


def printed(found: Topology, *arguments: str) -> list[str]:
    """The output of the command for it in a pipe."""
    read = patch("commwatch.workers.by_hand.read_topology", lambda config: (found, ()))
    with read, redirect_stdout(io.StringIO()) as out:
        assert run_command(Config(paths=Paths(state="/nonexistent")), "topology", *arguments) == 0
    return out.getvalue().splitlines()


def way(found: Topology, first: int, second: int, kind: str = "gpu") -> PathDocument:
    """The way from a GPU to another one, or to a NIC."""
    target = found.nics[second] if kind == "nic" else found.gpus[second]
    ends = {found.gpus[first].label, target.label}
    [one] = [path for path in shown(found).paths if {path.source, path.target} == ends]
    return one


def matrix(found: Topology) -> str:
    """The cells of the matrix, a line for each row."""
    labels = {
        ends: f"NV{path.nvlinks}" if path.path_class == "NV" else path.path_class
        for path in shown(found).paths
        for ends in ((path.source, path.target), (path.target, path.source))
    }
    ends = [end.label for end in found.ends]
    return "\n".join(" ".join("X" if row == column else labels[row, column] for column in ends) for row in ends)


def codes(node: NodeDocument) -> list[str]:
    """The codes of its findings."""
    return [one.code for one in node.findings]


def finding(node: NodeDocument, code: str) -> Any:
    """The one finding of a code."""
    [found] = [one for one in node.findings if one.code == code]
    return found

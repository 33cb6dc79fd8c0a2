"""commwatch topology: how GPUs and NICs are joined, what the paths should carry, and what is uneven."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from commwatch.commands.common import json_option, print_json
from commwatch.config import Config
from commwatch.logging import configure_logging

if TYPE_CHECKING:
    from commwatch.topology.text import Line


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "topology",
        parents=parents,
        help="show how GPUs and NICs are joined, and what is uneven",
        description="Prints the matrix of GPUs and NICs with the classes of `nvidia-smi topo -m`, the PCIe tree with "
        "the link of each device, the bandwidth that each class of path should carry, and what is uneven. "
        "Needs no daemon. The PCIe tree comes from sysfs; without an answer of the driver NVLink is unknown. "
        "Exit code 0; 1: sysfs gives no answer; 2: wrong use.",
        epilog="example: commwatch topology --simulate rtx3090x4; as a picture: commwatch topology --dot | dot -Tsvg",
    )
    json_option(parser)
    parser.add_argument("--dot", action="store_true", help="print a Graphviz graph")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Read and print."""
    if args.json and args.dot:
        print("commwatch topology: choose one of --json and --dot", file=sys.stderr)
        return 2
    from commwatch.topology.gather import read_topology

    configure_logging(config.log)
    topology, problems = read_topology(config)
    if args.json:
        from commwatch.topology.document import document

        print_json(document(topology, simulated=bool(config.simulation.preset), problems=problems))
        return 0
    if args.dot:
        from commwatch.topology.dot import dot

        sys.stdout.write(dot(topology))
        return 0
    from commwatch.topology.text import node_lines

    if config.simulation.preset:
        print(f"Simulated node {config.simulation.preset}: none of this is real.\n")
    for number in range(len(topology.nodes)):
        _print(node_lines(topology, number))
    for problem in problems:
        print(f"not read: {problem}")
    return 0


def _print(lines: Iterable[Line]) -> None:
    """With colour on a terminal, plain in a pipe."""
    from commwatch.topology.text import plain

    if not sys.stdout.isatty():
        for line in lines:
            print(plain(line))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)

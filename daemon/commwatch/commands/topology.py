"""commwatch topology: how GPUs and NICs are joined, what the paths should carry, and what is uneven."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.lines import printable
from commwatch.service.log import configure_logging
from commwatch.units import format_seconds
from commwatch.views.terminal import print_json, print_lines, progress

if TYPE_CHECKING:
    from commwatch.node.topology.measured import Measured
    from commwatch.node.topology.model import Topology
    from commwatch.node.topology.pair_matrix import PairMatrix


@command(
    "topology",
    "how GPUs and NICs are connected, and what is uneven",
    "Prints the matrix of GPUs and NICs (classes of `nvidia-smi topo -m`), the PCIe tree, expected and "
    "measured bandwidth by path class, and what is uneven. Needs no daemon; without the driver NVLink is unknown.",
    "commwatch topology --simulate rtx3090x4; as a picture: commwatch topology --dot | dot -Tsvg; "
    "beside what is measured now: commwatch probe --pairs --json | commwatch topology --pairs -",
    option("--dot", action="store_true", help="print a Graphviz graph"),
    option(
        "--pairs",
        metavar="FILE",
        help="measured values of probe --pairs --json or heatmap --json, of any age; -: stdin "
        "(default: the last ones of the daemon, while they are current)",
    ),
)
def run(args: argparse.Namespace, config: Config) -> int:
    if args.json and args.dot:
        raise UsageError("topology: choose one of --json and --dot")
    if args.pairs and args.dot:
        raise UsageError("topology: the graph of --dot has no measured values; leave --pairs out")
    from commwatch.workers.by_hand import read_topology

    configure_logging(config.log)
    given = _read_pairs(args.pairs)  # before what takes longer
    with progress("reading the node"):
        topology, problems = read_topology(config)
    measured = "" if args.dot else _measured(given, args.pairs, config, topology)
    if args.json:
        from commwatch.node.topology.document import document

        simulated = bool(config.simulation.preset)
        print_json(document(topology, simulated=simulated, problems=problems, measured=measured))
        return ExitCode.OK
    if args.dot:
        from commwatch.node.topology.dot import dot

        sys.stdout.write(dot(topology))
        return ExitCode.OK
    from commwatch.node.topology.text import topology_lines

    if config.simulation.preset:
        print(f"Simulated node {config.simulation.preset}: none of this is real.\n")
    print_lines(topology_lines(topology, measured))
    for problem in problems:
        print(f"not read: {printable(problem)}")
    return ExitCode.OK


def _read_pairs(file: str | None) -> PairMatrix | None:
    if file is None:
        return None
    from commwatch.views.heatmap.document import read_matrix

    return read_matrix(file)


def _measured(given: PairMatrix | None, file: str, config: Config, topology: Topology) -> Measured | str:
    """The measured values, or the reason why there are none. Values that the daemon kept are left out once they are no
    longer current.

    Raises:
        UsageError: the file is of another machine.
    """
    from commwatch.config.thresholds import load_thresholds
    from commwatch.findings.slow_pairs import measured_on
    from commwatch.node.topology.measured import is_stale

    now, thresholds = time.time(), load_thresholds(config.thresholds)
    if given is not None:
        found = measured_on(topology, given, now, thresholds)
        if isinstance(found, str):
            raise UsageError(f"{file}: {found}")
        return found
    from commwatch.probes.by_hand.pair_matrix import last_matrix, pairs_interval

    matrix = last_matrix(config)
    if matrix is None:
        return "nothing is known"
    age = now - matrix.taken_at
    if is_stale(age, pairs_interval(config)):
        return f"the last values are {format_seconds(age)} old and not shown"
    return measured_on(topology, matrix, now, thresholds)

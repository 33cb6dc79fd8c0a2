"""commwatch cluster: what lies between nodes."""

from __future__ import annotations

import argparse

from commwatch.commands import cluster_check, cluster_locate, cluster_plan, cluster_probe

_COMMANDS = (cluster_check, cluster_probe, cluster_plan, cluster_locate)


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command and its own ones to the command line."""
    parser = subparsers.add_parser(
        "cluster",
        help="between nodes: whether they reach each other, and which part is slow",
        description="Checks and measures between nodes. check and probe: one member a node, by srun, an Indexed Job, "
        "torchrun, mpirun, or by hand with a list of members; plan and locate need no network "
        "(docs/using/cluster.md).",
        epilog="example: srun --ntasks-per-node=1 commwatch cluster check",
    )
    own = parser.add_subparsers(title="commands", dest="cluster_command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(own, parents)

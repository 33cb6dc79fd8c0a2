"""commwatch cluster: what lies between nodes."""

from __future__ import annotations

import argparse

from commwatch.commands import cluster_locate, cluster_plan

_COMMANDS = (cluster_plan, cluster_locate)


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command and its own ones to the command line."""
    parser = subparsers.add_parser(
        "cluster",
        help="what lies between nodes: who measures with whom, and which part is slow",
        description="Looks at what lies between nodes. See docs/cluster.md.",
        epilog="example: commwatch cluster locate run.json",
    )
    own = parser.add_subparsers(title="commands", dest="cluster_command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(own, parents)

"""commwatch healthcheck: whether a scheduler may use this node, in one line and an exit code."""

from __future__ import annotations

import argparse

from commwatch.commands.common import json_option
from commwatch.config import Config
from commwatch.units import parse_duration

DEFAULT_MAX_AGE = "1m"


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "healthcheck",
        parents=parents,
        allow_abbrev=False,
        help="a yes or no for schedulers, in one line",
        description="Judges the daemon's last findings within 5 s. Exit code 0: fine; 1: a problem; 2: unknown. With "
        "--slurm, 1 only for a fresh fault of the drain list (docs/healthcheck.md), and 0 for all else.",
        epilog="example: commwatch healthcheck; as HealthCheckProgram of Slurm: commwatch healthcheck --slurm --drain",
    )
    parser.add_argument("--slurm", action="store_true", help="judge for Slurm: a problem only where a drain is due")
    parser.add_argument("--drain", action="store_true", help="with --slurm: drain this node where a drain is due")
    parser.add_argument("--fail-closed", action="store_true", help="exit 1 where the node's health is unknown")
    parser.add_argument(
        "--max-age", default=DEFAULT_MAX_AGE, metavar="TIME", type=_age,
        help=f"a look older than this is unknown (default {DEFAULT_MAX_AGE})",
    )  # fmt: skip
    json_option(parser)
    parser.set_defaults(run=run)


def _age(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
    return seconds


def run(args: argparse.Namespace, config: Config) -> int:
    """Ask the daemon, else the kernel; judge, drain where that is asked for and due, and say it."""
    # The daemon builds this parser too, and needs nothing of the rest.
    from commwatch.healthcheck import Options, check

    return check(
        Options(
            max_age=args.max_age, slurm=args.slurm, drain=args.drain, fail_closed=args.fail_closed, as_json=args.json
        ),
        config,
    )

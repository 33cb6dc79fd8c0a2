"""commwatch healthcheck: whether a scheduler may use this node, in one line and an exit code."""

from __future__ import annotations

import argparse

from commwatch.commands.profile_options import PROFILES_HELP, step_time_option
from commwatch.commands.values import positive_duration
from commwatch.config.settings import Config
from commwatch.findings.verdict import LOOK_SECONDS
from commwatch.views.terminal import json_option

RESULT_SECONDS = 3600.0
"""The same of the results that a profile is judged by; on a free node all_reduce is measured every 15 min."""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "healthcheck",
        parents=parents,
        allow_abbrev=False,
        help="a yes or no for schedulers, in one line",
        description="A verdict from the daemon's last findings, and with --require its last results, within 5 s. The "
        "drain list is in docs/using/healthcheck.md.",
        epilog="example: commwatch healthcheck; as HealthCheckProgram of Slurm: commwatch healthcheck --slurm --drain; "
        "in a job: commwatch healthcheck --require 7b",
    )
    parser.add_argument("--slurm", action="store_true", help="for Slurm: 1 only if the node should be drained")
    parser.add_argument("--drain", action="store_true", help="with --slurm: drain this node then")
    parser.add_argument("--fail-closed", action="store_true", help="exit 1 if the verdict is Unknown")
    parser.add_argument(
        "--require",
        metavar="PROFILE",
        help=f"preflight of a job: a Warning if the node does not suit a model: {PROFILES_HELP}",
    )
    parser.add_argument(
        "--max-age", metavar="TIME", type=positive_duration,
        help="what is older is unknown: the daemon's last look (default 1m); with --require its last results instead "
        "(default 1h)",
    )  # fmt: skip
    step_time_option(parser)
    json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Ask the daemon, else the kernel; judge, drain where that is asked for and due, and say it."""
    # The daemon builds this parser too, and needs nothing of the rest.
    from commwatch.diagnosis.health.check import Options, check

    return check(
        Options(
            max_age=LOOK_SECONDS if args.require or args.max_age is None else args.max_age,
            slurm=args.slurm,
            drain=args.drain,
            fail_closed=args.fail_closed,
            as_json=args.json,
            require=args.require or "",
            result_age=RESULT_SECONDS if args.max_age is None else args.max_age,
            alone_seconds=args.step_time,
        ),
        config,
    )

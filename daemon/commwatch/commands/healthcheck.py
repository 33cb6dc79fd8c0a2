"""commwatch healthcheck: whether a scheduler may use this node, in one line and an exit code."""

from __future__ import annotations

import argparse

from commwatch.commands.command import command, option
from commwatch.commands.options import PROFILES_HELP, PURPOSE, STEP_TIME, positive_duration
from commwatch.config.settings import Config
from commwatch.findings.verdict import LOOK_SECONDS

RESULT_SECONDS = 3600.0
"""The same of the results that a profile is judged by; on a free node all_reduce is measured every 15 min."""


@command(
    "healthcheck",
    "a yes or no for schedulers, in one line",
    "A verdict from the daemon's last findings, and with --require its last results, within 5 s. The "
    "drain list is in docs/using/healthcheck.md.",
    "commwatch healthcheck; as HealthCheckProgram of Slurm: commwatch healthcheck --slurm --drain; "
    "in a job: commwatch healthcheck --require 7b",
    option("--slurm", action="store_true", help="for Slurm: 1 only if the node should be drained"),
    option("--drain", action="store_true", help="with --slurm: drain this node then"),
    option("--fail-closed", action="store_true", help="exit 1 if the verdict is Unknown"),
    option(
        "--require",
        metavar="PROFILE",
        help=f"preflight of a job: a Warning if the node does not suit a model: {PROFILES_HELP}",
    ),
    option(
        "--max-age",
        metavar="TIME",
        type=positive_duration,
        help="what is older is unknown: the daemon's last look (default 1m); with --require its last results instead "
        "(default 1h)",
    ),
    PURPOSE,
    STEP_TIME,
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Ask the daemon, else the kernel; judge, drain where that is asked for and due, and say it."""
    # The daemon builds this parser too, and needs none of the other imports.
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
            purpose=getattr(args, "for"),
        ),
        config,
    )

"""The options that say what a node is for."""

from __future__ import annotations

import argparse

from commwatch.commands.values import positive_duration

PROFILE_NAMES = ("7b", "30b", "70b", "235b")
"""Those of diagnosis/marks/profiles.py, which the command line itself does not load."""
PROFILES_HELP = f"{', '.join(PROFILE_NAMES)} or a file with your own (docs/using/diagnose.md)"


def step_time_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--step-time``."""
    parser.add_argument(
        "--step-time", metavar="TIME", type=positive_duration,
        help="time of a step of your job on one GPU alone, such as 100ms (default: that of the profile)",
    )  # fmt: skip

"""commwatch diagnose: walks the way an expert walks, and says which part is to blame and what to do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.common import json_option, print_json, print_lines
from commwatch.config import Config

if TYPE_CHECKING:
    from commwatch.diagnosis.document import Diagnosis

EXIT_CODES = {"healthy": 0, "notices": 0, "degraded": 1, "broken": 1, "unknown": 3}
"""By the word of the verdict."""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "diagnose",
        parents=parents,
        help="what is wrong with the communication of this node, why, and what to do",
        description="Walks from the topology over bandwidth, pattern, InfiniBand and settings to the part and the "
        "cause, from what the daemon knows. Exit code 0: nothing is wrong; 1: something is; 2: wrong use; 3: too "
        "little is known to say; 4: no daemon runs with this state directory.",
        epilog="example: commwatch diagnose; of the logs of a job, on any machine: commwatch diagnose --log job.out",
    )
    parser.add_argument(
        "--log", nargs="+", metavar="FILE", help="say what logs tell instead: files, folders, patterns; -: stdin"
    )
    json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Ask, walk, print.

    Raises:
        DaemonAbsent: no daemon runs.
        CommwatchError: it does not answer, or is of another version.
    """
    if args.log:
        from commwatch.commands.diagnose_log import run_log

        return run_log(args.log, as_json=args.json)
    from commwatch.diagnosis.known import ask
    from commwatch.diagnosis.walk import diagnose
    from commwatch.thresholds import load_thresholds

    known = ask(config, load_thresholds(Path(config.thresholds) if config.thresholds else None))
    document = diagnose(known, "quick")
    _print(document, as_json=args.json)
    return EXIT_CODES[document.verdict.word]


def _print(document: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    from commwatch.diagnosis.text import diagnosis_lines

    print_lines(diagnosis_lines(document))

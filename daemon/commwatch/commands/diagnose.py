"""commwatch diagnose: walks the way an expert walks, and says which part is to blame and what to do."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.common import json_option, print_json, print_lines
from commwatch.commands.profile_options import PROFILE_NAMES, step_time_option
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
    parser.add_argument(
        "--profile", choices=PROFILE_NAMES,
        help="what the node is for: a model of 7 or 235 billion parameters; without it both are shown, neither required",
    )  # fmt: skip
    step_time_option(parser)
    scan = parser.add_argument_group("a full scan", "Takes the GPUs, on a free node only; progress on standard error.")
    scan.add_argument(
        "--full-scan", action="store_true", help="run every probe now, measure again what looks bad, then walk"
    )
    scan.add_argument("--gpus", metavar="0,1,...", default="", help="with these GPUs only, by their NVML indexes")
    ignore_scheduler_option(scan)
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
    from commwatch.analysis.marks.profiles import Asked
    from commwatch.diagnosis.walk import diagnose
    from commwatch.thresholds import load_thresholds

    known = _known(args, config, load_thresholds(Path(config.thresholds) if config.thresholds else None))
    known = replace(known, asked=Asked(args.profile or "", args.step_time))
    document = diagnose(known, "full" if args.full_scan else "quick")
    _print(document, as_json=args.json)
    return EXIT_CODES[document.verdict.word]


def _known(args: argparse.Namespace, config: Config, thresholds: Thresholds) -> Known:
    """What the daemon knows, with fresh probes where they are asked for."""
    gpus = parse_gpus(args.gpus)
    if not args.full_scan:
        if gpus or args.ignore_scheduler:
            raise NeedsFullScan("diagnose: --gpus and --ignore-scheduler are for --full-scan")
        from commwatch.diagnosis.known import ask

        return ask(config, thresholds)
    from commwatch.diagnosis.full_scan import full_scan
    from commwatch.logging import configure_logging

    configure_logging(config.log)
    return full_scan(config, thresholds, gpus=gpus, ignore_scheduler=args.ignore_scheduler)


def _print(document: Diagnosis, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    from commwatch.diagnosis.text import diagnosis_lines

    print_lines(diagnosis_lines(document))

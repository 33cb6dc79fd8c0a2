"""commwatch diagnose: walks the way an expert walks, and says which part is to blame and what to do."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from commwatch.commands.diagnose_files import check_files, file_options, write_files
from commwatch.commands.probe import ignore_scheduler_option, parse_gpus
from commwatch.commands.profile_options import PROFILES_HELP, step_time_option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.views.terminal import json_option, print_json, print_lines, screen

if TYPE_CHECKING:
    from commwatch.config.thresholds import Thresholds
    from commwatch.diagnosis.document import Diagnosis
    from commwatch.diagnosis.known import Known

EXIT_CODES = {
    "OK": ExitCode.OK, "Warning": ExitCode.FOUND, "Critical": ExitCode.FOUND, "Unknown": ExitCode.NOT_KNOWN,
}  # fmt: skip
"""By the word of the verdict."""
_WIDEST = 120
"""Columns of text; longer lines are hard to read."""


_INSTEAD = ("log", "settings", "compare")
"""Options with which something else than this node is looked at."""
_OF_PROBES = ("gpus", "ignore_scheduler", "stress")
_OF_NODE = ("profile", "step_time", "full_scan", *_OF_PROBES, "report", "bundle")


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "diagnose",
        parents=parents,
        help="what is wrong with the communication of this node, why, and what to do",
        description="Checks topology, bandwidth, patterns, InfiniBand and settings from the daemon's data; names "
        "part, cause and next step.",
        epilog="example: commwatch diagnose; of the logs of a job, on any machine: commwatch diagnose --log job.out; "
        "what a change gained: commwatch diagnose --full-scan --json > before.json, again > after.json, then commwatch "
        "diagnose --compare before.json after.json",
    )
    parser.add_argument(
        "--log", nargs="+", metavar="FILE", help="diagnose logs of a job instead: files, folders, patterns; -: stdin"
    )
    parser.add_argument(
        "--settings", nargs="+", metavar="FILE",
        help="check NCCL settings on this machine instead: files named *.conf, output of env (-: stdin), or process "
        "numbers; values are not shown",
    )  # fmt: skip
    parser.add_argument(
        "--compare", nargs=2, metavar=("BEFORE", "AFTER"),
        help="compare two outputs of --json instead; exit code 1: something got worse",
    )  # fmt: skip
    parser.add_argument(
        "--profile", metavar="PROFILE",
        help=f"require a model: {PROFILES_HELP}; without it 7b and 235b are shown, none required",
    )  # fmt: skip
    step_time_option(parser)
    scan = parser.add_argument_group("a full scan", "Takes the GPUs, on a free node only; progress on standard error.")
    scan.add_argument("--full-scan", action="store_true", help="run every probe now, repeat bad results, then check")
    scan.add_argument("--gpus", metavar="0,1,...", help="with these GPUs only, by their NVML indexes")
    ignore_scheduler_option(scan)
    scan.add_argument("--stress", metavar="TIME", help="then load all GPUs for 1s to 10m: does the bandwidth hold?")
    parser.add_argument("-v", "--all", action="store_true", help="each check and finding separately, also what passed")
    file_options(parser)
    json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Ask, walk, print, and write the files that were asked for.

    Raises:
        UsageError: options do not go together.
        DaemonAbsent: no daemon runs.
        CommwatchError: it does not answer or is of another version, or a file cannot be written.
    """
    _check_together(args)
    check_files(args)
    if args.log:
        from commwatch.commands.diagnose_log import run_log

        return run_log(args.log, as_json=args.json)
    if args.settings:
        from commwatch.commands.diagnose_settings import run_settings

        return run_settings(args.settings, config, as_json=args.json)
    if args.compare:
        from commwatch.commands.diagnose_compare import run_compare

        return run_compare(args.compare, as_json=args.json)
    from commwatch.config.thresholds import load_thresholds
    from commwatch.diagnosis.marks.profile_file import profile_of
    from commwatch.diagnosis.marks.profiles import Asked
    from commwatch.diagnosis.walk import diagnose

    known = _known(args, config, load_thresholds(config.thresholds))
    known = replace(known, asked=Asked(profile_of(args.profile) if args.profile else None, args.step_time))
    document = diagnose(known, "full" if args.full_scan else "quick")
    _print(document, args)
    write_files(args, config, known, document)
    return EXIT_CODES[document.verdict.word]


def _check_together(args: argparse.Namespace) -> None:
    """Refuse what would be passed over in silence.

    Raises:
        UsageError: options do not go together.
    """
    instead, of_node, of_probes = (
        [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, False, [])]
        for names in (_INSTEAD, _OF_NODE, _OF_PROBES)
    )
    if len(instead) > 1:
        raise UsageError(f"{' and '.join(instead)} do not go together: give them one after the other")
    if instead and of_node:
        raise UsageError(f"{', '.join(of_node)}: of this node, which {instead[0]} does not look at; leave out either")
    if of_probes and not args.full_scan:
        raise UsageError(f"{', '.join(of_probes)}: for --full-scan only")


def _known(args: argparse.Namespace, config: Config, thresholds: Thresholds) -> Known:
    """What the daemon knows, with fresh probes where they are asked for."""
    gpus = parse_gpus(args.gpus or "")
    if not args.full_scan:
        from commwatch.diagnosis.known import ask
        from commwatch.state.client import of_the_only_daemon

        return ask(of_the_only_daemon(config), thresholds)
    from commwatch.diagnosis.full_scan import full_scan
    from commwatch.diagnosis.stress_run import stress_seconds
    from commwatch.service.log import configure_logging

    seconds = stress_seconds(args.stress)
    configure_logging(config.log)
    return full_scan(config, thresholds, gpus=gpus, ignore_scheduler=args.ignore_scheduler, stress=seconds)


def _print(document: Diagnosis, args: argparse.Namespace) -> None:
    if args.json:
        print_json(document)
        return
    from commwatch.diagnosis.text import diagnosis_lines
    from commwatch.lines import WIDTH

    _, width = screen()
    print_lines(diagnosis_lines(document, width=min(width or WIDTH, _WIDEST), every=args.all))

"""commwatch probe: probe cycles by hand."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.command import command, option
from commwatch.commands.options import IGNORE_SCHEDULER, parse_gpus
from commwatch.config.settings import Config, Probe
from commwatch.errors import ExitCode, UsageError
from commwatch.service.log import configure_logging
from commwatch.views.terminal import print_json

if TYPE_CHECKING:
    from commwatch.probes.by_hand.answer import Document
    from commwatch.probes.by_hand.cycles import Shaped
    from commwatch.probes.plan import CyclePlan


@command(
    "probe",
    "measure now, on a free node",
    "Runs the configured probes once, on a free node only, and prints each step on its slowest "
    "rank. The daemon's results stay as they are. Without NAME, probes that need more GPUs than there are do not "
    "count.",
    "commwatch probe all_reduce host_copies; which pair of GPUs is slow: commwatch probe --pairs; "
    "the curve over sizes: commwatch probe --sweep 8B:1GiB:2 --output curve.svg; what a setting gains: "
    "commwatch probe --with NCCL_ALGO=Ring",
    option("names", nargs="*", metavar="NAME", help="probes of the configuration (default: all)"),
    option("--pairs", action="store_true", help="measure every pair of GPUs, configured or not"),
    option(
        "--scaling", action="store_true", help="measure 2, 4, 8, ... GPUs, configured or not: does adding GPUs help?"
    ),
    option(
        "--training",
        action="store_true",
        help="all_reduce alone and under a matrix product, configured or not: how much is hidden?",
    ),
    option(
        "--sweep",
        metavar="FIRST:LAST:FACTOR",
        help="collectives at rising sizes, as in nccl-tests: 8B:1GiB:2 (default: all_reduce)",
    ),
    option(
        "--with",
        dest="settings",
        action="append",
        metavar="NCCL_NAME=VALUE",
        help="try a setting (repeatable): three cycles without and three with it, in turn (default: all_reduce)",
    ),
    option("--output", metavar="FILE", type=Path, help="with --sweep: also draw the curves into an SVG file"),
    option("--gpus", metavar="0,1,...", default="", help="use these GPUs only, by their NVML indexes"),
    IGNORE_SCHEDULER,
)
def run(args: argparse.Namespace, config: Config) -> int:
    _check_use(args)
    probes = _wanted(args, config)
    gpus = parse_gpus(args.gpus)
    # Only now: the other commands do without what runs probes.
    from commwatch.config.simulated import node_name
    from commwatch.config.thresholds import load_thresholds
    from commwatch.probes.by_hand.answer import Document, exit_code_of
    from commwatch.probes.by_hand.cycles import run_cycles
    from commwatch.views.probe_text import print_answers, print_sweep

    configure_logging(config.log)
    if args.settings:
        return _try(args, config, probes, gpus)
    answers = run_cycles(config, probes, gpus=gpus, ignore_scheduler=args.ignore_scheduler, shaped=_sizes(args))
    document = Document(simulated_node=node_name(config.simulation.preset), probes=answers)
    if args.output is not None:
        _draw(args.output, document, quiet=args.json)
    if args.json:
        print_json(document)
    elif args.sweep:
        print_sweep(document)
    else:
        thresholds = load_thresholds(config.thresholds)
        print_answers(document, thresholds.probe_bandwidth_utilization_low_ratio)
    # A probe for which this node has no parts counts for the exit code only if it was requested.
    chosen = bool(args.names or args.pairs or args.scaling or args.training or args.sweep)
    counted = [answer for answer in answers if chosen or not answer.has_no_place_here] or answers
    return exit_code_of(counted)


def _try(args: argparse.Namespace, config: Config, probes: dict[str, Probe], gpus: tuple[int, ...]) -> int:
    """Measure the gain of settings: the probes without and with them."""
    from commwatch.config.simulated import node_name
    from commwatch.probes.by_hand.answer import exit_code_of
    from commwatch.probes.by_hand.cycles import run_cycles
    from commwatch.probes.by_hand.trial import (
        TrialDocument,
        keep_trial,
        parse_settings,
        trial_of,
        trial_probes,
        tried,
    )
    from commwatch.views.probe_text import print_trial

    settings = parse_settings(args.settings)
    with_settings, sizes = partial(tried, settings=settings), _sizes(args)

    def shaped(plan: CyclePlan) -> CyclePlan:
        return with_settings(sizes(plan) if sizes else plan)

    runs = trial_probes(probes)
    answers = run_cycles(config, runs, gpus=gpus, ignore_scheduler=args.ignore_scheduler, shaped=shaped)
    trial = trial_of(settings, tuple(probes), dict(zip(runs, answers, strict=True)))
    document = TrialDocument(
        simulated_node=node_name(config.simulation.preset),
        trial=trial,
        kept=bool(trial.gains) and keep_trial(config, trial),
        probes=answers,
    )
    if args.json:
        print_json(document)
    else:
        print_trial(document)
    # That something is low with a setting is an answer.
    return ExitCode.OK if trial.gains else exit_code_of(answers) or ExitCode.FOUND


def _sizes(args: argparse.Namespace) -> Shaped | None:
    """The function that makes a sweep of the plans; None if no sweep is requested."""
    from commwatch.probes.by_hand.sweep import sweep_sizes, swept

    return partial(swept, sizes=sweep_sizes(args.sweep)) if args.sweep else None


def _check_use(args: argparse.Namespace) -> None:
    """Say before anything is measured what cannot work."""
    if args.sweep and (args.pairs or args.scaling or args.training):
        raise UsageError("--sweep is of collectives; give --pairs, --scaling and --training without it")
    if args.settings and (args.pairs or args.output):
        raise UsageError("--with compares the steps of collectives and copies; give --pairs and --output without it")
    if args.output is None:
        return
    if not args.sweep:
        raise UsageError("--output draws the curves of --sweep; of pairs commwatch heatmap --output does")
    from commwatch.diagnosis.output_file import check_output

    check_output("--output", args.output, (".svg",))


def _draw(file: Path, document: Document, *, quiet: bool) -> None:
    from commwatch.diagnosis.output_file import new_file
    from commwatch.views.sweep_svg import sweep_svg

    with new_file("--output", file, 0o666) as stream:
        stream.write(f"{sweep_svg(document)}\n".encode())
    if not quiet:
        print(f"drawn into {file}", file=sys.stderr)


def _wanted(args: argparse.Namespace, config: Config) -> dict[str, Probe]:
    """The probes to run: those named, those of the shortcuts, else all."""
    from commwatch.probes.by_hand.pair_matrix import of_measure

    defined = config.probes.definitions
    for name in args.names:
        if name not in defined:
            raise UsageError(f"probe: no probe {name!r} is configured; there are {', '.join(defined)}")
    wanted = {name: defined[name] for name in args.names}
    if args.sweep:
        from commwatch.probes.by_hand.sweep import sweep_probes

        return sweep_probes(wanted or of_measure(config, "all_reduce"))
    if args.pairs:
        wanted |= of_measure(config, "pairs")
    if args.training:
        wanted |= of_measure(config, "training")
    if args.settings and not wanted and not args.scaling:
        return of_measure(config, "all_reduce")
    if args.scaling:
        wanted |= of_measure(config, "scaling")
    return wanted or dict(defined)

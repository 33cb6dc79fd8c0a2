"""commwatch heatmap: what every GPU sends to every other one, as a picture in the terminal or in a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.command import command, one_of, option
from commwatch.commands.options import IGNORE_SCHEDULER, parse_gpus
from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode, UsageError
from commwatch.service.log import configure_logging
from commwatch.views.terminal import print_json, print_lines, screen

if TYPE_CHECKING:
    from commwatch.node.topology.pair_matrix import PairMatrix, Quantity
    from commwatch.views.heatmap.grid import View

QUANTITIES = ("bandwidth", "latency", "both-ways")


@command(
    "heatmap",
    "bandwidth and latency of every pair of GPUs, as a picture",
    "Draws the daemon's last pair matrix: bandwidth or latency from each GPU (row) to each other one "
    "(column), with suspects.",
    "commwatch heatmap --output pairs.svg; what changed since: commwatch heatmap --json > "
    "before.json, later commwatch heatmap --fresh --compare before.json",
    one_of(
        option("--fresh", action="store_true", help="measure now, on a free node only"),
        option(
            "--from",
            dest="file",
            metavar="FILE",
            help="draw the output of heatmap --json or probe --pairs --json; -: stdin",
        ),
    ),
    option("--quantity", choices=QUANTITIES, default="bandwidth", help="default: bandwidth, one way"),
    option("--relative", action="store_true", help="in percent of what is expected"),
    option("--compare", metavar="FILE", help="compare with an earlier matrix"),
    option("--output", metavar="FILE", type=Path, help="draw into an SVG file"),
    option("--gpus", metavar="0,1,...", default="", help="with --fresh: measure these GPUs only"),
    IGNORE_SCHEDULER,
)
def run(args: argparse.Namespace, config: Config) -> int:
    _check_use(args)
    from commwatch.config.thresholds import load_thresholds
    from commwatch.views.heatmap.document import read_matrix
    from commwatch.views.heatmap.matrix_view import view_of

    configure_logging(config.log)
    # Errors in the options are printed before anything is measured.
    earlier = read_matrix(args.compare) if args.compare else None
    if args.output is not None:
        from commwatch.diagnosis.output_file import check_output

        check_output("--output", args.output, (".svg",))
    quantity: Quantity = args.quantity.replace("-", "_")
    matrix = _matrix(args, config)
    if earlier is not None:
        return _compare(args, earlier, matrix, quantity)
    if args.json:
        print_json(matrix)
    thresholds = load_thresholds(config.thresholds)
    low_ratio = thresholds.probe_bandwidth_utilization_low_ratio
    _draw(args, view_of(matrix, quantity, relative=args.relative, low_ratio=low_ratio))
    return ExitCode.OK


def _check_use(args: argparse.Namespace) -> None:
    if args.gpus and not args.fresh:
        raise UsageError("--gpus says what --fresh measures; give both")
    if args.output is not None and args.output.suffix.lower() == ".png":
        raise UsageError(f"--output {args.output}: pictures are SVG, which every browser shows; end the name in .svg")
    if args.compare and args.relative:
        raise UsageError("--compare shows what changed, --relative what should be there; choose one")


def _matrix(args: argparse.Namespace, config: Config) -> PairMatrix:
    if args.file:
        from commwatch.views.heatmap.document import read_matrix

        return read_matrix(args.file)
    if args.fresh:
        return _fresh(args, config)
    from commwatch.probes.by_hand.pair_matrix import last_matrix
    from commwatch.state.client import DaemonAbsent, ask_daemon, of_the_only_daemon
    from commwatch.state.directory import state_path

    config = of_the_only_daemon(config)
    matrix = last_matrix(config)
    if matrix is None:
        hint = "measure one now with commwatch heatmap --fresh, or draw a saved one with --from"
        try:
            ask_daemon(state_path(config), "inventory")
        except DaemonAbsent as error:
            raise DaemonAbsent(error.fact, hint) from error
        raise CommwatchError(f"the daemon has no pair matrix yet: {hint}")
    return matrix


def _fresh(args: argparse.Namespace, config: Config) -> PairMatrix:
    from commwatch.probes.by_hand.answer import notes_of
    from commwatch.probes.by_hand.cycles import run_cycles
    from commwatch.probes.by_hand.pair_matrix import of_measure

    name, probe = next(iter(of_measure(config, "pairs").items()))
    (answer,) = run_cycles(config, {name: probe}, gpus=parse_gpus(args.gpus), ignore_scheduler=args.ignore_scheduler)
    if answer.pairs is None:
        reason = "; ".join(notes_of(answer)) or "it gave no pairs"
        raise CommwatchError(f"heatmap: {reason}", answer.exit_code or ExitCode.FOUND)
    return answer.pairs


def _compare(args: argparse.Namespace, before: PairMatrix, now: PairMatrix, quantity: Quantity) -> int:
    from commwatch.views.heatmap.compare import compare, view_of_comparison

    comparison = compare(before, now, quantity)
    if args.json:
        print_json(comparison)
    _draw(args, view_of_comparison(comparison, before, now))
    return ExitCode.FOUND if comparison.not_comparable else ExitCode.OK


def _draw(args: argparse.Namespace, view: View) -> None:
    """Into the file, and in the terminal where neither a file nor JSON is wanted."""
    if args.output is not None:
        from commwatch.diagnosis.output_file import new_file
        from commwatch.views.heatmap.svg import matrix_svg

        with new_file("--output", args.output, 0o666) as stream:
            stream.write(f"{matrix_svg(view)}\n".encode())
        if not args.json:
            print(f"drawn into {args.output}")
    elif not args.json:
        from commwatch.views.heatmap.text import heatmap_lines

        coloured, width = screen()
        print_lines(heatmap_lines(view, coloured=coloured, width=width))

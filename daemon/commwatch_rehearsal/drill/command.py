"""commwatch drill: the fire drill, from a fault on a simulated node to the page and back."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.command import command, group, option
from commwatch.commands.options import quantity, whole_number
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.units import parse_duration
from commwatch.views.terminal import print_json, print_table

if TYPE_CHECKING:
    from commwatch_rehearsal.drill.drill import Drill
    from commwatch_rehearsal.drill.pace import Pace
    from commwatch_rehearsal.drill.stage import Given


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, such as 127.0.0.1:9095, got {text!r}")
    return text


@command(
    "drill",
    "rehearse faults on simulated nodes until they page, and until the page is resolved",
    "Starts simulated nodes, Prometheus and Alertmanager with the shipped rules, and a receiver of "
    "pages; injects faults, and waits until each is paged and resolved. See docs/using/drill.md.",
    "commwatch drill --fast nvlink_down gpu_lost",
    option("drills", nargs="*", metavar="DRILL", help="names or shell patterns (default: all)"),
    option("--list", action="store_true", help="print the catalogue of drills and play none"),
    option("--fast", action="store_true", help="scrape every second; windows and waits a fifteenth"),
    option(
        "--within",
        type=quantity(parse_duration),
        default=parse_duration("60m"),
        metavar="TIME",
        help="time limit for the whole run (default: 60m)",
    ),
    option("--node", default="", metavar="NODE", help="play the drills on this recording or file of your own instead"),
    option("--nodes", type=whole_number(64), metavar="N", help="nodes side by side (default: 16; with --fast 4)"),
    option("--report", type=Path, metavar="FILE", help="write the table as Markdown"),
    group(
        "servers that run already",
        option("--alertmanager", default="", metavar="URL", help="page through this Alertmanager"),
        option("--i-will-page", action="store_true", help="confirm that the given Alertmanager may notify people"),
        option(
            "--receiver",
            type=_address,
            metavar="HOST:PORT",
            help="where the given Alertmanager's receiver 'drill' posts to (default: Alertmanager is asked)",
        ),
        option("--prometheus", default="", metavar="URL", help="use the rules of this Prometheus"),
        option(
            "--targets",
            default="",
            metavar="FILE",
            help="file that the given Prometheus reads targets from (file_sd_configs)",
        ),
    ),
    reads_settings=False,
)
def run(args: argparse.Namespace, config: Config) -> int:
    """List or play the drills."""
    del config  # the nodes of a drill have their own
    from commwatch_rehearsal.drill.catalogue import choose, fitted, load_drills
    from commwatch_rehearsal.drill.ending import heeded_signals
    from commwatch_rehearsal.drill.pace import FAST, SHIPPED
    from commwatch_rehearsal.drill.stage import Given, alerts_of, rules_at

    if problem := _misuse(args):
        raise UsageError(f"drill: {problem}")
    drills, unfit = choose(load_drills(), args.drills), dict[str, str]()
    if args.node:
        drills, unfit = fitted(drills, args.node)
    pace = FAST if args.fast else SHIPPED
    if args.alertmanager:
        pace = replace(pace, paging_factor=1, is_given=bool(args.prometheus))
    if args.list:
        _print_catalogue(drills, unfit, alerts_of(rules_at(pace)), as_json=args.json)
        return ExitCode.OK
    given = Given(args.prometheus, args.alertmanager, args.targets, args.receiver or "")
    with heeded_signals():
        return _play(drills, unfit, pace, given, args)


def _misuse(args: argparse.Namespace) -> str:
    """The error in the choice of options; empty if there is none."""
    if args.alertmanager and not args.i_will_page:
        return "--alertmanager: this Alertmanager may notify people; say --i-will-page if it may"
    if args.prometheus and not (args.alertmanager and args.targets):
        return "--prometheus needs --alertmanager (where it sends its alerts) and --targets (where it finds the nodes)"
    if args.prometheus and args.fast:
        return "--fast changes the rules; a given Prometheus has its own"
    if (args.receiver or args.i_will_page) and not args.alertmanager:
        return "--receiver and --i-will-page are for a given --alertmanager"
    if args.targets and not args.prometheus:
        return "--targets is for a given --prometheus"
    if args.report and not args.report.parent.is_dir():
        return f"--report: there is no folder {args.report.parent}"
    if args.report and not os.access(args.report if args.report.exists() else args.report.parent, os.W_OK):
        return f"--report: {args.report} cannot be written"
    return ""


def _print_catalogue(
    drills: list[Drill], unfit: Mapping[str, str], alerts: Mapping[str, float], *, as_json: bool
) -> None:
    from commwatch_rehearsal.drill.catalogue import without_alert
    from commwatch_rehearsal.drill.report import catalogue_rows

    if as_json:
        import msgspec

        rows = msgspec.to_builtins(drills, enc_hook=float)  # times are seconds
        for row, drill in zip(rows, drills, strict=True):
            row |= {"fast": drill.fast, "why_slow": row.pop("why_slow"), "without_alert": without_alert(drill, alerts)}
        print_json({"drills": rows, **({"left_out": unfit} if unfit else {})})
        return
    print_table("Drills", ("drill", "node", "fault", "alerts", "class"), catalogue_rows(drills, alerts))
    _print_left_out(unfit)


def _print_left_out(absent: Mapping[str, str]) -> None:
    for name, why in absent.items():
        print(f"not played: {name}: {why}")


def left_out(drills: list[Drill], pace: Pace, alerts: Mapping[str, float]) -> dict[str, str]:
    """The drills that cannot be played, and why."""
    from commwatch_rehearsal.drill.catalogue import without_alert

    found: dict[str, str] = {}
    for drill in drills:
        if lacking := without_alert(drill, alerts):
            found[drill.name] = f"no alert yet: {', '.join(lacking)}"
        elif not pace.is_shipped and not drill.fast:
            found[drill.name] = f"not in the fast form: {drill.why_slow}"
    return found


def _play(drills: list[Drill], unfit: Mapping[str, str], pace: Pace, given: Given, args: argparse.Namespace) -> int:
    from commwatch_rehearsal.drill.programs import DrillError
    from commwatch_rehearsal.drill.rehearsal import Rehearsal
    from commwatch_rehearsal.drill.report import COLUMNS, RIGHT, document, intervals, is_passed, markdown, rows, summary
    from commwatch_rehearsal.drill.stage import Stage

    say = _progress(time.monotonic())
    begun = time.monotonic()
    try:
        stage = Stage(pace, given)
    except OSError as error:
        raise DrillError(str(error)) from error
    try:
        absent = {**unfit, **left_out(drills, pace, stage.alerts)}
        played = [drill for drill in drills if drill.name not in absent]
        if not played:
            raise DrillError("; ".join(f"{name}: {why}" for name, why in absent.items()))
        say(f"{len(played)} drills with {intervals(pace)}")
        nodes = args.nodes or (16 if pace.is_shipped else 4)
        rehearsal = Rehearsal(played, stage, nodes=nodes, seconds=args.within, say=say)
        outcomes = rehearsal.run()
        versions = stage.versions
    finally:
        stage.close()
    seconds = time.monotonic() - begun
    if args.json:
        print_json(document(outcomes, absent, rehearsal.strays, pace, seconds))
    else:
        print_table("Fire drill", COLUMNS, rows(outcomes), right=RIGHT)
        _print_left_out(absent)
        print(summary(outcomes, rehearsal.strays, pace, seconds))
    if args.report:
        args.report.write_text(markdown(outcomes, absent, rehearsal.strays, pace, versions), encoding="utf-8")
    return ExitCode.OK if is_passed(outcomes, rehearsal.strays) else ExitCode.FOUND


def _progress(begun: float) -> Callable[[str], None]:
    """Prints lines of progress on standard error, with the time since the beginning."""

    def say(line: str) -> None:
        seconds = int(time.monotonic() - begun)
        print(f"{seconds // 60:3d}:{seconds % 60:02d} {line}", file=sys.stderr, flush=True)

    return say

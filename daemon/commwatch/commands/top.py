"""commwatch top: the node's state live in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from typing import TYPE_CHECKING

from commwatch.commands.command import command, group, one_of, option
from commwatch.commands.endpoint import CREDENTIALS, OF_ENDPOINTS, credentials
from commwatch.commands.options import quantity
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.units import parse_duration
from commwatch.views.terminal import print_json

if TYPE_CHECKING:
    from commwatch.config.thresholds import Thresholds
    from commwatch.views.top.daemon import Source
    from commwatch.views.top.frame import View

INTERVAL_SECONDS = 2.0
SHORTEST = "500ms"
"""An answer costs the daemon some milliseconds."""


@command(
    "top",
    "the node's state live in a terminal",
    "Shows verdict, score, findings with next steps, GPUs, ports, probes, slow pairs and late "
    "collectors of this node, or with --url of another. Keys: q quits, ? shows the others.",
    "commwatch top; of another node: commwatch top --url https://node7:28029 --ca-file ca.pem "
    "--user ops --password-file ops.password; in a script: commwatch top --once",
    one_of(
        option("--once", action="store_true", help="print one plain page and exit"),
        option("--json", action="store_true", help="print the data as JSON and exit"),
    ),
    option(
        "--interval",
        metavar="TIME",
        type=quantity(parse_duration, SHORTEST),
        default=INTERVAL_SECONDS,
        help="between requests (default: 2s; 500ms at least)",
    ),
    group(
        "another node",
        option("--url", metavar="URL", help="its endpoint: http://HOST:28029 or https://HOST:28029"),
        *CREDENTIALS,
    ),
    prints_json=False,
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Ask, and show it once or until someone quits."""
    from commwatch.config.thresholds import load_thresholds
    from commwatch.views.top.live import run_live, run_plain
    from commwatch.views.top.terminal import can_be_drawn_on

    thresholds = load_thresholds(config.thresholds)
    with contextlib.closing(_source(args, config)) as source:
        if args.json:
            print_json(source.ask())
        elif args.once or not sys.stdout.isatty():
            _print_once(source, thresholds)
        elif can_be_drawn_on():
            return run_live(source, thresholds, args.interval)
        else:
            run_plain(source, thresholds, args.interval, _print_page)
    return ExitCode.OK


def _source(args: argparse.Namespace, config: Config) -> Source:
    from commwatch.views.top.daemon import Endpoint, LocalDaemon

    if args.url is None:
        for name in OF_ENDPOINTS:
            if getattr(args, name):
                raise UsageError(f"--{name.replace('_', '-')} is for the endpoint that --url names")
        from commwatch.state.client import of_the_only_daemon

        return LocalDaemon(of_the_only_daemon(config))
    return Endpoint(args.url, *credentials(args))


def _print_once(source: Source, thresholds: Thresholds) -> None:
    from commwatch.views.top.live import Looking

    looking = Looking(source.name, thresholds)
    looking.answered(source.ask())
    _print_page(*looking.moment())


def _print_page(view: View, now: float) -> None:
    """Print without colours, for scripts and terminals that have none."""
    from commwatch.lines import plain
    from commwatch.views.top.screen import page_lines

    width = shutil.get_terminal_size().columns
    for line in page_lines(view, width, now):
        print(plain(line))
    print(flush=True)

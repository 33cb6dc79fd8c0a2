"""commwatch run: the daemon."""

from __future__ import annotations

import argparse
import asyncio

from commwatch.config.settings import Config
from commwatch.service.log import configure_logging


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "run",
        parents=parents,
        help="run the daemon",
        description="Runs the daemon in the foreground. TERM and INT stop it, HUP makes it read its "
        "configuration again.",
        epilog="example: commwatch run --simulate h100x8 --web.listen-address 127.0.0.1:28029",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Run until stopped."""
    from commwatch.config.flags import config_from
    from commwatch.service.root import Service

    configure_logging(config.log)
    return asyncio.run(Service(config, lambda: config_from(args)).run())

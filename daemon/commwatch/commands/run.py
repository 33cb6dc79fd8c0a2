"""commwatch run: the daemon."""

from __future__ import annotations

import argparse
import os
from functools import partial

from commwatch.commands.command import command
from commwatch.config.settings import Config, Process
from commwatch.errors import UsageError


@command(
    "run",
    "run the daemon",
    "Runs the daemon in the foreground. TERM and INT stop it, HUP makes it read its configuration again.",
    "commwatch run --simulate h100x8 --web.listen-address 127.0.0.1:28029",
    prints_json=False,
)
def run(args: argparse.Namespace, config: Config) -> int:
    from commwatch.workers.sources import lasting_readers
    from commwatch.workers.start import Spares, take_kernel_log

    ends_after = None
    if config.simulation.preset:
        from commwatch.rehearsal import rehearsal

        # Before the state directory of such a node is made.
        length = rehearsal().check_preset(config.simulation.preset)
        ends_after = length if config.simulation.playback == "once" else None
    _confine(config.process)
    kernel_log = take_kernel_log()
    with Spares(lasting_readers(config.sources)) as spares:  # before what only the daemon needs is imported
        import asyncio

        from commwatch.config.flags import config_from
        from commwatch.service.daemon import Daemon
        from commwatch.service.log import configure_logging

        configure_logging(config.log)
        return asyncio.run(Daemon(config, partial(config_from, args), spares, kernel_log, ends_after).run())


def _confine(settings: Process) -> None:
    """Stay on the cores that are given, and yield to others; threads and processes that are started inherit both.

    Raises:
        UsageError: none of the cores may be used.
    """
    # Before the daemon gives up cores: what is imported here notes all of them, for its ranks.
    from commwatch.probes.cycle.priority import parse_cpus

    if settings.cpus:
        allowed = os.sched_getaffinity(0)
        if not (cpus := parse_cpus(settings.cpus) & allowed):
            raise UsageError(
                f"process.cpus: none of {settings.cpus} is among the {len(allowed)} cores that the daemon may use"
            )
        os.sched_setaffinity(0, cpus)
    os.nice(settings.nice)

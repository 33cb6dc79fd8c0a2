"""commwatch resume: end a pause early."""

from __future__ import annotations

import argparse

from commwatch.commands.command import command
from commwatch.config.settings import Config
from commwatch.errors import ExitCode
from commwatch.state.client import DaemonAbsent, hand_to_daemon
from commwatch.state.directory import state_path
from commwatch.state.maintenance import MaintenanceFile
from commwatch.views.terminal import show


@command(
    "resume",
    "end a pause early",
    "Ends a pause.",
    "commwatch resume",
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Remove the maintenance file and notify the daemon."""
    state = state_path(config)
    was_paused = MaintenanceFile(state).remove()
    try:
        hand_to_daemon(state, "maintenance")
        daemon = True
    except DaemonAbsent:
        daemon = False
    lines = ["resumed" if was_paused else "nothing was paused"]
    if not daemon:
        lines.append(f"no commwatch daemon runs with the state directory {state}")
    show({"was_paused": was_paused, "daemon": daemon}, lines, as_json=args.json)
    return ExitCode.OK if daemon else ExitCode.NO_DAEMON

"""commwatch pause: probes stop and every driver and device file is let go, for a while."""

from __future__ import annotations

import argparse
import time

import msgspec

from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode, UsageError
from commwatch.state.answer import document_of
from commwatch.state.client import DaemonAbsent, hand_to_daemon
from commwatch.state.directory import state_path
from commwatch.state.maintenance import Maintenance, MaintenanceFile
from commwatch.units import format_seconds, parse_duration
from commwatch.views.terminal import progress, show

LONGEST_SECONDS = 30 * 86400.0


class _Answer(msgspec.Struct, frozen=True):
    """The daemon's answer after it has read the maintenance file."""

    paused: str | None
    """The reason of the pause that is in force."""
    released: bool
    held: dict[str, tuple[str, ...]]
    """Device files that its processes still have open, by process."""


@command(
    "pause",
    "stop probing and release the GPUs for a while",
    "Stops probes and driver workers within 2 s, so that a GPU can be reset, a driver upgraded or MIG "
    "changed. Alerts are silenced. The daemon resumes by itself. Where no daemon runs "
    "with this state directory, the pause is written for one that starts.",
    "commwatch pause --for 30m --reason driver-upgrade",
    option("--for", dest="duration", default="15m", metavar="TIME", help="how long (default 15m)"),
    option("--reason", default="maintenance", metavar="WORD", help="one word, shown on the metrics"),
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Write the maintenance file and wait until the daemon has let go."""
    state = state_path(config)
    now = time.time()
    try:
        seconds = parse_duration(args.duration)
        if not 0 < seconds <= LONGEST_SECONDS:
            raise ValueError(f"expected more than 0 and at most {LONGEST_SECONDS / 86400:g}d, got {args.duration}")
        maintenance = Maintenance(args.reason, now + seconds, now)
    except ValueError as error:
        raise UsageError(f"pause: {error}") from error
    MaintenanceFile(state).write(maintenance)
    try:
        with progress("waiting for the daemon to let go"):
            answer = document_of(hand_to_daemon(state, "maintenance"), _Answer)
    except DaemonAbsent as error:
        return _no_daemon(args, maintenance, str(error), seconds)
    except CommwatchError as error:
        # The file stays: the daemon reads it every second, and a pause that may be in force is not taken back.
        raise CommwatchError(f"the pause is written, but the daemon has not said that it let go: {error}") from error
    if answer.paused != args.reason:
        raise CommwatchError(
            f"the daemon did not take the pause; its log says why it ignores {MaintenanceFile(state).path}"
        )
    lines = [
        f"process {pid} still holds {', '.join(paths)}: it is stuck in the driver and cannot be stopped safely"
        for pid, paths in answer.held.items()
    ] or ["paused, but a worker does not answer; it may be inside the driver"]
    if answer.released:
        lines = [f"paused for {format_seconds(seconds)}; no driver or device file is held by commwatch"]
    document = {**msgspec.to_builtins(maintenance), "daemon": True, **msgspec.to_builtins(answer)}
    show(document, lines, as_json=args.json)
    return ExitCode.OK if answer.released else ExitCode.FOUND


def _no_daemon(args: argparse.Namespace, maintenance: Maintenance, why: str, seconds: float) -> int:
    """The file is written for a daemon that starts meanwhile; whether any process holds the driver is not known."""
    document = {**msgspec.to_builtins(maintenance), "daemon": False, "paused": None, "released": None, "held": {}}
    show(document, [f"{why}; one that starts within {format_seconds(seconds)} will be paused"], as_json=args.json)
    return ExitCode.NO_DAEMON

"""commwatch yield: a job is about to start, so a probe under way ends and none begins for a while."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, StateError, UsageError
from commwatch.probes.cycle.lock import LOCK_FILE, held_elsewhere
from commwatch.probes.gate.hold import HoldFile
from commwatch.state.directory import state_path
from commwatch.units import format_seconds, parse_duration
from commwatch.views.terminal import progress, show

LONGEST_HOLD_SECONDS = 86400.0
LONGEST_WAIT_SECONDS = 600.0
_LOOK_SECONDS = 0.05


class Holder(msgspec.Struct, frozen=True):
    """A process that keeps the probe lock."""

    pid: int
    command: str


@command(
    "yield",
    "end a running probe, and start none while a job starts",
    "For the prolog of a job: ends a running probe, starts none for a while, and waits until no "
    "probe process is left. Works without a daemon, and for probes started by hand. A longer hold of somebody else "
    "stays. In Slurm's prolog, where each code but 0 drains the node, end the line with || true.",
    "commwatch yield --wait 5s --hold 10m",
    option("--wait", default="5s", metavar="TIME", help="how long to wait for the end (default 5s)"),
    option(
        "--hold",
        default="10m",
        metavar="TIME",
        help="how long no probe starts (default 10m); 0s: only end the running one",
    ),
    option("--end", action="store_true", help="only end a hold early"),
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Write the hold and wait until the lock is free; or end the hold."""
    state = state_path(config)
    file = HoldFile(state)
    if args.end:
        return _end(args, file)
    wait, seconds = _duration(args.wait, LONGEST_WAIT_SECONDS), _duration(args.hold, LONGEST_HOLD_SECONDS)
    started, now = time.monotonic(), time.time()
    hold = file.hold(seconds, now)
    lock = state / LOCK_FILE
    with progress("waiting for the end of a probe"):
        while (held := _held(lock)) and time.monotonic() - started < wait:
            time.sleep(_LOOK_SECONDS)
    waited = time.monotonic() - started
    holders = list(_holders(Path(config.paths.procfs), lock)) if held else []
    document = {
        "released": not held,
        "waited_seconds": round(waited, 3),
        **msgspec.to_builtins(hold),
        "held_by": holders,
    }
    show(document, _lines(held, waited, hold.left(now), holders), as_json=args.json)
    return ExitCode.FOUND if held else ExitCode.OK


def _duration(text: str, longest: float) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"yield: {error}") from error
    if seconds > longest:
        raise UsageError(f"yield: expected at most {format_seconds(longest)}, got {text}")
    return seconds


def _end(args: argparse.Namespace, file: HoldFile) -> int:
    ended = file.end(time.time())
    show({"was_held": ended}, ["the hold has ended" if ended else "nothing was held"], as_json=args.json)
    return ExitCode.OK


def _held(lock: Path) -> bool:
    try:
        return held_elsewhere(lock)
    except OSError as error:
        hint = "; run this as root or as the daemon's user" if isinstance(error, PermissionError) else ""
        raise StateError(f"{lock}: {error.strerror}{hint}") from error


def _lines(held: bool, waited: float, left: float, holders: list[Holder]) -> Iterator[str]:
    then = f"; none starts for {format_seconds(left)}" if left > 0 else ""
    if not held:
        yield f"no probe holds a GPU{then}"
        return
    yield f"a probe is still there after {format_seconds(waited)}{then}"
    yield from (f"  process {holder.pid}: {holder.command}" for holder in holders)
    if not holders:
        yield "  its processes do not show; look as root"


def _holders(procfs: Path, lock: Path) -> Iterator[Holder]:
    """The processes whose open file holds the lock, by ``/proc/PID/fdinfo``, as far as it is readable."""
    target = os.path.realpath(lock)
    for process in sorted((one for one in procfs.iterdir() if one.name.isdigit()), key=lambda one: int(one.name)):
        with suppress(OSError):  # ended meanwhile, or not ours to look at
            for descriptor in os.listdir(process / "fd"):
                # Who has the file open without the lock, as this process for a moment, is not meant.
                is_lock = os.readlink(process / "fd" / descriptor) == target
                if is_lock and "FLOCK" in (process / "fdinfo" / descriptor).read_text():
                    yield Holder(int(process.name), _command(process))
                    break


def _command(process: Path) -> str:
    with suppress(OSError):
        words = (process / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
        return words or (process / "comm").read_text(errors="replace").strip()
    return "unknown"

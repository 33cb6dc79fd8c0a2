"""commwatch record: what the driver and the kernel of a node answer, in a file that can be sent and replayed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.units import format_bytes, parse_duration
from commwatch.views.terminal import print_json

_SHORTEST: Final = 1.0
_LONGEST: Final = 600.0
_MOST_COSTS: Final = 12


@command(
    "record",
    "record what the driver and the kernel of this node answer, into a file that can be replayed",
    "Reads the driver, /sys, /proc, the kernel log and ethtool as the daemon would, and writes every answer into a "
    "file for commwatch run --simulate FILE. Names are replaced. No daemon is needed, nothing else is written, and "
    "what jobs write or are started with is not read. See docs/using/recordings.md.",
    "commwatch record --for 60s -o node.cwrec",
    option("-o", "--output", metavar="FILE", type=Path, help="the file to write, FILE.cwrec; it must not exist yet"),
    option("--for", dest="seconds", default="60s", metavar="TIME", help="how long, at most 10m (default 60s)"),
    option("--keep-names", action="store_true",
           help="keep serial numbers, UUIDs, addresses, GUIDs, LIDs, host, user and process names"),
    option("--list", metavar="FILE", type=Path, help="print what a recording holds, and record nothing"),
)  # fmt: skip
def run(args: argparse.Namespace, config: Config) -> int:
    """Record, or list a recording; a file that cannot be used ends the program with its error."""
    if args.list is not None:
        if args.output is not None:
            raise UsageError("record: give either --list FILE or -o FILE")
        return _list(args.list, as_json=args.json)
    if args.output is None:
        raise UsageError("record: name the file with -o FILE.cwrec, or a recording with --list FILE")
    if args.output.suffix != ".cwrec":
        raise UsageError(f"-o {args.output}: expected a name that ends in .cwrec")
    try:
        seconds = parse_duration(args.seconds)
    except ValueError as error:
        raise UsageError(f"--for {args.seconds}: {error}") from None
    if not _SHORTEST <= seconds <= _LONGEST:
        raise UsageError(f"--for {args.seconds}: expected 1s to 10m")
    return _record(args, config, seconds)


def _record(args: argparse.Namespace, config: Config, seconds: float) -> int:
    from commwatch.workers.by_hand import simulated_files
    from commwatch.workers.start import take_kernel_log
    from commwatch_rehearsal.simulation import plug
    from commwatch_rehearsal.simulation.recording.record import record

    handed_log = take_kernel_log()
    began = time.process_time()
    with simulated_files(config) as plan:
        node = None
        if plan is not None:
            node = plug.make_node(plan)
            plug.install_driver(node)
        done = record(
            config, args.output, seconds,
            keep_names=args.keep_names, node=node, plan=plan, handed_log=handed_log,
        )  # fmt: skip
    cpu = time.process_time() - began
    if args.json:
        print_json({"file": str(args.output), "bytes": done.size, "seconds": seconds, "cpu_seconds": round(cpu, 2),
                    "hung": list(done.hung)})  # fmt: skip
    else:
        print(f"{args.output}: {format_bytes(done.size)} in {args.seconds}, {cpu:.1f} s of CPU time")
        print("Names are kept." if args.keep_names else "Names were replaced.", end=" ")
        print(f"To see what it holds: commwatch record --list {args.output}")
    if done.hung:
        print(f"These readers had not come back at the end: {', '.join(done.hung)}", file=sys.stderr)
        sys.stdout.flush()
        os._exit(ExitCode.FOUND)  # a thread that sits in the kernel would keep the interpreter from ending
    return ExitCode.OK


def _list(path: Path, *, as_json: bool) -> int:
    from commwatch_rehearsal.simulation.recording.file import read_recording
    from commwatch_rehearsal.simulation.recording.lines import Call, File, LogLine, Statistics

    held = read_recording(path)
    kinds = Counter(str(type(one).__struct_config__.tag) for one in held.answers)
    files = sorted({f"{one.root}/{one.path}" for one in held.answers if isinstance(one, File)})
    functions = sorted({one.function for one in held.answers if isinstance(one, Call)})
    errors = Counter(one.error for one in held.answers if isinstance(one, File | Statistics | LogLine) and one.error)
    if as_json:
        found: dict[str, Any] = {
            "commwatch": held.head.commwatch, "seconds": held.seconds, "keeps_names": held.head.keeps_names,
            "answers": dict(kinds), "functions": functions, "files": files, "errors": dict(errors),
            "costs": msgspec.to_builtins(held.costs), "hung": msgspec.to_builtins(held.hung),
        }  # fmt: skip
        print_json(found)
        return ExitCode.OK
    size, version = format_bytes(path.stat().st_size), held.head.commwatch
    print(f"{path}: {held.seconds:.0f} s, {size}, recorded by commwatch {version}")
    print("Names: kept" if held.head.keeps_names else "Names: replaced one to one")
    print("\nAnswers that differ from the one before\n")
    for kind, count in kinds.most_common():
        print(f"  {kind:10}{count:>8}  {_MEANINGS[kind]}")
    for one in held.hung:
        print(f"  The reader {one.reader} had not come back at the end; it was at {one.device or 'no device'}.")
    if errors:
        print(
            f"  errors of files and statistics: {', '.join(f'{name} {count}' for name, count in errors.most_common())}"
        )
    print("\nCalls, by the time that they took\n")
    for cost in held.costs[:_MOST_COSTS]:
        print(
            f"  {cost.of:44}{cost.calls:>8} calls {cost.seconds * 1e3:>10.1f} ms, longest {cost.longest * 1e3:.2f} ms"
        )
    print(f"\nFunctions of the driver ({len(functions)})\n  " + "\n  ".join(functions))
    print(f"\nFiles ({len(files)})\n  " + "\n  ".join(files))
    return ExitCode.OK


_MEANINGS: Final = {
    "nvml": "calls of the driver",
    "fields": "field values of a GPU",
    "gpm": "metrics of PCIe traffic of a GPU",
    "event": "events of the driver",
    "file": "files of /sys and /proc",
    "folder": "names of folders and links",
    "log": "lines of the kernel log about GPUs, NVSwitches and adapters",
    "ethtool": "statistics of an interface",
}

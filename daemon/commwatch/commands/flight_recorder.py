"""commwatch flight-recorder: dumps of PyTorch's Flight Recorder in another form."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from commwatch.commands.command import Family, command, option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.views.terminal import progress

_MODE = 0o600
"""A dump names paths and functions of its job: who converted it decides who sees it."""


@command(
    "convert",
    "a pickled dump as JSON, which other programs can read without running code",
    "Reads a dump without unpickling it, and writes it as JSON with torch's keys, its frames, and its rank.",
    "commwatch flight-recorder convert nccl_trace_rank_3 rank_3.json",
    option("source", metavar="IN", help="the dump, a pickle or JSON"),
    option("target", metavar="OUT", type=Path, help="the file to write (.json)"),
    reads_settings=False,
    prints_json=False,
)
def convert(args: argparse.Namespace, config: Config) -> int:
    """Read and write.

    Raises:
        UsageError: the dump cannot be read.
        BadOutput: the file cannot be written.
    """
    from commwatch.diagnosis.output_file import check_output, new_file
    from commwatch.jobs.flight_recorder.pickle_walk import NoDump
    from commwatch.jobs.flight_recorder.reading import read_whole

    check_output("OUT", args.target, (".json",))
    try:
        with progress("reading the dump"):
            dump = read_whole(args.source)
    except NoDump as error:
        raise UsageError(f"{args.source}: {error}; expected a dump of torch's Flight Recorder") from error
    with new_file("OUT", args.target, _MODE) as stream:
        stream.write(msgspec.json.encode(dump))
    print(f"{len(dump.entries):,} calls written to {args.target}")
    return ExitCode.OK


run = Family(
    "flight-recorder",
    "dumps of PyTorch's Flight Recorder in another form",
    "Converts dumps; commwatch diagnose --flight-recorder judges them (docs/using/flight-recorder.md).",
    "commwatch flight-recorder convert nccl_trace_rank_3 rank_3.json",
    (convert,),
)

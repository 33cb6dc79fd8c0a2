"""commwatch diagnose: evaluates a node in an expert's order, and names the part to blame and the next step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from commwatch.commands.command import command, group, option
from commwatch.commands.options import IGNORE_SCHEDULER, PROFILES_HELP, PURPOSE, STEP_TIME, parse_gpus
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.lines import WIDTH
from commwatch.views.terminal import screen, show

if TYPE_CHECKING:
    from commwatch.config.thresholds import Thresholds
    from commwatch.diagnosis.document import Diagnosis
    from commwatch.diagnosis.full_scan import Scope
    from commwatch.diagnosis.identity import Identity
    from commwatch.diagnosis.known import Known
    from commwatch.diagnosis.marks.profiles import Purpose

EXIT_CODES = {
    "OK": ExitCode.OK, "Warning": ExitCode.FOUND, "Critical": ExitCode.FOUND, "Unknown": ExitCode.NOT_KNOWN,
}  # fmt: skip
"""By the word of the verdict."""
_WIDEST = 120
"""Columns of text; longer lines are hard to read."""
_REPORT_ENDINGS = (".html", ".htm")
_BUNDLE_ENDINGS = (".tar.gz", ".tgz")
_REPORT_MODE = 0o666
"""Less the umask, as with the output of any command: it is made to be sent."""
_BUNDLE_MODE = 0o600
"""It describes the whole node; who made it decides who sees it."""
_MOST_BYTES = 2**26
"""A diagnosis of 64 GPUs with every pair has less than 4 MB."""

_INSTEAD = ("log", "settings", "flight_recorder", "compare")
"""Options with which something else than this node is looked at."""
_OF_PROBES = ("gpus", "ignore_scheduler", "stress", "marks")
_OF_NODE = ("profile", "for", "step_time", "full_scan", *_OF_PROBES, "report", "bundle")


@command(
    "diagnose",
    "what is wrong with the communication of this node, why, and what to do",
    "Checks topology, bandwidth, patterns, InfiniBand and settings from the daemon's data; names "
    "part, cause and next step.",
    "commwatch diagnose; of the logs of a job, on any machine: commwatch diagnose --log job.out; "
    "what a change gained: commwatch diagnose --full-scan --json > before.json, again > after.json, then commwatch "
    "diagnose --compare before.json after.json",
    option(
        "--log", nargs="+", metavar="FILE", help="diagnose logs of a job instead: files, folders, patterns; -: stdin"
    ),
    option(
        "--settings",
        nargs="+",
        metavar="FILE",
        help="check NCCL settings on this machine instead: files named *.conf, output of env (-: stdin), or process "
        "numbers; values are not shown",
    ),
    option(
        "--flight-recorder",
        nargs="+",
        metavar="DUMP",
        help="judge dumps of PyTorch's Flight Recorder instead: for which rank the others wait; files, folders, "
        "patterns, or numbers of live processes (docs/using/flight-recorder.md)",
    ),
    option("--frames", action="store_true", help="of --flight-recorder also the places in the program"),
    option(
        "--compare",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="compare two outputs of --json instead; exit code 1: something got worse",
    ),
    option(
        "--profile",
        metavar="PROFILE",
        help=f"require a model: {PROFILES_HELP}; without it 7b and 235b are shown, none required",
    ),
    PURPOSE,
    STEP_TIME,
    group(
        "a full scan",
        option("--full-scan", action="store_true", help="run every probe now, repeat bad results, then check"),
        option("--gpus", metavar="0,1,...", help="with these GPUs only, by their NVML indexes"),
        IGNORE_SCHEDULER,
        option("--stress", metavar="TIME", help="then load all GPUs for 1s to 10m: does the bandwidth hold?"),
        description="Takes the GPUs, on a free node only; works without a daemon too. Prints one screen, progress on "
        "standard error.",
    ),
    option("-v", "--all", action="store_true", help="each check and finding separately, also what passed"),
    option("--marks", action="store_true", help="of a full scan also the table of checks against reference marks"),
    option("--report", metavar="FILE", type=Path, help="also write one HTML page for a ticket (.html)"),
    option(
        "--bundle",
        metavar="FILE",
        type=Path,
        help="collect what a vendor needs, without secrets (.tar.gz); contents: docs/using/diagnose.md",
    ),
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Ask, walk, print, and write the files that were asked for.

    Raises:
        UsageError: options do not go together.
        DaemonAbsent: no daemon runs, and no full scan was asked for.
        CommwatchError: it does not answer or is of another version, or a file cannot be written.
    """
    _check_together(args)
    check_files(args)
    if args.log:
        from commwatch.commands.diagnose_log import run_log

        return run_log(args.log, as_json=args.json)
    if args.settings:
        from commwatch.commands.diagnose_settings import run_settings

        return run_settings(args.settings, config, as_json=args.json)
    if args.flight_recorder:
        from commwatch.commands.diagnose_flight_recorder import run_flight_recorder

        return run_flight_recorder(args.flight_recorder, config, as_json=args.json, with_frames=args.frames)
    if args.compare:
        return _compare(args.compare, as_json=args.json)
    from commwatch.config.thresholds import load_thresholds
    from commwatch.diagnosis.marks.floors import read_floors
    from commwatch.diagnosis.marks.profiles import Asked, profile_of
    from commwatch.diagnosis.text import diagnosis_lines, screen_lines
    from commwatch.diagnosis.walk import diagnose

    floors = read_floors(Path(config.marks)) if config.marks else None
    known = _known(args, config, load_thresholds(config.thresholds))
    profile = profile_of(args.profile) if args.profile else None
    purpose: Purpose = getattr(args, "for") or "training"
    known = replace(known, asked=Asked(profile, args.step_time, purpose, floors))
    document = diagnose(known, "full" if args.full_scan else "quick")
    width = min(screen()[1] or WIDTH, _WIDEST)
    if args.full_scan and not args.all and not args.marks:
        lines = screen_lines(document, width=width)
    else:
        lines = diagnosis_lines(document, width=width, every=args.all)
    show(document, lines, as_json=args.json)
    write_files(args, config, known, document)
    return EXIT_CODES[document.verdict.word]


def _check_together(args: argparse.Namespace) -> None:
    """Refuse what would be passed over in silence.

    Raises:
        UsageError: options do not go together.
    """
    instead, of_node, of_probes = (
        [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, False, [])]
        for names in (_INSTEAD, _OF_NODE, _OF_PROBES)
    )
    if len(instead) > 1:
        raise UsageError(f"{' and '.join(instead)} do not go together: give them one after the other")
    if instead and of_node:
        raise UsageError(f"{', '.join(of_node)}: of this node, which {instead[0]} does not look at; leave out either")
    if of_probes and not args.full_scan:
        raise UsageError(f"{', '.join(of_probes)}: for --full-scan only")
    if args.frames and not args.flight_recorder:
        raise UsageError("--frames: for --flight-recorder only")
    if getattr(args, "for") and not args.profile:
        raise UsageError("--for says what a job does with the model of --profile; give both")


def _known(args: argparse.Namespace, config: Config, thresholds: Thresholds) -> Known:
    """The daemon's facts, with fresh probes if they are requested."""
    gpus = parse_gpus(args.gpus or "")
    if not args.full_scan:
        from commwatch.diagnosis.known import ask
        from commwatch.state.client import of_the_only_daemon

        return _with_job_evidence(ask(of_the_only_daemon(config), thresholds), config)
    from commwatch.diagnosis.full_scan import Scope
    from commwatch.diagnosis.stress_run import stress_seconds

    return scan(config, thresholds, Scope(gpus, args.ignore_scheduler, stress_seconds(args.stress)))


def _with_job_evidence(known: Known, config: Config) -> Known:
    """The facts with the word of each source on the jobs that move no data; none of a simulated node's are here."""
    from commwatch.diagnosis.jobs import jobs_with_a_finding, jobs_with_words
    from commwatch.jobs.asked import ProcessTable, ask_sources
    from commwatch.jobs.flight_recorder.asked import Dumps

    jobs = jobs_with_a_finding(known)
    if not jobs or known.snapshot.simulated is not None:
        return known
    _say("reading the processes of the job that moves no data: 4 s")
    procfs, said = Path(config.paths.procfs), jobs_with_words(known, "flight_recorder")
    sources = (ProcessTable(procfs, identity=config.jobs.identity), Dumps(procfs, said, known.other_processes))
    return replace(known, job_evidence=ask_sources(jobs, sources))


def scan(config: Config, thresholds: Thresholds, scope: Scope) -> Known:
    """A full scan, with or without a daemon.

    Raises:
        CommwatchError: this machine has no GPU, or the daemon does not answer.
    """
    from commwatch.diagnosis.full_scan import full_scan
    from commwatch.service.log import configure_logging
    from commwatch.service.without_daemon import read_without_daemon

    # A reader that fails and a finding that opens are in the answer.
    configure_logging(msgspec.structs.replace(config.log, level="error") if config.log.level == "info" else config.log)
    return full_scan(config, thresholds, read_without_daemon, scope)


def _compare(files: Sequence[str], *, as_json: bool) -> int:
    """Compare the earlier and the later one of two saved diagnoses, and print what changed."""
    from commwatch.diagnosis.compare import compared, comparison_lines

    told = compared(*map(read_diagnosis, files))
    show(told, comparison_lines(told, width=screen()[1] or WIDTH), as_json=as_json)
    return ExitCode.FOUND if told.is_worse else ExitCode.OK


def read_diagnosis(file: str) -> Diagnosis:
    """A saved diagnosis.

    Raises:
        UsageError: the file cannot be read, or is none.
    """
    from commwatch.diagnosis.document import DIAGNOSIS_SCHEMA, Diagnosis

    try:
        with open(file, "rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{file}: more than {_MOST_BYTES // 2**20} MiB; a diagnosis is smaller")
    try:
        return msgspec.json.decode(content, type=Diagnosis)
    except (ValueError, RecursionError) as error:
        expected = f"expected {DIAGNOSIS_SCHEMA}, what commwatch diagnose --json prints"
        raise UsageError(f"{file}: is no diagnosis ({error}); {expected}") from error


def check_files(args: argparse.Namespace) -> None:
    """Say before anything is measured whether the files can be written.

    Raises:
        BadOutput: one cannot be written.
    """
    from commwatch.diagnosis.output_file import check_output

    if args.report:
        check_output("--report", args.report, _REPORT_ENDINGS)
    if args.bundle:
        check_output("--bundle", args.bundle, _BUNDLE_ENDINGS)


def write_files(args: argparse.Namespace, config: Config, known: Known, document: Diagnosis) -> None:
    """Write what was asked for, and say so on standard error.

    Raises:
        BadOutput: a file could not be written.
    """
    if not args.report and not args.bundle:
        return
    identity = _identity(known)
    if args.report:
        _write_report(args.report, known, document, identity)
    if args.bundle:
        _write_bundle(args.bundle, config, known, document, identity)


def _identity(known: Known) -> Identity:
    """Of this node; of a simulated one without what is this machine's."""
    import platform
    import socket

    from commwatch.diagnosis.identity import identity_of

    simulated = known.snapshot.simulated
    if simulated is not None:
        return identity_of(known, f"simulated node {simulated}", "")
    return identity_of(known, socket.gethostname(), platform.release())


def _write_report(file: Path, known: Known, document: Diagnosis, identity: Identity) -> None:
    from commwatch.diagnosis.output_file import new_file
    from commwatch.diagnosis.report import report

    page = report(document, identity, known.thresholds.probe_bandwidth_utilization_low_ratio)
    with new_file("--report", file, _REPORT_MODE) as stream:
        stream.write(page.encode("utf-8", "backslashreplace"))
    _say(f"report written to {file}")


def _write_bundle(file: Path, config: Config, known: Known, document: Diagnosis, identity: Identity) -> None:
    from commwatch.diagnosis.bundle import LeftOut, Piece, document_pieces, matrix_pieces, write_bundle
    from commwatch.diagnosis.bundle_machine import machine_pieces
    from commwatch.diagnosis.output_file import new_file

    found = [
        *document_pieces(known, document, identity, config),
        *matrix_pieces(config),
        *machine_pieces(config, known, lambda what: _say(f"collecting {what}")),
    ]
    pieces = [one for one in found if isinstance(one, Piece)]
    left_out = [one for one in found if isinstance(one, LeftOut)]
    with new_file("--bundle", file, _BUNDLE_MODE) as stream:
        write_bundle(
            stream, pieces, left_out,
            host=identity.host, version=document.version, simulated=document.simulated, now=document.time,
        )  # fmt: skip
        size = stream.tell()
    out = f"; {len(left_out)} left out, MANIFEST.json says why" if left_out else ""
    _say(f"bundle written to {file}: {len(pieces)} files, {size / 1000:.0f} kB{out}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)

"""commwatch diagnose --report and --bundle: the diagnosis as a page for a ticket, and all that a vendor asks for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.config.settings import Config

if TYPE_CHECKING:
    from commwatch.diagnosis.document import Diagnosis
    from commwatch.diagnosis.identity import Identity
    from commwatch.diagnosis.known import Known

_REPORT_ENDINGS = (".html", ".htm")
_BUNDLE_ENDINGS = (".tar.gz", ".tgz")
_REPORT_MODE = 0o666
"""Less the umask, as with the output of any command: it is made to be sent."""
_BUNDLE_MODE = 0o600
"""It describes the whole node; who made it decides who sees it."""


def file_options(parser: argparse.ArgumentParser) -> None:
    """The options that name a file to write."""
    parser.add_argument("--report", metavar="FILE", type=Path, help="also write one HTML page for a ticket (.html)")
    parser.add_argument(
        "--bundle", metavar="FILE", type=Path,
        help="collect what a vendor needs, without secrets (.tar.gz); contents: docs/using/diagnose.md",
    )  # fmt: skip


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
    from commwatch.diagnosis.bundle import LeftOut, Piece, write_bundle
    from commwatch.diagnosis.bundle_documents import document_pieces, matrix_pieces
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

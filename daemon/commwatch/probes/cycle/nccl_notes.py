"""Reads NCCL's own log of a cycle: the settings in force, the transports, the warnings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from commwatch.jobs.logs.culprit import Finding, first_culprit
from commwatch.jobs.logs.lines import (
    LogLine,
    find_in_text,
    find_in_warning,
    parse_line,
    setting_of,
    transport_of,
)
from commwatch.lines import printable
from commwatch.probes.cycle.environment import OWN_NCCL_SETTINGS
from commwatch.probes.plan import NcclNotes
from commwatch.regular_file import open_regular

HEAD_BYTES = 1 << 20
TAIL_BYTES = 256 << 10
"""Bytes read from the end of a longer file: settings and transports are at its beginning, errors at its end."""

_LONGEST_LINE = 4096

MOST_FILES = 64
MOST_WARNINGS = 8
LONGEST_WARNING = 300
MOST_SETTINGS = 64
MOST_TRANSPORTS = 16
MOST_BYTES = 4 << 20
"""Of all files of a cycle: a hundred kilobytes a rank are usual."""
_MOST_VALUES = 8
"""Of one setting, one rank having another one than the next."""


def read_notes(folder: Path, ours: Collection[str] = OWN_NCCL_SETTINGS) -> NcclNotes:
    """Everything worth keeping of the files ``rank*.nccl`` in a cycle's folder; empty without any.

    A file that cannot be read, or is none (a link, a pipe), says nothing.

    Args:
        ours: names of the settings that commwatch gave the ranks; they are left out.
    """
    settings: dict[str, dict[str, None]] = {}
    transports: Counter[str] = Counter()
    warnings: dict[str, None] = {}
    findings: list[Finding] = []
    left = MOST_BYTES
    for path in sorted(folder.glob("rank*.nccl"), key=_order)[:MOST_FILES]:
        for line in _lines(path):
            left -= len(line)
            if left < 0:
                break
            if (parsed := parse_line(line)) is None:
                continue
            if parsed.level == "WARN":
                if (finding := find_in_warning(parsed)) is not None:
                    findings.append(finding)
                if len(warnings) < MOST_WARNINGS:
                    warnings.setdefault(_as_written(parsed))
            elif (setting := setting_of(parsed.message)) is not None:
                settings.setdefault(setting[0], {}).setdefault(printable(setting[1]))
            elif (transport := transport_of(parsed.message)) is not None:
                transports[transport] += 1
    foreign = {
        name: " | ".join(list(values)[:_MOST_VALUES]) for name, values in sorted(settings.items()) if name not in ours
    }
    return NcclNotes(
        settings=dict(list(foreign.items())[:MOST_SETTINGS]),
        transports=dict(transports.most_common(MOST_TRANSPORTS)),
        warnings=tuple(warnings),
        category=first_culprit(findings) or "",
    )


def category_of(text: str) -> str:
    """Category of the likeliest cause in the text of a rank's error; empty where it has nothing to do with NCCL."""
    category = first_culprit(find_in_text(text))
    return "" if category is None or category == "crash" else category


def _order(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


def _as_written(warning: LogLine) -> str:
    source = f"{warning.source} " if warning.source else ""
    return printable(f"{source}NCCL WARN {warning.message}"[:LONGEST_WARNING])


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(open_regular(path), "rb") as file:
            yield from _lines_of(file, HEAD_BYTES)
            size = os.fstat(file.fileno()).st_size
            if size > file.tell():
                file.seek(max(file.tell(), size - TAIL_BYTES))
                yield from _lines_of(file, TAIL_BYTES)
    except OSError:
        return


def _lines_of(file: BinaryIO, size: int) -> Iterator[str]:
    """The lines of about that many bytes; a longer one comes in pieces."""
    while size > 0 and (line := file.readline(_LONGEST_LINE)):
        size -= len(line)
        yield line.decode(errors="replace")

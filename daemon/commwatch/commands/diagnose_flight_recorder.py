"""commwatch diagnose --flight-recorder: why the ranks of a job wait, from dumps of PyTorch's Flight Recorder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.jobs.flight_recorder.files import find_files
from commwatch.jobs.flight_recorder.reading import read_dumps, read_processes
from commwatch.jobs.flight_recorder.verdict import Verdict, judge, ranks_text
from commwatch.lines import printable
from commwatch.units import utc
from commwatch.views.terminal import progress, show

if TYPE_CHECKING:
    from commwatch.lines import Line

SCHEMA = "commwatch-flight-recorder/1"
_SHOWN = 5
"""Verdicts that are shown; JSON has all."""
_PID = re.compile(r"[1-9]\d{0,9}\Z", re.ASCII)
_NEXT = {
    "metadata_mismatch": "Compare the places of these calls in the program (--frames): the ranks take different ways "
    "through it, or hold tensors of other sizes.",
    "deadlock": "Call the operations of these groups in the same order on all ranks (--frames shows the places).",
    "did_not_arrive": "Find out what these ranks do instead: commwatch diagnose on their nodes, py-spy dump by hand; "
    "--frames shows their last call.",
    "unresponsive": "See whether these processes are stopped or wait: commwatch diagnose on their nodes.",
    "missing_dump": "Collect the dumps of these ranks from their nodes, or see in their logs how they ended.",
    "data_path": "The program is in order: look for the fault in links and ports, with commwatch diagnose on the nodes "
    "of these ranks, and for NCCL's own errors with commwatch diagnose --log.",
}


class Answer(msgspec.Struct, frozen=True):
    schema: str
    dumps: int
    """That were read."""
    ranks: tuple[int, ...]
    """Of the dumps that were compared."""
    libraries: tuple[str, ...]
    """Versions of NCCL that they name."""
    verdicts: tuple[Verdict, ...]
    """The likeliest cause first; empty where no rank waits."""
    notes: tuple[str, ...]
    """What was left out and why, as sentences."""
    is_complete: bool = True
    """Whether all that was named could be read and compared: else an operation may wait that is not seen."""


def run_flight_recorder(names: Sequence[str], config: Config, *, as_json: bool, with_frames: bool) -> int:
    """Read dumps, judge and print.

    Args:
        names: files, folders and patterns; a number is a process, which is asked over its worker server.
        with_frames: show the places in the program.

    Returns:
        The exit code: 0 where no rank waits, 1 where one does, 3 where that is not known: no dump can be used, or none
        of those that can shows that a rank waits.

    Raises:
        UsageError: a name cannot be read.
    """
    pids = [int(name) for name in names if _PID.match(name) and not os.path.exists(name)]
    paths = [name for name in names if not (_PID.match(name) and not os.path.exists(name))]
    with progress("reading the dumps"):
        try:
            files, notes = find_files(paths)
            dumps, left_out = read_dumps(files)
        except OSError as error:
            why = f"{error.filename or 'the dumps'}: {error.strerror}"
            raise UsageError(f"{why}; name dumps, a folder with dumps, or the number of a process") from error
        live, unresponsive, not_asked = read_processes(pids, Path(config.paths.procfs)) if pids else ([], {}, [])
    dumps += live
    analysis = judge(dumps, unresponsive)
    answer = Answer(
        schema=SCHEMA,
        dumps=len(dumps),
        ranks=analysis.ranks,
        libraries=tuple(sorted({one.recording.library for one in dumps if one.recording.library})),
        verdicts=analysis.verdicts if with_frames else tuple(map(_without_frames, analysis.verdicts)),
        notes=(*notes, *left_out, *not_asked, *analysis.notes),
        is_complete=not (notes or left_out or not_asked or unresponsive or analysis.contradicting),
    )
    show(answer, answer_lines(answer), as_json=as_json)
    if answer.verdicts:
        return ExitCode.FOUND
    return ExitCode.OK if answer.ranks and answer.is_complete else ExitCode.NOT_KNOWN


def _without_frames(verdict: Verdict) -> Verdict:
    return msgspec.structs.replace(verdict, frames={})


def answer_lines(answer: Answer) -> Iterator[Line | str]:
    if not answer.ranks:
        yield [("Unknown: ", "yellow"), ("no dump can be used.", "")]
    elif not answer.verdicts and not answer.is_complete:
        known = "not all dumps can be used and compared, and in those that can no operation waits."
        yield [("Unknown: ", "yellow"), (known, "")]
    elif not answer.verdicts:
        yield [("OK: ", "green"), (f"no operation waits in the dumps of {ranks_text(answer.ranks)}.", "")]
        yield "  A recorder that retires its calls at their start shows no hang (docs/using/flight-recorder.md)."
    for place, one in enumerate(answer.verdicts[:_SHOWN]):
        sure = "" if one.is_certain else ", not certain"
        heading = "Verdict" if place == 0 else "Also"
        yield [(f"{heading}: ", "bold"), (f"{one.kind.replace('_', ' ')}{sure}", "red" if one.is_certain else "yellow")]
        yield f"  {printable(one.detail)}"
        yield f"  since: {utc(one.since)} by the clock of the first rank that waits"
        for frames, ranks in _by_place(one).items():
            yield f"  {ranks_text(ranks)}:"
            yield from (f"    {printable(frame)}" for frame in frames)
        yield f"  next: {_NEXT[one.kind]}"
    if len(answer.verdicts) > _SHOWN:
        yield f"{len(answer.verdicts) - _SHOWN} more verdicts; --json has them all"
    if answer.libraries:
        yield f"NCCL {', '.join(answer.libraries)}"
    for note in answer.notes:
        yield f"note: {printable(note)}"


def _by_place(verdict: Verdict) -> dict[tuple[str, ...], list[int]]:
    """Ranks by where they are in the program."""
    places: dict[tuple[str, ...], list[int]] = {}
    for rank, frames in verdict.frames.items():
        places.setdefault(frames, []).append(int(rank))
    return places

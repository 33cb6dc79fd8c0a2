"""commwatch score: how well the GPUs of this node communicate, and what reduced it."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from commwatch.commands.command import command
from commwatch.config.settings import Config
from commwatch.errors import ExitCode
from commwatch.findings.api_documents import ScoreDocument
from commwatch.findings.score.records import Loss, Part
from commwatch.findings.verdict import verdict_of
from commwatch.state.answer import document_of
from commwatch.state.client import DaemonAbsent, ask_daemon, of_the_only_daemon
from commwatch.state.directory import state_path
from commwatch.units import format_percent
from commwatch.views.terminal import print_json, print_table

DEADLINE_SECONDS = 1.5
"""With the start of Python it answers within 2 s."""
_SHOWN_FROM = 0.0005
"""Losses below it print as 0.000."""
_NEXT_BELOW = 0.9
_NEXT_SHOWN = 5
"""The largest number of readings below the ratio that are shown although they cost nothing yet."""


@command(
    "score",
    "how well the GPUs communicate, from 0 to 1, and what reduced it",
    "Prints the daemon's communication score: bandwidth, latency, balance and stability with weight and value, and "
    "what reduced it. Where no daemon runs, the node is measured by a full scan first, which takes its GPUs.",
    "commwatch score --json",
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Ask the daemon, or measure where there is none, and print.

    Raises:
        CommwatchError: it does not answer, or is of another version; without one, there is no GPU to measure.
    """
    try:
        answer = ask_daemon(state_path(of_the_only_daemon(config)), "score", DEADLINE_SECONDS)
    except DaemonAbsent:
        answer = _measured(config)
    document = document_of(answer, ScoreDocument)
    if args.json:
        print_json(answer)
    else:
        _print(document)
    if document.score.ratio is None:
        return ExitCode.NOT_KNOWN
    return ExitCode.FOUND if document.score.word == "needs work" else ExitCode.OK


def _measured(config: Config) -> dict[str, Any]:
    """The document of a full scan, as a daemon would have it after its first probes."""
    from commwatch.commands.diagnose import scan
    from commwatch.config.thresholds import load_thresholds
    from commwatch.diagnosis.full_scan import Scope

    known = scan(config, load_thresholds(config.thresholds), Scope())
    verdict = verdict_of(known.findings, known.findings.time)
    return msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(known.score, verdict=verdict)), type=dict)


def _print(document: ScoreDocument) -> None:
    score = document.score
    if document.simulated is not None:
        print(f"Simulated node {document.simulated}: none of this is real.\n")
    if document.maintenance is not None:
        print(f"The daemon is paused ({document.maintenance}): nothing new is measured.\n")
    if document.verdict is not None:
        print(f"{document.verdict.word}: {document.verdict.line}")
    shown = "not measured" if score.ratio is None else f"{score.ratio:.2f}, {score.word}"
    print(f"Communication score: {shown}")
    for job in score.jobs:
        use = ", ".join(f"{what} {format_percent(ratio)}" for what, ratio in job.use.items())
        print(f"{job.name}: {job.word} (last 10 min: {use})" if use else f"{job.name}: {job.word}")
    print()
    print_table("Parts", ("part", "share", "value"), [_part_row(part) for part in score.parts])
    for part in score.parts:
        if part.missing:
            print(f"{part.name}: not measured; it takes {part.missing}")
    rows = [_loss_row(loss) for loss in _worth_showing(score.losses)]
    if rows:
        print()
        print_table("Score reduced by", ("reduced by", "part", "where", "what"), rows)


def _part_row(part: Part) -> tuple[str, str, str]:
    if part.ratio is None:
        return part.name, "-", "-"
    return part.name, format_percent(part.weight), f"{part.ratio:.2f}"


def _worth_showing(losses: tuple[Loss, ...]) -> list[Loss]:
    """The losses that reduce the score, and the worst of those that come next."""
    cost = [loss for loss in losses if loss.lost >= _SHOWN_FROM]
    coming = [loss for loss in losses if loss.lost == 0.0 and loss.ratio < _NEXT_BELOW]
    return cost + coming[:_NEXT_SHOWN]


def _loss_row(loss: Loss) -> tuple[str, str, str, str]:
    lost = f"{loss.lost:.3f}" if loss.lost else "next"
    return lost, loss.heading, loss.subject, loss.words

"""What became of the probes of a full scan: those that did not run, failed, or were bad once and well again; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Known
from commwatch.probes.plan import Failed, Measured, Skipped, Yielded

if TYPE_CHECKING:
    from commwatch.commands.probe_answer import Answer

_WHAT = "fresh probe"
_BAD = frozenset({"low", "slow", "failed"})
"""Verdicts that ``commwatch probe`` ends with exit code 1 for."""


def scanned(known: Known) -> Iterator[Check]:
    """One line for each probe that failed or changed its mind, and one for each reason for which others did not run."""
    by_probe: dict[str, list[Answer]] = {}
    for answer in known.scanned:
        by_probe.setdefault(answer.probe, []).append(answer)
    unrun: dict[str, list[str]] = {}
    for name, answers in by_probe.items():
        last = answers[-1].result
        if isinstance(last, Skipped | Yielded) and not any(isinstance(one.result, Measured) for one in answers):
            word = "skipped" if isinstance(last, Skipped) else "gave way"
            unrun.setdefault(f"{word}: {last.reason}: {last.detail}", []).append(name)
        elif isinstance(last, Failed):
            yield _failed(name, answers, last)
        elif any(one.verdict in _BAD for one in answers[:-1]) and answers[-1].verdict not in _BAD:
            yield _once(name, answers)
    for reason, names in unrun.items():
        here = all(by_probe[name][-1].has_no_place_here for name in names)
        yield Check(
            branch="pattern",
            what=_WHAT,
            where=", ".join(names),
            verdict="does not apply" if here else "not measured",
            detail=f"{reason[0].upper()}{reason[1:]}",
        )


def _failed(name: str, answers: Sequence[Answer], last: Failed) -> Check:
    times = sum(isinstance(one.result, Failed) for one in answers)
    often = f"{times} of {len(answers)} times in this scan" if len(answers) > 1 else "tried once"
    return Check(
        branch="pattern",
        what=_WHAT,
        where=name,
        measured=f"failed: {last.reason}",
        required="a result",
        verdict="failed",
        detail=f"{last.detail}; {often}",
        next_step="Read what NCCL said in the log, and look at the GPU and the links of the rank that is named.",
    )


def _once(name: str, answers: Sequence[Answer]) -> Check:
    bad = sum(one.verdict in _BAD for one in answers)
    words = {one.verdict for one in answers if one.verdict in _BAD}
    return Check(
        branch="pattern",
        what=_WHAT,
        where=name,
        measured=f"{' and '.join(sorted(words))} {bad} of {len(answers)} times",
        required="well each time",
        verdict="notice",
        detail="It was well again when it was measured again: no streak, and no finding of this scan",
        next_step="Scan again later; what comes and goes is often other load on this node.",
    )

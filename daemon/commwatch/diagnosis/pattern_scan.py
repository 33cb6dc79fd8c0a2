"""What became of the probes of a full scan: those that did not run, failed, or were bad once and well again; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.outcomes import OWN_FAILURES, why_not
from commwatch.probes.plan import Failed, Measured

if TYPE_CHECKING:
    from commwatch.probes.by_hand.answer import Answer

FRESH_PROBE = "fresh probe"
"""What a check of a probe of this scan is called."""


def scanned(known: Known) -> Iterator[Check]:
    """One line for each probe that failed or was bad at times, and one for each reason for which others did not run.

    One more where the daemon did not answer after the scan.
    """
    if known.lost:
        yield _lost(known.lost)
    by_probe: dict[str, list[Answer]] = {}
    for answer in known.scanned:
        by_probe.setdefault(answer.probe, []).append(answer)
    unrun: dict[str, list[str]] = {}
    for name, answers in by_probe.items():
        told = [one for one in answers if isinstance(one.result, Measured | Failed)]
        last = told[-1].result if told else None
        if last is None or (isinstance(last, Failed) and last.reason in OWN_FAILURES):
            unrun.setdefault(why_not(answers[-1].result), []).append(name)
        elif isinstance(last, Failed):
            yield _failed(name, told, last)
        elif any(one.is_bad for one in told) and (not told[-1].is_bad or told[-1] is not answers[-1]):
            yield _sometimes(name, answers, told)
    for reason, names in unrun.items():
        here = all(by_probe[name][-1].has_no_place_here for name in names)
        yield Check(
            branch="pattern",
            what=FRESH_PROBE,
            where=", ".join(names),
            verdict="does not apply" if here else "not measured",
            detail=reason,
        )


def _lost(why: str) -> Check:
    return Check(
        branch="pattern",
        what="daemon after the scan",
        measured="no answer",
        required="an answer",
        verdict="notice",
        detail=f"{why}: counters, settings, score and findings that are not of this scan are from before it",
        next_step="Read the log of the daemon, start it, and scan again.",
    )


def _failed(name: str, answers: Sequence[Answer], last: Failed) -> Check:
    times = sum(isinstance(one.result, Failed) for one in answers)
    often = f"{times} of {len(answers)} times in this scan" if len(answers) > 1 else "tried once"
    return Check(
        branch="pattern",
        what=FRESH_PROBE,
        where=name,
        measured=f"failed: {last.reason}",
        required="a result",
        verdict="failed",
        detail=f"{last.detail}; {often}",
        next_step="Read what NCCL said in the log, and look at the GPU and the links of the rank that is named.",
    )


def _sometimes(name: str, answers: Sequence[Answer], told: Sequence[Answer]) -> Check:
    """Bad, and then well again or not measured any more: no streak either way."""
    bad = sum(one.is_bad for one in told)
    words = sorted({one.verdict for one in told if one.is_bad})
    detail = "It was well again when it was measured again: no streak, and no finding of this scan"
    if told[-1] is not answers[-1]:
        detail = f"It could not be measured again, and there is no streak. {why_not(answers[-1].result)}"
    return Check(
        branch="pattern",
        what=FRESH_PROBE,
        where=name,
        measured=f"{' and '.join(words)} {bad} of {len(told)} times",
        required="well each time",
        verdict="notice",
        detail=detail,
        next_step="Scan again later; what comes and goes is often other load on this node.",
    )

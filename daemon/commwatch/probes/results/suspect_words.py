"""A suspect with the words for it, from what explains the slow cells of a pair matrix; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from commwatch.node.topology.pair_matrix import Quantity, Suspect
from commwatch.node.topology.ways import Candidate, Cell, Element, Parts
from commwatch.probes.results.cells import Slowness
from commwatch.probes.results.explanation import Explained

SURE = 0.8
"""From this confidence on the words state that nothing else explains it."""


@dataclass(frozen=True, slots=True)
class Found:
    """An explanation of slow cells, and the measurements that show it."""

    explained: Explained
    quantity: Quantity
    against: str
    matrices: tuple[Slowness, ...]


def suspect_of(found: Found, parts: Parts) -> Suspect:
    """The most likely part for the labels; the words name all parts that pairs cannot distinguish from it."""
    explained = found.explained
    kind, element = _labels(explained.candidate, parts)
    measured, slow = _measured_and_slow(found)
    return Suspect(
        kind=kind,
        element=element,
        confidence=explained.confidence,
        slowdown=math.exp(explained.slowness),
        quantity=found.quantity,
        cells=slow,
        words=_words(found, parts, len(measured), len(slow)),
    )


def _labels(candidate: Candidate, parts: Parts) -> tuple[str, str]:
    """Kind and name of the most likely part; two GPUs without any other peer are named as their pair."""
    first = candidate.elements[0]
    if [one.kind for one in candidate.elements[:2]] == ["gpu", "gpu"]:
        return "pair", "-".join(parts.names[place] for place in sorted(candidate.cells[0]))
    return first.kind, first.name


def _measured_and_slow(found: Found) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Of the candidate's cells those that were measured, and those that are slow in more than half of the matrices."""
    measured, slow = [], []
    for cell in found.explained.candidate.cells:
        values = [one[cell] for one in found.matrices if cell in one]
        if values:
            measured.append(cell)
            if sorted(values)[(len(values) - 1) // 2] >= found.explained.slowness / 2:
                slow.append(cell)
    return tuple(measured), tuple(slow)


def _words(found: Found, parts: Parts, measured: int, slow: int) -> str:
    explained = found.explained
    candidate = explained.candidate
    what = _called(candidate.elements) + _one_way(candidate, parts)
    each = "its path" if measured == 1 else f"{slow} of its {measured} paths between two GPUs"
    verb = "carries" if measured == 1 else "carry"
    if found.quantity == "latency":
        verb = "takes" if measured == 1 else "take"
        evidence = f"{each} {verb} {math.exp(explained.slowness):.1f} times as long for a small message"
        evidence += f" as {_past(found.against)}"
    else:
        evidence = f"{each} {verb} {100 * math.exp(-explained.slowness):.0f} % of {found.against}"
    count = len(found.matrices)
    seen = f"{count} times in a row" if count > 1 else "measured once"
    return f"{what}: {evidence}, {seen}; {_rivals(explained)}. {_checks(candidate.elements)}"


def _past(against: str) -> str:
    return {"what they used to do": "it used to", "what the others do": "the others"}[against]


def _called(elements: Sequence[Element]) -> str:
    """The parts that pairs cannot distinguish, as the beginning of a sentence."""
    names = [one.called for one in elements]
    shown = names[:3]
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more on the same pairs")
    text = " or ".join(shown)
    return text[0].upper() + text[1:]


def _one_way(candidate: Candidate, parts: Parts) -> str:
    if not candidate.one_way:
        return ""
    sources, targets = ({cell[end] for cell in candidate.cells} for end in (0, 1))
    if len(sources) > 1 and len(targets) > 1:
        return ", one direction only"
    first, second = (parts.names[next(iter(ends))] if len(ends) == 1 else "the others" for ends in (sources, targets))
    return f", only from {first} to {second}"


def _rivals(explained: Explained) -> str:
    if explained.candidate.is_pair:
        return "nothing on the way that other pairs use is slow"
    if explained.confidence >= SURE or explained.next_best is None:
        return "no other part explains them"
    rival = explained.next_best.elements[0]
    if rival in explained.candidate.elements:  # one direction of it
        return "no part but these explains them"
    return f"next best explanation: {rival.called}"


def _checks(elements: Sequence[Element]) -> str:
    checks = [one.check for one in elements if one.check][:2]
    return f"Check {'; '.join(checks)}" if checks else "Check the parts that are on its path alone"

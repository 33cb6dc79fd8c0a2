"""The part that slow cells of the last pair matrices have in common, how sure that is, and the words for it; pure.

docs/culprit.md explains the model and has the measured confusion table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from commwatch.analysis.cells import (
    LogTimes,
    Slowness,
    against_expected,
    against_history,
    against_peers,
    best_of,
    combined,
    expected_times,
    log_times,
    rounds_of,
    usual,
    without_ramp,
)
from commwatch.analysis.explanation import Explained, Search, SearchRule
from commwatch.analysis.pair_matrix import PairMatrix, Quantity, Suspect
from commwatch.analysis.ways import Candidate, Cell, Element, PairWay, Passage, Ways, candidates, in_some_of_their_peers

__all__ = [
    "MATRICES",
    "Element",
    "PairWay",
    "Parts",
    "Passage",
    "Past",
    "Ways",
    "comparable",
    "find_suspects",
    "keep_good",
    "past_of",
]

MATRICES: Final = 3
"""In a row that must show the same part."""
CLASS_SHARE_MAX = 0.75
"""A part that touches more of a class of peers cannot be seen against them."""
FIRST_KEPT: Final = 4
LATEST_KEPT: Final = 8
SURE = 0.8
"""From this confidence on the words say that nothing else explains it."""

_BANDWIDTHS: tuple[Quantity, ...] = ("bandwidth", "both_ways")
_LATENCY: tuple[Quantity, ...] = ("latency",)

BANDWIDTH_RULE = SearchRule(slow=math.log(1.18), slow_pair=math.log(1.28), deviation=0.06, lone_cell=True)
"""A part on several pairs counts from 85 % of the bandwidth downwards, a single pair from 78 %."""
LATENCY_RULE = SearchRule(slow=math.log(1.5), slow_pair=math.log(1.8), deviation=0.12, lone_cell=False)
"""A small message counts from 1.5 times on (design), and from 1.8 times for a single pair."""


@dataclass(frozen=True)
class Parts:
    """The parts of one node, prepared for the search: made once for a topology."""

    ways: Ways
    """Of every ordered pair, by places in the endpoints; empty where no topology is known."""
    names: tuple[str, ...]
    """What a sentence calls each end: ``GPU3``."""

    def _name(self, place: int) -> str:
        return self.names[place]

    @cached_property
    def known(self) -> Ways:
        """The ways; without a topology those of a node about which only its pairs are known."""
        if self.ways:
            return self.ways
        places = range(len(self.names))
        return {(source, target): PairWay((), "") for source in places for target in places if source != target}

    @cached_property
    def all(self) -> tuple[Candidate, ...]:
        """For cells that are held against what they used to be."""
        return candidates(self.known, self._name)

    @cached_property
    def among_peers(self) -> tuple[Candidate, ...]:
        """For cells that are held against each other."""
        return candidates(self.known, self._name, in_some_of_their_peers(self.known, CLASS_SHARE_MAX))


@dataclass(frozen=True, slots=True)
class _Found:
    explained: Explained
    quantity: Quantity
    against: str
    matrices: tuple[Slowness, ...]


def comparable(first: PairMatrix, second: PairMatrix) -> bool:
    """Whether two matrices are of one series: same GPUs, backend, sizes, NCCL version and settings."""
    return _conditions(first) == _conditions(second)


def _conditions(matrix: PairMatrix) -> tuple[object, ...]:
    return (
        matrix.backend,
        matrix.nccl_version,
        matrix.settings_digest,
        matrix.latency_bytes,
        matrix.bandwidth_bytes,
        tuple((one.label, one.device) for one in matrix.endpoints),
    )


@dataclass(frozen=True, slots=True)
class Past:
    """What the cells of one series of matrices usually take."""

    conditions: tuple[object, ...]
    usually: Mapping[Quantity, LogTimes]


_NOTHING: Mapping[Quantity, LogTimes] = {"bandwidth": {}, "both_ways": {}, "latency": {}}


def past_of(good: Sequence[PairMatrix]) -> Past | None:
    """What good matrices of one series say of its cells; None without any.

    Args:
        good: as ``keep_good`` keeps them. What the first ones say counts as long as the latest are no better, so that a
            slow decline does not become the measure of itself.
    """
    if not good:
        return None
    usually = {}
    for quantity in (*_BANDWIDTHS, *_LATENCY):
        times = [log_times(one, quantity) for one in good]
        usually[quantity] = best_of(usual(times[:FIRST_KEPT]), usual(times[FIRST_KEPT:]))
    return Past(_conditions(good[-1]), usually)


def keep_good(good: Sequence[PairMatrix], matrix: PairMatrix) -> tuple[PairMatrix, ...]:
    """The good matrices to hold later ones against, with a new one: the first few of its series, and the latest."""
    series = [*(one for one in good if comparable(one, matrix)), matrix]
    return tuple(series[:FIRST_KEPT] + series[FIRST_KEPT:][-LATEST_KEPT:])


def find_suspects(
    matrices: Sequence[PairMatrix],
    parts: Parts,
    past: Past | None = None,
    *,
    firm_expected: bool = False,
    fewest: int = MATRICES,
) -> tuple[Suspect, ...]:
    """The parts that explain the slow cells of the last matrices; the surest first, empty where nothing is slow.

    Bandwidth decides, one way and both ways together; latency is looked at where bandwidth shows nothing. A cell is
    slow against its own history where there is one, and in any case against its peers.

    Args:
        matrices: the last ones, oldest first, all still current; those before the last that are not comparable with
            it end the row.
        parts: of the same endpoints.
        past: what the cells usually take; of another series it is left out of account.
        firm_expected: the expected bandwidths are configured or a reference: then a class of ways that is slow as a
            whole counts from the first day on.
        fewest: matrices in a row that must show it; one asks whether there is anything to look at again.
    """
    row = _row(matrices, fewest)
    if not row:
        return ()
    usually = past.usually if past is not None and past.conditions == _conditions(row[-1]) else _NOTHING
    for quantities, rule in ((_BANDWIDTHS, BANDWIDTH_RULE), (_LATENCY, LATENCY_RULE)):
        found = _against_the_past(row, parts, quantities, usually, rule)
        if not found and firm_expected and quantities == _BANDWIDTHS and not usually["bandwidth"]:
            found = _against_expectation(row, parts, rule)
        found += _among_peers(row, parts, quantities, usually, rule, found)
        if found:
            suspects = [_suspect(one, parts) for one in found]
            return tuple(sorted(suspects, key=lambda one: (-one.confidence, -one.slowdown, one.kind, one.element)))
    return ()


def _row(matrices: Sequence[PairMatrix], fewest: int) -> list[PairMatrix]:
    """The last so many matrices; empty where there are not as many of one series."""
    row = list(matrices[-fewest:])
    return row if len(row) == fewest and all(comparable(one, row[-1]) for one in row) else []


def _against_the_past(
    row: Sequence[PairMatrix],
    parts: Parts,
    quantities: Sequence[Quantity],
    usually: Mapping[Quantity, LogTimes],
    rule: SearchRule,
) -> list[_Found]:
    if not usually[quantities[0]]:
        return []

    def judge(matrix: PairMatrix, quantity: Quantity) -> Slowness:
        return against_history(log_times(matrix, quantity), usually[quantity])

    slowness = tuple(combined(one, quantities, judge) for one in row)
    return _search(slowness, parts.all, rule, quantities[0], "what they used to do")


def _against_expectation(row: Sequence[PairMatrix], parts: Parts, rule: SearchRule) -> list[_Found]:
    slowness = []
    for one in row:
        judged = against_expected(log_times(one, "bandwidth"), expected_times(one), parts.known)
        if judged is None:
            return []
        slowness.append(judged)
    alone = SearchRule(rule.slow, rule.slow_pair, rule.deviation, lone_cell=False)
    return _search(tuple(slowness), parts.all, alone, "bandwidth", "what is expected")


def _among_peers(
    row: Sequence[PairMatrix],
    parts: Parts,
    quantities: Sequence[Quantity],
    usually: Mapping[Quantity, LogTimes],
    rule: SearchRule,
    found: Sequence[_Found],
) -> list[_Found]:
    """What is slow against its peers and not explained yet: a fault of the first day has no better past."""
    explained = {cell for one in found for cell in one.explained.candidate.cells}

    def judge(matrix: PairMatrix, quantity: Quantity) -> Slowness:
        peers = against_peers(log_times(matrix, quantity), usually[quantity], parts.known)
        risen = without_ramp(peers, rounds_of(matrix))
        return {cell: value for cell, value in risen.items() if cell not in explained}

    slowness = tuple(combined(one, quantities, judge) for one in row)
    return _search(slowness, parts.among_peers, rule, quantities[0], "what the others do")


def _search(
    slowness: tuple[Slowness, ...], among: Sequence[Candidate], rule: SearchRule, quantity: Quantity, against: str
) -> list[_Found]:
    if not all(any(value >= rule.slow for value in one.values()) for one in slowness):
        return []
    return [_Found(one, quantity, against, slowness) for one in Search(slowness, rule, among).explain()]


# --- words ---


def _suspect(found: _Found, parts: Parts) -> Suspect:
    explained = found.explained
    first = explained.candidate.elements[0]
    measured, slow = _measured_and_slow(found)
    return Suspect(
        kind=first.kind,
        element=first.name,
        confidence=explained.confidence,
        slowdown=math.exp(explained.slowness),
        cells=slow,
        words=_words(found, parts, len(measured), len(slow)),
    )


def _measured_and_slow(found: _Found) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Of the candidate's cells those that were measured, and those that are slow in more than half of the matrices."""
    measured, slow = [], []
    for cell in found.explained.candidate.cells:
        values = [one[cell] for one in found.matrices if cell in one]
        if values:
            measured.append(cell)
            if sorted(values)[(len(values) - 1) // 2] >= found.explained.slowness / 2:
                slow.append(cell)
    return tuple(measured), tuple(slow)


def _words(found: _Found, parts: Parts, measured: int, slow: int) -> str:
    explained = found.explained
    candidate = explained.candidate
    what = _called(candidate.elements) + _one_way(candidate, parts)
    each = "its way" if measured == 1 else f"{slow} of its {measured} ways between two GPUs"
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
    """The parts that pairs cannot tell apart, as a sentence begins with them."""
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
    return f"next best explanation: {explained.next_best.elements[0].called}"


def _checks(elements: Sequence[Element]) -> str:
    checks = [one.check for one in elements if one.check][:2]
    return f"Check {'; '.join(checks)}" if checks else "Check the parts that are on its way alone"

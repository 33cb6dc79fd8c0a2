"""The part that slow cells of the last pair matrices have in common, and how sure that is; pure.

docs/using/culprit.md explains the model and says how often it is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from commwatch.node.topology.pair_matrix import PairMatrix, Quantity, Suspect
from commwatch.node.topology.ways import Candidate, Cell, Parts
from commwatch.probes.results.cells import (
    LogTimes,
    Slowness,
    against_expected,
    against_history,
    against_peers,
    best_of,
    combined,
    expected_times,
    log_times,
    usual,
    without_ramp,
)
from commwatch.probes.results.explanation import Search, SearchRule
from commwatch.probes.results.suspect_words import Found, suspect_of

MATRICES: Final = 3
"""In a row that must show the same part."""
FIRST_KEPT: Final = 4
LATEST_KEPT: Final = 8

BANDWIDTH_RULE = SearchRule(("bandwidth", "both_ways"), slow=math.log(1.18), slow_pair=math.log(1.28), deviation=0.06)
"""A part on several pairs counts from 85 % of the bandwidth downwards, a single pair from 78 %."""
LATENCY_RULE = SearchRule(("latency",), slow=math.log(1.5), slow_pair=math.log(1.8), deviation=0.12)
"""A small message counts from 1.5 times on (design), and from 1.8 times for a single pair."""


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


def _usual_times(good: Sequence[PairMatrix], quantity: Quantity) -> LogTimes:
    """By the good matrices of one series, as ``keep_good`` keeps them.

    The first ones count as long as the latest are no better, so that a slow decline does not become its own reference.
    """
    times = [log_times(one, quantity) for one in good]
    return best_of(usual(times[:FIRST_KEPT]), usual(times[FIRST_KEPT:]))


def keep_good(good: Sequence[PairMatrix], matrix: PairMatrix) -> tuple[PairMatrix, ...]:
    """The good matrices to hold later ones against, with a new one: the first few of its series, and the latest."""
    series = [*(one for one in good if comparable(one, matrix)), matrix]
    return tuple(series[:FIRST_KEPT] + series[FIRST_KEPT:][-LATEST_KEPT:])


def find_suspects(
    matrices: Sequence[PairMatrix],
    parts: Parts,
    good: Sequence[PairMatrix] = (),
    *,
    firm_expected: bool = False,
    fewest: int = MATRICES,
) -> tuple[Suspect, ...]:
    """The parts that explain the slow cells of the last matrices; the surest first, empty where nothing is slow.

    Bandwidth decides, one way and both ways together; latency is used if bandwidth shows nothing. A cell is slow
    against its own history where there is one, and in any case against its peers.

    Args:
        matrices: the last ones, oldest first, all still current; those before the last that are not comparable with
            it end the row.
        good: earlier ones, as ``keep_good`` keeps them, for the usual times of the cells; ignored if of another series.
        firm_expected: the expected bandwidths are configured or a reference: then a class of ways that is slow as a
            whole counts from the first day on.
        fewest: matrices in a row that must show it; one is enough for a first suspicion.
    """
    row = _row(matrices, fewest)
    found = _found_in(row, parts, good, (BANDWIDTH_RULE, LATENCY_RULE), firm_expected) if row else []
    suspects = [suspect_of(one, parts) for one in found]
    return tuple(sorted(suspects, key=lambda one: (-one.confidence, -one.slowdown, one.kind, one.element)))


def looks_slow(
    matrix: PairMatrix, parts: Parts, good: Sequence[PairMatrix] = (), *, firm_expected: bool = False
) -> bool:  # fmt: skip
    """Whether a matrix should be repeated soon, and must not become a reference for later ones.

    The bar is lower than for naming a part: one matrix is never enough evidence on a single pair.

    Args:
        matrix: the newest one; the rest as for ``find_suspects``.
    """
    bandwidth, latency = (replace(one, gain_least=0.0) for one in (BANDWIDTH_RULE, LATENCY_RULE))
    return bool(_found_in([matrix], parts, good, (bandwidth, latency), firm_expected))


def slower_than_before(
    beside: PairMatrix, good: Sequence[PairMatrix], least: float = BANDWIDTH_RULE.slow_pair
) -> tuple[Cell, ...]:
    """The pairs of a few, measured once both ways, that are slower than in the good matrices by what a slow pair is.

    It names nothing: it is worth a whole matrix. Empty without a good matrix of the same conditions.

    Args:
        good: as ``keep_good`` keeps them.
        least: by which a pair is slower, as the logarithm of the factor.
    """
    before: dict[Cell, list[float]] = {}
    for one in good:
        if comparable(one, beside):
            for cell, value in log_times(one, "both_ways").items():
                before.setdefault(cell, []).append(value)
    now = log_times(beside, "both_ways")
    return tuple(cell for cell, value in now.items() if cell in before and value - median(before[cell]) >= least)


def _found_in(
    row: Sequence[PairMatrix],
    parts: Parts,
    good: Sequence[PairMatrix],
    rules: tuple[SearchRule, SearchRule],
    firm_expected: bool,
) -> list[Found]:
    """The parts that explain the slow cells of comparable matrices, by the rules for bandwidth and for latency."""
    known = good if good and comparable(good[-1], row[-1]) else ()
    for rule in rules:
        usually = {one: _usual_times(known, one) for one in rule.quantities}
        found = _against_the_past(row, parts, usually, rule)
        if not found and firm_expected and rule.quantities[0] == "bandwidth" and not usually["bandwidth"]:
            found = _against_expectation(row, parts, rule)
        found += _among_peers(row, parts, usually, rule, found)
        if found:
            return found
    return []


def _row(matrices: Sequence[PairMatrix], fewest: int) -> list[PairMatrix]:
    """The last ``fewest`` matrices; empty if there are fewer of one series."""
    row = list(matrices[-fewest:])
    return row if len(row) == fewest and all(comparable(one, row[-1]) for one in row) else []


def _against_the_past(
    row: Sequence[PairMatrix], parts: Parts, usually: Mapping[Quantity, LogTimes], rule: SearchRule
) -> list[Found]:
    if not usually[rule.quantities[0]]:
        return []

    def judge(matrix: PairMatrix, quantity: Quantity) -> Slowness:
        return against_history(log_times(matrix, quantity), usually[quantity])

    slowness = tuple(combined(one, rule.quantities, judge) for one in row)
    return _search(slowness, parts.all, rule, "what they used to do")


def _against_expectation(row: Sequence[PairMatrix], parts: Parts, rule: SearchRule) -> list[Found]:
    slowness = []
    for one in row:
        judged = against_expected(log_times(one, "bandwidth"), expected_times(one), parts.known)
        if judged is None:
            return []
        slowness.append(judged)
    # Nothing is expected of both ways at once, which is the second measurement of a cell.
    return _search(tuple(slowness), parts.all, replace(rule, quantities=("bandwidth",)), "what is expected")


def _among_peers(
    row: Sequence[PairMatrix],
    parts: Parts,
    usually: Mapping[Quantity, LogTimes],
    rule: SearchRule,
    found: Sequence[Found],
) -> list[Found]:
    """Parts that are slow against their peers and not explained yet: a fault since the first day has no better past."""
    explained = {cell for one in found for cell in one.explained.candidate.cells}

    def judge(matrix: PairMatrix, quantity: Quantity) -> Slowness:
        peers = against_peers(log_times(matrix, quantity), usually[quantity], parts.known)
        risen = without_ramp(peers, matrix)
        return {cell: value for cell, value in risen.items() if cell not in explained}

    slowness = tuple(combined(one, rule.quantities, judge) for one in row)
    return _search(slowness, parts.among_peers, rule, "what the others do")


def _search(slowness: tuple[Slowness, ...], among: Sequence[Candidate], rule: SearchRule, against: str) -> list[Found]:
    if not all(any(value >= rule.slow for value in one.values()) for one in slowness):
        return []
    return [Found(one, rule.quantities[0], against, slowness) for one in Search(slowness, rule, among).explain()]

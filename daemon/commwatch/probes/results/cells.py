"""How much slower each cell of a pair matrix is than it should be, by its past, its peers or an expectation; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import TypeAlias

from commwatch.node.topology.pair_matrix import PairMatrix, Quantity
from commwatch.node.topology.ways import Cell, Ways

LogTimes: TypeAlias = dict[Cell, float]
"""Natural logarithm of the time that a cell takes, up to a constant: of a latency, or of the inverse of a bandwidth."""
Slowness: TypeAlias = dict[Cell, float]
"""Natural logarithm of time over what it should be: 0.357 for 70 % of the bandwidth."""

HISTORY_MIN = 3
"""Good matrices before a cell's own history is a reference."""
PEER_QUANTILE = 0.25
"""Of the times of a class: its reference. Below the median: a fault may slow half of a class (one GPU of four)."""
STATIC_ALLOWANCE = math.log(1.12)
"""Most of a cell's usual distance from its peers that is accepted as the machine's own; the excess stays visible."""
LONE_SPIKE_SHARE = 0.15
"""One of two measurements of a cell may exceed the other by at most this: a spike hits one, a fault both."""
RAMP_MAX = math.log(1.35)
"""Most of the common slowness of a first round's pairs that is attributed to clocks that were not up yet."""
RAMP_DECAY = 0.3
"""The least share of the ramp that remains in the next round: the next round shows whether it was a slow pair."""
RAMP_FLOOR = 0.05
"""Of a ramp that the next round does not show any more."""
EXPECTED_SHARE_LOW = 0.60
"""A whole class below this share of a firm expectation is slow as a class (design: degraded below 60 %)."""


def log_times(matrix: PairMatrix, quantity: Quantity) -> LogTimes:
    """A matrix's logarithms of times for a quantity; cells that were not measured are left out."""
    sign = 1 if quantity == "latency" else -1
    return {pair: sign * math.log(value) for pair, value in matrix.values(quantity).items() if value > 0}


def usual(times: Sequence[LogTimes]) -> LogTimes:
    """Median over matrices, for cells with enough of them."""
    if len(times) < HISTORY_MIN:
        return {}
    found: dict[Cell, list[float]] = {}
    for one in times:
        for cell, value in one.items():
            found.setdefault(cell, []).append(value)
    return {cell: median(values) for cell, values in found.items() if len(values) >= HISTORY_MIN}


def best_of(first: LogTimes, second: LogTimes) -> LogTimes:
    """The shorter time of each cell that one of them has."""
    return {cell: min(first.get(cell, math.inf), second.get(cell, math.inf)) for cell in first.keys() | second.keys()}


def class_levels(times: Mapping[Cell, float], ways: Ways) -> dict[str, float]:
    """The reference of each class of peers: the first quartile of its times."""
    found: dict[str, list[float]] = {}
    for cell, value in times.items():
        if cell in ways:
            found.setdefault(ways[cell].peers, []).append(value)
    return {peers: sorted(values)[int((len(values) - 1) * PEER_QUANTILE)] for peers, values in found.items()}


def against_history(times: LogTimes, history: LogTimes) -> Slowness:
    """Against what each cell used to take; cells without history are left out."""
    return {cell: value - history[cell] for cell, value in times.items() if cell in history}


def without_ramp(slowness: Slowness, matrix: PairMatrix) -> Slowness:
    """The slowness without what the pairs of the first rounds have in common: they run before the clocks are up.

    It ends with the first round that is not slow as a whole. A round of one pair has no other pair to compare with;
    only the amount that the next round confirms is subtracted.
    """
    rounds = {(one.source, one.destination): one.round for one in matrix.cells if one.round is not None}
    values: dict[int, list[float]] = {}
    for cell, value in slowness.items():
        if cell in rounds:
            values.setdefault(rounds[cell], []).append(value)
    numbers = sorted(values)
    shared = [sorted(values[one])[int((len(values[one]) - 1) * PEER_QUANTILE)] for one in numbers]
    ramp: dict[int, float] = {}
    limit = RAMP_MAX
    for place, number in enumerate(numbers[:-1]):
        limit = min(limit, shared[place])
        if len(values[number]) <= 2:  # both ways of one pair
            limit = min(limit, RAMP_FLOOR + max(shared[place + 1], 0.0) / RAMP_DECAY)
        if limit <= 0:
            break
        ramp[number] = limit
    if not ramp:
        return slowness
    return {cell: value - ramp.get(rounds.get(cell, -1), 0.0) for cell, value in slowness.items()}


def against_peers(times: LogTimes, history: LogTimes, ways: Ways) -> Slowness:
    """Against the cells of the same class in the same matrix, less a limited part of what was always so."""
    levels = class_levels(times, ways)
    usual_levels = class_levels(history, ways)
    found: Slowness = {}
    for cell, value in times.items():
        if cell not in ways:
            continue
        peers = ways[cell].peers
        always = history[cell] - usual_levels[peers] if cell in history else 0.0
        allowed = max(-STATIC_ALLOWANCE, min(STATIC_ALLOWANCE, always))
        found[cell] = value - levels[peers] - allowed
    return found


def expected_times(matrix: PairMatrix) -> LogTimes:
    """By the expected bandwidth of the cells that have one."""
    return {
        (cell.source, cell.destination): -math.log(cell.expected_bandwidth)
        for cell in matrix.cells
        if cell.expected_bandwidth
    }


def against_expected(times: LogTimes, expected: LogTimes, ways: Ways) -> Slowness | None:
    """Against what is expected in the classes that are slow as a whole, against the peers in the others.

    None where no class is slow as a whole.
    """
    levels = class_levels(times, ways)
    wanted = {peers: value for peers, value in class_levels(expected, ways).items() if peers in levels}
    low = {peers for peers, value in wanted.items() if levels[peers] - value > -math.log(EXPECTED_SHARE_LOW)}
    if not low:
        return None
    return {
        cell: value
        - (expected.get(cell, wanted[ways[cell].peers]) if ways[cell].peers in low else levels[ways[cell].peers])
        for cell, value in times.items()
        if cell in ways
    }


def both(first: Slowness, second: Slowness) -> Slowness:
    """Two measurements of the same cells in one: their mean; if only one is slow, hardly more than the other.

    A cell that only one of them has is left out: a spike could not be distinguished from a fault. If the second
    measured nothing at all, the first one is used alone.
    """
    if not second:
        return first
    return {
        cell: min((one + second[cell]) / 2, min(one, second[cell]) + LONE_SPIKE_SHARE)
        for cell, one in first.items()
        if cell in second
    }


def combined(
    matrix: PairMatrix, quantities: Iterable[Quantity], judge: Callable[[PairMatrix, Quantity], Slowness]
) -> Slowness:
    """The slowness of a matrix over one or two quantities."""
    parts = [judge(matrix, quantity) for quantity in quantities]
    return parts[0] if len(parts) == 1 else both(parts[0], parts[1])

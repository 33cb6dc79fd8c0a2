"""Which few parts explain the slow cells of some matrices best: a robust search over the candidates; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeAlias

from commwatch.node.topology.pair_matrix import Quantity
from commwatch.node.topology.ways import Candidate, Cell
from commwatch.probes.results.cells import Slowness

MOST_ELEMENTS = 4
"""More parts at once are no explanation."""
BEAM = 10
"""Sets of parts kept after each round of the search."""
MISFIT_MAX = 9.0
"""Highest penalty of an unexplained cell of a matrix: three deviations squared, so that spikes alone cannot justify a
part."""
COST = 12.0
"""Least saving that justifies one more part."""
PAIR_COST = 15.0
"""The same where it is only a pair: a real part that explains as much is the better explanation."""
CONFIDENCE_SCALE = 40.0
"""Cost by which the best explanation leads the next one for a confidence of 0.76."""
GAIN_MIN = 10.0
"""Least saving beyond its cost for a part to be named: bursts of all sizes fit a single slowness badly."""
EVERY_MATRIX_SHARE = 0.75
"""Of the smallest slowness of a part on several pairs, that each single matrix must show; all of it for a pair."""
STEADY_SHARE = 0.5
"""Of its slowness over all matrices that must be seen in each of them: a fault stays, bursts come in all sizes."""


@dataclass(frozen=True, slots=True)
class SearchRule:
    """By what cells are slow, and the limits for slow, as logarithm of the ratio of times."""

    quantities: tuple[Quantity, ...]
    """One or two measurements of a cell."""
    slow: float
    """For a part on several pairs."""
    slow_pair: float
    """For a part on a single pair: the first pairs of a cycle run before the clocks are up."""
    deviation: float
    """Of a healthy cell, with what the machine's own unevenness adds."""
    gain_least: float = GAIN_MIN
    """Least saving of a part beyond its cost."""

    @property
    def measured_twice(self) -> bool:
        """Whether a spike hardly shows. If not, no single ordered cell is named, and each direction of a pair must be
        slow every time."""
        return len(self.quantities) > 1


@dataclass(frozen=True, slots=True)
class Explained:
    candidate: Candidate
    slowness: float
    """Logarithm of time over what it should be."""
    confidence: float
    """0 to 1."""
    next_best: Candidate | None
    """The second best explanation of its cells; None if nothing else explains any."""


Chosen: TypeAlias = tuple[tuple[Candidate, float], ...]
"""Candidates with their slowness."""


class _State(NamedTuple):
    """A set of candidates under way."""

    cost: float
    """Misfit relative to that of no explanation, and the price of the parts. Below 0: worth it."""
    chosen: Chosen
    predicted: dict[Cell, float]
    """Slowness of the cells that the candidates touch."""


class Search:
    """Looks for the parts that explain slow cells; made for one set of matrices."""

    def __init__(self, matrices: Sequence[Slowness], rule: SearchRule, candidates: Sequence[Candidate]) -> None:
        self._matrices = matrices
        self._rule = rule
        self._values: dict[Cell, tuple[float, ...]] = {}
        for one in matrices:
            for cell in one.keys() - self._values.keys():
                self._values[cell] = tuple(other[cell] for other in matrices if cell in other)
        self._scale = 1.0 / rule.deviation
        self._nothing = {cell: self._misfit(cell, 0.0) for cell in self._values}
        self._candidates = [one for one in candidates if self._is_possible(one)]

    def _is_possible(self, candidate: Candidate) -> bool:
        if len(candidate.cells) == 1 and not self._rule.measured_twice:
            return False
        slowness = self._slowness(candidate.cells)
        return slowness is not None and slowness >= self.least(candidate)

    def least(self, candidate: Candidate) -> float:
        """The smallest slowness at which a candidate counts."""
        return self._rule.slow_pair if candidate.pairs == 1 else self._rule.slow

    def _slowness(self, cells: Sequence[Cell]) -> float | None:
        found = [value for cell in cells for value in self._values.get(cell, ())]
        return median(found) if found else None

    def _misfit(self, cell: Cell, predicted: float) -> float:
        scale = self._scale
        return sum(min(((value - predicted) * scale) ** 2, MISFIT_MAX) for value in self._values[cell])

    def _grown(self, state: _State, candidate: Candidate) -> _State | None:
        """A set with one candidate more; None where it is slow nowhere that is not explained yet.

        A cell takes as long as the slowest part on its way makes it.
        """
        predicted = state.predicted
        own = [cell for cell in candidate.cells if cell not in predicted] if predicted else candidate.cells
        slowness = self._slowness(own)
        if slowness is None or slowness < self.least(candidate):
            return None
        cost = state.cost + (PAIR_COST if candidate.is_pair else COST)
        for cell in candidate.cells:
            if cell in self._values:
                before = predicted.get(cell)
                if before is None:
                    cost += self._misfit(cell, slowness) - self._nothing[cell]
                elif slowness > before:
                    cost += self._misfit(cell, slowness) - self._misfit(cell, before)
        return _State(cost, (*state.chosen, (candidate, slowness)), predicted)

    def _best(self) -> _State:
        """The cheapest set of candidates; the empty one where none is worth its price."""
        best = _State(0.0, (), {})
        beam = [best]
        for _ in range(MOST_ELEMENTS):
            found: dict[frozenset[int], _State] = {}
            for state in beam:
                for candidate in self._candidates:
                    grown = self._grown(state, candidate)
                    if grown is not None:
                        found.setdefault(frozenset(id(one) for one, _ in grown.chosen), grown)
            # Equal costs: the candidates stand in a fixed order, and sorting keeps it.
            beam = [_predicting(one) for one in sorted(found.values(), key=lambda one: one.cost)[:BEAM]]
            if not beam:
                break
            if beam[0].cost < best.cost:
                best = beam[0]
            elif len(beam[0].chosen) > len(best.chosen) + 1:
                # One part more may lead on from a set that is not the cheapest: two GPUs of four, or the whole node.
                break
        return best

    def explain(self) -> tuple[Explained, ...]:
        """The best explanation that holds in each single matrix; the surest part first."""
        best = self._best()
        found = []
        for place, (candidate, slowness) in enumerate(best.chosen):
            if not self._in_every_matrix(candidate, slowness):
                continue
            others = self._of(best.chosen[:place] + best.chosen[place + 1 :])
            if others.cost - best.cost >= self._rule.gain_least:
                lead, next_best = self._lead(others, candidate, best.cost)
                confidence = math.tanh(max(lead, 0.0) / CONFIDENCE_SCALE)
                found.append(Explained(candidate, slowness, confidence, next_best))
        return tuple(sorted(found, key=lambda one: (-one.confidence, -one.slowness, one.candidate.elements)))

    def _in_every_matrix(self, candidate: Candidate, slowness: float) -> bool:
        share = 1.0 if candidate.pairs == 1 else EVERY_MATRIX_SHARE
        least = max(share * self.least(candidate), STEADY_SHARE * slowness)
        for matrix in self._matrices:
            values = [matrix[cell] for cell in candidate.cells if cell in matrix]
            if candidate.pairs == 1 and not self._rule.measured_twice:
                values = [min(values)] if len(values) == len(candidate.cells) else []
            if not values or median(values) < least:
                return False
        return True

    def _of(self, chosen: Chosen) -> _State:
        """The state of a set whose candidates have been chosen already."""
        state = _State(0.0, (), {})
        for candidate, _ in chosen:
            state = _predicting(self._grown(state, candidate) or state)
        return state

    def _lead(self, others: _State, candidate: Candidate, cost: float) -> tuple[float, Candidate | None]:
        """By how much the explanation is cheaper than the best one with something else in the candidate's place."""
        best, next_best = others.cost, None
        chosen = {id(one) for one, _ in others.chosen}
        for other in self._candidates:
            if other.elements == candidate.elements or id(other) in chosen:
                continue
            instead = self._grown(others, other)
            if instead is not None and instead.cost < best:
                best, next_best = instead.cost, other
        return best - cost, next_best


def _predicting(state: _State) -> _State:
    """A state whose predictions include the last candidate too."""
    candidate, slowness = state.chosen[-1] if state.chosen else (None, 0.0)
    if candidate is None:
        return state
    predicted = dict(state.predicted)
    for cell in candidate.cells:
        predicted[cell] = max(slowness, predicted.get(cell, 0.0))
    return _State(state.cost, state.chosen, predicted)

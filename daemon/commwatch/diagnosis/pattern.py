"""The pattern branch: which pairs are slow and what they have in common, small messages or large ones, since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Literal

import msgspec

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.judged import Matched, Matches, Record, judged
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.pattern_probes import FULL_SCAN, courses, sizes
from commwatch.diagnosis.pattern_scan import scanned
from commwatch.findings.rules.gpu_ways import gpus_of
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.node.topology.ways import Cell
from commwatch.probes.results.slow_cells import names_of
from commwatch.units import format_bytes, format_rate, format_seconds

_MOST_NAMED = 6

_OF_BANDWIDTH = ("probe_bandwidth_utilization_low_ratio", "pair_nearer_low_ratio")
"""Thresholds."""

_PairQuantity = Literal["bandwidth", "latency"]


def pattern(known: Known) -> Iterator[Check]:
    """Over pairs, over sizes, over time; after a full scan also what became of its probes."""
    yield from scanned(known)
    yield from pairs(known)
    yield from sizes(known)
    yield from courses(known)


def pairs(known: Known) -> Iterator[Check]:
    """What the last matrix holds, and what the rules of the findings see in it, open or not yet."""
    gpus = known.facts.derived(gpus_of)
    if len(gpus) < 2:
        reason = "this node has one GPU" if gpus else "no GPU is known"
        yield Check(branch="pattern", what="pairs of GPUs", verdict="does not apply", detail=reason)
        return
    matrix = known.matrix
    if matrix is None or not all(end.device for end in matrix.endpoints):
        yield _not_measured("bandwidth of pairs")
        return
    seen = [one for one in known.matched if one.is_about("pairs")]
    late = {one.element for one in matrix.suspects if one.quantity == "latency"}
    narrow = known.matched.only(one for one in seen if _is_narrow(one.record, matrix))
    yield _check(matrix, "bandwidth", narrow)
    yield _check(matrix, "latency", known.matched.only(one for one in seen if one.record.component.name in late))


def _is_narrow(one: Record, matrix: PairMatrix) -> bool:
    """Whether the bandwidth shows it: all but what stands on the latency alone."""
    quantities = {suspect.quantity for suspect in matrix.suspects if suspect.element == one.component.name}
    on_rate = any(fact.threshold_origin in _OF_BANDWIDTH for fact in one.evidence)
    return on_rate or quantities != {"latency"}


def _not_measured(what: str) -> Check:
    return Check(
        branch="pattern",
        what=what,
        verdict="not measured",
        detail=f"No matrix of pairs is current; {FULL_SCAN}",
        next_step=FULL_SCAN,
    )


def _check(matrix: PairMatrix, quantity: _PairQuantity, seen: Matches) -> Check:
    size = matrix.latency_bytes if quantity == "latency" else matrix.bandwidth_bytes
    what, values = f"{quantity} of pairs, {format_bytes(size)}", _values_of(matrix, quantity)
    if not values:
        return _not_measured(what)
    named = list(dict.fromkeys(_name(one.record) for one in seen))
    if len(named) > _MOST_NAMED:
        named = [*named[:_MOST_NAMED], f"{len(named) - _MOST_NAMED} more"]
    check = Check(
        branch="pattern",
        what=what,
        where=", ".join(named),
        measured=_span(matrix, quantity, values),
        required="no slow pair",
        verdict="passed",
        source="docs/using/culprit.md",
        detail=" ".join(_details(matrix, seen)),
    )
    found = judged(check, seen, "pairs")
    return msgspec.structs.replace(found, next_step=f"{found.next_step} {_best_pair(matrix, seen)}".strip())


def _name(record: Record) -> str:
    return record.component.name or record.detail


def _span(matrix: PairMatrix, quantity: _PairQuantity, values: Mapping[Cell, float]) -> str:
    slowest = (max if quantity == "latency" else min)(values, key=values.__getitem__)
    usual, least = (
        format_seconds(value) if quantity == "latency" else format_rate(value)
        for value in (median(values.values()), values[slowest])
    )
    source, target = (names_of(matrix.endpoints)[place] for place in slowest)
    return f"median {usual}, slowest {least} ({source} to {target})"


def _details(matrix: PairMatrix, seen: Iterable[Matched]) -> Iterator[str]:
    """The words of the suspects."""
    names = {one.record.component.name for one in seen}
    yield from (one.words for one in matrix.suspects if one.element in names)


def _best_pair(matrix: PairMatrix, seen: Iterable[Matched]) -> str:
    """Which two GPUs to take until it is repaired: said of measured pairs only, and of none that is named."""
    values, names = _values_of(matrix, "bandwidth"), names_of(matrix.endpoints)
    named = {one.record.component.name for one in seen}
    slow = {cell for suspect in matrix.suspects if suspect.element in named for cell in suspect.cells}
    both = {
        (first, second): min(rate, values[second, first])
        for (first, second), rate in values.items()
        if first < second and (second, first) in values and slow.isdisjoint({(first, second), (second, first)})
        and f"{names[first]}-{names[second]}" not in named
    }  # fmt: skip
    if not both or not named or any(one.record.code == "pairs_all_slow" for one in seen):
        return ""
    first, second = max(both, key=both.__getitem__)
    return f"Until then the fastest two are {names[first]} and {names[second]}: {format_rate(both[first, second])}."


def _values_of(matrix: PairMatrix, quantity: _PairQuantity) -> dict[Cell, float]:
    """Bytes per second or seconds of each cell that was measured."""
    return {cell: value for cell, value in matrix.values(quantity).items() if value > 0}

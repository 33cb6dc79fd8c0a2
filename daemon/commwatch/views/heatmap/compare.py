"""Two pair matrices compared; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from commwatch.node.topology.pair_matrix import PairEndpoint, PairMatrix, Quantity
from commwatch.probes.results.slow_cells import name_of, names_of
from commwatch.units import format_bytes, format_rate, format_seconds
from commwatch.views.heatmap.grid import View
from commwatch.views.heatmap.matrix_view import QUANTITIES, facts_of

SMALLEST_CHANGE = 0.05
"""A smaller change is noise."""
_LISTED = 6
"""Changes written out."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One pair in both matrices."""

    source: str
    """``GPU0``."""
    destination: str
    before: float
    """Seconds, or bytes per second."""
    now: float
    ratio: float
    """Now over before."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of ``commwatch heatmap --compare --json``."""

    format: Literal["commwatch-pair-comparison/1"] = "commwatch-pair-comparison/1"
    quantity: Quantity
    before_taken_at: float
    """Seconds since 1970."""
    taken_at: float
    not_comparable: tuple[str, ...]
    """Why differences may have another cause than the paths; empty where there is none."""
    changes: tuple[Change, ...]
    """Every pair that both have, by source, then destination."""
    only_before: tuple[tuple[str, str], ...]
    """Pairs that were measured before and are not now."""
    only_now: tuple[tuple[str, str], ...]


def compare(before: PairMatrix, now: PairMatrix, quantity: Quantity) -> Comparison:
    """Compare a matrix with an earlier one.

    GPUs are found again by their UUID; where none of them is in both, by their label.
    """
    places = _places(before.endpoints, now.endpoints)
    earlier = before.values(quantity)
    changes, only_now = [], []
    names, earlier_names = names_of(now.endpoints), names_of(before.endpoints)
    for (source, target), value in sorted(now.values(quantity).items()):
        ends = names[source], names[target]
        pair = places.get(source), places.get(target)
        old = None if None in pair else earlier.pop(pair, None)  # type: ignore[arg-type]  # None is looked for before
        if old is None:
            only_now.append(ends)
        else:
            changes.append(Change(source=ends[0], destination=ends[1], before=old, now=value, ratio=value / old))
    return Comparison(
        quantity=quantity,
        before_taken_at=before.taken_at,
        taken_at=now.taken_at,
        not_comparable=tuple(_differences(before, now, quantity)),
        changes=tuple(changes),
        only_before=tuple((earlier_names[source], earlier_names[target]) for source, target in sorted(earlier)),
        only_now=tuple(only_now),
    )


def _places(before: Sequence[PairEndpoint], now: Sequence[PairEndpoint]) -> dict[int, int]:
    """Place before by place now."""
    devices = {one.device: place for place, one in enumerate(before) if one.device}
    labels = {one.label: place for place, one in enumerate(before)}
    if any(one.device in devices for one in now):
        return {place: devices[one.device] for place, one in enumerate(now) if one.device in devices}
    return {place: labels[one.label] for place, one in enumerate(now) if one.label in labels}


def _differences(before: PairMatrix, now: PairMatrix, quantity: Quantity) -> list[str]:
    size = "latency_bytes" if quantity == "latency" else "bandwidth_bytes"
    sizes = getattr(before, size), getattr(now, size)
    found = [
        ("backend", before.backend, now.backend),
        ("size", *map(format_bytes, sizes)) if sizes[0] != sizes[1] else ("size", "", ""),
        ("NCCL version", before.nccl_version or "not known", now.nccl_version or "not known"),
        ("NCCL settings", before.settings_digest or "none", now.settings_digest or "none"),
        ("node", before.simulated_node or "a real one", now.simulated_node or "a real one"),
        ("GPU model", _models(before), _models(now)),
        ("number of ends", str(len(before.endpoints)), str(len(now.endpoints))),
    ]
    texts = [f"{what}: {old} before, {new} now" for what, old, new in found if old != new]
    return [*texts, *_other_gpus(before, now)]


def _models(matrix: PairMatrix) -> str:
    return " and ".join(sorted({one.name for one in matrix.endpoints if one.name})) or "not known"


def _other_gpus(before: PairMatrix, now: PairMatrix) -> list[str]:
    known = {one.device for one in before.endpoints if one.device}
    others = [name_of(one) for one in now.endpoints if one.device and one.device not in known]
    if not others or not known:
        return []
    if len(others) == len(now.endpoints):
        return ["these are other GPUs, compared by their indexes"]
    names = ", ".join(others)
    return [f"{names} {'is another GPU' if len(others) == 1 else 'are other GPUs'} than before, and not compared"]


# --- what is shown of it ---


def view_of_comparison(comparison: Comparison, before: PairMatrix, now: PairMatrix) -> View:
    """The picture: each cell in percent of what it was, so that darker is slower than before."""
    names = names_of(now.endpoints)
    places = {name: place for place, name in enumerate(names)}
    numbers = {(places[one.source], places[one.destination]): 100 * one.ratio for one in comparison.changes}
    quantity = comparison.quantity
    # As far below 100 % as above it: no change is the middle of the scale.
    widest = max([2.0, *(max(one / 100, 100 / one) for one in numbers.values())])
    now_facts, before_facts = facts_of(now, quantity), facts_of(before, quantity)
    return View(
        heading=f"{QUANTITIES[quantity]}, in percent of before",
        facts=(*now_facts[:-1], f"now {now_facts[-1]}, before {before_facts[-1]}"),
        unit="%",
        names=names,
        numbers=numbers,
        low=100 / widest,
        high=100 * widest,
        logarithmic=True,
        slow_is_high=quantity == "latency",
        marks={},
        notes=comparison_notes(comparison),
        extremes=("Worst against before", "best"),
        simulated=now.simulated_node or before.simulated_node,
    )


def comparison_notes(comparison: Comparison) -> tuple[str, ...]:
    """Why the two may not be compared, and the largest changes, in sentences behind a dash."""
    notes = [f"Not comparable: {reason}" for reason in comparison.not_comparable]
    notes += _largest(comparison)
    for pairs, when in ((comparison.only_before, "before"), (comparison.only_now, "now")):
        if pairs:
            shown = ", ".join(f"{source} to {target}" for source, target in pairs[:_LISTED])
            more = f" and {len(pairs) - _LISTED} more" if len(pairs) > _LISTED else ""
            notes.append(f"Measured only {when}: {shown}{more}")
    return tuple(f"-  {one}" for one in notes)


def _largest(comparison: Comparison) -> list[str]:
    """The ends all of whose pairs moved alike, then the pairs that moved most."""
    if not comparison.changes:
        return ["No pair was measured both times"]
    limit = f"{100 * SMALLEST_CHANGE:.0f} %"
    moved = [one for one in comparison.changes if _moved(one)]
    if not moved:
        return [f"No pair changed by more than {limit}"]
    moved.sort(key=lambda one: abs(math.log(one.ratio)), reverse=True)
    texts, named = _whole_ends(comparison)
    rest = [one for one in moved if not named & {one.source, one.destination}]
    texts += [_change_text(one, comparison.quantity) for one in rest[:_LISTED]]
    if len(rest) > _LISTED:
        texts.append(f"and {len(rest) - _LISTED} further pairs that changed by more than {limit}")
    return texts


def _moved(change: Change) -> bool:
    return abs(math.log(change.ratio)) > math.log1p(SMALLEST_CHANGE)


def _whole_ends(comparison: Comparison) -> tuple[list[str], set[str]]:
    """Sentences on the ends all of whose pairs moved in one direction, and these ends."""
    names = dict.fromkeys(name for one in comparison.changes for name in (one.source, one.destination))
    found: dict[str, float] = {}
    for name in names:
        own = [one for one in comparison.changes if name in (one.source, one.destination)]
        if all(map(_moved, own)) and len({one.ratio > 1 for one in own}) == 1:
            found[name] = median(one.ratio for one in own)
    if len(names) == 2 or not found:
        return [], set()
    word = {True: "slower", False: "faster"}
    is_time = comparison.quantity == "latency"
    if len(found) == len(names):
        middle = median(one.ratio for one in comparison.changes)
        return [f"All pairs: {100 * middle:.0f} % of before in the median"], set()
    texts = [
        f"All pairs of {name}: {100 * ratio:.0f} % of before in the median: {word[(ratio > 1) == is_time]}"
        for name, ratio in found.items()
    ]
    return texts, set(found)


def _change_text(change: Change, quantity: Quantity) -> str:
    shown = format_seconds if quantity == "latency" else format_rate
    slower = (change.ratio > 1) == (quantity == "latency")
    return (
        f"{change.source} to {change.destination}: {shown(change.before)} before, {shown(change.now)} now, "
        f"{100 * change.ratio:.0f} % of before: {'slower' if slower else 'faster'}"
    )

"""The picture of a run between nodes: what each node sends to others, on the slowest of its rails; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

from commwatch.errors import UsageError
from commwatch.probes.rounds import Pair
from commwatch.views.heatmap.grid import View
from commwatch.views.heatmap.matrix_view import scale_of, suspect_letter, unit_of

if TYPE_CHECKING:
    from commwatch.cluster.locate import Named, Verdict
    from commwatch.cluster.run_file import Run

MOST_NODES = 256


def view_of_run(run: Run, verdict: Verdict, lines: Sequence[str]) -> View:
    """The picture of one run.

    Raises:
        UsageError: more than can be drawn.
    """
    if len(run.members) > MOST_NODES:
        raise UsageError(f"--output: {len(run.members)} nodes; a picture shows at most {MOST_NODES}")
    slowest: dict[Pair, float] = {}
    for one in run.measured:
        for pair, value in (((one.first, one.second), one.forward), ((one.second, one.first), one.backward)):
            if (carried := one.both if value is None else value) is not None:
                slowest[pair] = min(carried, slowest.get(pair, carried))
    unit, factor = unit_of(slowest.values(), "bandwidth")
    numbers = {pair: value / factor for pair, value in slowest.items()}
    low, high = scale_of(list(numbers.values()), "bandwidth", relative=False)
    rails = len({one.rail for one in run.measured})
    marks: dict[Pair, str] = {}
    for place, named in reversed(list(enumerate(verdict.named))):
        marks.update((pair, suspect_letter(place)) for pair in _cells(run, named) if pair in slowest)
    return View(
        heading="Bandwidth between nodes, one way",
        facts=(f"{verdict.nodes} nodes, {verdict.pairs} measured pairs, slowest of {rails} rail{'s' * (rails > 1)}",),
        unit=unit,
        names=tuple(one.name for one in run.members),
        numbers=numbers,
        low=low,
        high=high,
        marks=marks,
        notes=tuple(f"{suspect_letter(place)}  {line}" for place, line in enumerate(lines)),
    )


def _cells(run: Run, named: Named) -> Iterator[Pair]:
    """The cells that a part stands for."""
    parts = [one.leaf if named.kind in ("leaf", "uplink") else one.name for one in run.members]
    inside = {place for place, part in enumerate(parts) if part in named.elements}
    own = {parts.index(named.elements[0])} if named.kind == "pair" else inside
    for source, destination in permutations(range(len(parts)), 2):
        within = source in inside and destination in inside
        if (named.kind == "pair" and not within) or (named.kind == "uplink" and within):
            continue
        if (named.direction != "in" and source in own) or (named.direction != "out" and destination in own):
            yield source, destination

"""Hands what the generator made to the judge as the daemon would, and says whether the answer is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Literal, TypeAlias, cast

from analysis.culprit_generator import Fault, Machine, Matrix
from analysis.culprit_nodes import NODES, Cell, Node, Part
from commwatch.node.topology.pair_matrix import PairCell, PairEndpoint, PairMatrix, Suspect
from commwatch.node.topology.ways import Direction, Element, ElementKind, PairWay, Parts, Passage
from commwatch.probes.results.culprit import (
    find_suspects,
    keep_good,
    looks_slow,
)

Scene: TypeAlias = Literal["known", "new"]
"""known: the machine was sound for some days first; new: it has the fault from its first matrix on."""

Verdict: TypeAlias = Literal["right", "nobody", "wrong", "hidden", "hidden, somebody named"]
"""hidden: nothing in the matrices shows the fault; the right answer is nobody."""


@cache
def parts_of(node: str) -> Parts:
    """The parts of a node of the generator, by its shape."""
    found = next(one for nodes in NODES.values() for one in nodes if one.shape == node)
    ways = {
        cell: PairWay(
            tuple(
                Passage(
                    Element(cast(ElementKind, passed.part.kind), passed.part.name), cast(Direction, passed.direction)
                )
                for passed in way.passed
            ),
            way.peers,
        )
        for cell, way in found.ways.items()
    }
    return Parts(ways, tuple(f"GPU{place}" for place in range(found.gpus)))


def pair_matrix(node: Node, matrix: Matrix, taken_at: float = 0.0) -> PairMatrix:
    """As the daemon keeps it."""
    return PairMatrix(
        taken_at=taken_at,
        backend="simulated",
        latency_bytes=8,
        bandwidth_bytes=16 * 2**20,
        endpoints=_endpoints(node.gpus),
        cells=tuple(
            PairCell(
                source=source,
                destination=target,
                latency_seconds=seen.latency,
                bandwidth=seen.one_way,
                both_ways_bandwidth=seen.both_ways,
                path=node.ways[source, target].label,
                round=node.rounds[source, target],
            )
            for (source, target), seen in matrix.items()
        ),
    )


@cache
def _endpoints(gpus: int) -> tuple[PairEndpoint, ...]:
    return tuple(PairEndpoint(label=str(place), device=f"GPU-{place}") for place in range(gpus))


def dice(what: str) -> Random:
    """The same each time."""
    return Random(f"suite: {what}")  # noqa: S311


def quiet(node: Node) -> Machine:
    """A machine that measures every pair every time, with little noise, no spikes and no ramp."""
    machine = Machine(node, dice("quiet"))
    machine.missing = machine.spikes = machine.ramp = 0.0
    machine.sigma = 0.01
    return machine


@dataclass
class Daemon:
    """Keeps matrices and judges each new one."""

    node: Node
    last: list[PairMatrix] = field(default_factory=list)
    good: tuple[PairMatrix, ...] = ()

    def take(self, matrix: Matrix) -> tuple[Suspect, ...]:
        """The suspects after another matrix."""
        parts = parts_of(self.node.shape)
        one = pair_matrix(self.node, matrix)
        self.last = [*self.last, one][-3:]
        suspects = find_suspects(self.last, parts, self.good)
        if not looks_slow(one, parts, self.good):
            self.good = keep_good(self.good, one)
        return suspects


def suspects_in_health(node: Node, random: Random, matrices: int = 6) -> tuple[Suspect, ...]:
    """What is named in a sequence of matrices of a sound machine."""
    machine, daemon = Machine(node, random), Daemon(node)
    return tuple(suspect for _ in range(matrices) for suspect in daemon.take(machine.matrix()))


def suspects_with(node: Node, random: Random, faults: Sequence[Fault], scene: Scene) -> tuple[Suspect, ...]:
    """What is named after three matrices with faults."""
    machine, daemon = Machine(node, random), Daemon(node)
    for _ in range(random.randint(5, 9) if scene == "known" else 0):
        daemon.take(machine.matrix())
    suspects: tuple[Suspect, ...] = ()
    for _ in range(3):
        suspects = daemon.take(machine.matrix(faults))
    return suspects


def alike(node: Node, part: Part, scene: Scene) -> frozenset[Part]:
    """The parts that slow exactly the same cells as this one, as far as they can be seen; itself among them.

    A new machine has nothing but peers to be held against. So there a part that slows all ways of a class shows
    nothing in that class.
    """

    def seen(one: Part) -> frozenset[Cell]:
        cells = node.cells(one)
        return cells if scene == "known" else node.visible_among_peers(cells)

    return frozenset(one for one in node.parts if seen(one) == seen(part))


def can_be_seen(node: Node, part: Part, scene: Scene) -> bool:
    """Whether its fault shows at all."""
    return scene == "known" or bool(node.visible_among_peers(node.cells(part)))


def judged(node: Node, part: Part, suspects: Sequence[Suspect], scene: Scene) -> Verdict:
    """The verdict on the suspect that was named first."""
    if not can_be_seen(node, part, scene):
        return "hidden, somebody named" if suspects else "hidden"
    if not suspects:
        return "nobody"
    if node.gpus == 2:  # every part is on the only pair
        return "right" if named_first(suspects) == Part("pair", "GPU0-GPU1") else "wrong"
    return "right" if named_first(suspects) in alike(node, part, scene) else "wrong"


def named_first(suspects: Sequence[Suspect]) -> Part:
    """What the labels of the surest suspect say."""
    return Part(suspects[0].kind, suspects[0].element)


def judged_pair(node: Node, ends: tuple[int, int], suspects: Sequence[Suspect], scene: Scene) -> Verdict:
    """The verdict where a pair is slow and nothing else: the pair itself, or parts that can be seen on it alone."""
    cells = frozenset({ends, ends[::-1]})
    if scene == "new" and not node.visible_among_peers(cells):
        return "hidden, somebody named" if suspects else "hidden"
    if not suspects:
        return "nobody"
    named = named_first(suspects)
    seen = node.cells(named) if scene == "known" else node.visible_among_peers(node.cells(named))
    return "right" if named == Part("pair", f"GPU{ends[0]}-GPU{ends[1]}") or seen == cells else "wrong"


def judged_one_way(node: Node, fault: Fault, suspects: Sequence[Suspect]) -> str:
    """The verdict on the first suspect where one direction of a part is slow."""
    if not suspects:
        return "nobody"
    named = named_first(suspects)
    if fault.cells not in (node.cells(named, "out"), node.cells(named, "in")):
        return "wrong"
    return "right" if set(suspects[0].cells) <= fault.cells else "right part, direction not told"

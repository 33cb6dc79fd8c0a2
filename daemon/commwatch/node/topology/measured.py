"""The measurements of a pair matrix between the GPUs of a topology, beside the expected rates of the paths; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commwatch.node.topology.model import End, Gpu, Topology
from commwatch.node.topology.pair_matrix import PairCell, PairEndpoint, PairMatrix
from commwatch.node.topology.paths import CLASSES, path

AGE_FLOOR_SECONDS = 1800.0
"""A result is shown for three intervals of its probe, and at least this long."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A pair matrix laid over the GPUs of one machine."""

    matrix: PairMatrix
    age_seconds: float
    cells: Mapping[tuple[End, End], PairCell]
    """By source and target."""
    gpus: tuple[Gpu, ...]
    """By place in ``matrix.endpoints``."""
    slow: frozenset[frozenset[str]] = frozenset()
    """Pairs that the rules of the findings call slow, by PCI address."""

    def bandwidth(self, first: End, second: End) -> float | None:
        """Bytes per second one way, of the slower direction of a pair; None where one of them was not measured."""
        found = [
            cell.bandwidth for ends in ((first, second), (second, first)) if (cell := self.cells.get(ends)) is not None
        ]
        known = [one for one in found if one is not None]
        return min(known) if len(known) == 2 else None


@dataclass(frozen=True, slots=True)
class MeasuredClass:
    """All ordered pairs of GPUs with the same path label; bytes per second, and seconds."""

    label: str
    """``NV18``, ``PIX``."""
    kind: str
    count: int
    expected: tuple[float, ...]
    """Of each pair of which it is known."""
    bandwidths: tuple[float, ...]
    latencies: tuple[float, ...]


def is_stale(age_seconds: float, interval: float) -> bool:
    """Whether a result is too old to be shown.

    Args:
        age_seconds: since it was taken; negative where a clock was set back.
        interval: of its probe, seconds.
    """
    return age_seconds > max(3 * interval, AGE_FLOOR_SECONDS)


def laid_over(topology: Topology, matrix: PairMatrix, now: float) -> Measured | str:
    """The matrix by the GPUs of a machine, or why it does not belong to them.

    A GPU is found by its UUID; where one side does not know it, by its PCI address.

    Args:
        matrix: of this machine, or of another one.
        now: seconds since 1970.
    """
    gpus = [_gpu(one, topology.gpus) for one in matrix.endpoints]
    lost = [one.label for one, gpu in zip(matrix.endpoints, gpus, strict=True) if gpu is None]
    if len(lost) == len(matrix.endpoints):
        return "the values were measured on GPUs that are not here"
    if lost:
        # A card that was changed changes its pairs; the others may have been measured around it.
        names = ", ".join(f"GPU{label}" for label in lost)
        return f"the values were measured with GPUs that are not here any more: {names}"
    cells: dict[tuple[End, End], PairCell] = {
        (source, target): cell
        for cell in matrix.cells
        if (source := gpus[cell.source]) is not None and (target := gpus[cell.destination]) is not None
    }
    return Measured(matrix, now - matrix.taken_at, cells, tuple(gpu for gpu in gpus if gpu is not None))


def _gpu(endpoint: PairEndpoint, gpus: Iterable[Gpu]) -> Gpu | None:
    for gpu in gpus:
        if endpoint.device and gpu.uuid:
            if endpoint.device == gpu.uuid:
                return gpu
        elif endpoint.pci_address and endpoint.pci_address == gpu.address:
            return gpu
    return None


def classes_measured(topology: Topology, measured: Measured) -> tuple[MeasuredClass, ...]:
    """The measurements of each class of paths, the nearest class first."""
    groups: dict[tuple[int, str], list[PairCell]] = {}
    for (source, target), cell in measured.cells.items():
        way = path(topology, source, target)
        groups.setdefault((CLASSES.index(way.kind), way.label), []).append(cell)
    return tuple(
        MeasuredClass(
            label=label,
            kind=CLASSES[order],
            count=len(cells),
            expected=tuple(one.expected_bandwidth for one in cells if one.expected_bandwidth is not None),
            bandwidths=tuple(one.bandwidth for one in cells if one.bandwidth is not None),
            latencies=tuple(one.latency_seconds for one in cells if one.latency_seconds is not None),
        )
        for (order, label), cells in sorted(groups.items())
    )

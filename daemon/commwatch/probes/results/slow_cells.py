"""The pairs of a matrix that carry too little; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from commwatch.node.topology.pair_matrix import PairEndpoint, PairMatrix, Quantity
from commwatch.probes.rounds import Pair
from commwatch.units import format_rate


def name_of(endpoint: PairEndpoint) -> str:
    """``GPU3``, or ``rank3`` where there is no GPU."""
    return f"{'GPU' if endpoint.device or endpoint.pci_address else 'rank'}{endpoint.label}"


def names_of(endpoints: Iterable[PairEndpoint]) -> tuple[str, ...]:
    return tuple(map(name_of, endpoints))


class SlowCell(NamedTuple):
    """A pair that carries too little."""

    ratio: float
    """Of what its path should carry."""
    pair: Pair
    text: str
    """The same for an operator."""


def slow_cells(matrix: PairMatrix, low_ratio: float) -> tuple[SlowCell, ...]:
    """The pairs whose bandwidth one way is below a share of the expected one, the slowest first."""
    names = names_of(matrix.endpoints)
    low = set(low_cells(matrix, "bandwidth", low_ratio))
    found = []
    for cell in matrix.cells:
        if (cell.source, cell.destination) in low and cell.bandwidth and cell.expected_bandwidth:
            ratio = cell.bandwidth / cell.expected_bandwidth
            way = f" over {cell.path}" if cell.path else ""
            text = (
                f"{names[cell.source]} to {names[cell.destination]}{way} {format_rate(cell.bandwidth)}, "
                f"{100 * ratio:.0f} % of {format_rate(cell.expected_bandwidth)}"
            )
            found.append(SlowCell(ratio, (cell.source, cell.destination), text))
    return tuple(sorted(found))


def low_cells(matrix: PairMatrix, quantity: Quantity, low_ratio: float) -> list[Pair]:
    """The pairs of which a bandwidth is below a share of the expected one; of latency none, which has none."""
    values = {} if quantity == "latency" else matrix.values(quantity)
    expected = {(cell.source, cell.destination): cell.expected_bandwidth for cell in matrix.cells}
    return [pair for pair, value in values.items() if (most := expected[pair]) is not None and value < low_ratio * most]

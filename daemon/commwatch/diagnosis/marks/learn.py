"""Floors of a site from what its good nodes have given; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commwatch.diagnosis.marks.floors import SiteFloor
from commwatch.units import format_percent


class GoodNode(NamedTuple):
    """The measurements of a node."""

    name: str
    """File or address of the measurements."""
    gpu: str
    gpus: int
    bandwidths: Mapping[str, float]
    """By measure, bytes per second."""
    simulated: str | None
    """Name of the simulated node."""


def learned(nodes: Sequence[GoodNode], quantile: float, margin: float) -> list[SiteFloor]:
    """A floor for each measure of each kind of node.

    Args:
        nodes: that are good.
        quantile: of the nodes' values, from 0, the least, to 1.
        margin: share by which a floor stays below it.
    """
    values: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for node in nodes:
        for measure, rate in node.bandwidths.items():
            values[node.gpu, node.gpus, measure].append(rate)
    how = f"{format_percent(quantile)} quantile, less {format_percent(margin)}"
    return [
        SiteFloor(gpu, gpus, measure, _quantile(rates, quantile) * (1 - margin), f"{_nodes(len(rates))}: {how}")
        for (gpu, gpus, measure), rates in sorted(values.items())
    ]


def kinds(nodes: Sequence[GoodNode]) -> list[str]:
    """``12 nodes with 8 x NVIDIA H100 80GB HBM3``, for each kind."""
    counts = Counter((node.gpu, node.gpus) for node in nodes)
    return [f"{_nodes(count)} with {gpus} x {gpu}" for (gpu, gpus), count in sorted(counts.items())]


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _quantile(values: Sequence[float], quantile: float) -> float:
    """Straight between the two values that it lies between."""
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])

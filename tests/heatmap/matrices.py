"""Pair matrices for tests: what a node of a given build would measure, without asking the code that judges it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from commwatch.node.topology.pair_matrix import PairCell, PairEndpoint, PairMatrix, Suspect

MIB = 2**20
Pair: TypeAlias = tuple[int, int]


def endpoints(count: int, name: str = "NVIDIA H100 80GB HBM3") -> tuple[PairEndpoint, ...]:
    """GPUs with the indexes from 0."""
    return tuple(
        PairEndpoint(label=str(place), device=f"GPU-{place}", pci_address=f"0000:{place + 16:02x}:00.0", name=name)
        for place in range(count)
    )


def matrix(
    count: int = 8,
    *,
    bandwidth: float = 360e9,
    latency: float = 9e-6,
    expected: float | None = 371e9,
    path: str = "NV18",
    factors: Mapping[tuple[int, int], float] | None = None,
    missing: Iterable[tuple[int, int]] = (),
    suspects: tuple[Suspect, ...] = (),
    noise: float = 0.01,
    **fields: object,
) -> PairMatrix:
    """Every pair alike within some noise, but for the factors of bandwidth; latency falls as bandwidth rises."""
    dice = random.Random(7)  # noqa: S311 - noise for tests
    cells = []
    for source in range(count):
        for destination in range(count):
            if source == destination:
                continue
            factor = (factors or {}).get((source, destination), 1.0) * (1 + dice.uniform(-noise, noise))
            measured = (source, destination) not in set(missing)
            cells.append(
                PairCell(
                    source=source,
                    destination=destination,
                    latency_seconds=latency / factor if measured else None,
                    bandwidth=bandwidth * factor if measured else None,
                    both_ways_bandwidth=0.93 * bandwidth * factor if measured else None,
                    expected_bandwidth=expected,
                    path=path,
                )
            )
    known: dict[str, object] = {
        "taken_at": 1_790_000_000.0,
        "backend": "nccl",
        "nccl_version": "2.27.3",
        "latency_bytes": 8,
        "bandwidth_bytes": 16 * MIB,
        "endpoints": endpoints(count),
        "cells": tuple(cells),
        "suspects": suspects,
    }
    return PairMatrix(**(known | fields))  # type: ignore[arg-type]  # by name, from the caller


def of_gpu(gpu: int, count: int = 8) -> tuple[tuple[int, int], ...]:
    """All pairs of one GPU."""
    pairs = ((source, destination) for source in range(count) for destination in range(count))
    return tuple(pair for pair in pairs if gpu in pair and pair[0] != pair[1])


def slow_gpu(gpu: int = 3, factor: float = 0.5) -> PairMatrix:
    """Eight GPUs, of which one is slow in every pair, and named."""
    cells = of_gpu(gpu)
    suspect = Suspect(
        kind="gpu",
        element=f"GPU{gpu}",
        confidence=0.97,
        slowdown=1 / factor,
        cells=cells,
        words=f"GPU{gpu} is slow to and from every other GPU: {1 / factor:.2g} times the time of healthy pairs.",
    )
    return matrix(factors=dict.fromkeys(cells, factor), suspects=(suspect,))

"""From the time of a collective to its bandwidth: the convention of nccl-tests."""

from __future__ import annotations


def all_reduce_factor(ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth of an all-reduce: 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md)."""
    return 2 * (ranks - 1) / ranks


def algorithm_bandwidth(size_bytes: int, seconds: float) -> float:
    """Bytes per second at which the buffer of one rank was worked off."""
    return size_bytes / seconds


def bus_bandwidth(ranks: int, size_bytes: int, seconds: float) -> float:
    """Bytes per second of an all-reduce over the slowest part of the path; comparable across numbers of ranks."""
    return algorithm_bandwidth(size_bytes, seconds) * all_reduce_factor(ranks)

"""From the time of an operation to its bandwidth: the convention of nccl-tests."""

from __future__ import annotations


def factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md).

    Args:
        operation: as in ``commwatch.probes.plan.Operation``.
        ranks: that take part.

    Raises:
        ValueError: no such operation, or a collective of no rank.
    """
    if operation in ("broadcast", "send_recv", "host_to_device", "device_to_host", "matrix_product", "overlapped"):
        return 1.0  # the last two have no bandwidth of their own
    if ranks < 1:
        raise ValueError(f"{operation} over {ranks} ranks")
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    raise ValueError(f"no factor is known for {operation}")


def algorithm_bandwidth(size_bytes: int, seconds: float) -> float:
    """Bytes per second at which S of nccl-tests was worked off.

    S is the buffer of one rank; for all_gather, reduce_scatter and all_to_all that of all ranks together.
    """
    return size_bytes / seconds


def bus_bandwidth(operation: str, ranks: int, size_bytes: int, seconds: float) -> float:
    """Bytes per second over the slowest part of the path; comparable across numbers of ranks.

    Raises:
        ValueError: as ``factor``.
    """
    return algorithm_bandwidth(size_bytes, seconds) * factor(operation, ranks)

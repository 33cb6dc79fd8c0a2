"""Derived values of the times of calls: bandwidths as in nccl-tests, balance, scaling, and overlap with computing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from commwatch.probes.rank_plan import Operation
from commwatch.units import format_percent, format_rate, format_seconds


def factor(operation: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md).

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


@dataclass(frozen=True, slots=True)
class Balance:
    """The ranks of one result beside each other."""

    ratio: float
    """Time of the fastest rank over that of the slowest: above 0, at most 1."""
    slowest: int | None
    """The rank that took longest, the first one of several; None where all took the same time."""


def balance_of(seconds: Sequence[float | None]) -> Balance | None:
    """How even the times of the ranks are; None for fewer than two of them.

    Args:
        seconds: by rank; None for one that was not timed.
    """
    known = [one for one in seconds if one is not None]
    if len(known) < 2 or min(known) <= 0:
        return None
    longest = max(known)
    ratio = min(known) / longest
    return Balance(ratio, seconds.index(longest) if ratio < 1 else None)


_GIGABYTE = 1e9
_WELL_USED = 0.8
"""Share of a step that should be computing: with it n GPUs do 0.8 n times the work of one."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """An all-reduce over the first GPUs of the node, by their number."""

    ranks: int
    bus_bandwidth: float
    """Bytes per second."""
    share_of_best: float
    """Of the best bus bandwidth among all points: above 0, at most 1."""
    seconds_per_gigabyte: float
    """Time to sum 10⁹ bytes of gradients, by calls of the measured size."""
    break_even_seconds: float
    """Against a single GPU, for each 10⁹ bytes of gradients; see ``break_even_seconds``."""


def break_even_seconds(fewer: int, fewer_seconds: float, more: int, more_seconds: float) -> float:
    """Computing time of a step above which more GPUs get more work done than fewer; seconds, never below 0.

    Training is data parallel with fixed work per GPU: in one step each of n GPUs computes for c seconds, then all sum
    their gradients in t_n seconds. So n GPUs do n / (c + t_n) pieces of work a second. With n > m,

        n / (c + t_n) > m / (c + t_m)   where   c > (m t_n - n t_m) / (n - m).

    A single GPU sums nothing, t_1 = 0: n GPUs beat it where c > t_n / (n - 1). Where the right side is not above 0,
    more GPUs win however little there is to compute. Sums that overlap with computing only make more GPUs better, so
    the result is on the careful side.

    Args:
        fewer: number of GPUs, m.
        fewer_seconds: they need to sum their gradients; 0 for one GPU.
        more: number of GPUs, n.
        more_seconds: they need for the same gradients.

    Raises:
        ValueError: not more than fewer, or fewer than one.
    """
    if not 1 <= fewer < more:
        raise ValueError(f"{more} GPUs are not more than {fewer}")
    return max(0.0, (fewer * more_seconds - more * fewer_seconds) / (more - fewer))


def scaling_points(size_bytes: int, seconds: Mapping[int, float]) -> tuple[ScalingPoint, ...]:
    """The points of a measured series, by number of ranks.

    Args:
        size_bytes: of the buffer of one rank.
        seconds: of one all-reduce, by number of ranks, each at least 2.
    """
    rates = {ranks: bus_bandwidth("all_reduce", ranks, size_bytes, seconds[ranks]) for ranks in sorted(seconds)}
    points = []
    for ranks, rate in rates.items():
        per_gigabyte = seconds[ranks] * _GIGABYTE / size_bytes
        share = rate / max(rates.values())
        points.append(ScalingPoint(ranks, rate, share, per_gigabyte, break_even_seconds(1, 0.0, ranks, per_gigabyte)))
    return tuple(points)


def scaling_words(points: tuple[ScalingPoint, ...]) -> tuple[str, ...]:
    """The answer to "does adding GPUs help here?" in sentences.

    Each number of GPUs against the one below it, and when the largest one is worth its GPUs.
    """
    words = []
    fewer, fewer_seconds = 1, 0.0
    for point in points:
        limit = break_even_seconds(fewer, fewer_seconds, point.ranks, point.seconds_per_gigabyte)
        head = f"{point.ranks} GPUs beat {fewer} "
        if limit > 0:
            head += f"if a step computes longer than {format_seconds(limit)} per GB of gradients"
        else:
            head += "at any step time"
        rate, share = format_rate(point.bus_bandwidth), 100 * point.share_of_best
        words.append(f"{head}; bus bandwidth {rate}, {share:.0f} % of the best.")
        fewer, fewer_seconds = point.ranks, point.seconds_per_gigabyte
    if points:
        limit = _WELL_USED / (1 - _WELL_USED) * fewer_seconds
        words.append(
            f"With {fewer} GPUs at least {100 * _WELL_USED:.0f} % of a step is computing "
            f"where it computes longer than {format_seconds(limit)} per GB of gradients."
        )
    return tuple(words)


class Hidden(msgspec.Struct, frozen=True, kw_only=True):
    """The three times of a training-like probe, of the slowest rank, and what follows."""

    all_reduce_seconds: float
    product_seconds: float
    both_seconds: float
    hidden_ratio: float
    """Of what could be hidden, the shorter of the two; 1: both at once take no longer than the longer one alone."""

    @property
    def words(self) -> str:
        """The meaning for a training step, in a sentence."""
        product, total = format_seconds(self.product_seconds), format_seconds(self.both_seconds)
        return (
            f"a sum of {format_seconds(self.all_reduce_seconds)} under a product of {product} takes {total}: "
            f"{format_percent(self.hidden_ratio)} of the shorter one is hidden"
        )


def hidden_of(seconds: Mapping[Operation, float]) -> Hidden | None:
    """From the times of the steps by operation; None for other probes.

    Args:
        seconds: of one call on the slowest rank.
    """
    alone, product, both = (seconds.get(one) for one in ("all_reduce", "matrix_product", "overlapped"))
    if alone is None or product is None or both is None:
        return None
    share = (alone + product - both) / min(alone, product)
    return Hidden(
        all_reduce_seconds=alone, product_seconds=product, both_seconds=both, hidden_ratio=min(max(share, 0.0), 1.0)
    )

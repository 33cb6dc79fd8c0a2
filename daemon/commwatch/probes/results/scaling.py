"""Whether adding GPUs helps: what an all-reduce takes over more and more of them, and what that means for training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commwatch.probes.results.bus_bandwidth import bus_bandwidth
from commwatch.units import format_rate, format_seconds

_GIGABYTE = 1e9
_WELL_USED = 0.8
"""Share of a step that should be computing: with it n GPUs do 0.8 n times the work of one."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """An all-reduce over the first so many GPUs."""

    ranks: int
    bus_bandwidth: float
    """Bytes per second."""
    share_of_best: float
    """Of the best bus bandwidth among all points: above 0, at most 1."""
    seconds_per_gigabyte: float
    """Time to sum 10⁹ bytes of gradients, as so many calls of the measured size as they make."""
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


def computing_seconds(share: float, sum_seconds: float) -> float:
    """How long a step must compute so that computing has a share of it; seconds.

    Args:
        share: above 0, below 1.
        sum_seconds: that the gradients take, not overlapped.
    """
    return share / (1 - share) * sum_seconds


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
        head = f"{point.ranks} GPUs instead of {fewer}"
        if limit > 0:
            head += f" help where a step computes longer than {format_seconds(limit)} per GB of gradients"
        else:
            head += " help whatever a step computes"
        rate, share = format_rate(point.bus_bandwidth), 100 * point.share_of_best
        words.append(f"{head}; bus bandwidth {rate}, {share:.0f} % of the best.")
        fewer, fewer_seconds = point.ranks, point.seconds_per_gigabyte
    if points:
        limit = computing_seconds(_WELL_USED, fewer_seconds)
        words.append(
            f"With {fewer} GPUs at least {100 * _WELL_USED:.0f} % of a step is computing "
            f"where it computes longer than {format_seconds(limit)} per GB of gradients."
        )
    return tuple(words)

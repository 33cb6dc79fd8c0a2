"""Published all-reduce results of healthy machines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from commwatch.node.gpu_models import is_model

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Published:
    """A machine and what it gave."""

    gpu: str
    """Start of the GPU's name, without the vendor."""
    ranks: int
    """All GPUs of one node."""
    points: Sequence[tuple[int, float]]
    """Size in bytes with bus bandwidth in GB/s, sizes rising."""
    source: str


def _doubling(*rates: float) -> Sequence[tuple[int, float]]:
    """Points whose sizes double from 1 MiB on."""
    return tuple((_MIB << place, rate) for place, rate in enumerate(rates))


PUBLISHED = (
    Published(
        "A100-SXM4",
        8,
        (
            (1 * _MIB, 24.5),
            (8 * _MIB, 90),
            (32 * _MIB, 132.8),
            (64 * _MIB, 166.6),
            (128 * _MIB, 174.2),
            (256 * _MIB, 213.9),
            (1 * _GIB, 228.1),
            (8 * _GIB, 231.6),
            (16 * _GIB, 231.6),
        ),
        "the lower of SuperBench, tests/data/nccl_allreduce.log, and Azure/AI-benchmarking-guide, "
        "ND_A100_v4_results.md, NCCL 2.18.5",
    ),
    Published(
        "H20",
        8,
        ((1 * _MIB, 66), (4 * _MIB, 138), (8 * _MIB, 181), (16 * _MIB, 242), (32 * _MIB, 300), (1 * _GIB, 357)),
        "Mooncake issue 3484",
    ),
    Published(
        "H100",
        8,
        _doubling(43.7, 81.9, 128.7, 172.1, 234.5, 295.5, 361.8, 400.6, 423.4, 438.5, 466.4, 472.4, 475.5, 478.9),
        "Azure/AI-benchmarking-guide, ND_H100_v5_results.md, NCCL 2.18.5 with NVLS",
    ),
    Published(
        "H200",
        8,
        _doubling(53.0, 88.8, 138.4, 181.9, 240.4, 300.9, 368.1, 412.5, 432.2, 442.7, 467.6, 472.6, 477.4, 480.0),
        "Azure/AI-benchmarking-guide, ND_H200_v5_results.md, NCCL 2.20.5 with NVLS",
    ),
    Published(
        "GB200",
        4,
        _doubling(80.5, 110.4, 146.3, 253.5, 331.1, 422.6, 550.7, 574.2, 593.5, 618.7, 646.9, 666.6, 673.1, 679.6),
        "Azure/AI-benchmarking-guide, ND_GB200_v6_results.md, NCCL 2.25.1 with rings",
    ),
    Published(
        "B200",
        8,
        (
            (8 * _MIB, 183),
            (16 * _MIB, 266),
            (32 * _MIB, 340),
            (64 * _MIB, 419),
            (128 * _MIB, 592),
            (256 * _MIB, 657),
            (1 * _GIB, 729),
            (4 * _GIB, 739),
            (8 * _GIB, 835),
        ),
        "guide to DeepEP on GKE (a4-highgpu-8g, one node); 8 GiB: OCI documentation, NCCL 2.28.9",
    ),
    Published("B300", 8, ((8 * _GIB, 835),), "OCI documentation, NCCL 2.28.9"),
)
"""With NVLink SHARP (NVLS) where switches have it, as NCCL uses it by itself: a node that lost it stays below.

Points without a size, or over several nodes, are left out: they cannot be compared with a probe.
"""


@dataclass(frozen=True, slots=True)
class PublishedLatency:
    """A machine, and what an all-reduce of a few bytes took on it."""

    gpu: str
    """As of ``Published``."""
    ranks: int
    """Likewise."""
    seconds: float
    source: str


_H20_LATENCY = "DeepEP issue 303: 8 bytes on 8 H20"
PUBLISHED_LATENCIES = (
    PublishedLatency("A100-SXM4", 8, 34.7e-6, "SuperBench, tests/data/nccl_allreduce.log: 8 bytes"),
    PublishedLatency("H20", 8, 12.5e-6, _H20_LATENCY),
    PublishedLatency("H100", 8, 12.5e-6, f"{_H20_LATENCY}, which have the NVLinks of an H100"),
    PublishedLatency("H200", 8, 12.5e-6, f"{_H20_LATENCY}, which have the NVLinks of an H200"),
)
"""Of 8 GPUs behind NVSwitches; others report 12 to 20 us with a process for each GPU. Of newer boards a few bytes were
not published."""


def published_latency(gpu_name: str, ranks: int) -> tuple[float, str] | None:
    """Seconds of an all-reduce of a few bytes and their source; None where nothing was published.

    Args:
        gpu_name: as for ``published``.
        ranks: one per GPU.
    """
    for known in PUBLISHED_LATENCIES:
        if is_model(gpu_name, known.gpu) and ranks == known.ranks:
            return known.seconds, known.source
    return None


def published(gpu_name: str, ranks: int, size_bytes: int) -> tuple[float, str] | None:
    """Bus bandwidth in bytes per second of an all-reduce and its source; None where nothing was published.

    Args:
        gpu_name: of all GPUs, as the driver gives it; each of them must reach all others over NVLink.
        ranks: one per GPU.
        size_bytes: of the buffer of one rank.
    """
    for known in PUBLISHED:
        if is_model(gpu_name, known.gpu) and ranks == known.ranks:
            rate = _between(known.points, size_bytes)
            if rate is not None:
                return rate * 1e9, known.source
    return None


def _between(points: Sequence[tuple[int, float]], size_bytes: int) -> float | None:
    """Rate at a size between two known ones, straight in the logarithm of the size; None outside of them.

    Where the true curve flattens, from about 10 MiB on, it lies above the straight line: the result is on the careful
    side. Below that it may lie under it.
    """
    if size_bytes == points[0][0]:
        return points[0][1]
    for (low_size, low_rate), (high_size, high_rate) in itertools.pairwise(points):
        if low_size <= size_bytes <= high_size:
            share = math.log(size_bytes / low_size) / math.log(high_size / low_size)
            return low_rate + share * (high_rate - low_rate)
    return None

"""The bus bandwidth that an all-reduce should reach: configured, from published results, or from a model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from commwatch.analysis.bus_bandwidth import all_reduce_factor, bus_bandwidth
from commwatch.analysis.capacity import planned_nvlink_rate

ExpectedSource: TypeAlias = Literal["configured", "reference", "model"]

_MIB = 2**20
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Expected:
    """What a probe should give."""

    bytes_per_second: float
    """Bus bandwidth."""
    source: ExpectedSource
    basis: str
    """Where the number comes from, for the operator."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """Healthy machines as others have published them."""

    gpu: str
    """Start of the GPU's name, without the vendor."""
    ranks: int
    """All GPUs of one node."""
    points: Sequence[tuple[int, float]]
    """Size in bytes with bus bandwidth in GB/s, sizes rising."""
    source: str


_REFERENCE = (
    _Measured(
        "A100-SXM4",
        8,
        (
            (1 * _MIB, 24.5),
            (8 * _MIB, 91),
            (32 * _MIB, 157),
            (64 * _MIB, 201),
            (128 * _MIB, 202),
            (256 * _MIB, 222),
            (1024 * _MIB, 230),
            (8192 * _MIB, 235),
        ),
        "SuperBench, tests/data/nccl_allreduce.log",
    ),
    _Measured(
        "H20",
        8,
        ((1 * _MIB, 66), (4 * _MIB, 138), (8 * _MIB, 181), (16 * _MIB, 242), (32 * _MIB, 300), (1024 * _MIB, 357)),
        "Mooncake issue 3484",
    ),
)

_NVLINK_VERSION: Mapping[str, str] = {
    "A100": "3.0",
    "A800": "3.0",
    "H100": "4.0",
    "H200": "4.0",
    "H800": "4.0",
    "H20": "4.0",
    "B200": "5.0",
    "B300": "5.0",
}
"""The NVLinks of the GPUs that have a model; ``planned_nvlink_rate`` knows what one of them carries."""

_RING_BASE_SECONDS = 8.4e-6
_RING_STEP_SECONDS = 3.4e-6
"""Ring over NVLink with protocol Simple (NCCL src/graph/tuning.cc)."""


def expected_bus_bandwidth(
    *,
    configured: float | None,
    backend: str,
    gpu_name: str | None,
    nvlinks_per_gpu: int | None,
    ranks: int,
    size_bytes: int,
) -> Expected | None:
    """What an all-reduce should reach; None where nothing can be said.

    A nominal link rate is never the answer. PCIe paths and gloo have no usable model: planning values for PCIe differ
    by a factor of two.

    Args:
        configured: the operator's own number, bytes per second; it wins.
        backend: nccl, gloo or simulated.
        gpu_name: name of the GPUs as the driver gives it; None where they differ or are not known.
        nvlinks_per_gpu: NVLinks that each GPU should have, whether they are up or not; None where not known.
        ranks: one per GPU.
        size_bytes: of the buffer.
    """
    if configured is not None:
        return Expected(float(configured), "configured", "expected_bandwidth in the configuration")
    if backend == "gloo" or gpu_name is None or ranks < 2:
        return None
    name = gpu_name.removeprefix("NVIDIA ")
    return _from_reference(name, ranks, size_bytes) or _from_model(name, nvlinks_per_gpu, ranks, size_bytes)


def _from_reference(name: str, ranks: int, size_bytes: int) -> Expected | None:
    for known in _REFERENCE:
        if _is_model(name, known.gpu) and ranks == known.ranks:
            rate = _between(known.points, size_bytes)
            if rate is not None:
                return Expected(rate * _GB, "reference", known.source)
    return None


def _between(points: Sequence[tuple[int, float]], size_bytes: int) -> float | None:
    """Rate at a size between two known ones, straight in the logarithm of the size; None outside of them.

    The true curve bends above the straight line, so the result is on the careful side.
    """
    for (low_size, low_rate), (high_size, high_rate) in itertools.pairwise(points):
        if low_size <= size_bytes <= high_size:
            share = math.log(size_bytes / low_size) / math.log(high_size / low_size)
            return low_rate + share * (high_rate - low_rate)
    return None


def _from_model(name: str, nvlinks_per_gpu: int | None, ranks: int, size_bytes: int) -> Expected | None:
    version = next((version for model, version in _NVLINK_VERSION.items() if _is_model(name, model)), "")
    per_link = planned_nvlink_rate(version)
    if per_link is None or not nvlinks_per_gpu:
        return None
    rate = per_link * nvlinks_per_gpu
    latency = _RING_BASE_SECONDS + 2 * (ranks - 1) * _RING_STEP_SECONDS
    seconds = latency + size_bytes * all_reduce_factor(ranks) / rate
    return Expected(
        bus_bandwidth(ranks, size_bytes, seconds), "model", f"ring over {nvlinks_per_gpu} NVLinks, NCCL's own constants"
    )


def _is_model(name: str, model: str) -> bool:
    """Whether a GPU's name begins with a model's, as a whole word: H20 is not H200."""
    return name == model or name.startswith((f"{model} ", f"{model}-"))

"""GPU models by the name that the driver gives: memory and peak rate of matrix products."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.probes.results.published import is_model

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """A GPU model."""

    name: str
    """Start of the driver's name, without the vendor."""
    memory_bytes: int | None
    """As its driver reports it; None where models of this name differ."""
    flops_per_second: float
    """Peak of tensor cores for bf16 or fp16, dense, summed in fp32."""
    source: str


GPUS = (
    GpuFigures("A100-SXM4-80GB", 81920 * _MIB, 312e12, "A100 data sheet"),
    GpuFigures("A100-SXM4-40GB", 40960 * _MIB, 312e12, "A100 data sheet"),
    GpuFigures("A100", None, 312e12, "A100 data sheet"),
    GpuFigures("A10G", None, 70e12, "A10G data sheet"),
    GpuFigures("A10", 23028 * _MIB, 125e12, "A10 data sheet"),
    GpuFigures("GeForce RTX 3090", 24576 * _MIB, 71e12, "GA102 white paper"),
    GpuFigures("H100 80GB HBM3", 81559 * _MIB, 989.4e12, "H100 data sheet, SXM"),
    GpuFigures("H100 PCIe", 81559 * _MIB, 756e12, "H100 data sheet, PCIe"),
    GpuFigures("H200", 143771 * _MIB, 989e12, "H200 data sheet"),
    GpuFigures("B200", 183359 * _MIB, 2250e12, "HGX B200 data sheet"),
)


ASSUMED_MFU = 0.4
"""Share of a GPU's peak that a training reaches, where it is not given; reported with each result."""


def gpu_figures(name: str) -> GpuFigures | None:
    """The figures of a GPU model; None for one that is not known. Whole words count: A10G is not A10."""
    return next((known for known in GPUS if is_model(name, known.name)), None)


def compute_seconds(parameters: int, tokens: int, flops_per_second: float, used_ratio: float) -> float:
    """Seconds for which a GPU computes on a micro-batch: 6 operations for each parameter and token.

    Two for the forward pass and four for the backward pass of a dense model, without recomputation (with it 8).

    Args:
        parameters: of the whole model.
        tokens: of the micro-batch.
        flops_per_second: peak rate of the GPU.
        used_ratio: share of the peak that a training reaches (MFU), above 0.
    """
    return 6 * parameters * tokens / (used_ratio * flops_per_second)

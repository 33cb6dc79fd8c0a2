"""GPU models by the name that the driver gives: memory, peak rate of matrix products, and what trainings use of it."""

from __future__ import annotations

from typing import NamedTuple

from commwatch.diagnosis.estimate.step import Span
from commwatch.probes.results.published import is_model

_MIB = 2**20

ASSUMED_MFU = 0.4
"""Share of a GPU's peak that the profiles assume a training to reach; reported with each result."""
OTHER_USED = Span(0.25, 0.75)
"""Share of the peak that is assumed for GPUs of which no training is among the published ones."""
_AMPERE, _HOPPER = Span(0.43, 0.64), Span(0.25, 0.51)
"""Fitted: the least and the most that the half for fitting of ``tests/estimate/published.csv`` implies if a step were
nothing but computing, a tenth wider on both sides."""
LORA_RATIO = 0.7
"""Of that share, where few parameters are trained: adapters are many small kernels. Fitted to the same half."""


class GpuFigures(NamedTuple):
    """A GPU model."""

    name: str
    """Start of the driver's name, without the vendor."""
    memory_bytes: int | None
    """As its driver reports it; None where models of this name differ."""
    flops_per_second: float
    """Peak of tensor cores for bf16 or fp16, dense, summed in fp32."""
    source: str
    used: Span = OTHER_USED
    """Share of the peak that full trainings reach."""


GPUS = (
    GpuFigures("A100-SXM4-80GB", 81920 * _MIB, 312e12, "A100 data sheet", _AMPERE),
    GpuFigures("A100-SXM4-40GB", 40960 * _MIB, 312e12, "A100 data sheet", _AMPERE),
    GpuFigures("A100", None, 312e12, "A100 data sheet", _AMPERE),
    GpuFigures("A800", None, 312e12, "A800 data sheet", _AMPERE),
    GpuFigures("A10G", None, 70e12, "A10G data sheet"),
    GpuFigures("A10", 23028 * _MIB, 125e12, "A10 data sheet"),
    GpuFigures("GeForce RTX 3090", 24576 * _MIB, 71e12, "GA102 white paper"),
    GpuFigures("GeForce RTX 4090", 24564 * _MIB, 165.2e12, "Ada white paper, summed in fp32"),
    GpuFigures("RTX A6000", 49140 * _MIB, 154.8e12, "RTX A6000 data sheet"),
    GpuFigures("Tesla V100", None, 125e12, "V100 data sheet, SXM2; fp16"),
    GpuFigures("Tesla T4", 15360 * _MIB, 65e12, "T4 data sheet; fp16"),
    GpuFigures("L4", 23034 * _MIB, 121e12, "L4 data sheet, half of the sparse rate"),
    GpuFigures("L40S", 46068 * _MIB, 362e12, "L40S data sheet"),
    GpuFigures("H20", None, 148e12, "H20 data sheet"),
    GpuFigures("H800", None, 989.4e12, "H800 data sheet, SXM", _HOPPER),
    GpuFigures("H100 80GB HBM3", 81559 * _MIB, 989.4e12, "H100 data sheet, SXM", _HOPPER),
    GpuFigures("H100 PCIe", 81559 * _MIB, 756e12, "H100 data sheet, PCIe", _HOPPER),
    GpuFigures("H100 NVL", 95830 * _MIB, 835e12, "H100 data sheet, NVL", _HOPPER),
    GpuFigures("H200", 143771 * _MIB, 989e12, "H200 data sheet", _HOPPER),
    GpuFigures("B200", 183359 * _MIB, 2250e12, "HGX B200 data sheet"),
    GpuFigures("GB200", None, 2500e12, "GB200 NVL72 data sheet"),
    GpuFigures("B300", None, 2250e12, "HGX B300 data sheet"),
)


def gpu_figures(name: str) -> GpuFigures | None:
    """The figures of a GPU model; None for one that is not known. Whole words count: A10G is not A10."""
    return next((one for one in GPUS if is_model(_short(name), _short(one.name))), None)


def _short(name: str) -> str:
    """Without vendor and brand, as people write it: ``4090``, ``A6000``, ``V100``."""
    for brand in ("NVIDIA ", "GeForce ", "RTX ", "Tesla "):
        name = name.removeprefix(brand)
    return name


def variants(name: str) -> list[str]:
    """The models that a bare family such as ``H100`` may be, which differ too much to choose one."""
    return [one.name for one in GPUS if one.name.upper().startswith(f"{name.upper()} ")]


def operations(parameters: int, trainable: int, *, recomputes: bool) -> int:
    """Operations for each token of a dense model.

    For each parameter two in the forward pass, two to pass gradients back, two more for a gradient of its own where it
    is trained, and two where the forward pass is computed again (full recomputation of activations).
    """
    return (6 if recomputes else 4) * parameters + 2 * trainable

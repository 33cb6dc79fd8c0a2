"""Share of a GPU's peak rate of matrix products that trainings reach."""

from __future__ import annotations

from commwatch.diagnosis.estimate.step import Span
from commwatch.node.gpu_models import GpuModel, is_model

ASSUMED_MFU = 0.4
"""Share of a GPU's peak that the profiles assume a training to reach; reported with each result."""
OTHER_USED = Span(0.25, 0.75)
"""Share of the peak that is assumed for GPUs of which no training is among the published ones."""
_AMPERE, _HOPPER = Span(0.43, 0.64), Span(0.25, 0.51)
"""Fitted: the least and the most that the half for fitting of ``tests/estimate/published.csv`` implies if a step were
nothing but computing, a tenth wider on both sides."""
_USED = {"A100": _AMPERE, "A800": _AMPERE, "H800": _HOPPER, "H100": _HOPPER, "H200": _HOPPER}
"""By the first word of the model."""
LORA_RATIO = 0.7
"""Of that share, where few parameters are trained: adapters are many small kernels. Fitted to the same half."""


def used_of(model: GpuModel | None) -> Span:
    """Share of the peak that full trainings reach on a GPU model; None for one that is not known."""
    if model is None:
        return OTHER_USED
    return next((used for name, used in _USED.items() if is_model(model.name, name)), OTHER_USED)


def operations(parameters: int, trainable: int, *, recomputes: bool) -> int:
    """Operations for each token of a dense model.

    For each parameter two in the forward pass, two to pass gradients back, two more for a gradient of its own where it
    is trained, and two where the forward pass is computed again (full recomputation of activations).
    """
    return (6 if recomputes else 4) * parameters + 2 * trainable

"""What of the model each GPU holds, and whether that fits."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.diagnosis.estimate.job import Layout, Training
from commwatch.diagnosis.estimate.strategy import STRATEGIES, Spread

RESERVE_BYTES = 1_200_000_000
"""CUDA context (up to 0.5 GB: PyTorch issue 20532) and the first communicator (up to 0.7 GB: NCCL issue 964)."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """Bytes on each GPU, without activations and buffers."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All three."""
        return self.parameters + self.gradients + self.optimizer


def model_state(training: Training, layout: Layout) -> ModelState:
    """What each GPU holds through a step; a part that is not a whole number of bytes is rounded up."""
    parts: dict[Spread, int] = {"copied": 1, "node": layout.gpus, "all": layout.total_gpus}
    strategy = STRATEGIES[layout.strategy]
    return ModelState(
        _divided(training.parameter_bytes, parts[strategy.parameters]),
        _divided(training.gradient_bytes, parts[strategy.gradients]),
        _divided(training.optimizer_bytes, parts[strategy.optimizer]),
    )


def _divided(size: int, parts: int) -> int:
    return -(-size // parts)


def bytes_left(state: ModelState, memory_bytes: int) -> int:
    """What a GPU has left for activations and buffers; not above 0: the model state does not fit.

    Args:
        state: of the model on this GPU.
        memory_bytes: of the GPU, all of it.
    """
    return memory_bytes - state.total - RESERVE_BYTES

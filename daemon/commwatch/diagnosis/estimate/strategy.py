"""What each way to spread a training run sends, and what of the model each GPU then holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

StrategyName: TypeAlias = Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "tp"]
Precision: TypeAlias = Literal["bf16", "fp16", "fp32"]
Operation: TypeAlias = Literal["all_gather", "reduce_scatter", "all_reduce"]
Scope: TypeAlias = Literal["all", "node", "between"]
"""Who takes part: all GPUs; those of a node, every node for itself; GPUs of the same place in each node, place by
place, each with its share."""
Spread: TypeAlias = Literal["copied", "node", "all"]
"""Every GPU has all of it; it is split over the GPUs of a node; over all GPUs."""

BYTES_PER_ELEMENT: dict[Precision, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of a training step."""

    operation: Operation
    carries: Literal["parameters", "gradients", "activations"]
    scope: Scope
    every: Literal["micro_batch", "step"]
    purpose: str

    @property
    def can_hide(self) -> bool:
        """Whether it can run beside computing: what tensor parallel layers exchange is needed at once."""
        return self.carries != "activations"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to spread a training run over GPUs."""

    name: StrategyName
    label: str
    parameters: Spread
    gradients: Spread
    optimizer: Spread
    transfers: tuple[Transfer, ...]
    assumes: str = ""
    """What it takes for granted, for the user."""

    @property
    def splits_work(self) -> bool:
        """Whether the GPUs of a node share one micro-batch; else each has its own."""
        return self.name == "tp"


_SUM = Transfer("all_reduce", "gradients", "all", "step", "sum of the gradients")
_SCATTER_STEP = Transfer("reduce_scatter", "gradients", "all", "step", "sum of the gradients, each GPU its part")
_SCATTER = Transfer("reduce_scatter", "gradients", "all", "micro_batch", "sum of the gradients, each GPU its part")
_UPDATED = Transfer("all_gather", "parameters", "all", "step", "parameters after the update")
_FORWARD = Transfer("all_gather", "parameters", "all", "micro_batch", "parameters for the forward pass")
_BACKWARD = Transfer("all_gather", "parameters", "all", "micro_batch", "parameters for the backward pass")
_ACCUMULATES = "gradients of micro-batches are added up locally (no_sync) and summed over GPUs once a step"

STRATEGIES: dict[StrategyName, Strategy] = {
    one.name: one
    for one in (
        Strategy("ddp", "DDP", "copied", "copied", "copied", (_SUM,), _ACCUMULATES),
        Strategy("zero1", "ZeRO-1", "copied", "copied", "all", (_SCATTER_STEP, _UPDATED), _ACCUMULATES),
        Strategy("zero2", "ZeRO-2", "copied", "all", "all", (_SCATTER, _UPDATED)),
        Strategy("zero3", "ZeRO-3", "all", "all", "all", (_FORWARD, _BACKWARD, _SCATTER)),
        Strategy("fsdp", "FSDP", "all", "all", "all", (_FORWARD, _BACKWARD, _SCATTER),
                 "parameters are given up after the forward pass (FULL_SHARD)"),
        Strategy("fsdp-grad-op", "FSDP SHARD_GRAD_OP", "copied", "all", "all", (_FORWARD, _SCATTER),
                 "parameters are kept between forward and backward pass, and given up after it"),
        Strategy("hsdp", "HSDP", "node", "node", "node", (
            Transfer("all_gather", "parameters", "node", "micro_batch", "parameters for the forward pass"),
            Transfer("all_gather", "parameters", "node", "micro_batch", "parameters for the backward pass"),
            Transfer("reduce_scatter", "gradients", "node", "micro_batch", "sum of the gradients in a node"),
            Transfer("all_reduce", "gradients", "between", "micro_batch", "sum of the gradients over the nodes"),
        ), "the model is split over the GPUs of a node and copied from node to node; gradients are summed over the "
           "nodes with each micro-batch"),
        Strategy("tp", "tensor parallel", "node", "node", "node", (
            Transfer("all_reduce", "activations", "node", "micro_batch", "activations, 4 times each layer"),
            Transfer("all_reduce", "gradients", "between", "step", "sum of the gradients over the nodes"),
        ), "each layer is split over the GPUs of a node, DDP joins the nodes; GPUs wait for all activations"),
    )
}  # fmt: skip
"""Volumes: ZeRO paper (Rajbhandari et al. 2020, section 7), PyTorch's FSDP and Megatron-LM's tensor parallel layers."""

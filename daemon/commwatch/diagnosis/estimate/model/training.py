"""A training run, how it is spread over GPUs, what that sends, and what of the model each GPU then holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from commwatch.diagnosis.estimate.model.span import Span, exactly

StrategyName: TypeAlias = Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "tp"]
Precision: TypeAlias = Literal["bf16", "fp16", "fp32"]
Operation: TypeAlias = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
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
    carries: Literal["parameters", "gradients", "activations", "tokens"]
    scope: Scope
    every: Literal["micro_batch", "step"]
    purpose: str

    @property
    def can_hide(self) -> bool:
        """Whether it can run beside computing: what layers exchange is needed at once."""
        return self.carries not in ("activations", "tokens")


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
    hides: float = 0.0
    """Share of computing behind which also the slow end hides: what is fetched ahead by design."""

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
        Strategy("ddp", "DDP", "copied", "copied", "copied", (_SUM,), _ACCUMULATES, 0.5),
        Strategy("zero1", "ZeRO-1", "copied", "copied", "all", (_SCATTER_STEP, _UPDATED), _ACCUMULATES, 0.5),
        Strategy("zero2", "ZeRO-2", "copied", "all", "all", (_SCATTER, _UPDATED)),
        Strategy("zero3", "ZeRO-3", "all", "all", "all", (_FORWARD, _BACKWARD, _SCATTER)),
        Strategy("fsdp", "FSDP", "all", "all", "all", (_FORWARD, _BACKWARD, _SCATTER),
                 "parameters are given up after the forward pass (FULL_SHARD)", 0.5),
        Strategy("fsdp-grad-op", "FSDP SHARD_GRAD_OP", "copied", "all", "all", (_FORWARD, _SCATTER),
                 "parameters are kept between forward and backward pass, and given up after it", 0.5),
        Strategy("hsdp", "HSDP", "node", "node", "node", (
            Transfer("all_gather", "parameters", "node", "micro_batch", "parameters for the forward pass"),
            Transfer("all_gather", "parameters", "node", "micro_batch", "parameters for the backward pass"),
            Transfer("reduce_scatter", "gradients", "node", "micro_batch", "sum of the gradients in a node"),
            Transfer("all_reduce", "gradients", "between", "micro_batch", "sum of the gradients over the nodes"),
        ), "the model is split over the GPUs of a node and copied from node to node; gradients are summed over the "
           "nodes with each micro-batch", 0.5),
        Strategy("tp", "tensor parallel", "node", "node", "node", (
            Transfer("all_reduce", "activations", "node", "micro_batch",
                     "activations, 4 times each layer; twice in a mixture of experts"),
            Transfer("all_to_all", "tokens", "node", "micro_batch",
                     "tokens to their experts and back, 4 times each layer of a mixture of experts"),
            Transfer("all_reduce", "gradients", "between", "step", "sum of the gradients over the nodes"),
        ), "each layer is split over the GPUs of a node, experts by whole ones, DDP joins the nodes; GPUs wait for all "
           "activations"),
    )
}  # fmt: skip
"""Volumes: ZeRO paper (Rajbhandari et al. 2020, section 7), PyTorch's FSDP and Megatron-LM's tensor parallel layers."""


# --- the run and what it runs on ---

Optimizer: TypeAlias = Literal["adam", "adam-pure", "sgd"]
"""adam: two moments and, with half precision, a copy of the parameters, all of them fp32; adam-pure: two moments in the
precision of the parameters; sgd: fp32 momentum and, with half precision, the copy."""


@dataclass(frozen=True, slots=True)
class Activations:
    """What tensor parallel layers exchange."""

    tokens: int
    """Of a micro-batch."""
    hidden: int
    """Size of the hidden state."""
    layers: int
    experts_per_token: int = 0
    """To which each token goes in each layer; 0: no mixture of experts."""

    def sent(self, carries: str, precision: Precision, gpus: int) -> tuple[int, int]:
        """Size and number of the calls of a micro-batch.

        All-reduces forward and backward for attention, and for the layer's other half, which in a mixture of experts
        exchanges tokens instead: what one of so many GPUs has of them, once for each expert, there and back.
        """
        size = self.tokens * self.hidden * BYTES_PER_ELEMENT[precision]
        if carries == "tokens":
            return size * self.experts_per_token // gpus, 4 * self.layers if self.experts_per_token else 0
        return size, (2 if self.experts_per_token else 4) * self.layers


class Place(NamedTuple):
    """Where an observed step lies in the estimate of its layout."""

    share: float
    """0: at the fast end; 1: at the slow end."""
    scale: float
    """Observed over the nearer end where it lies outside; else 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained, whatever it runs on."""

    parameters: int
    compute: Span
    """Seconds for which one GPU alone computes on a micro-batch, forward and backward."""
    precision: Precision = "bf16"
    """Of parameters and activations."""
    gradient_precision: Precision | None = None
    """In which gradients are held and summed; None: that of the parameters."""
    optimizer: Optimizer = "adam"
    trainable: int | None = None
    """Parameters that are trained, such as those of LoRA adapters; None: all."""
    overlaps: bool = False
    """Whether also the slow end hides what the strategy sends beside computing; a preflight counts on nothing."""
    place: Place | None = None
    """Where between fast and slow end a step was observed; None without an observation."""
    micro_batches: int = 1
    """Of a GPU in a step: accumulation."""
    activations: Activations | None = None
    """None where not known; tensor parallel cannot be estimated then."""

    @property
    def trained(self) -> int:
        """Parameters with a gradient."""
        return self.parameters if self.trainable is None else self.trainable

    @property
    def parameter_bytes(self) -> int:
        """All parameters."""
        return self.parameters * BYTES_PER_ELEMENT[self.precision]

    @property
    def gradient_bytes(self) -> int:
        """All gradients."""
        return self.trained * BYTES_PER_ELEMENT[self.gradient_precision or self.precision]

    @property
    def optimizer_bytes(self) -> int:
        """All state of the optimizer."""
        width = BYTES_PER_ELEMENT[self.precision]
        copy = 4 if width < 4 else 0
        return self.trained * {"adam": copy + 8, "adam-pure": 2 * width, "sgd": copy + 4}[self.optimizer]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a run is spread."""

    strategy: StrategyName
    gpus_per_node: int
    nodes: int = 1

    @property
    def total_gpus(self) -> int:
        """Of all nodes."""
        return self.gpus_per_node * self.nodes


_NO_LATENCY = exactly(0.0)


@dataclass(frozen=True, slots=True)
class Fabric:
    """What joins the GPUs; all rates in bytes per second, one direction."""

    in_node: Mapping[int, Span]
    """Bus bandwidth of collectives within a node, by number of GPUs."""
    network: Span | None = None
    """Of all NICs of a node together; None where not known."""
    all_to_all: Span | None = None
    """Bus bandwidth of an all-to-all within a node; None: that of other collectives."""
    hop_seconds: Span = _NO_LATENCY
    """From one GPU to the next: within a node, and to another one."""
    message_seconds: float = 0.0
    """That a CPU takes at most to start a message of a micro-batch, and what prepares it."""

    def among(self, gpus: int, operation: Operation) -> Span | None:
        """Bus bandwidth over so many GPUs of a node, else over the next larger number; None where neither is known."""
        if operation == "all_to_all" and self.all_to_all is not None:
            return self.all_to_all
        return next((self.in_node[known] for known in sorted(self.in_node) if known >= gpus), None)


def transfer_bytes(training: Training, transfer: Transfer, gpus: int) -> tuple[int, int] | None:
    """Size S of one call by the convention of nccl-tests, and the calls; None where activations are not known."""
    if transfer.carries in ("activations", "tokens"):
        known = training.activations
        return None if known is None else known.sent(transfer.carries, training.precision, gpus)
    if transfer.carries == "gradients":
        return training.gradient_bytes, 1
    if transfer.every == "step":  # only what is trained changes
        return training.trained * BYTES_PER_ELEMENT[training.precision], 1
    return training.parameter_bytes, 1


# --- memory ---

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

    def left(self, memory_bytes: int) -> int:
        """For activations and buffers, of all memory of a GPU; not above 0: the model state does not fit."""
        return memory_bytes - self.total - RESERVE_BYTES


def model_state(training: Training, layout: Layout) -> ModelState:
    """What each GPU holds through a step; a part that is not a whole number of bytes is rounded up."""
    parts: dict[Spread, int] = {"copied": 1, "node": layout.gpus_per_node, "all": layout.total_gpus}
    strategy = STRATEGIES[layout.strategy]
    return ModelState(
        -(-training.parameter_bytes // parts[strategy.parameters]),
        -(-training.gradient_bytes // parts[strategy.gradients]),
        -(-training.optimizer_bytes // parts[strategy.optimizer]),
    )

"""A training run and the GPUs it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from commwatch.diagnosis.estimate.quantities import Span
from commwatch.diagnosis.estimate.strategy import BYTES_PER_ELEMENT, STRATEGIES, Precision, StrategyName, Transfer

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

    def bytes_of_call(self, precision: Precision) -> int:
        """Size of one all-reduce."""
        return self.tokens * self.hidden * BYTES_PER_ELEMENT[precision]

    @property
    def calls(self) -> int:
        """All-reduces of a micro-batch: two forward and two backward in each layer."""
        return 4 * self.layers


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
    micro_batches: int = 1
    """Of a GPU in a step: accumulation."""
    activations: Activations | None = None
    """None where not known; tensor parallel cannot be estimated then."""

    @property
    def parameter_bytes(self) -> int:
        """All parameters."""
        return self.parameters * BYTES_PER_ELEMENT[self.precision]

    @property
    def gradient_bytes(self) -> int:
        """All gradients."""
        return self.parameters * BYTES_PER_ELEMENT[self.gradient_precision or self.precision]

    @property
    def optimizer_bytes(self) -> int:
        """All state of the optimizer."""
        width = BYTES_PER_ELEMENT[self.precision]
        copy = 4 if width < 4 else 0
        return self.parameters * {"adam": copy + 8, "adam-pure": 2 * width, "sgd": copy + 4}[self.optimizer]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a run is spread."""

    strategy: StrategyName
    gpus: int
    """Of each node."""
    nodes: int = 1

    @property
    def total_gpus(self) -> int:
        """Of all nodes."""
        return self.gpus * self.nodes

    def words(self) -> str:
        """``2 nodes × 2 GPUs, ZeRO-3``."""
        label = STRATEGIES[self.strategy].label
        if self.total_gpus == 1:
            return "one GPU"
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        return f"one node × {gpus}, {label}" if self.nodes == 1 else f"{self.nodes} nodes × {gpus}, {label}"


@dataclass(frozen=True, slots=True)
class Fabric:
    """What joins the GPUs; all rates in bytes per second, one direction."""

    in_node: Mapping[int, Span]
    """Bus bandwidth of collectives within a node, by number of GPUs."""
    network: Span | None = None
    """Of all NICs of a node together; None where not known."""

    def among(self, gpus: int) -> Span | None:
        """Bus bandwidth over so many GPUs of a node, else over the next larger number; None where neither is known."""
        return next((self.in_node[known] for known in sorted(self.in_node) if known >= gpus), None)


def transfer_bytes(training: Training, transfer: Transfer) -> tuple[int, int] | None:
    """Size S of one call by the convention of nccl-tests, and the calls; None where activations are not known."""
    if transfer.carries == "activations":
        known = training.activations
        return None if known is None else (known.bytes_of_call(training.precision), known.calls)
    return (training.parameter_bytes if transfer.carries == "parameters" else training.gradient_bytes), 1

"""GPU memory that a profile's model needs for training, adapting or serving; pure.

Activations: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4, with
an attention that keeps no scores. The output layer, its loss and buffers of libraries are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from commwatch.diagnosis.estimate.step import (
    BYTES_PER_ELEMENT,
    RESERVE_BYTES,
    STRATEGIES,
    Layout,
    StrategyName,
    Training,
    model_state,
    span,
)
from commwatch.diagnosis.marks.profiles import Profile, Purpose
from commwatch.units import format_memory

_WIDTH = BYTES_PER_ELEMENT["bf16"]
_KEPT, _KEPT_BY_ALL, _KEPT_BY_ONE = 34, 10, 24
"""Bytes that a layer keeps of each value of the hidden state; with tensor parallel, those that every GPU keeps and
those of which each keeps its part."""
_SPLIT_MORE: tuple[StrategyName, ...] = ("zero1", "zero2", "fsdp")
"""Strategies that data parallel training turns to where its own does not fit, each holding less than the one before."""
PURPOSES: dict[Purpose, str] = {"training": "training", "lora": "LoRA", "inference": "inference"}
"""How each is called."""


class Need(NamedTuple):
    strategy: StrategyName
    state_bytes: int
    """Of the model: weights, and what training adds."""
    working_bytes: int
    """Activations of a micro-batch, computed again in the backward pass, and parameters that are gathered for a layer;
    of inference keys and values of as many tokens."""

    @property
    def gpu_bytes(self) -> int:
        """With what is set aside for CUDA and NCCL."""
        return self.state_bytes + self.working_bytes + RESERVE_BYTES

    @property
    def words(self) -> str:
        """``ZeRO-1 holds 38.5 GB of state, 1.64 GB of activations and 1.2 GB for CUDA and NCCL on each GPU``."""
        state, working, rest = map(format_memory, (self.state_bytes, self.working_bytes, RESERVE_BYTES))
        label = STRATEGIES[self.strategy].label
        return f"{label} holds {state} of state, {working} of activations and {rest} for CUDA and NCCL on each GPU"


def training_of(profile: Profile, purpose: Purpose) -> Training:
    """The part of a profile's model that is trained; the time is not judged."""
    trainable = profile.trainable
    if purpose == "lora" and trainable is None:
        trainable = profile.parameters // 100
    return Training(
        parameters=profile.parameters, compute=span(0.0), trainable=trainable, tokens=profile.tokens,
        hidden=profile.hidden, layers=profile.layers, experts_per_token=profile.experts_per_token,
    )  # fmt: skip


def needs(profile: Profile, purpose: Purpose, gpus: int, nodes: int = 1) -> Iterator[Need]:
    """The memory of each GPU with the profile's own strategy, then with those that split more."""
    training, count = training_of(profile, purpose), gpus * nodes
    layer = profile.tokens * profile.hidden
    if purpose == "inference":
        cache = 2 * _WIDTH * layer * profile.layers  # as many heads for keys and values as for queries: the most
        yield Need("tp", -(-profile.weight_bytes // count), -(-cache // count))
        return
    held: int | None = None
    for strategy in (profile.strategy, *_SPLIT_MORE):
        state = sum(model_state(training, Layout(strategy, gpus, nodes)))
        if held is not None and (state >= held or profile.strategy == "tp"):
            continue
        held = state
        kept = _KEPT_BY_ALL + _KEPT_BY_ONE / gpus if strategy == "tp" else _KEPT
        working = _WIDTH * layer * profile.layers + int(kept * layer)
        if STRATEGIES[strategy].parameters in ("all", "node") and strategy != "tp" and count > 1:
            working += 2 * training.parameter_bytes // profile.layers  # a layer, and the next one that is fetched ahead
        yield Need(strategy, state, working)


def fitting(profile: Profile, purpose: Purpose, gpus: int, gpu_bytes: float) -> Need | None:
    """The first of ``needs`` on one node that fits into a GPU with these bytes; None if none fits."""
    return next((one for one in needs(profile, purpose, gpus) if one.gpu_bytes <= gpu_bytes), None)


def least_gpus(profile: Profile, purpose: Purpose, gpus: int, gpu_bytes: float) -> int | None:
    """GPUs of whole nodes below which it fits with no way to split the model; None where no number is enough.

    Args:
        gpus: of a node, on which it does not fit.
        gpu_bytes: of each of them.
    """
    whole = next(needs(profile, purpose, 1)).state_bytes
    left = gpu_bytes - RESERVE_BYTES
    if purpose != "inference":
        left -= _WIDTH * profile.tokens * profile.hidden * profile.layers
    if left <= 0:
        return None
    return gpus * max(2, -(-int(-(-whole // left)) // gpus))

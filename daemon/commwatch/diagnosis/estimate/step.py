"""Model of a training step on a layout: data sent, time that GPUs wait for it, and memory of each GPU; pure.

Sent volumes: ZeRO paper (Rajbhandari et al. 2020, section 7), PyTorch's FSDP, Megatron-LM's tensor parallel layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from commwatch.node.gpu_models import GpuModel, is_model
from commwatch.probes.results.bus_bandwidth import factor

# --- fitted to half of tests/estimate/published.csv, a tenth wider; assumed where it says so ---

RATE_FALLS = 0.2
"""Power of the number of nodes by which the slow end of the network's rate falls."""
MESSAGE_SECONDS = 4.7e-3
"""That a CPU takes at most to start a message of a micro-batch, and what prepares it."""
LAUNCH_SECONDS = 0.165
"""That a micro-batch may take however small it is, because a CPU starts its kernels one by one."""
LEAST_LAYERS, LAYERS_OF_14_GB, LAYERS_GROW = 24, 32, 0.4
"""Parameters and gradients are sent layer by layer: 32 of 7 B parameters in 16 bits, more by this power of the size
(13 B have 40 layers, 65 B have 80). Assumed."""
PLACE_SLACK = 0.1
"""Share of a range by which layouts may differ in where they lie in it; assumed."""
RECOMPUTED_LEAST = 0.5
"""Share of a forward pass that recomputation of activations costs at the fast end: many runs recompute some layers or
operations only, and a forward pass alone runs nearer to the peak (published runs on H100 with recomputation reach up to
57 % of the peak, without it up to 46 %)."""
HIDING_RATIO = 0.4
"""Share of computing behind which also the slow end hides what a strategy sends beside it."""
HOST_RATE = 16e9
"""Bytes per second. GPUs of a node that give less go over PCIe, mostly through the host; assumed."""
HOST_HOP_SECONDS = 0.5e-3
"""That a message takes at most there from GPU to GPU (torchtune issue 2264)."""
RESERVE_BYTES = 1_200_000_000
"""CUDA context (up to 0.5 GB: PyTorch issue 20532) and the first communicator (up to 0.7 GB: NCCL issue 964)."""

StrategyName: TypeAlias = Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "tp"]
Precision: TypeAlias = Literal["bf16", "fp16", "fp32"]
Optimizer: TypeAlias = Literal["adam", "adam-pure", "sgd"]
"""adam: two moments and, with half precision, a copy of the parameters, all of them fp32; adam-pure: two moments in the
precision of the parameters; sgd: fp32 momentum and, with half precision, the copy."""
Scope: TypeAlias = Literal["all", "node", "between"]
"""Who takes part: all GPUs; those of a node, every node for itself; GPUs of the same place in each node, place by
place, each with its share."""
Spread: TypeAlias = Literal["copied", "node", "all"]
"""Every GPU has all of it; it is split over the GPUs of a node; over all GPUs."""
BYTES_PER_ELEMENT: dict[Precision, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Span:
    """A quantity that lies between two values of one unit; infinity as the high end: no limit is known."""

    low: float
    high: float

    def times(self, factor: float) -> Span:
        """Both ends times a factor that is not negative."""
        return Span(self.low * factor, self.high * factor)

    def words(self, shown: Callable[[float], str]) -> str:
        """``3.88 s to 6.18 s``; one value where both are shown alike."""
        low, high = shown(self.low), shown(self.high)
        return low if low == high else f"{low} to {high}"


def span(*values: float) -> Span:
    """From the least to the most of one or several values."""
    return Span(min(values), max(values))


_UNLIMITED = span(math.inf)


# --- what is trained, how it is spread, and what joins the GPUs ---


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of a training step."""

    operation: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
    carries: Literal["parameters", "gradients", "activations", "tokens"]
    scope: Scope
    every: Literal["micro_batch", "step"]
    purpose: str
    size_bytes: int = 0
    """S of one call, by the convention of nccl-tests; between nodes that of a whole node."""
    calls: int = 1
    """Each time."""
    seconds: Span = Span(0.0, 0.0)
    """Of all calls of one time."""

    @property
    def is_needed_at_once(self) -> bool:
        """Whether GPUs wait for it in any case: what layers exchange."""
        return self.carries in ("activations", "tokens")

    @property
    def messages(self) -> float:
        """Of one call: parameters and gradients are sent layer by layer."""
        return (
            1
            if self.is_needed_at_once
            else max(LEAST_LAYERS, LAYERS_OF_14_GB * (self.size_bytes / 14e9) ** LAYERS_GROW)
        )


class Strategy(NamedTuple):
    """A way to spread a training run over GPUs."""

    label: str
    parameters: Spread
    gradients: Spread
    optimizer: Spread
    transfers: tuple[Transfer, ...]
    assumes: str = ""
    overlaps: bool = False
    """Whether also the slow end hides a part: what is fetched ahead by design."""


_SUM = Transfer("all_reduce", "gradients", "all", "step", "sum of the gradients")
_SCATTER = Transfer("reduce_scatter", "gradients", "all", "micro_batch", "sum of the gradients, each GPU its part")
_UPDATED = Transfer("all_gather", "parameters", "all", "step", "parameters after the update")
_FORWARD = Transfer("all_gather", "parameters", "all", "micro_batch", "parameters for the forward pass")
_BACKWARD = Transfer("all_gather", "parameters", "all", "micro_batch", "parameters for the backward pass")
_ACROSS = Transfer("all_reduce", "gradients", "between", "step", "sum of the gradients over the nodes")
_ACCUMULATES = "gradients of micro-batches are added up locally (no_sync) and summed over GPUs once a step"

STRATEGIES: dict[StrategyName, Strategy] = {
    "ddp": Strategy("DDP", "copied", "copied", "copied", (_SUM,), _ACCUMULATES, overlaps=True),
    "zero1": Strategy("ZeRO-1", "copied", "copied", "all", (replace(_SCATTER, every="step"), _UPDATED),
                      _ACCUMULATES, overlaps=True),
    "zero2": Strategy("ZeRO-2", "copied", "all", "all", (_SCATTER, _UPDATED)),
    "fsdp-grad-op": Strategy(
        "FSDP SHARD_GRAD_OP", "copied", "all", "all", (_FORWARD, _SCATTER),
        "parameters are kept between forward and backward pass, and given up after it", overlaps=True),
    "zero3": Strategy("ZeRO-3", "all", "all", "all", (_FORWARD, _BACKWARD, _SCATTER)),
    "fsdp": Strategy("FSDP", "all", "all", "all", (_FORWARD, _BACKWARD, _SCATTER),
                     "parameters are given up after the forward pass (FULL_SHARD)", overlaps=True),
    "hsdp": Strategy(
        "HSDP", "node", "node", "node", (
            replace(_FORWARD, scope="node"), replace(_BACKWARD, scope="node"),
            replace(_SCATTER, scope="node", purpose="sum of the gradients in a node"),
            replace(_ACROSS, every="micro_batch")),
        "the model is split over the GPUs of a node and copied from node to node; gradients are summed over the nodes "
        "with each micro-batch", overlaps=True),
    "tp": Strategy(
        "tensor parallel", "node", "node", "node", (
            Transfer("all_reduce", "activations", "node", "micro_batch",
                     "activations, 4 times each layer; twice in a mixture of experts"),
            Transfer("all_to_all", "tokens", "node", "micro_batch",
                     "tokens to their experts and back, 4 times each layer of a mixture of experts"),
            _ACROSS),
        "each layer is split over the GPUs of a node, experts by whole ones, DDP joins the nodes; GPUs wait for all "
        "activations"),
}  # fmt: skip
"""The simplest first."""


class Place(NamedTuple):
    """Where an observed step lies in the estimate of its layout."""

    share: float
    """0: at the fast end; 1: at the slow end."""
    scale: float
    """Observed over the nearer end where it lies outside; else 1."""

    def within(self, whole: Span) -> Span:
        """The tenth of a range on either side of this place, for another layout too."""
        ends = max(0.0, self.share - PLACE_SLACK), min(1.0, self.share + PLACE_SLACK)
        low, high = ((whole.low * (1 - end) + whole.high * end) * self.scale for end in ends)
        return Span(low, max(low, high))


def place_of(observed_seconds: float, step_seconds: Span) -> Place:
    low, high = step_seconds.low, step_seconds.high
    if low <= observed_seconds <= high < math.inf:
        return Place((observed_seconds - low) / (high - low) if high > low else 0.0, 1.0)
    return Place(0.0, observed_seconds / low) if observed_seconds < low else Place(1.0, observed_seconds / high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    parameters: int
    compute: Span
    """Seconds for which one GPU alone computes on a micro-batch, forward and backward."""
    precision: Precision = "bf16"
    """Of parameters and activations."""
    gradient_precision: Precision | None = None
    """Precision in which gradients are stored and summed; None: that of the parameters."""
    optimizer: Optimizer = "adam"
    trainable: int | None = None
    """Parameters that are trained, such as those of LoRA adapters; None: all."""
    overlaps: bool = False
    """Whether also the slow end hides what the strategy sends beside computing; a preflight counts on nothing."""
    hides: Span | None = None
    """Share that these GPUs hide of the shorter of computing and sending, as measured; None: not measured."""
    place: Place | None = None
    """Where between fast and slow end a step was observed; None without an observation."""
    micro_batches: int = 1
    """Of a GPU in a step: accumulation."""
    tokens: int | None = None
    """Of a micro-batch. Without tokens, hidden and layers tensor parallel cannot be estimated."""
    hidden: int | None = None
    """Size of the hidden state."""
    layers: int | None = None
    experts_per_token: int = 0
    """To which each token goes in each layer; 0: no mixture of experts."""

    @property
    def trained(self) -> int:
        """Parameters with a gradient."""
        return self.parameters if self.trainable is None else self.trainable

    @property
    def parameter_bytes(self) -> int:
        return self.parameters * BYTES_PER_ELEMENT[self.precision]

    @property
    def gradient_bytes(self) -> int:
        return self.trained * BYTES_PER_ELEMENT[self.gradient_precision or self.precision]

    @property
    def optimizer_bytes(self) -> int:
        width = BYTES_PER_ELEMENT[self.precision]
        copy = 4 if width < 4 else 0
        return self.trained * {"adam": copy + 8, "adam-pure": 2 * width, "sgd": copy + 4}[self.optimizer]

    def sends(self, transfer: Transfer, gpus: int) -> tuple[int, int] | None:
        """Size S of one call and the number of calls; None where what layers exchange is not known.

        Tensor parallel layers sum activations forward and backward for attention, and for their other half, which in a
        mixture of experts exchanges tokens instead: what one of the node's GPUs has of them, once for each expert,
        there and back.
        """
        if transfer.is_needed_at_once:
            if not (self.tokens and self.hidden and self.layers):
                return None
            size = self.tokens * self.hidden * BYTES_PER_ELEMENT[self.precision]
            if transfer.carries == "tokens":
                return size * self.experts_per_token // gpus, 4 * self.layers if self.experts_per_token else 0
            return size, (2 if self.experts_per_token else 4) * self.layers
        if transfer.carries == "gradients":
            return self.gradient_bytes, 1
        if transfer.every == "step":  # only what is trained changes
            return self.trained * BYTES_PER_ELEMENT[self.precision], 1
        return self.parameter_bytes, 1


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

    @property
    def label(self) -> str:
        """Of its strategy, for the user."""
        return STRATEGIES[self.strategy].label


@dataclass(frozen=True, slots=True)
class Fabric:
    """The connections between the GPUs; all rates in bytes per second, one direction."""

    in_node: Mapping[int, Span]
    """Bus bandwidth of collectives within a node, by number of GPUs."""
    network: Span | None = None
    """Of all NICs of a node together; None where not known."""
    all_to_all: Span | None = None
    """Bus bandwidth of an all-to-all within a node; None: that of other collectives."""
    hop_seconds: Span = Span(0.0, 0.0)
    """From one GPU to the next: within a node, and to another one."""
    message_seconds: float = 0.0
    """See ``MESSAGE_SECONDS``."""

    def among(self, gpus: int, operation: str) -> Span | None:
        """Bus bandwidth over some GPUs of a node, else over the next larger number; None where neither is known."""
        if gpus == 1:
            return _UNLIMITED
        if operation == "all_to_all" and self.all_to_all is not None:
            return self.all_to_all
        return next((self.in_node[known] for known in sorted(self.in_node) if known >= gpus), None)

    def is_over_host(self, gpus: int) -> bool:
        """Whether GPUs of a node may reach each other over PCIe alone."""
        rate = self.among(gpus, "all_reduce")
        return rate is not None and rate.low < HOST_RATE


def model_state(training: Training, layout: Layout) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer that each GPU holds through a step, without activations and buffers.

    A part that is not a whole number of bytes is rounded up.
    """
    parts: dict[Spread, int] = {"copied": 1, "node": layout.gpus_per_node, "all": layout.total_gpus}
    strategy = STRATEGIES[layout.strategy]
    return (
        -(-training.parameter_bytes // parts[strategy.parameters]),
        -(-training.gradient_bytes // parts[strategy.gradients]),
        -(-training.optimizer_bytes // parts[strategy.optimizer]),
    )


# --- time ---


class _Time(NamedTuple):
    """Seconds of one or several collectives."""

    network: float = 0.0
    """For which the NICs of a node are busy at least: each node gets once what it lacks."""
    node: float = 0.0
    """The same of what joins the GPUs of a node."""
    ring: float = 0.0
    """Of flat rings over all who take part, one call after another."""

    def times(self, count: float) -> _Time:
        return _Time(*(count * seconds for seconds in self))

    @property
    def seconds(self) -> Span:
        """Hierarchical bound, with network and nodes busy at the same time, to flat ring."""
        return Span(min(self.ring, max(self.network, self.node)), self.ring)


def _sum(*times: _Time) -> _Time:
    return _Time(*map(sum, zip(_Time(), *times, strict=True)))


def _time(transfer: Transfer, layout: Layout, fabric: Fabric, messages: float) -> _Time | None:
    """The time of one call; None if a required rate is not known.

    Hierarchical bound: (N-1)/N of S has to reach each of N nodes through its NICs, and (G-1)/G of S each of the G GPUs
    of a node from the others; an all-reduce does both twice. The fastest known rates count. Flat ring: (n-1)/n of S, or
    twice that, passes every place of a ring over all n GPUs, which runs at the slowest known rate on its way; between
    more than two nodes less, because rings cross each other in the switches. Each message adds the latency of its hops:
    those of a tree at the fast end, those of the ring at the slow end.
    """
    gpus = 1 if transfer.scope == "between" else layout.gpus_per_node
    nodes = 1 if transfer.scope == "node" else layout.nodes
    network = fabric.network if nodes > 1 else _UNLIMITED
    in_node = fabric.among(gpus, transfer.operation)
    if network is None or in_node is None:
        return None
    in_node_hop = fabric.hop_seconds.low
    hop = fabric.hop_seconds.high if nodes > 1 else in_node_hop
    ring = messages * hop * (gpus * nodes - 1)
    if hop and fabric.is_over_host(gpus):
        ring += messages * HOST_HOP_SECONDS * (gpus - 1)
    over_nodes, over_gpus, over_all = (
        factor(transfer.operation, ranks) * transfer.size_bytes for ranks in (nodes, gpus, gpus * nodes)
    )
    return _Time(
        over_nodes / network.high + (messages * hop * math.log2(gpus * nodes) if nodes > 1 else 0),
        over_gpus / in_node.high + messages * in_node_hop * math.log2(gpus),
        over_all / min(network.low * max(1, nodes / 2) ** -RATE_FALLS, in_node.low) + ring,
    )


Part: TypeAlias = Literal["computing", "in_node", "network"]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The largest part of a step."""

    part: Part
    certain: bool
    """Whether it does at both ends of the range; never where a step was observed outside its estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step on a layout; all spans go from the hierarchical bound, hidden where it can be, to the flat ring."""

    layout: Layout
    compute_seconds: Span
    """Of a micro-batch on each GPU."""
    transfers: tuple[Transfer, ...]
    communication_per_micro_batch_seconds: Span
    """Without what is sent once a step; so is the next one."""
    waiting_per_micro_batch_seconds: Span
    communication_seconds: Span
    waiting_seconds: Span
    """For which the GPUs wait for communication."""
    step_seconds: Span
    waiting_ratio: Span
    """Of the step."""
    efficiency_ratio: Span
    """Work done over what as many GPUs would do if each were alone."""
    bottleneck: Bottleneck

    @property
    def speedup(self) -> Span:
        """Work done over that of one GPU alone."""
        return self.efficiency_ratio.times(self.layout.total_gpus)

    def over(self, one_node: Step) -> Span:
        """Work of several nodes over that of one of them with the same strategy.

        At most their number: a node does not get faster because there are others.
        """
        mine, its = self.speedup, one_node.speedup
        low = mine.low / its.high
        return Span(low, max(low, min(mine.high / its.low, self.layout.nodes)))


def _sent(training: Training, layout: Layout, fabric: Fabric) -> list[tuple[Transfer, _Time]] | None:
    """The transfers of a layout, with the time of all their calls; None if a required value is not known."""
    sent = []
    for row in STRATEGIES[layout.strategy].transfers:
        if (sizes := training.sends(row, layout.gpus_per_node)) is None:
            return None
        size, calls = sizes
        transfer = replace(row, size_bytes=size, calls=calls)
        if (one := _time(transfer, layout, fabric, transfer.messages)) is None:
            return None
        if any(time := one.times(calls)):
            sent.append((replace(transfer, seconds=time.seconds), time))
    return sent


def estimate_step(training: Training, layout: Layout, fabric: Fabric) -> Step | None:
    """The time of a step; None if a rate, or for tensor parallel the activations, are not known.

    The high end hides behind computing only what the strategy fetches ahead, and waits for a CPU that starts messages
    for longer than GPUs compute and send. The low end hides all that can be hidden: what is sent with a micro-batch
    behind the computing of that one, what is sent once a step behind that of the last one. The
    optimizer's own work and the loading of data are left out. Each GPU works on ``micro_batches`` of its own, so that
    more GPUs do more work in a step.
    """
    sent = _sent(training, layout, fabric)
    if sent is None:
        return None
    last = _sum(*(time for one, time in sent if one.every == "step"))
    blocking = _sum(*(time for one, time in sent if one.every != "step" and one.is_needed_at_once))
    beside_all = [(one, time) for one, time in sent if one.every != "step" and not one.is_needed_at_once]
    beside = _sum(*(time for _, time in beside_all))
    # Tensor parallel: the GPUs of a node share one micro-batch; else each has its own.
    alone = training.compute.times(1 / layout.gpus_per_node if layout.strategy == "tp" else 1)
    most_hidden = training.hides.high if training.hides else 1.0
    is_behind = training.overlaps and STRATEGIES[layout.strategy].overlaps
    is_over_host = fabric.is_over_host(layout.gpus_per_node)

    def exposed(seconds: float, computing: float) -> float:
        """Seconds of a transfer that are not hidden behind computing at the fast end."""
        return seconds - most_hidden * min(seconds, computing)

    def late(of: Span, idle: float = 0.0) -> float:
        """For how long GPUs wait at the slow end for what is sent beside computing."""
        hidden = 0.0 if is_over_host else HIDING_RATIO * alone.low
        if training.hides:
            hidden = training.hides.low * min(of.high, alone.low)
        return max(idle, of.high - (hidden if is_behind else 0.0), exposed(of.low, alone.low))

    def near(whole: Span) -> Span:
        """Where the step lies by what was observed."""
        return whole if training.place is None else training.place.within(whole)

    count, before, at_once = training.micro_batches, training.micro_batches - 1, blocking.seconds.low
    starting = sum(one.messages for one, _ in beside_all) * fabric.message_seconds
    idle = starting - max(0.0, alone.high - LAUNCH_SECONDS)
    each, ends = beside.seconds, _sum(beside, last).seconds.low
    waits = Span(at_once + exposed(each.low, alone.high), blocking.ring + late(each, idle))
    most_waits = waits.high * count + late(last.seconds)
    least_waits = before * waits.low + at_once + exposed(ends, alone.high)
    least = count * (at_once + alone.low) + before * exposed(each.low, alone.low) + exposed(ends, alone.low)
    # Ends that are computed in different orders may differ in the last bit.
    waiting, compute = near(Span(min(least_waits, most_waits), most_waits)), near(alone)
    most = alone.high * count + most_waits
    computing, of_batch = compute.times(count), _sum(blocking, beside)
    whole = _sum(of_batch.times(count), last)
    return Step(
        layout=layout,
        compute_seconds=compute,
        transfers=tuple(one for one, _ in sent),
        communication_per_micro_batch_seconds=of_batch.seconds,
        waiting_per_micro_batch_seconds=near(waits),
        communication_seconds=whole.seconds,
        waiting_seconds=waiting,
        step_seconds=near(Span(min(least, most), most)),
        waiting_ratio=Span(waiting.low / (waiting.low + computing.high), waiting.high / (waiting.high + computing.low)),
        # Not 1 less the share of waiting, which would be rounded to 0 where GPUs do little but wait.
        efficiency_ratio=Span(
            computing.low / (waiting.high + computing.low), computing.high / (waiting.low + computing.high)
        ),
        bottleneck=_bottleneck(layout, whole, computing, is_sure=training.place is None or training.place.scale == 1),
    )


def _bottleneck(layout: Layout, sent: _Time, computing: Span, *, is_sure: bool) -> Bottleneck:
    slower: Part = "network" if layout.nodes > 1 and sent.network >= sent.node else "in_node"
    if max(sent.network, sent.node) > computing.high:
        return Bottleneck(slower, certain=is_sure)
    if sent.ring > computing.low:
        return Bottleneck(slower, certain=False)
    return Bottleneck("computing", certain=is_sure)


# --- how fast GPUs compute ---

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

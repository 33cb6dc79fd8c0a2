"""What a training step takes on a layout: computing, communication, and how long the GPUs wait for it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeAlias

from commwatch.diagnosis.estimate.model.gpus import LAUNCH_SECONDS
from commwatch.diagnosis.estimate.model.span import Span
from commwatch.diagnosis.estimate.model.training import (
    STRATEGIES,
    Fabric,
    Layout,
    Operation,
    Place,
    Scope,
    Training,
    Transfer,
    transfer_bytes,
)
from commwatch.probes.results.bus_bandwidth import factor

RATE_FALLS = 0.2
"""Power of the number of nodes by which the slow end of the network's rate falls. Fitted: the most that the half for
fitting of ``tests/estimate/published.csv`` implies, a tenth more."""
LEAST_LAYERS = 24
LAYERS_OF_14_GB = 32
"""Of 7 B parameters in 16 bits. Parameters and gradients are sent layer by layer."""
LAYERS_GROW = 0.4
"""Power of the size: 13 B have 40 layers, 65 B have 80."""

PLACE_SLACK = 0.1
"""Share of a range by which layouts may differ in where they lie in it; assumed."""

Part: TypeAlias = Literal["computing", "in_node", "network"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds of one or several collectives."""

    network_seconds: float = 0.0
    """For which the NICs of a node are busy at least: each node gets once what it lacks."""
    node_seconds: float = 0.0
    """The same of what joins the GPUs of a node."""
    ring_seconds: float = 0.0
    """Of flat rings over all who take part, one call after another."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.network_seconds + other.network_seconds,
            self.node_seconds + other.node_seconds,
            self.ring_seconds + other.ring_seconds,
        )

    def times(self, count: int) -> Traffic:
        """So many of them in a row."""
        return Traffic(self.network_seconds * count, self.node_seconds * count, self.ring_seconds * count)

    @property
    def seconds(self) -> Span:
        """Hierarchical bound, with network and nodes busy at the same time, to flat ring."""
        return Span(min(self.ring_seconds, max(self.network_seconds, self.node_seconds)), self.ring_seconds)


def traffic(
    operation: Operation, size_bytes: int, scope: Scope, layout: Layout, fabric: Fabric, messages: float = 1
) -> Traffic | None:
    """What a collective takes; None where a rate that it needs is not known.

    Hierarchical bound: (N-1)/N of S has to reach each of N nodes through its NICs, and (G-1)/G of S each of the G GPUs
    of a node from the others; an all-reduce does both twice. The fastest known rates count. Flat ring: (n-1)/n of S, or
    twice that, passes every place of a ring over all n GPUs, which runs at the slowest known rate on its way; between
    more than two nodes less, because rings cross each other in the switches. Each message adds the latency of its hops:
    those of a tree at the fast end, those of the ring at the slow end.
    S, ``size_bytes``, is by the convention of nccl-tests; between nodes that of a whole node.
    """
    gpus = 1 if scope == "between" else layout.gpus_per_node
    nodes = 1 if scope == "node" else layout.nodes
    if gpus * nodes == 1:
        return Traffic()
    rates: list[Span] = []
    network_seconds = node_seconds = 0.0
    if nodes > 1:
        if fabric.network is None:
            return None
        rates.append(fabric.network)
        network_seconds = factor(operation, nodes) * size_bytes / fabric.network.high
    if gpus > 1:
        in_node = fabric.among(gpus, operation)
        if in_node is None:
            return None
        rates.append(in_node)
        node_seconds = factor(operation, gpus) * size_bytes / in_node.high
    if nodes > 2:
        rates[0] = rates[0].times((nodes / 2) ** -RATE_FALLS)
    slowest = min(rate.low for rate in rates)
    hop = fabric.hop_seconds.high if nodes > 1 else fabric.hop_seconds.low
    tree, ring = (messages * hop * hops for hops in (math.log2(gpus * nodes), gpus * nodes - 1))
    return Traffic(
        network_seconds + (tree if nodes > 1 else 0),
        node_seconds + (0 if nodes > 1 else tree),
        factor(operation, gpus * nodes) * size_bytes / slowest + max(tree, ring),
    )


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What takes most of a step."""

    part: Part
    certain: bool
    """Whether it does at both ends of the range."""


@dataclass(frozen=True, slots=True)
class Sent(Transfer):
    """One collective of the step."""

    size_bytes: int
    """S of one call, by the convention of nccl-tests."""
    calls: int
    """Each time."""
    seconds: Span
    """Of all calls of one time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """A step on a layout; all spans go from the hierarchical bound, hidden where it can be, to the flat ring."""

    layout: Layout
    micro_batches: int
    compute_seconds: Span
    """Of a micro-batch on each GPU."""
    sent: tuple[Sent, ...]
    micro_batch_traffic: Traffic
    """Of what is sent with each micro-batch."""
    step_traffic: Traffic
    """Of all that is sent in a step."""
    micro_batch_waiting_seconds: Span
    """For which the GPUs wait in a micro-batch, without what is sent once a step."""
    waiting_seconds: Span
    """In a step."""
    step_seconds: Span
    is_sure: bool = True
    """Not where a step was observed outside its estimate: then something is left out."""

    @property
    def waiting_ratio(self) -> Span:
        """Share of the step for which the GPUs wait for communication."""
        computing = self.compute_seconds.times(self.micro_batches)
        return Span(
            self.waiting_seconds.low / (self.waiting_seconds.low + computing.high),
            self.waiting_seconds.high / (self.waiting_seconds.high + computing.low),
        )

    @property
    def efficiency(self) -> Span:
        """Work done over what as many GPUs would do if each were alone."""
        # Not 1 less the share of waiting, which would be rounded to 0 where GPUs do little but wait.
        computing = self.compute_seconds.times(self.micro_batches)
        return Span(
            computing.low / (self.waiting_seconds.high + computing.low),
            computing.high / (self.waiting_seconds.low + computing.high),
        )

    @property
    def speedup(self) -> Span:
        """Work done over that of one GPU alone."""
        return self.efficiency.times(self.layout.total_gpus)

    @property
    def bottleneck(self) -> Bottleneck:
        """What takes most of the step."""
        computing = self.compute_seconds.times(self.micro_batches)
        sent = self.step_traffic
        slower: Part = "in_node"
        if self.layout.nodes > 1 and sent.network_seconds >= sent.node_seconds:
            slower = "network"
        if max(sent.network_seconds, sent.node_seconds) > computing.high:
            return Bottleneck(slower, certain=self.is_sure)
        if sent.ring_seconds > computing.low:
            return Bottleneck(slower, certain=False)
        return Bottleneck("computing", certain=self.is_sure)


def estimate_step(training: Training, layout: Layout, fabric: Fabric) -> StepEstimate | None:
    """What a step takes; None where a rate, or for tensor parallel the activations, are not known.

    The high end hides behind computing only what the strategy fetches ahead, and waits for a CPU that starts messages
    for longer than GPUs compute and send. The low end hides all that can be hidden: what is sent with a micro-batch
    behind the computing of that one, what is sent once a step behind that of the last one. The
    optimizer's own work and the loading of data are left out. Each GPU works on ``micro_batches`` of its own, so that
    more GPUs do more work in a step.
    """
    strategy = STRATEGIES[layout.strategy]
    sent = []
    exposed, hidden, last, starting = Traffic(), Traffic(), Traffic(), 0.0
    for transfer in strategy.transfers:
        sizes = transfer_bytes(training, transfer, layout.gpus_per_node)
        if sizes is None:
            return None
        size_bytes, calls = sizes
        messages = max(LEAST_LAYERS, LAYERS_OF_14_GB * (size_bytes / 14e9) ** LAYERS_GROW) if calls == 1 else 1
        found = traffic(transfer.operation, size_bytes, transfer.scope, layout, fabric, messages)
        if found is None:
            return None
        if not calls or found == Traffic():
            continue
        found = found.times(calls)
        sent.append(Sent(**asdict(transfer), size_bytes=size_bytes, calls=calls, seconds=found.seconds))
        if transfer.every == "step":
            last += found
        elif transfer.can_hide:
            hidden += found
            starting += messages * fabric.message_seconds
        else:
            exposed += found
    compute = training.compute.times(1 / layout.gpus_per_node) if strategy.splits_work else training.compute
    count, hides = training.micro_batches, strategy.hides if training.overlaps else 0.0
    blocking, ends = exposed.seconds.low, (hidden + last).seconds.low

    def late(of: Traffic, idle: float = 0.0) -> float:
        """For how long GPUs wait at the slow end for what is sent beside computing."""
        return max(idle, of.seconds.high - hides * compute.low, of.seconds.low - compute.low, 0.0)

    idle = starting - max(0.0, compute.high - LAUNCH_SECONDS)
    waiting = Span(blocking + max(0.0, hidden.seconds.low - compute.high), exposed.seconds.high + late(hidden, idle))
    waiting_high = waiting.high * count + late(last)
    before = count - 1
    step = StepEstimate(
        layout=layout,
        micro_batches=count,
        compute_seconds=compute,
        sent=tuple(sent),
        micro_batch_traffic=exposed + hidden,
        step_traffic=(exposed + hidden).times(count) + last,
        micro_batch_waiting_seconds=waiting,
        waiting_seconds=_ordered(before * waiting.low + blocking + max(0.0, ends - compute.high), waiting_high),
        step_seconds=_ordered(
            before * (blocking + max(compute.low, hidden.seconds.low)) + blocking + max(compute.low, ends),
            compute.high * count + waiting_high,
        ),
    )
    return step if training.place is None else _settled(step, training.place)


def place_of(observed_seconds: float, step: StepEstimate) -> Place:
    """Where an observed step lies in its estimate."""
    low, high = step.step_seconds.low, step.step_seconds.high
    if low <= observed_seconds <= high < math.inf:
        return Place((observed_seconds - low) / (high - low) if high > low else 0.0, 1.0)
    return Place(0.0, observed_seconds / low) if observed_seconds < low else Place(1.0, observed_seconds / high)


def _settled(step: StepEstimate, place: Place) -> StepEstimate:
    """What a step of any layout takes, if it lies in its range where the observed one lies, to a tenth of the range."""

    def near(span: Span) -> Span:
        ends = (max(0.0, place.share - PLACE_SLACK), min(1.0, place.share + PLACE_SLACK))
        low, high = ((span.low * (1 - end) + span.high * end) * place.scale for end in ends)
        return Span(low, max(low, high))

    return replace(
        step,
        compute_seconds=near(step.compute_seconds),
        micro_batch_waiting_seconds=near(step.micro_batch_waiting_seconds),
        waiting_seconds=near(step.waiting_seconds),
        step_seconds=near(step.step_seconds),
        is_sure=place.scale == 1,
    )


def over_one_node(step: StepEstimate, one_node: StepEstimate) -> Span:
    """Work of several nodes over that of one of them with the same strategy.

    Whatever is hidden, and whatever the rates are, a node does not get faster because there are others: the ratio is
    at most the number of nodes.
    """
    ratio = step.speedup.over(one_node.speedup)
    return Span(ratio.low, max(ratio.low, min(ratio.high, step.layout.nodes)))


def _ordered(low: float, high: float) -> Span:
    """A span whose ends are computed in different orders, so that they may differ in the last bit."""
    return Span(min(low, high), high)

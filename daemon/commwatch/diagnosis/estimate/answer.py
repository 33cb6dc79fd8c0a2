"""What ``commwatch estimate`` answers: the record that ``--json`` prints; pure."""

from __future__ import annotations

import math

import msgspec

from commwatch.diagnosis.estimate.choice import choose, scaling
from commwatch.diagnosis.estimate.job import Layout
from commwatch.diagnosis.estimate.memory import RESERVE_BYTES, bytes_left, model_state
from commwatch.diagnosis.estimate.quantities import Span
from commwatch.diagnosis.estimate.rate_history import KnownRates
from commwatch.diagnosis.estimate.request import BadArgument, Request
from commwatch.diagnosis.estimate.sentences import assumptions, bottleneck_words, choice_words, nodes_words, one_node_of
from commwatch.diagnosis.estimate.step import Part, Sent, StepEstimate, estimate_step, over_one_node

SCHEMA_VERSION = 1
"""Grows when something is taken away or changes its meaning; additions leave it as it is."""


class Range(msgspec.Struct, frozen=True):
    """Low and high end; null: no limit is known."""

    low: float
    high: float | None


class Bottleneck(msgspec.Struct, frozen=True):
    """What takes most of a step."""

    part: Part
    certain: bool
    """Whether it does at both ends of the range."""


class SentOnce(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of the step."""

    operation: str
    carries: str
    purpose: str
    scope: str
    every: str
    size_bytes: int
    """S of one call, by the convention of nccl-tests."""
    calls: int
    seconds: Range
    """Of all calls of one time."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy on so many GPUs."""

    nodes: int
    gpus_per_node: int
    step_seconds: Range
    waiting_ratio: Range
    """Share of the step for which the GPUs wait for communication."""
    efficiency_ratio: Range
    """Work over that of as many GPUs, each alone."""
    speedup_ratio: Range
    """Work over that of one GPU."""
    speedup_over_one_node_ratio: Range | None
    """Work over that of one node; null within a node."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Of one GPU, in bytes."""

    gpu_bytes: int | None
    basis: str
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    total_bytes: int
    """Model state: the three together."""
    reserved_bytes: int = RESERVE_BYTES
    left_bytes: int | None
    """For activations and buffers; negative: the model state does not fit; null: not known."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A layout."""

    strategy: str
    nodes: int
    gpus_per_node: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    schema_version: int = SCHEMA_VERSION
    simulated_node: str
    parameters: int
    precision: str
    gradient_precision: str
    optimizer: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    layout: Chosen
    micro_batches: int
    network_bytes_per_second: Range | None
    in_node_bytes_per_second: dict[int, Range]
    """Bus bandwidth by number of GPUs."""
    rates: tuple[str, ...]
    not_used: tuple[str, ...]
    """Results of probes that are not used, and why."""
    compute_seconds: Range
    """Of a micro-batch on each GPU."""
    transfers: tuple[SentOnce, ...]
    communication_per_micro_batch_seconds: Range
    """Hierarchical bound to flat ring; without what is sent once a step."""
    waiting_per_micro_batch_seconds: Range
    """Of it, what computing does not hide."""
    communication_seconds: Range
    """Of a step."""
    waiting_seconds: Range
    """Of a step."""
    step_seconds: Range
    waiting_ratio: Range
    efficiency_ratio: Range
    bottleneck: Bottleneck
    scaling: tuple[Point, ...]
    memory: Memory
    choice: Chosen | None
    """null: the model state fits on no layout of these GPUs."""
    verdict: tuple[str, ...]
    assumptions: tuple[str, ...]


def answer(request: Request, known: KnownRates, simulated_node: str) -> Answer:
    """Reckon.

    Args:
        request: what to estimate.
        known: what was measured here.
        simulated_node: name of the simulated node; empty for the real one.

    Raises:
        BadArgument: a rate that the layout needs is not known.
    """
    training, layout, fabric = request.training, request.layout, request.fabric
    step = estimate_step(training, layout, fabric)
    if step is None:
        raise BadArgument(
            "--intra-node", f"is missing: nothing is known over {layout.gpus} GPUs; give it, such as 20GB/s"
        )
    points = scaling(training, layout, fabric, request.most_nodes)
    choice = choose(training, layout, fabric, request.memory_bytes)
    state = model_state(training, layout)
    part, certain = step.bottleneck
    return Answer(
        simulated_node=simulated_node,
        parameters=training.parameters,
        precision=training.precision,
        gradient_precision=training.gradient_precision or training.precision,
        optimizer=training.optimizer,
        parameter_bytes=training.parameter_bytes,
        gradient_bytes=training.gradient_bytes,
        optimizer_bytes=training.optimizer_bytes,
        layout=_chosen(layout),
        micro_batches=training.micro_batches,
        network_bytes_per_second=_range(fabric.network) if fabric.network else None,
        in_node_bytes_per_second={gpus: _range(rate) for gpus, rate in fabric.in_node.items()},
        rates=request.rates,
        not_used=known.left_out,
        compute_seconds=_range(step.compute_seconds),
        transfers=tuple(map(_sent, step.sent)),
        communication_per_micro_batch_seconds=_range(step.micro_batch_traffic.seconds),
        waiting_per_micro_batch_seconds=_range(step.micro_batch_waiting_seconds),
        communication_seconds=_range(step.step_traffic.seconds),
        waiting_seconds=_range(step.waiting_seconds),
        step_seconds=_range(step.step_seconds),
        waiting_ratio=_range(step.waiting_ratio),
        efficiency_ratio=_range(step.efficiency),
        bottleneck=Bottleneck(part, certain),
        scaling=tuple(_point(one, points) for one in points),
        memory=Memory(
            gpu_bytes=request.memory_bytes,
            basis=request.memory_basis,
            parameters_bytes=state.parameters,
            gradients_bytes=state.gradients,
            optimizer_bytes=state.optimizer,
            total_bytes=state.total,
            left_bytes=None if request.memory_bytes is None else bytes_left(state, request.memory_bytes),
        ),
        choice=None if choice.chosen is None else _chosen(choice.chosen.layout),
        verdict=(*bottleneck_words(step), *nodes_words(step, points), *choice_words(request, choice)),
        assumptions=(*request.assumptions, *assumptions(training, layout)),
    )


def _range(span: Span) -> Range:
    return Range(span.low, None if math.isinf(span.high) else span.high)


def _chosen(layout: Layout) -> Chosen:
    return Chosen(strategy=layout.strategy, nodes=layout.nodes, gpus_per_node=layout.gpus)


def _sent(one: Sent) -> SentOnce:
    return SentOnce(
        operation=one.transfer.operation,
        carries=one.transfer.carries,
        purpose=one.transfer.purpose,
        scope=one.transfer.scope,
        every=one.transfer.every,
        size_bytes=one.size_bytes,
        calls=one.calls,
        seconds=_range(one.traffic.seconds),
    )


def _point(step: StepEstimate, points: tuple[StepEstimate, ...]) -> Point:
    one_node = one_node_of(step, points)
    return Point(
        nodes=step.layout.nodes,
        gpus_per_node=step.layout.gpus,
        step_seconds=_range(step.step_seconds),
        waiting_ratio=_range(step.waiting_ratio),
        efficiency_ratio=_range(step.efficiency),
        speedup_ratio=_range(step.speedup),
        speedup_over_one_node_ratio=None if one_node is None else _range(over_one_node(step, one_node)),
    )

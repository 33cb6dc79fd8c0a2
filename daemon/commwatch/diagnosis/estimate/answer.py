"""What ``commwatch estimate`` answers: the record that ``--json`` prints, its sentences, and its text; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap

import msgspec

from commwatch.diagnosis.estimate.model.choice import Choice, choose, scaling
from commwatch.diagnosis.estimate.model.span import Span
from commwatch.diagnosis.estimate.model.step import (
    Bottleneck,
    Part,
    Sent,
    StepEstimate,
    estimate_step,
    over_one_node,
    place_of,
)
from commwatch.diagnosis.estimate.model.training import RESERVE_BYTES, STRATEGIES, Layout, Training, model_state
from commwatch.diagnosis.estimate.request import Request
from commwatch.lines import HEADING, WIDTH, Line, columns
from commwatch.units import format_count, format_gigabytes, format_seconds

SCHEMA_VERSION = 1
"""Grows when something is taken away or changes its meaning; additions leave it as it is."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy on so many GPUs."""

    nodes: int
    gpus_per_node: int
    step_seconds: Span
    waiting_ratio: Span
    """Share of the step for which the GPUs wait for communication."""
    efficiency_ratio: Span
    """Work over that of as many GPUs, each alone."""
    speedup_ratio: Span
    """Work over that of one GPU."""
    speedup_over_one_node_ratio: Span | None
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
    layout: Layout
    micro_batches: int
    network_bytes_per_second: Span | None
    in_node_bytes_per_second: Mapping[int, Span]
    """Bus bandwidth by number of GPUs."""
    rates: tuple[str, ...]
    not_used: tuple[str, ...]
    """Results of probes that are not used, and why."""
    compute_seconds: Span
    """Of a micro-batch on each GPU."""
    transfers: tuple[Sent, ...]
    communication_per_micro_batch_seconds: Span
    """Hierarchical bound to flat ring; without what is sent once a step."""
    waiting_per_micro_batch_seconds: Span
    """Of it, what computing does not hide."""
    communication_seconds: Span
    """Of a step."""
    waiting_seconds: Span
    """Of a step."""
    step_seconds: Span
    waiting_ratio: Span
    efficiency_ratio: Span
    bottleneck: Bottleneck
    scaling: tuple[Point, ...]
    memory: Memory
    choice: Layout | None
    """null: the model state fits on no layout of these GPUs."""
    observed_step_seconds: float | None
    """With which all times were set; null without."""
    trainable: int | None
    """Parameters that are trained; null: all."""
    verdict: tuple[str, ...]
    assumptions: tuple[str, ...]


def answer(request: Request) -> Answer:
    """All that is answered."""
    training, layout, fabric = request.training, request.layout, request.fabric
    observed: tuple[str, ...] = ()
    if request.observed_seconds is not None and (free := estimate_step(training, layout, fabric)) is not None:
        training = replace(training, place=place_of(request.observed_seconds, free))
        observed = (_observed_words(request.observed_seconds, free),)
    points = scaling(training, layout, fabric, request.most_nodes)
    step = next(one for one in points if one.layout == layout)  # a request has all rates that its layout needs
    choice = choose(training, layout, fabric, request.memory_bytes)
    state = model_state(training, layout)
    return Answer(
        simulated_node=request.simulated_node,
        parameters=training.parameters,
        precision=training.precision,
        gradient_precision=training.gradient_precision or training.precision,
        optimizer=training.optimizer,
        parameter_bytes=training.parameter_bytes,
        gradient_bytes=training.gradient_bytes,
        optimizer_bytes=training.optimizer_bytes,
        layout=layout,
        micro_batches=training.micro_batches,
        network_bytes_per_second=fabric.network,
        in_node_bytes_per_second=fabric.in_node,
        rates=request.rates,
        not_used=request.not_used,
        compute_seconds=step.compute_seconds,
        transfers=step.sent,
        communication_per_micro_batch_seconds=step.micro_batch_traffic.seconds,
        waiting_per_micro_batch_seconds=step.micro_batch_waiting_seconds,
        communication_seconds=step.step_traffic.seconds,
        waiting_seconds=step.waiting_seconds,
        step_seconds=step.step_seconds,
        waiting_ratio=step.waiting_ratio,
        efficiency_ratio=step.efficiency,
        bottleneck=step.bottleneck,
        scaling=tuple(_point(one, points) for one in points),
        memory=Memory(
            gpu_bytes=request.memory_bytes,
            basis=request.memory_basis,
            parameters_bytes=state.parameters,
            gradients_bytes=state.gradients,
            optimizer_bytes=state.optimizer,
            total_bytes=state.total,
            left_bytes=None if request.memory_bytes is None else state.left(request.memory_bytes),
        ),
        choice=None if choice.chosen is None else choice.chosen.layout,
        observed_step_seconds=request.observed_seconds,
        trainable=training.trainable,
        verdict=(
            _bottleneck_words(step),
            *observed,
            *_nodes_words(step, points),
            *_choice_words(request, choice, step),
            *filter(None, [request.gpus_to_take]),
        ),
        assumptions=(request.compute_basis, *_assumptions(training, layout)),
    )


def _point(step: StepEstimate, points: tuple[StepEstimate, ...]) -> Point:
    return Point(
        nodes=step.layout.nodes,
        gpus_per_node=step.layout.gpus_per_node,
        step_seconds=step.step_seconds,
        waiting_ratio=step.waiting_ratio,
        efficiency_ratio=step.efficiency,
        speedup_ratio=step.speedup,
        speedup_over_one_node_ratio=_over_one_node(step, points),
    )


def _over_one_node(step: StepEstimate, points: Sequence[StepEstimate]) -> Span | None:
    """Against the same strategy on one node with as many GPUs; None for one that is one node itself."""
    alone = Layout(step.layout.strategy, step.layout.gpus_per_node)
    if step.layout == alone:
        return None
    return over_one_node(step, next(one for one in points if one.layout == alone))


# --- sentences ---

_CHOOSE = "Choose "
_HIDDEN = ("nothing hidden", "hidden behind half of the computing")
_PARTS: dict[Part, str] = {
    "computing": "Computing",
    "in_node": "What joins the GPUs of a node",
    "network": "The network",
}


def _bottleneck_words(step: StepEstimate) -> str:
    if step.layout.total_gpus == 1:
        return "One GPU communicates with nobody."
    part = _PARTS[step.bottleneck.part]
    computing = step.compute_seconds.times(step.micro_batches)
    if step.bottleneck.part == "computing":
        is_it = "is" if step.bottleneck.certain else "may be"
        return f"{part} {is_it} the bottleneck: communication takes less time than that, also as flat rings."
    busy = max(step.step_traffic.network_seconds, step.step_traffic.node_seconds)
    if step.bottleneck.certain:
        return (
            f"{part} is the bottleneck: busy for at least {format_seconds(busy)} of a step in which each GPU computes "
            f"for {_seconds(computing)}."
        )
    return (
        f"{part} may be the bottleneck: a step communicates for {_seconds(step.step_traffic.seconds)} and computes for "
        f"{_seconds(computing)}."
    )


def _observed_words(seconds: float, free: StepEstimate) -> str:
    """What an observed step does to the estimate."""
    span, shown = free.step_seconds, format_seconds(seconds)
    if span.holds(seconds):
        return f"The observed {shown} lie within the estimate of {_seconds(span)}; all figures are set by them."
    end, nearer = ("fast", span.low) if seconds < span.low else ("slow", span.high)
    return (
        f"The observed {shown} lie outside the estimate of {_seconds(span)}: {seconds / nearer:.3g} times its {end} "
        "end. All figures are scaled by that; look for what the options or the assumptions have wrong."
    )


def _nodes_words(step: StepEstimate, points: Sequence[StepEstimate]) -> Iterator[str]:
    """What several nodes do against one; nothing for one node."""
    ratio = _over_one_node(step, points)
    if ratio is None:
        return
    meaning = "slower than one node" if ratio.high < 1 else "faster" if ratio.low > 1 else "perhaps slower"
    label = STRATEGIES[step.layout.strategy].label
    yield f"{step.layout.nodes} nodes do {_ratio(ratio)} times the work of one node with {label}: {meaning}."


def _choice_words(request: Request, choice: Choice, asked: StepEstimate) -> Iterator[str]:
    """The layout to choose, and why."""
    chosen, larger = choice.chosen, choice.larger
    if chosen is None:
        yield "The model state does not fit on these GPUs with any strategy: more GPUs, more memory or a smaller model."
        return
    if chosen.layout.total_gpus > 1 or asked.layout.total_gpus > 1:
        why = "at their slow end no other does more" if choice.surest else "simpler, within 10 % of the best slow end"
        work = "" if chosen.layout.total_gpus == 1 else f"{_ratio(chosen.speedup)} times the work of one GPU; "
        yield f"{_CHOOSE}{_layout_words(chosen.layout)}: {work}{why}."
    yield from _memory_words(request, choice, chosen.layout)
    if asked.layout.total_gpus > 1 and asked.layout != chosen.layout:
        yield f"What was asked for, {_layout_words(asked.layout)}, does {_ratio(asked.speedup)} times."
    if larger is not None and larger.layout != asked.layout:
        yield f"The best on more GPUs, {_layout_words(larger.layout)}, does {_ratio(larger.speedup)} times."


def _memory_words(request: Request, choice: Choice, chosen: Layout) -> Iterator[str]:
    """Why it is not a simpler strategy; where the memory is not known, what that of the chosen one must hold."""
    for one in choice.too_large[:1]:
        need = model_state(request.training, one).total
        yield (
            f"{STRATEGIES[one.strategy].label} on the same GPUs does not fit: {format_gigabytes(need)} of model state "
            f"with optimizer {request.training.optimizer}, {format_gigabytes(RESERVE_BYTES)} set aside."
        )
    if request.memory_bytes is not None or chosen.strategy != "ddp":
        return
    need_words = format_gigabytes(model_state(request.training, chosen).total)
    words = f"It holds {need_words} of model state on each GPU, whose memory is not known."
    if chosen.total_gpus > 1:
        split = format_gigabytes(
            model_state(request.training, Layout("zero1", chosen.gpus_per_node, chosen.nodes)).total
        )
        words += f" Where that does not fit, ZeRO-1 sends as many bytes and holds {split}."
    yield words


def _assumptions(training: Training, layout: Layout) -> Iterator[str]:
    """What the model takes for granted, and its units."""
    yield (
        "Fast end: hierarchical bound (each byte enters a node once), hidden behind computing as far as possible. "
        f"Slow end: a flat ring over all GPUs, {_HIDDEN[STRATEGIES[layout.strategy].hides > 0]}."
    )
    who = "node" if STRATEGIES[layout.strategy].splits_work else "GPU"
    yield f"Each {who} has the same work however many there are, so that n of them do n times the work in a step."
    if assumes := STRATEGIES[layout.strategy].assumes:
        yield f"{STRATEGIES[layout.strategy].label}: {assumes}."
    yield (
        "Each layer is a message, which costs 5 us for each GPU that it passes within a node, 15 us between nodes (50 "
        "us below 100 Gbit/s); a CPU starts it in at most 4.7 ms; the network's slow end falls by 13 % with each "
        "doubling beyond two nodes. The optimizer's own work and the loading of data are left out. No switch sums up "
        "(SHARP)."
    )
    each = training.optimizer_bytes // training.trained
    yield (
        f"Optimizer {training.optimizer}: {each} bytes for each trained parameter. Model state is without activations "
        f"and buffers; {format_gigabytes(RESERVE_BYTES)} of a GPU are set aside for the CUDA context and NCCL."
    )
    yield (
        f"1B is 10^9 parameters: {format_count(training.parameters)} is {training.parameters:,}. 1 GB is 10^9 bytes, "
        "1 Gbit/s is 10^9 bits/s."
    )


def _layout_words(layout: Layout) -> str:
    """``2 nodes × 2 GPUs, ZeRO-3``."""
    if layout.total_gpus == 1:
        return "one GPU"
    nodes = "one node" if layout.nodes == 1 else f"{layout.nodes} nodes"
    return f"{nodes} × {_gpus(layout.gpus_per_node)}, {STRATEGIES[layout.strategy].label}"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _ratio(span: Span) -> str:
    """``1.61 to 2``."""
    return span.words(lambda value: f"{value:.0f}" if value >= 99.95 else f"{value:.3g}")


def _seconds(span: Span) -> str:
    """``3.88 s to 6.18 s``."""
    return span.words(lambda value: "0 s" if value == 0 else format_seconds(value))


def _exact_bytes(count: int) -> str:
    """``3,000,000,000 bytes = 3 GB``."""
    return f"{count:,} bytes = {format_gigabytes(count)}"


def _percent(span: Span) -> str:
    """``14 to 27 %``."""
    return f"{span.words(lambda value: f'{100 * value:.0f}')} %"


# --- text ---


def answer_lines(answer: Answer) -> Iterator[Line]:
    """All of it: what to do first, then the figures that it rests on, then what they take for granted."""
    if answer.simulated_node:
        yield [(f"Simulated node {answer.simulated_node}: what was measured on it is not real.", "")]
        yield []
    accumulated = f", {answer.micro_batches} micro-batches a step" if answer.micro_batches > 1 else ""
    parameters = f"{format_count(answer.parameters)} parameters, {answer.precision}"
    yield [(f"{parameters}, {_layout_words(answer.layout)}{accumulated}", HEADING)]
    yield []
    bottleneck, *others = answer.verdict
    limits = answer.bottleneck.certain and answer.bottleneck.part != "computing"
    yield from _wrapped(bottleneck, "yellow" if limits else "")
    for sentence in others:
        yield from _wrapped(sentence, "green" if sentence.startswith(_CHOOSE) else "")
    yield from _units(answer)
    yield from _transfers(answer)
    yield from _time(answer)
    yield from _scaling(answer)
    yield from _memory(answer)
    yield from _heading("Assumptions")
    for sentence in answer.assumptions:
        yield from _wrapped(sentence)


def _heading(text: str) -> Iterator[Line]:
    yield []
    yield [(text, HEADING)]


def _wrapped(sentence: str, style: str = "") -> Iterator[Line]:
    """A sentence as an item of a list."""
    for number, text in enumerate(wrap(sentence, WIDTH - 4)):
        yield [("  - " if number == 0 else "    ", ""), (text, style)]


def _table(rows: Sequence[Sequence[str]], styles: Mapping[int, str] | None = None) -> Iterator[Line]:
    """Rows, some of them by their place in a style."""
    of = styles or {}
    yield from columns(
        [
            [(f"  {first}", of.get(place, "")), *((cell, of.get(place, "")) for cell in cells)]
            for place, (first, *cells) in enumerate(rows)
        ]
    )


def _units(answer: Answer) -> Iterator[Line]:
    yield from _heading("Units")
    trained = answer.trainable or answer.parameters
    sizes = (
        (f"parameters, {answer.precision}", answer.parameters, answer.parameter_bytes),
        (f"gradients, {answer.gradient_precision}", trained, answer.gradient_bytes),
        (f"optimizer, {answer.optimizer}", trained, answer.optimizer_bytes),
    )
    yield from _table(
        [(what, f"{count:,} × {size // count} bytes", f"= {_exact_bytes(size)}") for what, count, size in sizes]
    )
    for rate in (*answer.rates, *(f"not used: {one}" for one in answer.not_used)):
        yield from _wrapped(rate, "yellow" if "not measured here" in rate else "")


def _transfers(answer: Answer) -> Iterator[Line]:
    yield from _heading("What is sent: S is the buffer, its time from hierarchical bound to flat ring")
    if not answer.transfers:
        yield from _wrapped("Nothing: one GPU.")
        return
    rows = [("each", "operation", "S", "time")]
    for one in answer.transfers:
        calls = "" if one.calls == 1 else f"{one.calls:,} × "
        size = f"{calls}{one.size_bytes:,} bytes"
        rows.append((one.every.replace("_", "-"), one.operation, size, _seconds(one.seconds)))
    yield from _table(rows)
    for purpose in dict.fromkeys(f"{one.operation}: {one.purpose}" for one in answer.transfers):
        yield from _wrapped(purpose)


def _time(answer: Answer) -> Iterator[Line]:
    yield from _heading("Time")
    computing = answer.compute_seconds
    communicating, waiting = answer.communication_per_micro_batch_seconds, answer.waiting_per_micro_batch_seconds
    yield from _table([
        ("", "a micro-batch", "a step"),
        ("computing", _seconds(computing), _seconds(computing.times(answer.micro_batches))),
        ("communication", _seconds(communicating), _seconds(answer.communication_seconds)),
        ("of it GPUs wait", _seconds(waiting), _seconds(answer.waiting_seconds)),
        ("all", "", _seconds(answer.step_seconds)),
        ("share of waiting", "", _percent(answer.waiting_ratio)),
        ("efficiency", "", _percent(answer.efficiency_ratio)),
    ])  # fmt: skip


def _scaling(answer: Answer) -> Iterator[Line]:
    yield from _heading("Scaling: work against one GPU and against one node")
    rows = [("nodes", "GPUs", "step", "efficiency", "one GPU", "one node")]
    for one in answer.scaling:
        counts = str(one.nodes), str(one.nodes * one.gpus_per_node)
        times = _seconds(one.step_seconds), _percent(one.efficiency_ratio)
        node = one.speedup_over_one_node_ratio
        rows.append((*counts, *times, f"× {_ratio(one.speedup_ratio)}", "-" if node is None else f"× {_ratio(node)}"))
    asked = [(one.nodes, one.gpus_per_node) for one in answer.scaling].index(
        (answer.layout.nodes, answer.layout.gpus_per_node)
    )
    yield from _table(rows, {asked + 1: HEADING})


def _memory(answer: Answer) -> Iterator[Line]:
    memory = answer.memory
    yield from _heading("Memory of each GPU")
    rows = [
        ("parameters", f"{memory.parameters_bytes:,} bytes"),
        ("gradients", f"{memory.gradients_bytes:,} bytes"),
        ("optimizer", f"{memory.optimizer_bytes:,} bytes"),
        ("model state", _exact_bytes(memory.total_bytes)),
        ("GPU", memory.basis),
    ]
    left = memory.left_bytes
    if left is None:
        rows.append(("fits", "unknown"))
    elif left > 0:
        rows.append(("fits", f"yes; {format_gigabytes(left)} are left for activations and buffers"))
    else:
        rows.append(("fits", f"no; {format_gigabytes(-left)} too much even without activations"))
    yield from _table(rows, {} if left is None or left > 0 else {len(rows) - 1: "red"})

"""What ``commwatch estimate`` says in sentences: bottleneck, choice, assumptions; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commwatch.diagnosis.estimate.choice import Choice
from commwatch.diagnosis.estimate.job import Layout, Training
from commwatch.diagnosis.estimate.memory import RESERVE_BYTES, model_state
from commwatch.diagnosis.estimate.quantities import Span, format_count, format_gigabytes
from commwatch.diagnosis.estimate.request import Request
from commwatch.diagnosis.estimate.step import Part, StepEstimate, over_one_node
from commwatch.diagnosis.estimate.strategy import STRATEGIES
from commwatch.units import format_seconds

_PARTS: dict[Part, str] = {
    "computing": "Computing",
    "in_node": "What joins the GPUs of a node",
    "network": "The network",
}


def one_node_of(step: StepEstimate, points: Sequence[StepEstimate]) -> StepEstimate | None:
    """The same strategy on one node with as many GPUs; None for one that is one node itself."""
    if step.layout.nodes == 1:
        return None
    same = Layout(step.layout.strategy, step.layout.gpus)
    return next((one for one in points if one.layout == same), None)


def bottleneck_words(step: StepEstimate) -> Iterator[str]:
    """What takes most of the step."""
    if step.layout.total_gpus == 1:
        yield "One GPU communicates with nobody."
        return
    part, certain = step.bottleneck
    computing = step.compute_seconds.times(step.micro_batches)
    if part == "computing":
        yield "Computing is the bottleneck: communication takes less time than that, also as flat rings."
        return
    busy = max(step.step_traffic.network_seconds, step.step_traffic.node_seconds)
    if certain:
        yield (
            f"{_PARTS[part]} is the bottleneck: busy for at least {format_seconds(busy)} of a step in which each GPU "
            f"computes for {format_seconds(computing.low)}."
        )
        return
    yield (
        f"{_PARTS[part]} may be the bottleneck: a step communicates for {seconds_words(step.step_traffic.seconds)} and "
        f"computes for {format_seconds(computing.low)}."
    )


def nodes_words(step: StepEstimate, points: Sequence[StepEstimate]) -> Iterator[str]:
    """What several nodes do against one; nothing for one node."""
    one_node = one_node_of(step, points)
    if one_node is None:
        return
    ratio = over_one_node(step, one_node)
    meaning = "slower than one node" if ratio.high < 1 else "faster" if ratio.low > 1 else "perhaps slower"
    label = STRATEGIES[step.layout.strategy].label
    yield f"{step.layout.nodes} nodes do {ratio_words(ratio)} times the work of one node with {label}: {meaning}."


def choice_words(request: Request, choice: Choice) -> Iterator[str]:
    """The layout to choose, and why."""
    chosen, asked, larger = choice.chosen, choice.asked, choice.larger
    if chosen is None:
        yield "The model state does not fit on these GPUs with any strategy: more GPUs, more memory or a smaller model."
        return
    if chosen.layout.total_gpus > 1 or (asked is not None and asked.layout.total_gpus > 1):
        why = "at their slow end no other does more" if choice.surest else "simpler, within 10 % of the best slow end"
        work = "" if chosen.layout.total_gpus == 1 else f"{ratio_words(chosen.speedup)} times the work of one GPU; "
        yield f"Choose {chosen.layout.words()}: {work}{why}."
    yield from _memory_words(request, choice, chosen.layout)
    if asked is not None and asked.layout.total_gpus > 1 and asked.layout != chosen.layout:
        yield f"What was asked for, {asked.layout.words()}, does {ratio_words(asked.speedup)} times."
    if larger is not None and (asked is None or larger.layout != asked.layout):
        yield f"The best on more GPUs, {larger.layout.words()}, does {ratio_words(larger.speedup)} times."


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
        split = format_gigabytes(model_state(request.training, Layout("zero1", chosen.gpus, chosen.nodes)).total)
        words += f" Where that does not fit, ZeRO-1 sends as many bytes and holds {split}."
    yield words


def assumptions(training: Training, layout: Layout) -> Iterator[str]:
    """What the model takes for granted, and its units."""
    yield (
        "Fast end: hierarchical bound (each node gets what it lacks once), hidden behind computing as far as can be. "
        "Slow end: a flat ring over all GPUs, nothing hidden."
    )
    who = "node" if STRATEGIES[layout.strategy].splits_work else "GPU"
    yield f"Each {who} has the same work however many there are, so that n of them do n times the work in a step."
    if assumes := STRATEGIES[layout.strategy].assumes:
        yield f"{STRATEGIES[layout.strategy].label}: {assumes}."
    yield (
        "Messages are large: their latency, the optimizer's own work and the loading of data are left out. No switch "
        "sums up (SHARP)."
    )
    each = training.optimizer_bytes // training.parameters
    yield (
        f"Optimizer {training.optimizer}: {each} bytes for each parameter. Model state is without activations and "
        f"buffers; {format_gigabytes(RESERVE_BYTES)} of a GPU are set aside for the CUDA context and NCCL."
    )
    yield (
        f"1B is 10^9 parameters: {format_count(training.parameters)} is {training.parameters:,}. 1 GB is 10^9 bytes, "
        "1 Gbit/s is 10^9 bits/s."
    )


def ratio_words(span: Span) -> str:
    """``1.61 to 2``; one value where both print alike."""
    low, high = (f"{value:.0f}" if value >= 99.95 else f"{value:.3g}" for value in (span.low, span.high))
    return low if low == high else f"{low} to {high}"


def seconds_words(span: Span) -> str:
    """``3.88 s to 6.18 s``; one value where both print alike."""
    low, high = ("0 s" if value == 0 else format_seconds(value) for value in (span.low, span.high))
    return low if low == high else f"{low} to {high}"

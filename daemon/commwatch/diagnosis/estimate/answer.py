"""What ``commwatch estimate`` answers: the record that ``--json`` prints, its sentences, and its text; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import NamedTuple

from commwatch.diagnosis.estimate.model.choice import Choice, choose, scaling
from commwatch.diagnosis.estimate.model.span import Span
from commwatch.diagnosis.estimate.model.step import Part, StepEstimate, estimate_step, over_one_node, place_of
from commwatch.diagnosis.estimate.model.training import (
    RESERVE_BYTES,
    STRATEGIES,
    Layout,
    ModelState,
    Training,
    model_state,
)
from commwatch.diagnosis.estimate.request import Request
from commwatch.lines import HEADING, WIDTH, Line, columns
from commwatch.units import format_count, format_gigabytes, format_seconds

SCHEMA_VERSION = 1
"""Grows when something is taken away or changes its meaning; additions leave it as it is."""


class Answer(NamedTuple):
    """The whole answer."""

    request: Request
    training: Training
    """With the place of an observed step."""
    step: StepEstimate
    """On the layout that was asked for."""
    points: tuple[StepEstimate, ...]
    """The strategy on more and more GPUs and nodes."""
    choice: Choice
    verdict: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def state(self) -> ModelState:
        """On each GPU, on the layout that was asked for."""
        return model_state(self.training, self.step.layout)

    def over_one_node(self, step: StepEstimate) -> Span | None:
        """Work over that of one node with as many GPUs and the same strategy; None for one that is one node itself."""
        alone = Layout(step.layout.strategy, step.layout.gpus_per_node)
        if step.layout == alone:
            return None
        return over_one_node(step, next(one for one in self.points if one.layout == alone))


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
    assumptions = (request.compute_basis, *_assumptions(training, layout))
    found = Answer(request, training, step, points, choice, (), assumptions)
    return found._replace(
        verdict=(
            _bottleneck_words(step),
            *observed,
            *_nodes_words(found),
            *_choice_words(request, choice, step),
            *filter(None, [request.gpus_to_take]),
        )
    )


def document(found: Answer) -> dict[str, object]:
    """What ``--json`` prints; spans go from the hierarchical bound to the flat ring, what is not known is null."""
    request, training, step, state = found.request, found.training, found.step, found.state
    memory, chosen = request.memory_bytes, found.choice.chosen
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated_node": request.simulated_node,
        "parameters": training.parameters,
        "precision": training.precision,
        "gradient_precision": training.gradient_precision or training.precision,
        "optimizer": training.optimizer,
        "parameter_bytes": training.parameter_bytes,
        "gradient_bytes": training.gradient_bytes,
        "optimizer_bytes": training.optimizer_bytes,
        "layout": step.layout,
        "micro_batches": training.micro_batches,
        "network_bytes_per_second": request.fabric.network,
        "in_node_bytes_per_second": request.fabric.in_node,
        "rates": request.rates,
        "not_used": request.not_used,
        "compute_seconds": step.compute_seconds,
        "transfers": step.sent,
        "communication_per_micro_batch_seconds": step.micro_batch_traffic.seconds,
        "waiting_per_micro_batch_seconds": step.micro_batch_waiting_seconds,
        "communication_seconds": step.step_traffic.seconds,
        "waiting_seconds": step.waiting_seconds,
        "step_seconds": step.step_seconds,
        "waiting_ratio": step.waiting_ratio,
        "efficiency_ratio": step.efficiency,
        "bottleneck": step.bottleneck,
        "scaling": [
            {
                "nodes": one.layout.nodes,
                "gpus_per_node": one.layout.gpus_per_node,
                "step_seconds": one.step_seconds,
                "waiting_ratio": one.waiting_ratio,
                "efficiency_ratio": one.efficiency,
                "speedup_ratio": one.speedup,
                "speedup_over_one_node_ratio": found.over_one_node(one),
            }
            for one in found.points
        ],
        "memory": {
            "gpu_bytes": memory,
            "basis": request.memory_basis,
            "parameters_bytes": state.parameters,
            "gradients_bytes": state.gradients,
            "optimizer_bytes": state.optimizer,
            "total_bytes": state.total,
            "reserved_bytes": RESERVE_BYTES,
            "left_bytes": None if memory is None else state.left(memory),
        },
        "choice": None if chosen is None else chosen.layout,
        "observed_step_seconds": request.observed_seconds,
        "trainable": training.trainable,
        "verdict": found.verdict,
        "assumptions": found.assumptions,
    }


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


def _nodes_words(found: Answer) -> Iterator[str]:
    """What several nodes do against one; nothing for one node."""
    ratio, layout = found.over_one_node(found.step), found.step.layout
    if ratio is None:
        return
    meaning = "slower than one node" if ratio.high < 1 else "faster" if ratio.low > 1 else "perhaps slower"
    label = STRATEGIES[layout.strategy].label
    yield f"{layout.nodes} nodes do {_ratio(ratio)} times the work of one node with {label}: {meaning}."


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


def answer_lines(found: Answer) -> Iterator[Line]:
    """All of it: what to do first, then the figures that it rests on, then what they take for granted."""
    request, training, step = found.request, found.training, found.step
    if request.simulated_node:
        yield [(f"Simulated node {request.simulated_node}: what was measured on it is not real.", "")]
        yield []
    accumulated = f", {training.micro_batches} micro-batches a step" if training.micro_batches > 1 else ""
    parameters = f"{format_count(training.parameters)} parameters, {training.precision}"
    yield [(f"{parameters}, {_layout_words(step.layout)}{accumulated}", HEADING)]
    yield []
    bottleneck, *others = found.verdict
    limits = step.bottleneck.certain and step.bottleneck.part != "computing"
    yield from _wrapped(bottleneck, "yellow" if limits else "")
    for sentence in others:
        yield from _wrapped(sentence, "green" if sentence.startswith(_CHOOSE) else "")
    yield from _units(request, training)
    yield from _transfers(step)
    yield from _time(step)
    yield from _scaling(found)
    yield from _memory(request, found.state)
    yield from _heading("Assumptions")
    for sentence in found.assumptions:
        yield from _wrapped(sentence)


def _heading(text: str) -> Iterator[Line]:
    yield []
    yield [(text, HEADING)]


def _wrapped(sentence: str, style: str = "") -> Iterator[Line]:
    """A sentence as an item of a list."""
    for number, text in enumerate(wrap(sentence, WIDTH - 4)):
        yield [("  - " if number == 0 else "    ", ""), (text, style)]


def _table(rows: Sequence[Sequence[str]], marked: int = -1, style: str = "") -> Iterator[Line]:
    """Rows, one of them by its place in a style."""
    yield from columns(
        [
            [(cell if column else f"  {cell}", style if place == marked else "") for column, cell in enumerate(row)]
            for place, row in enumerate(rows)
        ]
    )


def _units(request: Request, training: Training) -> Iterator[Line]:
    yield from _heading("Units")
    sizes = (
        (f"parameters, {training.precision}", training.parameters, training.parameter_bytes),
        (f"gradients, {training.gradient_precision or training.precision}", training.trained, training.gradient_bytes),
        (f"optimizer, {training.optimizer}", training.trained, training.optimizer_bytes),
    )
    yield from _table(
        [(what, f"{count:,} × {size // count} bytes", f"= {_exact_bytes(size)}") for what, count, size in sizes]
    )
    for rate in (*request.rates, *(f"not used: {one}" for one in request.not_used)):
        yield from _wrapped(rate, "yellow" if "not measured here" in rate else "")


def _transfers(step: StepEstimate) -> Iterator[Line]:
    yield from _heading("What is sent: S is the buffer, its time from hierarchical bound to flat ring")
    if not step.sent:
        yield from _wrapped("Nothing: one GPU.")
        return
    rows = [("each", "operation", "S", "time")]
    for one in step.sent:
        calls = "" if one.calls == 1 else f"{one.calls:,} × "
        size = f"{calls}{one.size_bytes:,} bytes"
        rows.append((one.every.replace("_", "-"), one.operation, size, _seconds(one.seconds)))
    yield from _table(rows)
    for purpose in dict.fromkeys(f"{one.operation}: {one.purpose}" for one in step.sent):
        yield from _wrapped(purpose)


def _time(step: StepEstimate) -> Iterator[Line]:
    yield from _heading("Time")
    computing = step.compute_seconds
    communicating, waiting = step.micro_batch_traffic.seconds, step.micro_batch_waiting_seconds
    yield from _table([
        ("", "a micro-batch", "a step"),
        ("computing", _seconds(computing), _seconds(computing.times(step.micro_batches))),
        ("communication", _seconds(communicating), _seconds(step.step_traffic.seconds)),
        ("of it GPUs wait", _seconds(waiting), _seconds(step.waiting_seconds)),
        ("all", "", _seconds(step.step_seconds)),
        ("share of waiting", "", _percent(step.waiting_ratio)),
        ("efficiency", "", _percent(step.efficiency)),
    ])  # fmt: skip


def _scaling(found: Answer) -> Iterator[Line]:
    yield from _heading("Scaling: work against one GPU and against one node")
    rows = [("nodes", "GPUs", "step", "efficiency", "one GPU", "one node")]
    for one in found.points:
        counts = str(one.layout.nodes), str(one.layout.total_gpus)
        times = _seconds(one.step_seconds), _percent(one.efficiency)
        node = found.over_one_node(one)
        rows.append((*counts, *times, f"× {_ratio(one.speedup)}", "-" if node is None else f"× {_ratio(node)}"))
    yield from _table(rows, 1 + found.points.index(found.step), HEADING)


def _memory(request: Request, state: ModelState) -> Iterator[Line]:
    yield from _heading("Memory of each GPU")
    left = None if request.memory_bytes is None else state.left(request.memory_bytes)
    if left is None:
        fits = "unknown"
    elif left > 0:
        fits = f"yes; {format_gigabytes(left)} are left for activations and buffers"
    else:
        fits = f"no; {format_gigabytes(-left)} too much even without activations"
    rows = [
        ("parameters", f"{state.parameters:,} bytes"),
        ("gradients", f"{state.gradients:,} bytes"),
        ("optimizer", f"{state.optimizer:,} bytes"),
        ("model state", _exact_bytes(state.total)),
        ("GPU", request.memory_basis),
        ("fits", fits),
    ]
    yield from _table(rows, -1 if left is None or left > 0 else len(rows) - 1, "red")

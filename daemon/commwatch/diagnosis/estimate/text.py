"""The answer of ``commwatch estimate`` as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from textwrap import wrap

from commwatch.diagnosis.estimate.answer import Answer, Chosen, Point, Range, SentOnce
from commwatch.diagnosis.estimate.quantities import Span, format_count, format_exact_bytes, format_gigabytes
from commwatch.diagnosis.estimate.sentences import ratio_words, seconds_words
from commwatch.diagnosis.estimate.strategy import STRATEGIES
from commwatch.lines import HEADING, WIDTH, Line, columns


def answer_lines(answer: Answer) -> Iterator[Line]:
    """All of it: what to do first, then the figures that it rests on, then what they take for granted."""
    if answer.simulated_node:
        yield [(f"Simulated node {answer.simulated_node}: what was measured on it is not real.", "")]
        yield []
    where = _layout_words(answer.layout)
    accumulated = f", {answer.micro_batches} micro-batches a step" if answer.micro_batches > 1 else ""
    yield [(f"{format_count(answer.parameters)} parameters, {answer.precision}, {where}{accumulated}", HEADING)]
    yield []
    for sentence in answer.verdict:
        yield from _wrapped(sentence, _style(sentence))
    yield from _units(answer)
    yield from _sent(answer)
    yield from _time(answer)
    yield from _scaling(answer)
    yield from _memory(answer)
    yield from _heading("Assumptions")
    for sentence in answer.assumptions:
        yield from _wrapped(sentence)


def _style(sentence: str) -> str:
    return "green" if sentence.startswith("Choose ") else "yellow" if "bottleneck: busy" in sentence else ""


def _layout_words(layout: Chosen) -> str:
    label = next(one.label for one in STRATEGIES.values() if one.name == layout.strategy)
    nodes = "1 node" if layout.nodes == 1 else f"{layout.nodes} nodes"
    gpus = "1 GPU" if layout.gpus_per_node == 1 else f"{layout.gpus_per_node} GPUs"
    return f"{label}, {nodes} × {gpus}"


def _heading(text: str) -> Iterator[Line]:
    yield []
    yield [(text, HEADING)]


def _wrapped(sentence: str, style: str = "") -> Iterator[Line]:
    """A sentence as an item of a list."""
    for number, text in enumerate(wrap(sentence, WIDTH - 4)):
        yield [("  - " if number == 0 else "    ", ""), (text, style)]


def _table(rows: Sequence[Sequence[str]], styles: Sequence[str]) -> Iterator[Line]:
    yield from columns(
        [
            [(f"  {row[0]}", style), *((cell, style) for cell in row[1:])]
            for row, style in zip(rows, styles, strict=True)
        ]
    )


def _plain_table(rows: Sequence[Sequence[str]]) -> Iterator[Line]:
    yield from _table(rows, [""] * len(rows))


def _units(answer: Answer) -> Iterator[Line]:
    yield from _heading("Units")
    count = f"{answer.parameters:,}"
    rows = []
    for what, size in (
        (f"parameters, {answer.precision}", answer.parameter_bytes),
        (f"gradients, {answer.gradient_precision}", answer.gradient_bytes),
        (f"optimizer, {answer.optimizer}", answer.optimizer_bytes),
    ):
        rows.append((what, f"{count} × {size // answer.parameters} bytes", f"= {format_exact_bytes(size)}"))
    yield from _plain_table(rows)
    for rate in (*answer.rates, *(f"not used: {one}" for one in answer.not_used)):
        yield from _wrapped(rate, "yellow" if "not measured here" in rate else "")


_EVERY = {"micro_batch": "micro-batch", "step": "step"}


def _sent(answer: Answer) -> Iterator[Line]:
    yield from _heading("What is sent: S is the buffer, its time from hierarchical bound to flat ring")
    if not answer.transfers:
        yield from _wrapped("Nothing: one GPU.")
        return
    rows = [("each", "operation", "S", "time")]
    rows += [(_EVERY[one.every], one.operation, _size(one), _seconds(one.seconds)) for one in answer.transfers]
    yield from _plain_table(rows)
    for purpose in dict.fromkeys(f"{one.operation}: {one.purpose}" for one in answer.transfers):
        yield from _wrapped(purpose)


def _size(one: SentOnce) -> str:
    size = f"{one.size_bytes:,} bytes"
    return size if one.calls == 1 else f"{one.calls:,} × {size}"


def _time(answer: Answer) -> Iterator[Line]:
    yield from _heading("Time")
    rows = [("", "a micro-batch", "a step")]
    count = answer.micro_batches
    computing = Span(answer.compute_seconds.low, _high(answer.compute_seconds))
    rows.append(("computing", seconds_words(computing), seconds_words(computing.times(count))))
    per_micro_batch = answer.communication_per_micro_batch_seconds, answer.waiting_per_micro_batch_seconds
    rows.append(("communication", _seconds(per_micro_batch[0]), _seconds(answer.communication_seconds)))
    rows.append(("of it GPUs wait", _seconds(per_micro_batch[1]), _seconds(answer.waiting_seconds)))
    rows.append(("all", "", _seconds(answer.step_seconds)))
    rows.append(("share of waiting", "", _percent(answer.waiting_ratio)))
    rows.append(("efficiency", "", _percent(answer.efficiency_ratio)))
    yield from _plain_table(rows)


def _scaling(answer: Answer) -> Iterator[Line]:
    yield from _heading("Scaling: work against one GPU and against one node")
    heading = ("nodes", "GPUs", "step", "efficiency", "one GPU", "one node")
    rows = [heading, *(_point_row(one) for one in answer.scaling)]
    asked = (answer.layout.nodes, answer.layout.gpus_per_node)
    styles = ["", *(HEADING if (one.nodes, one.gpus_per_node) == asked else "" for one in answer.scaling)]
    yield from _table(rows, styles)


def _point_row(one: Point) -> tuple[str, ...]:
    node = one.speedup_over_one_node_ratio
    return (
        str(one.nodes),
        str(one.nodes * one.gpus_per_node),
        _seconds(one.step_seconds),
        _percent(one.efficiency_ratio),
        f"× {ratio_words(_span(one.speedup_ratio))}",
        "-" if node is None else f"× {ratio_words(_span(node))}",
    )


def _memory(answer: Answer) -> Iterator[Line]:
    memory = answer.memory
    yield from _heading("Memory of each GPU")
    rows = [
        ("parameters", f"{memory.parameters_bytes:,} bytes"),
        ("gradients", f"{memory.gradients_bytes:,} bytes"),
        ("optimizer", f"{memory.optimizer_bytes:,} bytes"),
        ("model state", format_exact_bytes(memory.total_bytes)),
        ("GPU", memory.basis),
    ]
    style = ""
    if memory.left_bytes is None:
        rows.append(("fits", "unknown"))
    elif memory.left_bytes > 0:
        rows.append(("fits", f"yes; {format_gigabytes(memory.left_bytes)} are left for activations and buffers"))
    else:
        rows.append(("fits", f"no; {format_gigabytes(-memory.left_bytes)} too much even without activations"))
        style = "red"
    yield from _table(rows, ["" for _ in rows[1:]] + [style])


def _high(one: Range) -> float:
    return math.inf if one.high is None else one.high


def _span(one: Range) -> Span:
    return Span(one.low, _high(one))


def _seconds(one: Range) -> str:
    return seconds_words(_span(one))


def _percent(one: Range) -> str:
    low, high = f"{100 * one.low:.0f}", f"{100 * _high(one):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"

"""The answer of ``commwatch estimate`` as text: what to do first, then the figures, then what they take for granted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from commwatch.diagnosis.estimate.answer import (
    CHOOSE,
    OUT_OF_RANGE,
    QUESTION,
    layout_words,
    ratio_words,
    seconds_words,
)
from commwatch.diagnosis.estimate.step import Layout, Span, Transfer
from commwatch.lines import HEADING, WIDTH, Line, columns
from commwatch.units import format_count, format_gigabytes


def answer_lines(found: dict[str, Any]) -> Iterator[Line]:
    if found["simulated_node"]:
        yield [(f"Simulated node {found['simulated_node']}: what was measured on it is not real.", "")]
        yield []
    count, layout = found["micro_batches"], found["layout"]
    accumulated = f", {count} micro-batches a step" if count > 1 else ""
    parameters = f"{format_count(found['parameters'])} parameters, {found['precision']}"
    yield [(f"{parameters}, {layout_words(layout)}{accumulated}", HEADING)]
    yield []
    limits = found["bottleneck"].certain and found["bottleneck"].part != "computing"
    for place, sentence in enumerate(found["verdict"]):
        is_yellow = sentence.startswith((QUESTION, OUT_OF_RANGE)) or (limits and not place)
        yield from _item(sentence, "yellow" if is_yellow else "green" if sentence.startswith(CHOOSE) else "")
    yield from _units(found)
    yield from _transfers(found["transfers"])
    yield from _time(found)
    yield from _scaling(found["scaling"], layout)
    yield from _memory(found["memory"])
    yield from _heading("Assumptions")
    for sentence in found["assumptions"]:
        yield from _item(sentence)


def _units(found: dict[str, Any]) -> Iterator[Line]:
    yield from _heading("Units")
    trained = found["trainable"] or found["parameters"]
    sizes = (
        (f"parameters, {found['precision']}", found["parameters"], found["parameter_bytes"]),
        (f"gradients, {found['gradient_precision']}", trained, found["gradient_bytes"]),
        (f"optimizer, {found['optimizer']}", trained, found["optimizer_bytes"]),
    )
    yield from _table(
        [(what, f"{count:,} × {size // count} bytes", f"= {_exact_bytes(size)}") for what, count, size in sizes]
    )
    for rate in (*found["rates"], *(f"not used: {one}" for one in found["not_used"])):
        yield from _item(rate, "yellow" if "not measured here" in rate else "")


def _transfers(transfers: tuple[Transfer, ...]) -> Iterator[Line]:
    yield from _heading("What is sent: S is the buffer, its time from hierarchical bound to flat ring")
    if transfers:
        rows = [("each", "operation", "S", "time")]
        for one in transfers:
            calls = "" if one.calls == 1 else f"{one.calls:,} × "
            size = f"{calls}{one.size_bytes:,} bytes"
            rows.append((one.every.replace("_", "-"), one.operation, size, seconds_words(one.seconds)))
        yield from _table(rows)
        for purpose in dict.fromkeys(f"{one.operation}: {one.purpose}" for one in transfers):
            yield from _item(purpose)
    else:
        yield from _item("Nothing: one GPU.")


def _time(found: dict[str, Any]) -> Iterator[Line]:
    yield from _heading("Time")
    computing = found["compute_seconds"]
    of_batch = found["communication_per_micro_batch_seconds"], found["waiting_per_micro_batch_seconds"]
    of_step = found["communication_seconds"], found["waiting_seconds"]
    yield from _table([
        ("", "a micro-batch", "a step"),
        ("computing", seconds_words(computing), seconds_words(computing.times(found["micro_batches"]))),
        ("communication", seconds_words(of_batch[0]), seconds_words(of_step[0])),
        ("of it GPUs wait", seconds_words(of_batch[1]), seconds_words(of_step[1])),
        ("all", "", seconds_words(found["step_seconds"])),
        ("share of waiting", "", _percent(found["waiting_ratio"])),
        ("efficiency", "", _percent(found["efficiency_ratio"])),
    ])  # fmt: skip


def _scaling(points: list[dict[str, Any]], layout: Layout) -> Iterator[Line]:
    yield from _heading("Scaling: work against one GPU and against one node")
    rows = [("nodes", "GPUs", "step", "efficiency", "one GPU", "one node")]
    marked = 0
    for point in points:
        nodes, gpus, over_node = point["nodes"], point["gpus_per_node"], point["speedup_over_one_node_ratio"]
        if (nodes, gpus) == (layout.nodes, layout.gpus_per_node):
            marked = len(rows)
        times = seconds_words(point["step_seconds"]), _percent(point["efficiency_ratio"])
        node = "-" if over_node is None else f"× {ratio_words(over_node)}"
        rows.append((str(nodes), str(nodes * gpus), *times, f"× {ratio_words(point['speedup_ratio'])}", node))
    yield from _table(rows, marked, HEADING)


def _memory(memory: dict[str, Any]) -> Iterator[Line]:
    yield from _heading("Memory of each GPU")
    left = memory["left_bytes"]
    fits = "unknown"
    if left is not None:
        fits = (
            f"yes; {format_gigabytes(left)} are left for activations and buffers"
            if left > 0
            else f"no; {format_gigabytes(-left)} too much even without activations"
        )
    rows = [(part, f"{memory[f'{part}_bytes']:,} bytes") for part in ("parameters", "gradients", "optimizer")]
    rows += [("model state", _exact_bytes(memory["total_bytes"])), ("GPU", memory["basis"]), ("fits", fits)]
    yield from _table(rows, -1 if left is None or left > 0 else len(rows) - 1, "red")


def _heading(text: str) -> Iterator[Line]:
    yield []
    yield [(text, HEADING)]


def _item(sentence: str, style: str = "") -> Iterator[Line]:
    """A sentence as an item of a list."""
    for number, text in enumerate(wrap(sentence, WIDTH - 4, break_on_hyphens=False)):
        yield [("  - " if number == 0 else "    ", ""), (text, style)]


def _table(rows: Sequence[Sequence[str]], marked: int = -1, style: str = "") -> Iterator[Line]:
    """Rows, one of them by its place in a style."""
    yield from columns(
        [
            [(cell if column else f"  {cell}", style if place == marked else "") for column, cell in enumerate(row)]
            for place, row in enumerate(rows)
        ]
    )


def _exact_bytes(count: int) -> str:
    """``3,000,000,000 bytes = 3 GB``."""
    return f"{count:,} bytes = {format_gigabytes(count)}"


def _percent(share: Span) -> str:
    """``14 to 27 %``."""
    return f"{share.words(lambda value: f'{100 * value:.0f}')} %"

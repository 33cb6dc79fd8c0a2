"""More and more GPUs and nodes, and the layout to choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commwatch.diagnosis.estimate.model.step import StepEstimate, estimate_step
from commwatch.diagnosis.estimate.model.training import Fabric, Layout, StrategyName, Training, model_state

CLOSE_RATIO = 0.9
"""A layout that surely does this share of the best one's work is as good, if it is simpler."""

_SIMPLEST_FIRST: tuple[StrategyName, ...] = ("ddp", "zero1", "zero2", "fsdp-grad-op", "zero3", "fsdp", "hsdp", "tp")


def doubling(limit: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to a limit, and the limit."""
    counts = [1]
    while counts[-1] * 2 < limit:
        counts.append(counts[-1] * 2)
    return (*counts, limit) if limit > 1 else (1,)


def scaling(training: Training, layout: Layout, fabric: Fabric, most_nodes: int) -> tuple[StepEstimate, ...]:
    """The same strategy on 1, 2, 4, ... GPUs of a node, then on 2, 4, ... nodes and on its own number of them.

    Those whose rates are known.
    """
    nodes = {*doubling(most_nodes), layout.nodes} - {1}
    layouts = [Layout(layout.strategy, gpus) for gpus in doubling(layout.gpus_per_node)]
    layouts += [Layout(layout.strategy, layout.gpus_per_node, count) for count in sorted(nodes)]
    found = (estimate_step(training, one, fabric) for one in layouts)
    return tuple(one for one in found if one is not None)


@dataclass(frozen=True, slots=True)
class Choice:
    """The layout to choose among those looked at."""

    chosen: StepEstimate | None
    """None where the model state fits nowhere."""
    surest: bool
    """Whether it does the most work at the slow end; else it is simpler and close to what does."""
    larger: StepEstimate | None
    """The best one on more GPUs than the chosen one; None where there is none."""
    too_large: tuple[Layout, ...]
    """Simpler layouts of the chosen GPUs whose model state does not fit."""


def choose(training: Training, asked: Layout, fabric: Fabric, memory_bytes: int | None) -> Choice:
    """The layout that surely does the most work, on no more GPUs than asked; of close ones the simplest.

    Sure is what the slow end of the range gives. Simpler is: fewer nodes, fewer GPUs, then the strategy that splits
    less. A layout whose model state does not fit is left out; where the memory is not known none is.
    """
    layouts = list(_candidates(asked))
    fitting = [one for one in layouts if _fits(training, one, memory_bytes)]
    steps = [step for one in fitting if (step := estimate_step(training, one, fabric)) is not None]
    chosen = _best(steps)
    if chosen is None:
        return Choice(None, surest=False, larger=None, too_large=())
    larger = [one for one in steps if one.layout.total_gpus > chosen.layout.total_gpus]
    return Choice(
        chosen,
        chosen.speedup.low >= max(one.speedup.low for one in steps),
        max(larger, key=lambda one: one.speedup.low, default=None),
        tuple(
            one
            for one in layouts
            if (one.gpus_per_node, one.nodes) == (chosen.layout.gpus_per_node, chosen.layout.nodes)
            and one not in fitting
            and _order(one) < _order(chosen.layout)
        ),
    )


def _candidates(asked: Layout) -> Iterable[Layout]:
    """Simplest first; strategies that are the same on these GPUs are there once, by their simplest name or as asked."""
    for nodes in doubling(asked.nodes):
        for gpus in doubling(asked.gpus_per_node) if nodes == 1 else (asked.gpus_per_node,):
            if nodes * gpus == 1:
                yield Layout("ddp", 1)
                continue
            for name in _SIMPLEST_FIRST:
                if name == asked.strategy or not _is_other_name(name, asked.strategy, gpus, nodes):
                    yield Layout(name, gpus, nodes)


def _is_other_name(name: StrategyName, asked: StrategyName, gpus: int, nodes: int) -> bool:
    if name == "fsdp" or (name == "zero3" and asked == "fsdp"):
        return True
    return (name == "hsdp" and 1 in (gpus, nodes)) or (name == "tp" and gpus == 1)


def _order(layout: Layout) -> tuple[int, int, int]:
    return layout.nodes, layout.gpus_per_node, _SIMPLEST_FIRST.index(layout.strategy)


def _fits(training: Training, layout: Layout, memory_bytes: int | None) -> bool:
    return memory_bytes is None or model_state(training, layout).left(memory_bytes) > 0


def _best(steps: Sequence[StepEstimate]) -> StepEstimate | None:
    most = max((one.speedup.low for one in steps), default=0.0)
    close = [one for one in steps if one.speedup.low >= CLOSE_RATIO * most]
    return min(close, key=lambda one: _order(one.layout), default=None)

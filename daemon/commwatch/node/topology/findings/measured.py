"""Where a measurement contradicts what the topology promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TypeAlias

from commwatch.node.topology.findings.machine import NodeView, TopologyFinding, labels, named
from commwatch.node.topology.model import End
from commwatch.node.topology.paths import PathClass, rank
from commwatch.units import format_rate

_MOST_PAIRS = 4
"""More are not written out."""

Pair: TypeAlias = tuple[End, End]

_LAYS: dict[PathClass, str] = {
    "NV": "joined by NVLink",
    "PIX": "under one PCIe switch (PIX)",
    "PXB": "under several PCIe switches (PXB)",
    "PHB": "across the CPU (PHB)",
    "NODE": "across the CPU (NODE)",
    "SYS": "across the CPUs (SYS)",
    "?": "across the CPU (?)",
}


def contradictions(view: NodeView) -> Iterator[TopologyFinding]:
    """Slow pairs: those that carry less than farther ones, then the others by their class."""
    values = _values(view)
    nearer = _nearer_slower(view, values)
    yield from _nearer_finding(view, values, nearer)
    known = [pair for pairs in nearer.values() for pair in pairs]
    by_class: dict[str, list[Pair]] = {}
    for pair in _slow(view, values):
        if pair not in known:
            by_class.setdefault(view.way(*pair).label, []).append(pair)
    for label, slow in by_class.items():
        yield _slow_finding(view, label, values, slow)


def nearer_is_slower(view: NodeView) -> bool:
    """Whether GPUs that lie near each other were measured to be slower than some that do not."""
    return bool(_nearer_slower(view, _values(view)))


def _values(view: NodeView) -> dict[Pair, float]:
    """Bytes per second of the slower direction, of each pair that was measured."""
    measured = view.measured
    if measured is None:
        return {}
    pairs = [(way.source, way.target) for way in view.ways]
    return {pair: value for pair in pairs if (value := measured.bandwidth(*pair)) is not None}


def _slow(view: NodeView, values: Mapping[Pair, float]) -> list[Pair]:
    slow = frozenset() if view.measured is None else view.measured.slow
    return [pair for pair in values if frozenset(end.address for end in pair) in slow]


def _nearer_slower(view: NodeView, values: Mapping[Pair, float]) -> dict[PathClass, list[Pair]]:
    """Slow pairs by class that carry less than what is usual in a farther class, the nearest class first."""
    usual: dict[PathClass, list[float]] = {}
    for pair, value in values.items():
        usual.setdefault(view.way(*pair).kind, []).append(value)
    found: dict[PathClass, list[Pair]] = {}
    for pair in _slow(view, values):
        kind = view.way(*pair).kind
        farther = [median(own) for other, own in usual.items() if rank(other) > rank(kind)]
        if farther and values[pair] < max(farther):
            found.setdefault(kind, []).append(pair)
    return dict(sorted(found.items(), key=lambda one: rank(one[0])))


def _nearer_finding(
    view: NodeView, values: Mapping[Pair, float], found: Mapping[PathClass, Sequence[Pair]]
) -> Iterator[TopologyFinding]:
    for kind, pairs in found.items():
        worst = min(pairs, key=lambda pair: values[pair])
        farther = [pair for pair in values if rank(view.way(*pair).kind) > rank(kind)]
        # Of pairs that are about as good, one that keeps a GPU of the slow pair.
        best, choice = (
            max(some, key=lambda pair: (round(values[pair] / values[worst], 1), bool({*pair} & {*worst})))
            for some in (farther, values)
        )
        shown = [f"{_name(pair)} {format_rate(values[pair])}" for pair in pairs[:_MOST_PAIRS]]
        names = f"{_name(worst)} {_LAYS[kind]} carry {format_rate(values[worst])}"
        more = f" All such pairs: {named(shown)}{' and others' if len(pairs) > _MOST_PAIRS else ''}."
        other = view.way(*best).kind
        yield TopologyFinding(
            "measured_nearer_slower",
            tuple(_name(pair) for pair in pairs),
            f"{names}, less than {_name(best)} {_LAYS[other]} with {format_rate(values[best])}, whatever the "
            f"topology promises.{more if len(pairs) > 1 else ''}",
            f"{_choice(view, worst, choice)}{_next_step(kind)}",
        )


def _choice(view: NodeView, slow: Pair, best: Pair) -> str:
    good, bad = view.cuda_list(best), view.cuda_list(slow)
    if not good or not bad:
        return f"Train on {_name(best)} rather than on {_name(slow)}. "
    return f"Train on {good} rather than {bad}: CUDA_VISIBLE_DEVICES={good} with CUDA_DEVICE_ORDER=PCI_BUS_ID. "


def _next_step(kind: PathClass) -> str:
    if kind == "NV":
        return "Look at the NVLinks of the slow pair: links that are down, error counters, NCCL_P2P settings."
    return (
        "Look at what the slow pair shares: lanes and generation of the switch and its uplink, ACS and IOMMU, which "
        "send traffic within a switch through the CPU, and whether the driver lets the two read each other's memory."
    )


def _slow_finding(view: NodeView, label: str, values: Mapping[Pair, float], slow: Sequence[Pair]) -> TopologyFinding:
    """Slow pairs of one class; one GPU that they all share is named in their place."""
    shared = [gpu for gpu in view.node.gpus if all(gpu in pair for pair in slow)]
    slowest = min(slow, key=lambda pair: values[pair])
    usual = _usual(view, label, values, slow)
    if len(slow) > 1 and len(shared) == 1:
        who: tuple[str, ...] = labels(shared)
        text = (
            f"{who[0]} carries at least {format_rate(values[slowest])} and at most "
            f"{format_rate(max(values[pair] for pair in slow))} with {len(slow)} of the other GPUs; {usual}."
        )
    else:
        who = tuple(_name(pair) for pair in slow)
        shown = [f"{_name(pair)} {format_rate(values[pair])}" for pair in slow]
        some = named(shown) if len(shown) <= _MOST_PAIRS else f"{', '.join(shown[:_MOST_PAIRS])} and others"
        text = f"Measured slow: {some}; {usual}."
    return TopologyFinding(
        "measured_slow_pair",
        who,
        text,
        "A ring runs at the speed of its weakest pair. commwatch heatmap shows which part the slow pairs have in "
        "common; until it is repaired leave these GPUs out of jobs that communicate much.",
    )


def _usual(view: NodeView, label: str, values: Mapping[Pair, float], slow: Sequence[Pair]) -> str:
    """The rate of the other pairs of the class, or the expected rate of the slow ones if there is no other."""
    if others := [value for pair, value in values.items() if view.way(*pair).label == label and pair not in slow]:
        return f"the other {label} pairs carry {format_rate(median(others))} in the median"
    cell = None if view.measured is None else view.measured.cells.get(slow[0])
    expected = None if cell is None else cell.expected_bandwidth
    return f"there is no other {label} pair" + (f", and {format_rate(expected)} is expected" if expected else "")


def _name(pair: Pair) -> str:
    return "-".join(labels(pair))

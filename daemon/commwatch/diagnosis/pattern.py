"""The pattern branch: which pairs are slow and what they have in common, small messages or large ones, since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Literal

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.marks.results import is_firm
from commwatch.diagnosis.pair_shape import Group, Limits, Shape, class_words, nearness, shape_of, values_of
from commwatch.diagnosis.pattern_probes import FULL_SCAN, sizes
from commwatch.diagnosis.pattern_scan import scanned
from commwatch.diagnosis.pattern_time import courses
from commwatch.findings.facts import Facts
from commwatch.findings.rules.gpu_ways import GpuWays, gpus_of, ways_of
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.node.topology.ways import Cell
from commwatch.probes.results.slow_cells import names_of
from commwatch.units import format_bytes, format_percent, format_rate, format_seconds
from commwatch_exporters.node.model import Probe

_MOST_NAMED = 6

_PairQuantity = Literal["bandwidth", "latency"]


def pattern(known: Known) -> Iterator[Check]:
    """Over pairs, over sizes, over time; after a full scan also what became of its probes."""
    yield from scanned(known)
    yield from pairs(known)
    yield from sizes(known)
    yield from courses(known)


def pairs(known: Known) -> Iterator[Check]:
    """What slow pairs have in common, by bandwidth and by latency."""
    gpus = known.facts.derived(gpus_of)
    if len(gpus) < 2:
        reason = "this node has one GPU" if gpus else "no GPU is known"
        yield Check(branch="pattern", what="pairs of GPUs", verdict="does not apply", detail=reason)
        return
    matrix = known.matrix
    if matrix is None or not all(end.device for end in matrix.endpoints):
        yield _not_measured("bandwidth of pairs")
        return
    limits = Limits(
        low_ratio=known.thresholds.probe_bandwidth_utilization_low_ratio,
        nearer_ratio=known.thresholds.pair_nearer_low_ratio,
        most_ratio=known.thresholds.pairs_slow_share_ratio,
    )
    groups = tuple(_groups(known.facts, matrix))
    shapes: dict[_PairQuantity, Shape | None] = {
        "bandwidth": shape_of(matrix, "bandwidth", groups, limits),
        "latency": shape_of(matrix, "latency", groups, limits),
    }
    for quantity, shape in shapes.items():
        other = shapes["latency" if quantity == "bandwidth" else "bandwidth"]
        yield _check(known, matrix, quantity, shape, other)
    yield from _by_kind(known, matrix)


def _not_measured(what: str) -> Check:
    return Check(
        branch="pattern",
        what=what,
        verdict="not measured",
        detail=f"No matrix of pairs is current; {FULL_SCAN}",
        next_step=FULL_SCAN,
    )


def _groups(facts: Facts, matrix: PairMatrix) -> Iterator[Group]:
    """PCIe switches and NUMA nodes with two GPUs or more, but not with all of them."""
    ways = facts.derived(ways_of)
    places = {end.pci_address: place for place, end in enumerate(matrix.endpoints)}
    below: dict[tuple[Literal["switch", "numa"], str], set[int]] = {}
    for address, place in places.items():
        for bridge in _switches_above(ways, address):
            below.setdefault(("switch", f"PCIe switch {bridge}"), set()).add(place)
    for device in facts.node.pcie_devices:
        if device.address in places and device.numa_node not in ("", "-1"):
            below.setdefault(("numa", f"NUMA node {device.numa_node}"), set()).add(places[device.address])
    seen: set[frozenset[int]] = set()
    for (kind, name), some in below.items():
        members = frozenset(some)
        if 2 <= len(members) < len(places) and members not in seen:
            seen.add(members)
            yield Group(name, kind, members)


def _switches_above(ways: GpuWays, address: str) -> Iterable[str]:
    """Upstream ports of switches: bridges that are neither the port of the GPU nor a root port."""
    above = ways.above(address)
    return (bridge for bridge in above[1:] if not bridge.startswith("pci") and not _is_root_port(ways, bridge))


def _is_root_port(ways: GpuWays, bridge: str) -> bool:
    return ways.bridges.get(bridge, "pci").startswith("pci")


# --- what is said of a shape ---


def _check(
    known: Known, matrix: PairMatrix, quantity: _PairQuantity, shape: Shape | None, other: Shape | None
) -> Check:
    size = matrix.latency_bytes if quantity == "latency" else matrix.bandwidth_bytes
    what = f"{quantity} of pairs, {format_bytes(size)}"
    if shape is None:
        return _not_measured(what)
    if shape.kind == "even":
        return Check(
            branch="pattern",
            what=what,
            measured=_span(matrix, quantity, shape),
            required="no pair far behind the others",
            verdict="passed",
            source="docs/using/culprit.md",
        )
    return Check(
        branch="pattern",
        what=what,
        where=shape.name,
        measured=_told(quantity, shape.typical),
        required=_required(quantity, shape, known.thresholds.probe_bandwidth_utilization_low_ratio),
        verdict=_verdict(known, shape),
        source="probe_bandwidth_utilization_low_ratio" if shape.expected else "docs/using/culprit.md",
        detail=" ".join(_details(known, matrix, quantity, shape, other)),
        next_step=_next_step(matrix, quantity, shape),
    )


def _verdict(known: Known, shape: Shape) -> CheckVerdict:
    """Short of a model as a whole is a notice: the model may not fit the machine; what peers show is a fault."""
    firm = any(is_firm(probe) for probe, _ in known.facts.each(Probe.info) if probe.collective == "pairs")
    return "notice" if shape.kind == "uniform" and not firm else "failed"


def _span(matrix: PairMatrix, quantity: _PairQuantity, shape: Shape) -> str:
    values = values_of(matrix, quantity)
    slowest = (max if quantity == "latency" else min)(values, key=values.__getitem__)
    usual = _told(quantity, shape.typical)
    return f"median {usual}, slowest {_told(quantity, values[slowest])} ({_way(matrix, slowest)})"


def _told(quantity: _PairQuantity, value: float | None) -> str:
    if value is None:
        return ""
    return format_seconds(value) if quantity == "latency" else format_rate(value)


def _way(matrix: PairMatrix, cell: Cell) -> str:
    names = names_of(matrix.endpoints)
    return f"{names[cell[0]]} to {names[cell[1]]}"


def _required(quantity: _PairQuantity, shape: Shape, low_ratio: float) -> str:
    if quantity == "latency":
        return f"at most {_told(quantity, shape.mark)}"
    reason = f", {format_percent(low_ratio)} of what is expected" if shape.expected else " by the other pairs"
    return f"at least {_told(quantity, shape.mark)}{reason}"


def _details(
    known: Known, matrix: PairMatrix, quantity: _PairQuantity, shape: Shape, other: Shape | None
) -> Iterator[str]:
    values = values_of(matrix, quantity)
    slowest = shape.slow[0]
    yield _sentence(matrix, quantity, shape)
    if shape.kind != "pair":
        yield f"The slowest is {_way(matrix, slowest)} with {_told(quantity, values[slowest])}."
    if shape.kind == "pair" and (path := _paths(matrix).get(slowest)):
        yield f"The two are {class_words(path)}."
    if shape.kind in ("path class", "group", "scattered"):
        yield _named(matrix, shape)
    if other is not None:
        yield _both_sizes(quantity, shape, other)
    if any(answer.pairs is not None for answer in known.scanned):
        yield "Seen by this scan."
    for suspect in matrix.suspects[:2]:
        if set(suspect.cells) & set(shape.slow):
            yield suspect.words


def _sentence(matrix: PairMatrix, quantity: _PairQuantity, shape: Shape) -> str:
    """``GPU3 is slow to all others: 5.1 GB/s, the other pairs 12.7 GB/s.``"""
    lead = {
        "gpu": f"{shape.name} is slow to all others" if "(" not in shape.name else f"{shape.name} is slow",
        "pair": f"{shape.name} is slow",
        "scattered": f"{len(shape.slow)} pairs are slow and have nothing in common",
    }.get(shape.kind, f"{shape.name[0].upper()}{shape.name[1:]} are slow")
    rest = f", the others {_told(quantity, shape.others)}" if shape.others is not None else ""
    return f"{lead}: {_told(quantity, shape.typical)}{rest}."


def _named(matrix: PairMatrix, shape: Shape) -> str:
    """``They are GPU0-GPU1 and GPU2-GPU3.``: both directions of a pair as one."""
    names, slow = names_of(matrix.endpoints), set(shape.slow)
    told = [
        f"{names[cell[0]]}-{names[cell[1]]}" if cell[::-1] in slow else _way(matrix, cell)
        for cell in shape.slow
        if cell[0] < cell[1] or cell[::-1] not in slow
    ]
    if len(told) > _MOST_NAMED:
        told = [*told[:_MOST_NAMED], f"{len(told) - _MOST_NAMED} more"]
    return f"They are {' and '.join(filter(None, (', '.join(told[:-1]), told[-1])))}."


def _both_sizes(quantity: _PairQuantity, shape: Shape, other: Shape) -> str:
    small = "small messages" if quantity == "bandwidth" else "large messages"
    if other.kind == "even":
        only = "large messages only: a problem of bandwidth" if quantity == "bandwidth" else (
            "small messages only: a problem of latency")  # fmt: skip
        return f"It shows in {only}."
    if other.name == shape.name:
        return f"The {small} are slow there too."
    return f"The {small} are slow elsewhere: {other.name}."


def _next_step(matrix: PairMatrix, quantity: _PairQuantity, shape: Shape) -> str:
    steps = {
        "gpu": "Look at that GPU's own links, clocks and power (nvidia-smi -q); leave it out of jobs that communicate "
        "much until it is repaired.",
        "path class": "What these ways share is the kind of path: look at lanes and generation of the switches, and at "
        "ACS and IOMMU, which send traffic within a switch through the CPU.",
        "group": "Look at what these pairs share: the link above it, its lanes and generation, its NUMA node.",
        "uniform": "Run nvidia-smi topo -p2p r; look for IOMMU, ACS and virtualisation, or set expected_bandwidth to "
        "what this machine can do.",
        "scattered": "Measure again: commwatch diagnose --full-scan; what stays slow is the fault.",
    }
    step = steps.get(shape.kind, _of_a_pair(matrix, shape))
    best = _best_pair(matrix, shape) if shape.kind in ("pair", "path class", "group") else ""
    return f"{step} {best}".strip()


def _of_a_pair(matrix: PairMatrix, shape: Shape) -> str:
    if _paths(matrix).get(shape.slow[0]) in ("PIX", "PXB"):
        return (
            "Look at lanes and generation of the switch and its links, and at ACS and IOMMU, which send traffic "
            "within a switch through the CPU."
        )
    return "Look at the links between the two, and at their clocks and power; a ring runs at its slowest pair."


def _best_pair(matrix: PairMatrix, shape: Shape) -> str:
    """Which two GPUs to take until it is repaired: said of measured pairs only."""
    values = values_of(matrix, "bandwidth")
    both = {cell: min(rate, values[cell[::-1]]) for cell, rate in values.items() if cell[::-1] in values}
    well = {cell: rate for cell, rate in both.items() if cell[0] < cell[1] and not {cell, cell[::-1]} & set(shape.slow)}
    if not well:
        return ""
    first, second = max(well, key=well.__getitem__)
    names = names_of(matrix.endpoints)
    return f"Until then the fastest two are {names[first]} and {names[second]}: {format_rate(well[first, second])}."


def _paths(matrix: PairMatrix) -> dict[Cell, str]:
    return {(cell.source, cell.destination): cell.path for cell in matrix.cells}


# --- by kind of way ---


def _by_kind(known: Known, matrix: PairMatrix) -> Iterator[Check]:
    """What each kind of way carries, where there are several; which pairs are at fault is said above."""
    paths = _paths(matrix)
    by_path: dict[str, list[float]] = {}
    for cell, rate in values_of(matrix, "bandwidth").items():
        by_path.setdefault(paths[cell], []).append(rate)
    usual = {path: median(by_path[path]) for path in sorted(by_path, key=nearness)}
    if len(usual) < 2 or "" in usual or "?" in usual:
        return
    least = known.thresholds.pair_nearer_low_ratio
    rates = list(usual.values())
    in_order = all(rate >= least * max(rates[place:]) for place, rate in enumerate(rates))
    yield Check(
        branch="pattern",
        what="bandwidth by kind of way",
        measured="; ".join(f"{class_words(path)} {format_rate(rate)}" for path, rate in usual.items()),
        required=f"nearer ways at least {format_percent(least)} of farther ones",
        verdict="passed" if in_order else "notice",
        source="pair_nearer_low_ratio",
        detail="" if in_order else "A choice of GPUs by the topology takes the slower ones.",
    )

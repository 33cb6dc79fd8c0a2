"""What ``commwatch estimate`` is asked: options, what they leave open taken from this node's last measurements."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeAlias

from commwatch.config.settings import Config
from commwatch.config.simulated import node_name
from commwatch.diagnosis.estimate.model.choice import doubling
from commwatch.diagnosis.estimate.model.gpus import (
    GPUS,
    LAUNCH_SECONDS,
    LORA_RATIO,
    OTHER_USED,
    GpuFigures,
    gpu_figures,
    operations,
    variants,
)
from commwatch.diagnosis.estimate.model.span import Span, exactly
from commwatch.diagnosis.estimate.model.training import Activations, Fabric, Layout, Training
from commwatch.errors import StateError, UsageError
from commwatch.node.inventory_state import InventoryState
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.by_hand.pair_matrix import last_matrix
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.streak import is_current
from commwatch.state.directory import state_path
from commwatch.state.records import read_record
from commwatch.units import format_bits, format_gigabytes, format_rate, format_seconds

SLOWEST_PLANNED_RATE = 6e9
"""Bytes per second within a node of which nothing is known: GPUs that go through the host on PCIe gen 3 x16, without
P2P, by planning values; of the other end nothing can be said."""
MESSAGE_SECONDS = 4.7e-3
"""Fitted: the most that the half for fitting of ``tests/estimate/published.csv`` implies, a tenth wider."""
SLOWEST_TCP_RATE = 4.2e9 / 8
"""Bytes per second between two nodes over Ethernet without RDMA, whose line rate one stream does not fill: the least
that the same half implies, a tenth lower. Clouds limit a stream to 5 Gbit/s."""
_TCP_RATE = 100e9 / 8
"""Bytes per second of a node, below which its network is taken for TCP."""
_HOP_SECONDS, _RDMA_HOP_SECONDS, _TCP_HOP_SECONDS = 5e-6, 15e-6, 50e-6
"""From GPU to GPU within a node, and to another one: usual for NVLink and PCIe, RDMA and TCP."""
_MOST_SHOWN_NODES = 8
LastRun: TypeAlias = Callable[[], tuple[Span, str]]
"""Gives what a node carries to another one, by the last run between nodes, and when that was measured."""
_MEASURES = ("all_reduce", "all_gather", "reduce_scatter", "scaling")
"""Whose bus bandwidth is that of the collectives of a training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to estimate, and where the figures come from."""

    training: Training
    layout: Layout
    fabric: Fabric
    most_nodes: int
    """Up to which the scaling is shown."""
    memory_bytes: int | None
    """Of a GPU; None where not known."""
    memory_basis: str
    rates: tuple[str, ...]
    """Which bandwidths are used, with their units."""
    not_used: tuple[str, ...]
    """Results of probes that are not used, and why."""
    compute_basis: str
    observed_seconds: float | None
    """Of a step on this layout; None where nothing was observed."""
    gpus_to_take: str
    """Which of the node's GPUs, for the user; empty where that makes no difference or is not known."""
    simulated_node: str
    """Empty for the real one."""


def read_request(args: argparse.Namespace, config: Config, now: float, last_run: LastRun) -> Request:
    """The request of the command line; what it leaves open comes from what was measured.

    All rates that its layout needs are in it.

    Args:
        args: of the command line.
        config: of the node.
        now: seconds since 1970.
        last_run: what the last run between nodes gave, where the command line asks for that.

    Raises:
        UsageError: an option is missing or cannot be used.
    """
    matrix = last_matrix(config)
    known = _known(config, matrix, now)
    _refuse_missing(args, known)
    if args.trainable and args.trainable > args.parameters:
        raise UsageError(
            f"estimate: --trainable: expected at most the parameters, {args.parameters:,}; got {args.trainable:,}"
        )
    gpus = args.gpus_per_node or known.gpus
    figures = _figures(args.gpu, known.gpu_name)
    compute, compute_basis = _compute(args, figures)
    memory_bytes, memory_basis = _memory(args.gpu_memory, figures)
    network, network_words = _network(args.network, known, last_run)
    in_node, in_node_words = _in_node(args.intra_node, gpus, known)
    is_tcp = network is not None and network.high < _TCP_RATE
    return Request(
        training=Training(
            parameters=args.parameters,
            compute=compute,
            trainable=args.trainable,
            overlaps=True,
            precision=args.precision,
            gradient_precision=args.gradient_precision,
            optimizer=args.optimizer,
            micro_batches=args.micro_batches,
            activations=Activations(args.tokens, args.hidden, args.layers) if _has_sizes(args) else None,
        ),
        layout=Layout(args.strategy, gpus, args.nodes),
        fabric=Fabric(
            in_node,
            network,
            hop_seconds=Span(_HOP_SECONDS, _TCP_HOP_SECONDS if is_tcp else _RDMA_HOP_SECONDS),
            message_seconds=MESSAGE_SECONDS,
        ),
        most_nodes=max(args.nodes, _MOST_SHOWN_NODES) if network else 1,
        memory_bytes=memory_bytes,
        memory_basis=memory_basis,
        rates=(*network_words, *in_node_words),
        not_used=tuple(known.left_out),
        compute_basis=compute_basis,
        observed_seconds=args.observed_step,
        gpus_to_take=_gpus_to_take(matrix, gpus) if matrix else "",
        simulated_node=node_name(config.simulation.preset) if config.simulation.preset else "",
    )


def _has_sizes(args: argparse.Namespace) -> bool:
    """Whether what tensor parallel layers exchange is known."""
    return bool(args.tokens and args.hidden and args.layers)


def _refuse_missing(args: argparse.Namespace, known: _Known) -> None:
    """All that neither the options nor this node give, said at once."""
    missing = [f"{option}: {problem}" for option, is_missing, problem in (
        ("--parameters", not args.parameters,
         "is missing; give their number with its unit, such as --parameters 1.5B"),
        ("--gpus-per-node", not args.gpus_per_node and not known.gpus,
         "is missing, and nothing was measured here; give it, such as 8"),
        ("--step-time", not args.step_time and not args.tokens,
         "is missing; give what one GPU alone computes on a micro-batch, such as 1.03s, or its tokens, such as "
         "--tokens 4096"),
        ("--network", args.nodes > 1 and not args.network and known.network is None,
         "is missing: what lies between nodes is not measured here; give what a test between two nodes gave, all NICs "
         "of a node together, such as --network 9Gbit/s"),
        ("--strategy tp", args.strategy == "tp" and not _has_sizes(args),
         "needs --tokens, --hidden and --layers, such as --hidden 4096 --layers 32"),
    ) if is_missing]  # fmt: skip
    if missing:
        raise UsageError(f"estimate: {'; '.join(missing)}")


def _in_node(given: list[float], gpus: int, known: _Known) -> tuple[dict[int, Span], list[str]]:
    """Bus bandwidths by number of GPUs, and where they come from."""
    if given:
        span = Span(min(given), max(given))
        low = "" if span.low == span.high else f"{span.low / 1e9:.3g} to "
        words = f"within a node: {low}{format_rate(span.high)} bus bandwidth, given, for any number of its GPUs"
        return {gpus: span}, [words]
    if known.in_node and gpus > max(known.in_node):
        raise UsageError(
            f"estimate: --intra-node: is missing: measured here over at most {max(known.in_node)} GPUs, not {gpus}; "
            "give it, such as 20GB/s"
        )
    if known.in_node:
        sources = [f"within a node: {one}" for one in known.used]
        if not {*doubling(gpus)} - {1} <= {*known.in_node}:
            sources.append("within a node: what was not measured takes the rate of the next larger number of GPUs")
        return known.in_node, sources
    if gpus == 1:
        return {}, []
    slowest = format_rate(SLOWEST_PLANNED_RATE)
    return {gpus: Span(SLOWEST_PLANNED_RATE, math.inf)}, [
        f"within a node: not measured here and not given. The slow end takes {slowest} (a planning value for PCIe gen "
        "3 x16 through the host, no bound), the fast end no limit; --intra-node 20GB/s, or a daemon that probes, "
        "narrows it"
    ]


def _network(given: list[float | str], known: _Known, last_run: LastRun) -> tuple[Span | None, list[str]]:
    """What a node carries to another one, all its NICs together, and where that comes from."""
    rates = [one for one in given if not isinstance(one, str)]
    if rates and len(rates) < len(given):
        raise UsageError("estimate: --network: expected rates or measured, got both")
    if given and not rates:
        network, basis = last_run()
    elif rates:
        network, basis = Span(min(rates), max(rates)), "given"
    elif known.network is not None:
        network, basis = known.network, "line rate of this node's NICs, less at the slow end; --network says better"
    else:
        return None, []
    low, high = (format_bits(rate) for rate in (network.low, network.high))
    if low != high:
        (low_bits, low), (high_bits, high) = (one.split(" = ") for one in (low, high))
        high = f"{low_bits} to {high_bits} = {low} to {high}"
    return network, [f"network: {high}, {basis}: all NICs of a node together, one direction, every node alike"]


def _figures(given: str, known: str) -> GpuFigures | None:
    """Those of the model that is given, else of this node's GPUs."""
    figures = gpu_figures(given or known)
    if given and (several := variants(given)):
        raise UsageError(f"estimate: --gpu: {given!r} may be {' or '.join(several)}, which differ; say which")
    if given and figures is None:
        names = ", ".join(one.name for one in GPUS)
        raise UsageError(
            f"estimate: --gpu: {given!r} is not known; expected one of {names}, or leave it out and give --gpu-memory "
            "and --gpu-flops"
        )
    return figures


def _compute(args: argparse.Namespace, figures: GpuFigures | None) -> tuple[Span, str]:
    """Seconds for which a GPU computes on a micro-batch, and where that comes from."""
    if args.step_time:
        shown = format_seconds(args.step_time)
        return exactly(args.step_time), (
            f"One GPU alone computes {shown} on a micro-batch, forward and backward: given."
        )
    if args.gpu_flops:
        peak, basis = args.gpu_flops, "given"
    elif figures is not None and args.precision != "fp32":
        peak, basis = figures.flops_per_second, figures.source
    else:
        why = "of fp32 is not known" if figures else "is not known without the GPU's name"
        raise UsageError(
            f"estimate: --gpu-flops: is missing: the peak {why}; give it, such as 125TFLOP/s, or --step-time"
        )
    few, again = args.trainable is not None, 2 * args.recompute
    if args.mfu:
        used, share = exactly(args.mfu), "given"
    else:
        used = (figures.used if figures else OTHER_USED).times(LORA_RATIO if few else 1)
        share = "what published runs reach"
    work = args.tokens * operations(args.parameters, args.trainable or args.parameters, recomputes=args.recompute)
    slow = work / (used.low * peak)
    compute = Span(work / (used.high * peak), slow if args.mfu else max(slow, LAUNCH_SECONDS))
    reckoned = f"{4 + again} (and 2 if trained) ×" if few else f"{6 + again} ×"
    return compute, (
        f"A GPU computes {compute.words(format_seconds)} on a micro-batch: {reckoned} {args.parameters:,} parameters × "
        f"{args.tokens:,} tokens ÷ ({used.words(lambda one: f'{100 * one:.3g}')} % of {peak / 1e12:g} TFLOP/s, "
        f"{basis}); the share is {share}, the model dense, activations {'computed again' if again else 'kept'}."
    )


def _memory(given: int | None, figures: GpuFigures | None) -> tuple[int | None, str]:
    if given:
        return given, f"{format_gigabytes(given)}, given"
    if figures is not None and figures.memory_bytes is not None:
        return figures.memory_bytes, f"{format_gigabytes(figures.memory_bytes)}, what {figures.name} has"
    return None, "unknown; --gpu-memory 24GB, or --gpu A10, says it"


# --- what was measured within this node ---


class _Known(NamedTuple):
    """What the daemon knows of this node: its last results, else its inventory."""

    in_node: dict[int, Span]
    """Bus bandwidth by number of GPUs, bytes per second: slowest to fastest of the collectives."""
    used: list[str]
    """Each result, for the user."""
    left_out: list[str]
    """Results that are not used, and why."""
    gpu_name: str
    """Of all GPUs, as the driver gives it; empty where not known or not the same."""
    gpus: int
    """As many as were measured, else as the inventory has; 0 where neither is known."""
    network: Span | None
    """Line rate of all RDMA ports, else of the fastest interface, less at the slow end; None where not known."""


def line_span(line_rate: float, *, is_rdma: bool) -> Span:
    """What a node may carry of a line rate that nobody measured, bytes per second."""
    return Span(line_rate / 2 if is_rdma else min(line_rate / 2, SLOWEST_TCP_RATE), line_rate)


def _known(config: Config, matrix: PairMatrix | None, now: float) -> _Known:
    """What is in the state directory; results of gloo, which is no GPU fabric, and old ones are left out."""
    found: dict[int, list[float]] = {}
    used, left_out = [], []
    for name, probe in config.probes.definitions.items():
        if probe.measure not in _MEASURES:
            continue
        try:
            history = read_record(state_path(config) / f"probe-{name}.json", ProbeHistory)
        except StateError as error:
            left_out.append(f"{name}: {error}")
            continue
        if history is None or history.last is None:
            continue
        ago = format_seconds(max(0.0, now - history.last.finished_at))
        if history.backend == "gloo":
            left_out.append(f"{name}: measured with gloo, which is no GPU fabric")
        elif not is_current(history.last.finished_at, probe.interval, now):
            left_out.append(f"{name}: the last result is {ago} old")
        elif not all(0 < rate < math.inf for rate in history.bus_bandwidths.values()):
            left_out.append(f"{name}: its result holds a rate that is none")
        else:
            for ranks, rate in history.bus_bandwidths.items():
                found.setdefault(ranks, []).append(rate)
                used.append(f"{name} over {ranks} GPUs: {format_rate(rate)}, measured {ago} ago")
    try:
        kept = read_record(state_path(config) / "inventory.json", InventoryState) or InventoryState()
    except StateError:  # the daemon reports it
        kept = InventoryState()
    names = {one.name for one in (matrix.endpoints if matrix else kept.gpus.values())}
    rdma, others = ([one.expected or 0.0 for one in ports.values()] for ports in (kept.rdma_ports, kept.ports))
    line = sum(rdma) or max(others, default=0.0)
    return _Known(
        {ranks: Span(min(rates), max(rates)) for ranks, rates in sorted(found.items())},
        used,
        left_out,
        gpu_name=names.pop() if len(names) == 1 else "",
        gpus=max(found, default=len(kept.gpus)),
        network=line_span(line, is_rdma=bool(rdma)) if line else None,
    )


def _gpus_to_take(matrix: PairMatrix, count: int) -> str:
    """The GPUs whose slowest pair is the fastest; each pair counts in its slower direction.

    Starts at each pair, adds the GPU that slows it least: of few GPUs that is the best choice or close to it.
    """
    everyone = range(len(matrix.endpoints))
    if not 1 < count < len(everyone):
        return ""
    rates: dict[frozenset[int], float] = {}
    for cell in matrix.cells:
        if cell.bandwidth is not None:
            pair = frozenset((cell.source, cell.destination))
            rates[pair] = min(cell.bandwidth, rates.get(pair, math.inf))

    def slowest(group: tuple[int, ...]) -> float:
        return min(rates.get(frozenset(pair), 0.0) for pair in combinations(group, 2))

    groups: list[tuple[int, ...]] = [*combinations(everyone, 2)]
    for _ in range(count - 2):
        groups = [max(((*group, one) for one in everyone if one not in group), key=slowest) for group in groups]
    best = max(groups, key=slowest)
    if not slowest(best):
        return ""
    names = ", ".join(f"GPU{matrix.endpoints[one].label}" for one in sorted(best))
    return f"Of this node take {names}: their slowest pair carries {format_rate(slowest(best))}, as last measured."

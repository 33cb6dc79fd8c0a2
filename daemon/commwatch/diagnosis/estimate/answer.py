"""``commwatch estimate``: from its options, and what was measured on this node, to all that it answers."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

from commwatch.config.settings import Config
from commwatch.config.simulated import node_name
from commwatch.diagnosis.estimate.step import (
    HIDING_RATIO,
    LAUNCH_SECONDS,
    LORA_RATIO,
    MESSAGE_SECONDS,
    RECOMPUTED_LEAST,
    RESERVE_BYTES,
    STRATEGIES,
    Fabric,
    Layout,
    Span,
    Step,
    Training,
    estimate_step,
    model_state,
    operations,
    place_of,
    span,
    used_of,
)
from commwatch.errors import StateError, UsageError
from commwatch.node.capacity import HOST_MEMORY_SHARE, planned_pcie_rate
from commwatch.node.gpu_models import GPU_MODELS, MOST_MEMORY_BYTES, GpuModel, gpu_model, variants
from commwatch.node.inventory_state import GpuRecord, InventoryState
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.by_hand.pair_matrix import last_matrix
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.streak import is_current
from commwatch.state.directory import state_path
from commwatch.state.records import read_record
from commwatch.units import format_bits, format_count, format_gigabytes, format_percent, format_rate, format_seconds

LastRun: TypeAlias = Callable[[], tuple[Span, str]]
"""Gives what a node carries to another one, by the last run between nodes, and when that was measured."""

_ASSUMED_LINK = (3, 16)
"""PCIe generation and lanes of GPUs of which nothing is known."""
SLOWEST_TCP_RATE = 4.2e9 / 8
"""Bytes per second between two nodes over Ethernet without RDMA, whose line rate one stream does not fill: the least
that the half for fitting of ``tests/estimate/published.csv`` implies, a tenth lower. Clouds limit a stream to 5
Gbit/s."""
SLOWEST_GEFORCE_RATE = 3.8e9
"""The same within a node of GeForce cards, whose driver refuses P2P: the least that was reported for two RTX 3090."""
SLOWEST_NVLINK_RATE = 10e9
"""The same for each NVLink of GPUs that are soldered to a board: half of what NCCL plans with for NVLink 2 and newer,
since the messages of a step may be small."""
_MESH_GPUS, _MESH_SHARE = 4, 3
"""A board with this number of GPUs has no NVSwitches: a pair of them is joined by a third of their NVLinks."""
_TCP_RATE = 100e9 / 8
"""Bytes per second of a node, below which its network is taken for TCP."""
_HOP_SECONDS, _RDMA_HOP_SECONDS, _TCP_HOP_SECONDS = 5e-6, 15e-6, 50e-6
"""From GPU to GPU within a node, and to another one: usual for NVLink and PCIe, RDMA and TCP."""
_MOST_SHOWN_NODES = 8
_CLOSE_RATIO = 0.9
"""A layout that surely does this share of the best one's work is as good, if it is simpler."""
LEAST_COMPUTING = 0.1
"""Share of a step time on several GPUs that is computing at least; assumed."""
SMALLEST_MODEL = 400_000_000
"""Parameters. Smaller models lie outside: a published one of 356 M on 8 A100 does."""
_HIDDEN_SLACK = 0.1
"""By which a training may hide more or less than the probe; assumed."""
_MEASURES = ("all_reduce", "all_gather", "reduce_scatter", "scaling", "training")
"""Those of the collectives of a training step, and of what computing hides of them."""


def estimate(args: argparse.Namespace, config: Config, now: float, last_run: LastRun) -> dict[str, Any]:
    """The document that ``--json`` prints; what the command line leaves open comes from what was measured.

    Spans go from the hierarchical bound to the flat ring; what is not known is None.

    Args:
        now: seconds since 1970.
        last_run: what the last run between nodes gave, where the command line asks for that.

    Raises:
        UsageError: an option is missing or cannot be used.
    """
    matrix = last_matrix(config)
    known = _known(config, matrix, now)
    _refuse_missing(args, known)
    figures = _figures(args.gpu, known.gpu_name)
    compute, compute_basis = _compute(args, figures)
    layout = Layout(args.strategy, args.gpus_per_node or known.gpus, args.nodes)
    network, network_words = _network(args.network, known, last_run)
    in_node, in_node_words = _in_node(args.intra_node, layout.gpus_per_node, known, figures)
    hides, hidden_words = _hides(args.overlap, known)
    is_tcp = network is not None and network.high < _TCP_RATE
    hop_seconds = Span(_HOP_SECONDS, _TCP_HOP_SECONDS if is_tcp else _RDMA_HOP_SECONDS)
    fabric = Fabric(in_node, network, hop_seconds=hop_seconds, message_seconds=MESSAGE_SECONDS)
    training = Training(
        parameters=args.parameters,
        compute=compute,
        hides=hides,
        trainable=args.trainable,
        overlaps=True,
        precision=args.precision,
        gradient_precision=args.gradient_precision or args.precision,
        optimizer=args.optimizer,
        micro_batches=args.micro_batches,
        tokens=args.tokens,
        hidden=args.hidden,
        layers=args.layers,
    )
    if args.step_time_gpus and args.step_time_gpus > 1:
        training, compute_basis = _without_waiting(training, Layout(args.strategy, args.step_time_gpus), fabric)
    asked, too_small = list(_step_time_question(args, layout)), list(_too_small(args))
    observed = []
    if args.observed_step and (free := estimate_step(training, layout, fabric)):
        training = replace(training, place=place_of(args.observed_step, free.step_seconds))
        observed = [_observed_words(args.observed_step, free.step_seconds)]
    memory_bytes, memory_basis = _memory(args.gpu_memory, figures, None if args.gpu else known.gpu_memory)
    steps = _steps(training, layout, fabric, max(args.nodes, _MOST_SHOWN_NODES) if network else 1)
    step = steps[layout]  # all rates that it needs are known
    if too_small:
        step = replace(step, bottleneck=replace(step.bottleneck, certain=False))
    chosen, choice_words = _choice(training, step, fabric, memory_bytes)
    state = model_state(training, layout)
    return {
        "schema_version": 1,  # grows when something is taken away or changes its meaning
        "simulated_node": node_name(config.simulation.preset),
        "parameters": training.parameters,
        "precision": training.precision,
        "gradient_precision": training.gradient_precision,
        "optimizer": training.optimizer,
        "parameter_bytes": training.parameter_bytes,
        "gradient_bytes": training.gradient_bytes,
        "optimizer_bytes": training.optimizer_bytes,
        "micro_batches": training.micro_batches,
        "network_bytes_per_second": network,
        "in_node_bytes_per_second": in_node,
        "rates": network_words + in_node_words + hidden_words,
        "not_used": known.left_out,
        **{field.name: getattr(step, field.name) for field in fields(step)},
        "scaling": [
            {
                "nodes": one.layout.nodes,
                "gpus_per_node": one.layout.gpus_per_node,
                "step_seconds": one.step_seconds,
                "waiting_ratio": one.waiting_ratio,
                "efficiency_ratio": one.efficiency_ratio,
                "speedup_ratio": one.speedup,
                "speedup_over_one_node_ratio": _over_one_node(one, steps),
            }
            for one in steps.values()
        ],
        "memory": {
            "gpu_bytes": memory_bytes,
            "basis": memory_basis,
            "parameters_bytes": state[0],
            "gradients_bytes": state[1],
            "optimizer_bytes": state[2],
            "total_bytes": sum(state),
            "reserved_bytes": RESERVE_BYTES,
            "left_bytes": None if memory_bytes is None else memory_bytes - sum(state) - RESERVE_BYTES,
        },
        "choice": chosen,
        "observed_step_seconds": args.observed_step,
        "trainable": training.trainable,
        "in_range": not too_small,
        "verdict": [
            *too_small,
            _bottleneck_words(step, training.micro_batches),
            *observed,
            *_nodes_words(layout, _over_one_node(step, steps)),
            *choice_words,
            *(_gpus_to_take(matrix, layout.gpus_per_node) if matrix else ()),
            *asked,
        ],
        "assumptions": [compute_basis, *_assumptions(training, layout, fabric)],
    }


# --- the options ---


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
        ("--step-time-gpus", args.step_time_gpus and not args.step_time,
         "is the number of GPUs that had a --step-time together; give that too, such as --step-time 1.03s"),
        ("--network", args.nodes > 1 and not args.network and known.network is None,
         "is missing: what lies between nodes is not measured here; give what a test between two nodes gave, all NICs "
         "of a node together, such as --network 9Gbit/s"),
        ("--strategy tp", args.strategy == "tp" and not (args.tokens and args.hidden and args.layers),
         "needs --tokens, --hidden and --layers, such as --hidden 4096 --layers 32"),
    ) if is_missing]  # fmt: skip
    if missing:
        raise UsageError(f"estimate: {'; '.join(missing)}")
    if args.trainable and args.trainable > args.parameters:
        raise UsageError(
            f"estimate: --trainable: expected at most the parameters, {args.parameters:,}; got {args.trainable:,}"
        )


def _in_node(
    given: list[float], gpus: int, known: _Known, figures: GpuModel | None
) -> tuple[dict[int, Span], list[str]]:
    """Bus bandwidths by number of GPUs, and where they come from."""
    if given:
        rates = span(*given)
        low = "" if rates.low == rates.high else f"{rates.low / 1e9:.3g} to "
        words = f"within a node: {low}{format_rate(rates.high)} bus bandwidth, given, for any number of its GPUs"
        return {gpus: rates}, [words]
    if known.in_node and gpus > max(known.in_node):
        raise UsageError(
            f"estimate: --intra-node: is missing: measured here over at most {max(known.in_node)} GPUs, not {gpus}; "
            "give it, such as 20GB/s"
        )
    if known.in_node:
        sources = [f"within a node: {one}" for one in known.used]
        if not {*_doubling(gpus)} - {1} <= {*known.in_node}:
            sources.append("within a node: what was not measured takes the rate of the next larger number of GPUs")
        return known.in_node, sources
    if gpus == 1:
        return {}, []
    # A faster link narrows nothing: what goes through the host is seldom faster for it.
    generation, lanes = min(
        known.pcie_link or _ASSUMED_LINK, _ASSUMED_LINK, key=lambda one: planned_pcie_rate(*one) or 0.0
    )
    slowest = HOST_MEMORY_SHARE * (planned_pcie_rate(generation, lanes) or 0.0)
    basis = f"a planning value for PCIe gen {generation} x{lanes} through the host, without P2P"
    if figures is not None and figures.name.startswith("GeForce") and slowest > SLOWEST_GEFORCE_RATE:
        slowest, basis = SLOWEST_GEFORCE_RATE, "reported for two RTX 3090"
    elif figures is not None and figures.product is not None:
        links = figures.product.nvlinks // (1 if gpus > _MESH_GPUS else _MESH_SHARE)
        slowest, basis = SLOWEST_NVLINK_RATE * links, f"a planning value for {links} NVLinks"
    return {gpus: Span(slowest, math.inf)}, [
        f"within a node: not measured here and not given. The slow end takes {format_rate(slowest)} ({basis}, no "
        "bound), the fast end no limit; --intra-node 20GB/s, or a daemon that probes, narrows it"
    ]


def _network(given: list[float | str], known: _Known, last_run: LastRun) -> tuple[Span | None, list[str]]:
    """Rate from one node to another, all its NICs together, and its source."""
    rates = [one for one in given if not isinstance(one, str)]
    if rates and len(rates) < len(given):
        raise UsageError("estimate: --network: expected rates or measured, got both")
    if given and not rates:
        network, basis = last_run()
    elif rates:
        network, basis = span(*rates), "given"
    elif known.network is not None:
        network, basis = known.network, "line rate of this node's NICs, less at the slow end; --network says better"
    else:
        return None, []
    low, high = (format_bits(rate) for rate in (network.low, network.high))
    if low != high:
        (low_bits, low), (high_bits, high) = (one.split(" = ") for one in (low, high))
        high = f"{low_bits} to {high_bits} = {low} to {high}"
    return network, [f"network: {high}, {basis}: all NICs of a node together, one direction, every node alike"]


def _figures(given: str, known: str) -> GpuModel | None:
    """The model that is given, else that of this node's GPUs."""
    model = gpu_model(given or known)
    if not given or model is not None:
        return model
    if several := variants(given):
        names = " or ".join(one.name for one in several)
        raise UsageError(f"estimate: --gpu: {given!r} may be {names}, which differ; say which")
    raise UsageError(
        f"estimate: --gpu: {given!r} is not known; give --gpu-memory and --gpu-flops instead, or one of "
        f"{', '.join(one.name for one in GPU_MODELS)}"
    )


def _compute(args: argparse.Namespace, figures: GpuModel | None) -> tuple[Span, str]:
    """Seconds for which a GPU computes on a micro-batch, and where that comes from."""
    if args.step_time:
        shown = format_seconds(args.step_time)
        return span(args.step_time), (f"One GPU alone computes {shown} on a micro-batch, forward and backward: given.")
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
        used, share = span(args.mfu), "given"
    else:
        used = used_of(figures).times(LORA_RATIO if few else 1)
        share = "what published runs reach"
    once, twice = (
        args.tokens * operations(args.parameters, args.trainable or args.parameters, recomputes=recomputes)
        for recomputes in (False, args.recompute)
    )
    slow = twice / (used.low * peak)
    fast = (once + RECOMPUTED_LEAST * (twice - once)) / (used.high * peak)
    compute = Span(fast, slow if args.mfu else max(slow, LAUNCH_SECONDS))
    counts = Span(RECOMPUTED_LEAST * again, again).words(lambda more: f"{(4 if few else 6) + more:g}")
    counted = f"{counts} (and 2 if trained) ×" if few else f"{counts} ×"
    return compute, (
        f"A GPU computes {compute.words(format_seconds)} on a micro-batch: {counted} {args.parameters:,} parameters × "
        f"{args.tokens:,} tokens ÷ ({used.words(lambda one: f'{100 * one:.3g}')} % of {peak / 1e12:g} TFLOP/s, "
        f"{basis}); the share is {share}, the model dense, activations "
        f"{'computed again' if again else 'kept'}."
    )


def _hides(given: float | None, known: _Known) -> tuple[Span | None, list[str]]:
    """Share of the shorter of computing and sending that is hidden, and where that comes from."""
    found = known.hidden if given is None else (given, "given")
    if found is None:
        return None, []
    share, basis = found
    words = f"hidden: {format_percent(share)} of the shorter of computing and sending, {basis}"
    return Span(max(0.0, share - _HIDDEN_SLACK), min(1.0, share + _HIDDEN_SLACK)), [words]


def _too_small(args: argparse.Namespace) -> Iterator[str]:
    """Whether the share of the peak was fitted to larger models alone."""
    if args.parameters < SMALLEST_MODEL and not (args.step_time or args.mfu):
        yield (
            f"{OUT_OF_RANGE}models below {format_count(SMALLEST_MODEL)} parameters use less of a GPU's peak than the "
            "published runs that these figures come from. Give --step-time."
        )


def _step_time_question(args: argparse.Namespace, layout: Layout) -> Iterator[str]:
    """A question about the meaning of the step time, if it was not given and matters."""
    if args.step_time and not args.step_time_gpus and layout.total_gpus > 1:
        yield (
            f"{QUESTION}{format_seconds(args.step_time)} the time of one GPU that works alone? It is taken as such. If "
            "several GPUs of a node ran together, say how many with --step-time-gpus; if it is the step of this "
            "layout, give it as --observed-step."
        )


def _without_waiting(training: Training, measured: Layout, fabric: Fabric) -> tuple[Training, str]:
    """Computing of one GPU, of whose micro-batch the time on several GPUs of a node is known, and what it is from."""
    seconds = training.compute.high
    step = estimate_step(training, measured, fabric)
    waits = step.waiting_seconds.high / training.micro_batches if step else math.inf
    compute = Span(max(seconds - waits, LEAST_COMPUTING * seconds), seconds)
    return replace(training, compute=compute), (
        f"{measured.gpus_per_node} GPUs of a node together take {format_seconds(seconds)} for a micro-batch, given: of "
        f"that each computes for {compute.words(format_seconds)}, and waits for the others in the rest."
    )


def _memory(given: int | None, figures: GpuModel | None, read: int | None) -> tuple[int | None, str]:
    """Of a GPU, and where that comes from: the option, the driver of this node, the table."""
    if given:
        return given, f"{format_gigabytes(given)}, given"
    if read:
        return read, f"{format_gigabytes(read)}, read from the driver"
    if figures is None:
        return None, "unknown; --gpu-memory 24GB, or --gpu A10, says it"
    if figures.memory_bytes is not None:
        return figures.memory_bytes, f"{format_gigabytes(figures.memory_bytes)}, what {figures.name} has"
    sizes = sorted({one.memory_bytes for one in variants(figures.name) if one.memory_bytes})
    either = " or ".join(map(format_gigabytes, sizes))
    return None, f"unknown: {figures.name} has {either}; give it as --gpu-memory"


# --- what was measured within this node ---


class _Known(NamedTuple):
    """The daemon's last results for this node, else its inventory."""

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
    gpu_memory: int | None
    """Bytes of the smallest GPU, as the driver gave them; None where not read of each."""
    pcie_link: tuple[int, int] | None
    """Generation and lanes of the slowest PCIe link of a GPU at its best; None where not read of each."""
    network: Span | None
    """Line rate of the RDMA ports that are rails, else of the fastest interface, less at the slow end; None where not
    known."""
    hidden: tuple[float, str] | None
    """Share of the shorter of computing and sending that a training-like probe hid, and which; None without one."""


def _known(config: Config, matrix: PairMatrix | None, now: float) -> _Known:
    """Results from the state directory; those of gloo, which is no GPU fabric, and old ones are left out."""
    found: dict[int, list[float]] = {}
    used, left_out = [], []
    hidden: dict[float, tuple[float, str]] = {}
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
        elif history.last.hidden_ratio is not None:
            hidden[history.last.finished_at] = history.last.hidden_ratio, f"{name}, measured {ago} ago"
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
    records = [one for one in kept.gpus.values() if not one.is_replaced]
    names = {one.name for one in (matrix.endpoints if matrix else records)}
    memory = [one.memory_bytes for one in records if one.memory_bytes]
    links = [link for one in records if (link := _link(one)) is not None]
    rdma = _rails(kept, len(records))
    line = sum(rdma) or max((one.expected or 0.0 for one in kept.ports.values()), default=0.0)
    least = line / 2 if rdma else min(line / 2, SLOWEST_TCP_RATE)
    return _Known(
        {ranks: span(*rates) for ranks, rates in sorted(found.items())},
        used,
        left_out,
        gpu_name=names.pop() if len(names) == 1 else "",
        gpus=max(found, default=len(records)),
        gpu_memory=min(memory) if memory and len(memory) == len(records) else None,
        pcie_link=min(links, key=lambda one: planned_pcie_rate(*one) or 0.0)
        if links and len(links) == len(records)
        else None,
        network=Span(least, line) if line else None,
        hidden=hidden[max(hidden)] if hidden else None,
    )


def _rails(kept: InventoryState, gpus: int) -> list[float]:
    """Speeds in bytes per second of the RDMA ports that are one or several for each of several GPUs, made alike: others
    lead to storage, or manage the board. Of all ports where none are so, or others together carry more."""
    cards = {name: address.rpartition(".")[0] for name, address in kept.rdma_addresses.items()}
    on_card = Counter(cards.values())
    alike: dict[tuple[float, int], list[float]] = {}
    for name, port in kept.rdma_ports.items():
        if port.expected:
            alike.setdefault((port.expected, on_card[cards.get(name, "")]), []).append(port.expected)
    rails = [speeds for speeds in alike.values() if gpus > 1 and len(speeds) % gpus == 0]
    most = max(alike.values(), key=sum, default=[])
    return [speed for speeds in (rails if most in rails else alike.values()) for speed in speeds]


def _link(gpu: GpuRecord) -> tuple[int, int] | None:
    """Generation and lanes; None where not read, or of a generation that is not known."""
    generation, lanes = gpu.pcie_generation.due, gpu.pcie_lanes.due
    if generation is None or lanes is None or planned_pcie_rate(int(generation), int(lanes)) is None:
        return None
    return int(generation), int(lanes)


def _gpus_to_take(matrix: PairMatrix, count: int) -> Iterator[str]:
    """The GPUs whose slowest pair is the fastest; each pair counts in its slower direction.

    Starts at each pair, adds the GPU that slows it least: of few GPUs that is the best choice or close to it.
    """
    everyone = range(len(matrix.endpoints))
    if not 1 < count < len(everyone):
        return
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
    if slowest(best):
        names = ", ".join(f"GPU{matrix.endpoints[one].label}" for one in sorted(best))
        yield f"Of this node take {names}: their slowest pair carries {format_rate(slowest(best))}, as last measured."


# --- more and more GPUs and nodes, and the layout to choose ---


def _doubling(limit: int) -> list[int]:
    """1, 2, 4, ... up to a limit, and the limit."""
    return sorted({limit, *(2**power for power in range(limit.bit_length()) if 2**power <= limit)})


def _steps(training: Training, layout: Layout, fabric: Fabric, most_nodes: int) -> dict[Layout, Step]:
    """The same strategy on 1, 2, 4, ... GPUs of a node, then on 2, 4, ... nodes and on its own number of them.

    Those whose rates are known.
    """
    nodes = sorted({*_doubling(most_nodes), layout.nodes} - {1})
    layouts = [Layout(layout.strategy, gpus) for gpus in _doubling(layout.gpus_per_node)]
    layouts += [replace(layout, nodes=count) for count in nodes]
    return {one: step for one in layouts if (step := estimate_step(training, one, fabric))}


def _over_one_node(step: Step, steps: Mapping[Layout, Step]) -> Span | None:
    """Work over that of one node with as many GPUs and the same strategy; None for one that is one node itself."""
    alone = replace(step.layout, nodes=1)
    return None if step.layout == alone else step.over(steps[alone])


def _candidates(asked: Layout) -> Iterator[Layout]:
    """Simplest first; strategies that are the same on these GPUs are there once, by their simplest name or as asked."""
    for nodes in _doubling(asked.nodes):
        for gpus in _doubling(asked.gpus_per_node) if nodes == 1 else [asked.gpus_per_node]:
            other_names = {"fsdp"} | ({"zero3"} if asked.strategy == "fsdp" else set())
            other_names |= ({"hsdp"} if 1 in (gpus, nodes) else set()) | ({"tp"} if gpus == 1 else set())
            if nodes * gpus == 1:
                yield Layout("ddp", 1)
                continue
            for name in STRATEGIES:
                if name == asked.strategy or name not in other_names:
                    yield Layout(name, gpus, nodes)


def _choice(
    training: Training, asked: Step, fabric: Fabric, memory_bytes: int | None
) -> tuple[Layout | None, list[str]]:
    """The layout that surely does the most work, on no more GPUs than asked, and why; of close ones the simplest.

    Sure is what the slow end of the range gives. Simpler is: fewer nodes, fewer GPUs, then the strategy that splits
    less. A layout whose model state does not fit is left out; where the memory is not known, one that fits no GPU.
    """
    layouts = list(_candidates(asked.layout))
    held = {one: sum(model_state(training, one)) for one in layouts}
    limit = memory_bytes or MOST_MEMORY_BYTES
    too_large = [one for one in layouts if held[one] + RESERVE_BYTES >= limit]
    steps = [
        step for one in layouts if one not in too_large and (step := estimate_step(training, one, fabric)) is not None
    ]
    if not steps:
        whole = sum(model_state(training, Layout("ddp", 1)))
        where = "these GPUs" if memory_bytes else "this many of the largest GPUs"
        count = whole // max(1, limit - RESERVE_BYTES) + 1
        return None, [
            f"The model state, {format_gigabytes(whole)}, does not fit on {where} with any strategy: at least "
            f"{count:,} GPUs of {format_gigabytes(limit)}, more memory or a smaller model."
        ]
    most = max(one.speedup.low for one in steps)
    chosen = next(one for one in steps if one.speedup.low >= _CLOSE_RATIO * most)
    layout, wanted = chosen.layout, asked.layout
    words = []
    if max(layout.total_gpus, wanted.total_gpus) > 1:
        work = "" if layout.total_gpus == 1 else f"{ratio_words(chosen.speedup)} times the work of one GPU; "
        is_best = chosen.speedup.low >= most
        why = "at their slow end no other does more" if is_best else "simpler, within 10 % of the best slow end"
        words.append(f"{CHOOSE}{layout_words(layout)}: {work}{why}.")
    simpler = [one for one in layouts[: layouts.index(layout)] if one == replace(layout, strategy=one.strategy)]
    if too_simple := next((one for one in simpler if one in too_large), None):
        words.append(
            f"{too_simple.label} on the same GPUs does not fit: {format_gigabytes(held[too_simple])} of model state "
            f"with optimizer {training.optimizer}, {format_gigabytes(RESERVE_BYTES)} set aside."
        )
    if memory_bytes is None:
        need = f"It holds {format_gigabytes(held[layout])} of model state on each GPU, whose memory is not known"
        need += "; give it as --gpu-memory."
        if layout.strategy == "ddp" and layout.total_gpus > 1:
            split = format_gigabytes(sum(model_state(training, replace(layout, strategy="zero1"))))
            need += f" Where that does not fit, ZeRO-1 sends as many bytes and holds {split}."
        words.append(need)
    if wanted.total_gpus > 1 and wanted != layout:
        words.append(f"What was asked for, {layout_words(wanted)}, does {ratio_words(asked.speedup)} times.")
    larger = [one for one in steps if one.layout.total_gpus > layout.total_gpus]
    best = max(larger, key=lambda one: one.speedup.low, default=asked)
    if best.layout not in (wanted, layout):
        words.append(f"The best on more GPUs, {layout_words(best.layout)}, does {ratio_words(best.speedup)} times.")
    return layout, words


# --- sentences ---

CHOOSE, QUESTION, OUT_OF_RANGE = "Choose ", "Is ", "Out of range: "
"""With which the sentences on the choice, on what was given, and on what cannot be estimated begin."""
_PARTS = {"computing": "Computing", "in_node": "What joins the GPUs of a node", "network": "The network"}


def _bottleneck_words(step: Step, micro_batches: int) -> str:
    if step.layout.total_gpus == 1:
        return "One GPU communicates with nobody."
    part, certain = _PARTS[step.bottleneck.part], step.bottleneck.certain
    if step.bottleneck.part == "computing":
        is_it = "is" if certain else "may be"
        return f"{part} {is_it} the bottleneck: communication takes less time than that, also as flat rings."
    computing, sent = seconds_words(step.compute_seconds.times(micro_batches)), step.communication_seconds
    if certain:
        busy = format_seconds(sent.low)
        return (
            f"{part} is the bottleneck: busy for at least {busy} of a step in which each GPU computes for {computing}."
        )
    return f"{part} may be the bottleneck: a step communicates for {seconds_words(sent)} and computes for {computing}."


def _observed_words(seconds: float, free: Span) -> str:
    """The effect of an observed step on the estimate."""
    shown = format_seconds(seconds)
    if free.low <= seconds <= free.high:
        return f"The observed {shown} lie within the estimate of {seconds_words(free)}; all figures are set by them."
    end, nearer = ("fast", free.low) if seconds < free.low else ("slow", free.high)
    return (
        f"The observed {shown} lie outside the estimate of {seconds_words(free)}: {seconds / nearer:.3g} times its "
        f"{end} end. All figures are scaled by that; look for what the options or the assumptions have wrong."
    )


def _nodes_words(layout: Layout, ratio: Span | None) -> Iterator[str]:
    """The throughput of several nodes relative to one; nothing for one node."""
    if ratio is not None:
        meaning = "slower than one node" if ratio.high < 1 else "faster" if ratio.low > 1 else "perhaps slower"
        yield f"{layout.nodes} nodes do {ratio_words(ratio)} times the work of one node with {layout.label}: {meaning}."


def _assumptions(training: Training, layout: Layout, fabric: Fabric) -> Iterator[str]:
    yield (
        "Fast end: hierarchical bound (each byte enters a node once), hidden behind computing "
        f"{'as measured here' if training.hides else 'as far as possible'}. Slow end: a flat ring over all GPUs, "
        f"{_hidden_words(training, layout, fabric)}."
    )
    who = "node" if layout.strategy == "tp" else "GPU"
    yield f"Each {who} has the same work however many there are, so that n of them do n times the work in a step."
    if assumes := STRATEGIES[layout.strategy].assumes:
        yield f"{layout.label}: {assumes}."
    yield (
        "Each layer is a message, which costs 5 us for each GPU that it passes within a node (up to 0.5 ms below 16 "
        "GB/s), 15 us between nodes (50 us below 100 Gbit/s); a CPU starts it in at most 4.7 ms; the network's slow "
        "end falls by 13 % with each doubling beyond two nodes. The optimizer's own work and the loading of data are "
        "left out. No switch sums up (SHARP)."
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


def _hidden_words(training: Training, layout: Layout, fabric: Fabric) -> str:
    """The overlap at the slow end; see ``estimate_step``."""
    if not STRATEGIES[layout.strategy].overlaps:
        return "nothing hidden"
    if training.hides:
        return "hidden as measured here"
    if fabric.is_over_host(layout.gpus_per_node):
        return "nothing hidden, since the GPUs of a node may reach each other through the host alone"
    return f"hidden behind {100 * HIDING_RATIO:.0f} % of the computing"


def layout_words(layout: Layout) -> str:
    """``2 nodes × 2 GPUs, ZeRO-3``."""
    if layout.total_gpus == 1:
        return "one GPU"
    nodes = "one node" if layout.nodes == 1 else f"{layout.nodes} nodes"
    gpus = "1 GPU" if layout.gpus_per_node == 1 else f"{layout.gpus_per_node} GPUs"
    return f"{nodes} × {gpus}, {layout.label}"


def ratio_words(ratio: Span) -> str:
    """``1.61 to 2``."""
    return ratio.words(lambda value: f"{value:.0f}" if value >= 99.95 else f"{value:.3g}")


def seconds_words(seconds: Span) -> str:
    """``3.88 s to 6.18 s``."""
    return seconds.words(lambda value: "0 s" if value == 0 else format_seconds(value))

"""What ``commwatch estimate`` is asked: options, what they leave open taken from this node's last measurements."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TypeVar, get_args

from commwatch.cluster.node_record import STATE_NAME, NodeHistory
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
from commwatch.diagnosis.estimate.model.quantities import (
    Span,
    exactly,
    format_bits,
    format_gigabytes,
    parse_parameters,
    parse_tokens,
)
from commwatch.diagnosis.estimate.model.training import (
    STRATEGIES,
    Activations,
    Fabric,
    Layout,
    Optimizer,
    Precision,
    Training,
)
from commwatch.errors import CommwatchError, ExitCode
from commwatch.node.inventory_state import InventoryState
from commwatch.probes.by_hand.pair_history import last_matrix
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.streak import is_current
from commwatch.state.directory import state_path
from commwatch.state.records import decode
from commwatch.units import format_rate, format_seconds, parse_duration, parse_rate, parse_size

SLOWEST_PLANNED_RATE = 6e9
"""Bytes per second within a node of which nothing is known: GPUs that go through the host on PCIe gen 3 x16, without
P2P, by planning values; of the other end nothing can be said."""
SLOWEST_RATE = 1e3
"""Bytes per second; a slower one has lost its unit."""
SHORTEST_STEP_SECONDS = 1e-6
MESSAGE_SECONDS = 4.7e-3
"""Fitted: the most that the half for fitting of ``tests/estimate/published.csv`` implies, a tenth wider."""
SLOWEST_TCP_RATE = 4.2e9 / 8
"""Bytes per second between two nodes over Ethernet without RDMA, whose line rate one stream does not fill: the least
that the same half implies, a tenth lower. Clouds limit a stream to 5 Gbit/s."""
MEASURED = "measured"
"""In place of a rate: that of the last run between nodes."""
_MOST_SHOWN_NODES = 8
_FLOPS = re.compile(r"(\d{1,9}(?:\.\d+)?) ?([TP])FLOP(?:S|/s)", re.ASCII)
_FLOPS_UNITS = {"T": 1e12, "P": 1e15}
_RATIO = re.compile(r"(\d{1,3}(?:\.\d{1,9})?) ?(%?)", re.ASCII)

_MEASURES = ("all_reduce", "all_gather", "reduce_scatter", "scaling")
"""Whose bus bandwidth is that of the collectives of a training step."""

_Value = TypeVar("_Value")


class BadArgument(CommwatchError):
    """An option that cannot be used; the message names it and says what would be right."""

    exit_code = ExitCode.WRONG_USE

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"estimate: {option}: {problem}")


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
    assumptions: tuple[str, ...]
    """Those that come from the options."""
    observed_seconds: float | None
    """Of a step on this layout; None where nothing was observed."""
    gpus_to_take: str
    """Which of the node's GPUs, for the user; empty where that makes no difference or is not known."""
    simulated_node: str
    """Empty for the real one."""


def read_request(args: argparse.Namespace, config: Config, now: float) -> Request:
    """The request of the command line; what it leaves open comes from what was measured.

    All rates that its layout needs are in it.

    Args:
        args: the options.
        config: names the probes and the state directory.
        now: seconds since 1970.

    Raises:
        BadArgument: an option is missing or cannot be used.
    """
    known = _known_rates(config, now)
    _refuse_missing(args, known)
    parameters = _read("--parameters", parse_parameters, args.parameters)
    trainable = _read("--trainable", parse_parameters, args.trainable) if args.trainable else None
    if trainable is not None and trainable > parameters:
        raise BadArgument("--trainable", f"expected at most the parameters, {args.parameters}, got {args.trainable!r}")
    gpus = _number("--gpus-per-node", args.gpus_per_node, 1024) if args.gpus_per_node else known.gpus
    nodes = _number("--nodes", args.nodes, 10_000)
    strategy = _one_of("--strategy", args.strategy, tuple(STRATEGIES))
    layout = Layout(strategy, gpus, nodes)
    figures = _figures(args.gpu or known.gpu_name, args.gpu)
    precision: Precision = _one_of("--precision", args.precision, get_args(Precision))
    tokens = _read("--tokens", parse_tokens, args.tokens) if args.tokens else None
    compute, compute_basis = _compute(args, parameters, trainable, tokens, precision, figures)
    optimizer: Optimizer = _one_of("--optimizer", args.optimizer, get_args(Optimizer))
    training = Training(
        parameters=parameters,
        compute=compute,
        trainable=trainable,
        overlaps=True,
        precision=precision,
        gradient_precision=_one_of("--gradient-precision", args.gradient_precision or precision, get_args(Precision)),
        optimizer=optimizer,
        micro_batches=_number("--micro-batches", args.micro_batches, 1_000_000),
        activations=_activations(args, tokens),
    )
    in_node, in_node_basis = _in_node(args, gpus, known)
    network, network_basis = _network(args, known, config, now)
    memory_bytes, memory_basis = _memory(args, figures)
    return Request(
        training=training,
        layout=layout,
        fabric=Fabric(in_node, network, hop_seconds=_hop_seconds(network), message_seconds=MESSAGE_SECONDS),
        most_nodes=max(nodes, _MOST_SHOWN_NODES) if network else 1,
        memory_bytes=memory_bytes,
        memory_basis=memory_basis,
        rates=(*_network_words(network, network_basis), *in_node_basis),
        not_used=known.left_out,
        assumptions=(compute_basis,),
        observed_seconds=_seconds("--observed-step", args.observed_step) if args.observed_step else None,
        gpus_to_take=_gpus_to_take(config, gpus),
        simulated_node=node_name(config.simulation.preset) if config.simulation.preset else "",
    )


def _refuse_missing(args: argparse.Namespace, known: _KnownNode) -> None:
    """All that neither the options nor this node give, said at once."""
    several = args.nodes.isdigit() and int(args.nodes) > 1
    missing = [f"{option}: {problem}" for option, is_missing, problem in (
        ("--parameters", not args.parameters,
         "is missing; give their number with its unit, such as --parameters 1.5B"),
        ("--gpus-per-node", not args.gpus_per_node and not known.gpus,
         "is missing, and nothing was measured here; give it, such as 8"),
        ("--step-time", not args.step_time and not args.tokens,
         "is missing; give what one GPU alone computes on a micro-batch, such as 1.03s, or its tokens, such as "
         "--tokens 4096"),
        ("--network", several and not args.network and known.network is None,
         "is missing: what lies between nodes is not measured here; give what a test between two nodes gave, all NICs "
         "of a node together, such as --network 9Gbit/s"),
        ("--strategy tp", args.strategy == "tp" and not (args.tokens and args.hidden and args.layers),
         "needs --tokens, --hidden and --layers, such as --hidden 4096 --layers 32"),
    ) if is_missing]  # fmt: skip
    if missing:
        raise BadArgument(*"; ".join(missing).split(": ", 1))


def _read(option: str, parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except ValueError as error:
        raise BadArgument(option, str(error)) from error


def _number(option: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise BadArgument(option, f"expected a whole number from 1 to {most}, got {text!r}")
    return int(text)


def _one_of(option: str, text: str, choices: tuple[_Value, ...]) -> _Value:
    for choice in choices:
        if choice == text:
            return choice
    raise BadArgument(option, f"expected one of {', '.join(map(str, choices))}, got {text!r}")


def _span(option: str, texts: list[str], example: str) -> Span:
    rates = []
    for text in texts:
        rate = _read(option, parse_rate, text)
        if not SLOWEST_RATE <= rate < math.inf:
            raise BadArgument(option, f"expected a rate from 1kB/s on such as {example}, got {text!r}")
        rates.append(rate)
    return Span(min(rates), max(rates))


def _in_node(args: argparse.Namespace, gpus: int, known: _KnownNode) -> tuple[dict[int, Span], list[str]]:
    """Bus bandwidths by number of GPUs, and where they come from."""
    if args.intra_node:
        given = _span("--intra-node", args.intra_node, "20GB/s")
        rates = (
            format_rate(given.low) if given.low == given.high else f"{given.low / 1e9:.3g} to {format_rate(given.high)}"
        )
        return {gpus: given}, [f"within a node: {rates} bus bandwidth, given, for any number of its GPUs"]
    if known.in_node and gpus > max(known.in_node):
        raise BadArgument(
            "--intra-node",
            f"is missing: measured here over at most {max(known.in_node)} GPUs, not {gpus}; give it, such as 20GB/s",
        )
    if known.in_node:
        words = [f"within a node: {one}" for one in known.used]
        if not {*doubling(gpus)} - {1} <= {*known.in_node}:
            words.append("within a node: what was not measured takes the rate of the next larger number of GPUs")
        return known.in_node, words
    if gpus == 1:
        return {}, []
    slowest = format_rate(SLOWEST_PLANNED_RATE)
    return {gpus: Span(SLOWEST_PLANNED_RATE, math.inf)}, [
        f"within a node: not measured here and not given. The slow end takes {slowest} (a planning value for PCIe gen "
        "3 x16 through the host, no bound), the fast end no limit; --intra-node 20GB/s, or a daemon that probes, "
        "narrows it"
    ]


_TCP_RATE = 100e9 / 8
"""Bytes per second of a node, below which its network is taken for TCP."""


def _hop_seconds(network: Span | None) -> Span:
    """From GPU to GPU within a node, and to another one: usual for NVLink and PCIe, RDMA and TCP."""
    return Span(5e-6, 50e-6 if network is not None and network.high < _TCP_RATE else 15e-6)


def _network(args: argparse.Namespace, known: _KnownNode, config: Config, now: float) -> tuple[Span | None, str]:
    """What a node carries to another one, and where that comes from."""
    if args.network == [MEASURED]:
        return _measured_network(config, now)
    if args.network:
        return _span("--network", args.network, "9Gbit/s"), "given"
    return known.network, "line rate of this node's NICs, less at the slow end; --network says better"


def _measured_network(config: Config, now: float) -> tuple[Span, str]:
    """That of the last run between nodes that was handed to this node's daemon."""
    file = state_path(config) / f"{STATE_NAME}.json"
    hand = "commwatch cluster probe hands its result to the daemon of each node"
    try:
        last = decode(file.read_bytes(), NodeHistory).last
    except FileNotFoundError:
        last = None
    except (OSError, ValueError, RecursionError) as error:
        problem = f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise BadArgument("--network measured", problem) from error
    if last is None or last.network is None:
        raise BadArgument("--network measured", f"no run between nodes is known in {state_path(config)}; {hand}")
    ago = format_seconds(max(0.0, now - last.finished_at))
    if not is_current(last.finished_at, config.cluster.interval, now):
        raise BadArgument("--network measured", f"the last run between nodes is {ago} old; {hand}")
    low, high = sorted(float(f"{rate:.3g}") for rate in (last.network.low, last.network.high))
    return Span(low, high), f"measured {ago} ago between {last.nodes} nodes over {last.backend}"


def _network_words(network: Span | None, basis: str) -> list[str]:
    if network is None:
        return []
    if network.low == network.high:
        shown = format_bits(network.low)
    else:
        low, high = (format_bits(rate).split(" = ") for rate in (network.low, network.high))
        shown = f"{low[0]} to {high[0]} = {low[1]} to {high[1]}"
    return [f"network: {shown}, {basis}: all NICs of a node together, one direction, every node alike"]


def _figures(name: str, given: str) -> GpuFigures | None:
    figures = gpu_figures(name) if name else None
    if given and (several := variants(given)):
        raise BadArgument("--gpu", f"{given!r} may be {' or '.join(several)}, which differ; say which")
    if given and figures is None:
        raise BadArgument(
            "--gpu", f"{given!r} is not known; expected one of {', '.join(known.name for known in GPUS)}, or leave it "
            "out and give --gpu-memory and --gpu-flops",
        )  # fmt: skip
    return figures


def _compute(
    args: argparse.Namespace,
    parameters: int,
    trainable: int | None,
    tokens: int | None,
    precision: Precision,
    figures: GpuFigures | None,
) -> tuple[Span, str]:
    """Seconds for which a GPU computes on a micro-batch, and where that comes from."""
    if args.step_time:
        seconds = _seconds("--step-time", args.step_time)
        return (
            exactly(seconds),
            f"One GPU alone computes {format_seconds(seconds)} on a micro-batch, forward and backward: given.",
        )
    if tokens is None:
        raise AssertionError("refused before")
    if args.gpu_flops:
        peak, basis = _read("--gpu-flops", _parse_flops, args.gpu_flops), "given"
    elif figures is not None and precision != "fp32":
        peak, basis = figures.flops_per_second, figures.source
    else:
        why = "of fp32 is not known" if figures else "is not known without the GPU's name"
        raise BadArgument("--gpu-flops", f"is missing: the peak {why}; give it, such as 125TFLOP/s, or --step-time")
    if args.mfu:
        used, share = exactly(_ratio(args.mfu)), "given"
    else:
        used = figures.used if figures else OTHER_USED
        used, share = used.times(1 if trainable is None else LORA_RATIO), "what published runs reach"
    work = operations(parameters, parameters if trainable is None else trainable, recomputes=args.recompute) * tokens
    slow = work / (used.low * peak)
    compute = Span(work / (used.high * peak), slow if args.mfu else max(slow, LAUNCH_SECONDS))
    reckoned = f"{6 + 2 * args.recompute} ×" if trainable is None else f"{4 + 2 * args.recompute} (and 2 if trained) ×"
    shares = used.words(lambda one: f"{100 * one:.3g}")
    return compute, (
        f"A GPU computes {compute.words(format_seconds)} on a micro-batch: {reckoned} {parameters:,} parameters × "
        f"{tokens:,} tokens ÷ ({shares} % of {peak / 1e12:g} TFLOP/s, {basis}); the share is {share}, the model "
        f"dense, activations {'computed again' if args.recompute else 'kept'}."
    )


def _seconds(option: str, text: str) -> float:
    seconds = _read(option, parse_duration, text)
    if not SHORTEST_STEP_SECONDS <= seconds < math.inf:
        raise BadArgument(option, f"expected a time from 1us on such as 1.03s, got {text!r}")
    return seconds


def _ratio(text: str) -> float:
    match = _RATIO.fullmatch(text.strip())
    ratio = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < ratio <= 1:
        raise BadArgument(
            "--mfu", f"expected a share of the peak above 0 % and at most 100 %, such as 40%, got {text!r}"
        )
    return ratio


def _parse_flops(text: str) -> float:
    match = _FLOPS.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"expected a rate such as 125TFLOP/s or 1PFLOP/s, got {text!r}")
    return float(match[1]) * _FLOPS_UNITS[match[2]]


def _memory(args: argparse.Namespace, figures: GpuFigures | None) -> tuple[int | None, str]:
    if args.gpu_memory:
        size = _read("--gpu-memory", parse_size, args.gpu_memory)
        if size <= 0:
            raise BadArgument("--gpu-memory", f"expected a size above 0 such as 24GB, got {args.gpu_memory!r}")
        return size, f"{format_gigabytes(size)}, given"
    if figures is not None and figures.memory_bytes is not None:
        return figures.memory_bytes, f"{format_gigabytes(figures.memory_bytes)}, what {figures.name} has"
    return None, "unknown; --gpu-memory 24GB, or --gpu A10, says it"


def _activations(args: argparse.Namespace, tokens: int | None) -> Activations | None:
    hidden = _number("--hidden", args.hidden, 1_000_000) if args.hidden else None
    layers = _number("--layers", args.layers, 10_000) if args.layers else None
    if tokens is None or hidden is None or layers is None:
        return None
    return Activations(tokens, hidden, layers)


# --- what was measured within this node ---


@dataclass(frozen=True, slots=True)
class _KnownNode:
    """What the daemon knows of this node: its last results, else its inventory."""

    in_node: dict[int, Span]
    """Bus bandwidth by number of GPUs, bytes per second: slowest to fastest of the collectives."""
    used: tuple[str, ...]
    """Each result, for the user."""
    left_out: tuple[str, ...]
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


def _known_rates(config: Config, now: float) -> _KnownNode:
    """The current results in the state directory. Those of gloo, which is no GPU fabric, and old ones are left out."""
    found: dict[int, list[float]] = {}
    used: list[str] = []
    left_out: list[str] = []
    for name, probe in config.probes.definitions.items():
        if probe.measure not in _MEASURES:
            continue
        result = _last(state_path(config) / f"probe-{name}.json", probe.interval, now)
        if isinstance(result, str):
            left_out.append(f"{name}: {result}")
        elif result is not None:
            ago = format_seconds(max(0.0, now - result[0]))
            for ranks, rate in result[1]:
                found.setdefault(ranks, []).append(rate)
                used.append(f"{name} over {ranks} GPUs: {format_rate(rate)}, measured {ago} ago")
    spans = {ranks: Span(min(rates), max(rates)) for ranks, rates in sorted(found.items())}
    kept = _inventory(config)
    rdma, others = ([one.expected or 0.0 for one in ports.values()] for ports in (kept.rdma_ports, kept.ports))
    line = sum(rdma) or max(others, default=0.0)
    return _KnownNode(
        in_node=spans,
        used=tuple(used),
        left_out=tuple(left_out),
        gpu_name=_gpu_name(config, kept),
        gpus=max(spans, default=len(kept.gpus)),
        network=line_span(line, is_rdma=bool(rdma)) if line else None,
    )


def _inventory(config: Config) -> InventoryState:
    """What the daemon has seen here; empty without one."""
    try:
        return decode((state_path(config) / "inventory.json").read_bytes(), InventoryState)
    except (OSError, ValueError, RecursionError):
        return InventoryState()


def _gpus_to_take(config: Config, count: int) -> str:
    """The GPUs whose slowest pair is the fastest, from the last pair matrix; each pair counts in its slower direction.

    Starts at each pair, adds the GPU that slows it least: of few GPUs that is the best choice or close to it.
    """
    matrix = last_matrix(config)
    if matrix is None or not 1 < count < len(matrix.endpoints):
        return ""
    rates: dict[frozenset[int], float] = {}
    for cell in matrix.cells:
        if cell.bandwidth is not None:
            pair = frozenset((cell.source, cell.destination))
            rates[pair] = min(cell.bandwidth, rates.get(pair, math.inf))

    def slowest(group: tuple[int, ...]) -> float:
        return min(rates.get(frozenset(pair), 0.0) for pair in combinations(group, 2))

    groups = [tuple(sorted(pair)) for pair in rates if len(pair) == 2]
    for _ in range(count - 2):
        groups = [
            max(((*group, one) for one in range(len(matrix.endpoints)) if one not in group), key=slowest)
            for group in groups
        ]
    if not groups or not slowest(best := max(groups, key=slowest)):
        return ""
    names = ", ".join(f"GPU{matrix.endpoints[one].label}" for one in sorted(best))
    return f"Of this node take {names}: their slowest pair carries {format_rate(slowest(best))}, as last measured."


def _last(file: Path, interval: float, now: float) -> tuple[float, list[tuple[int, float]]] | str | None:
    """When the last result was taken, and its rates; why it is not used; None without any."""
    try:
        history = decode(file.read_bytes(), ProbeHistory)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # msgspec's own errors, text that is not UTF-8
        return f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
    if history.last is None:
        return None
    if history.backend == "gloo":
        return "measured with gloo, which is no GPU fabric"
    if not is_current(history.last.finished_at, interval, now):
        return f"the last result is {format_seconds(now - history.last.finished_at)} old"
    rates = list(_rates(history))
    if not all(0 < rate < math.inf for _, rate in rates):
        return f"{file} holds a rate that is none"
    return history.last.finished_at, rates


def _rates(history: ProbeHistory) -> Iterator[tuple[int, float]]:
    """Ranks and bus bandwidth of the last result."""
    if history.last is None:
        return
    if history.last.bus_bandwidth is not None and history.conditions is not None and not history.last.scaling:
        yield history.conditions.ranks, history.last.bus_bandwidth
    for point in history.last.scaling:
        yield point.ranks, point.bus_bandwidth


def _gpu_name(config: Config, kept: InventoryState) -> str:
    matrix = last_matrix(config)
    names = {one.name for one in matrix.endpoints} if matrix else {one.name for one in kept.gpus.values()}
    return names.pop() if len(names) == 1 else ""

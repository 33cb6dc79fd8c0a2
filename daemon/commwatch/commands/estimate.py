"""commwatch estimate: what a training step would take over more GPUs and nodes, and which layout to choose."""

from __future__ import annotations

import argparse
import time
from typing import get_args

from commwatch import units
from commwatch.commands.command import command, group, option
from commwatch.commands.options import quantity, whole_number
from commwatch.config.settings import Config
from commwatch.diagnosis.estimate.step import Optimizer, Precision, Span, StrategyName
from commwatch.errors import ExitCode, StateError, UsageError
from commwatch.probes.results.streak import is_current
from commwatch.service.log import configure_logging
from commwatch.state.directory import state_path
from commwatch.state.records import read_record
from commwatch.units import format_seconds
from commwatch.views.terminal import progress, show

MEASURED = "measured"
"""In place of a rate: that of the last run between nodes."""


_PRECISIONS = get_args(Precision)
_COUNT, _RATE = quantity(units.parse_parameters), quantity(units.parse_rate, "1kB/s")
_SECONDS, _SHARE = quantity(units.parse_duration, "1us"), quantity(units.parse_share)


def _share_or_none(text: str) -> float:
    return 0.0 if text in ("0", "0%") else _SHARE(text)


def _rate_or_measured(text: str) -> float | str:
    return text if text == MEASURED else _RATE(text)


# fmt: off
_OPTIONS = (
    option("--parameters", metavar="1.5B", type=_COUNT, help="of the model: K, M, B (10^9) or T"),
    option("--trainable", metavar="20M", type=_COUNT, help="of them, such as LoRA adapters (default: all)"),
    option("--strategy", metavar="NAME", choices=get_args(StrategyName), default="ddp",
           help="ddp (default), zero1, zero2, zero3, fsdp, fsdp-grad-op, hsdp, tp (tensor parallel in a node)"),
    option("--gpus-per-node", "--gpus", metavar="N", type=whole_number(1024),
           help="GPUs of each node (default: those measured here)"),
    option("--nodes", metavar="N", type=whole_number(10_000), default=1, help="default: 1"),
    group(
        "computing",
        option("--step-time", metavar="1.03s", type=_SECONDS,
               help="time of one GPU alone for a micro-batch, forward and backward"),
        option("--step-time-gpus", metavar="N", type=whole_number(1024),
               help="GPUs of a node that had this step time together (default: 1)"),
        option("--tokens", metavar="4096", type=quantity(units.parse_tokens),
               help="or: tokens of a micro-batch of one GPU"),
        option("--recompute", action="store_true", help="activations are computed again (checkpointing)"),
        option("--observed-step", metavar="8.68s", type=_SECONDS,
               help="measured step time on this layout: scales the estimate"),
        option("--micro-batches", metavar="N", type=whole_number(10**6), default=1,
               help="per GPU and step (default: 1)"),
        option("--gpu", metavar="A10", default="", help="model (default: that of this node)"),
        option("--gpu-flops", metavar="125TFLOP/s", type=quantity(units.parse_flops, "1TFLOP/s"),
               help="its peak (default: by the model)"),
        option("--mfu", metavar="SHARE", type=_SHARE,
               help="share of the peak that is reached (default: as published)"),
    ),
    group(
        "model state",
        option("--precision", metavar="NAME", choices=_PRECISIONS, default="bf16",
               help="of parameters: bf16 (default), fp16, fp32"),
        option("--gradient-precision", metavar="NAME", choices=_PRECISIONS, help="default: that of the parameters"),
        option("--optimizer", metavar="NAME", choices=get_args(Optimizer), default="adam",
               help="adam (default; fp32 copy and moments), adam-pure (moments as the parameters), sgd (fp32 "
               "momentum)"),
        option("--gpu-memory", metavar="24GB", type=quantity(units.parse_size, "1B"),
               help="of a GPU (default: by the model)"),
        option("--hidden", metavar="N", type=whole_number(10**6), help="size of the hidden state, for tensor parallel"),
        option("--layers", metavar="N", type=whole_number(10_000), help="of the model, for tensor parallel"),
    ),
    group(
        "bandwidths; of several values the range takes the slowest and the fastest",
        option("--network", metavar="9Gbit/s", nargs="+", default=[], type=_rate_or_measured,
               help="measured between two nodes: all NICs of a node together, one direction; measured: by the last "
               "commwatch cluster probe of this node (default: line rate of the NICs)"),
        option("--intra-node", metavar="20GB/s", nargs="+", type=_RATE, default=[],
               help="bus bandwidth of collectives within a node"),
        option("--overlap", metavar="30%", type=_share_or_none,
               help="share hidden behind computing, as commwatch probe --training measures it (default: that of the "
               "daemon's probe, else not known)"),
    ),
)
# fmt: on


@command(
    "estimate",
    "estimate what more GPUs and nodes would bring to a run",
    "Estimates what a training step sends, how long it takes between the hierarchical bound and a flat "
    "ring, how well more GPUs and nodes scale, whether the model state fits, and which layout to choose; prints "
    "its assumptions. Unless they are given, bandwidths within the node are the last ones of the daemon, those "
    "between nodes are the line rate of the NICs. Nothing is measured. A B is 10^9, a GB/s 10^9 bytes/s, a "
    "Gbit/s 10^9 bits/s.",
    "commwatch estimate --parameters 1.5B --strategy zero3 --nodes 2 --gpus-per-node 2 --step-time "
    "1.03s --network 9Gbit/s",
    *_OPTIONS,
)
def run(args: argparse.Namespace, config: Config) -> int:
    from commwatch.diagnosis.estimate.answer import estimate
    from commwatch.diagnosis.estimate.text import answer_lines

    configure_logging(config.log)
    now = time.time()
    with progress("reading the node"):
        found = estimate(args, config, now, lambda: _last_run(config, now))
    show(found, answer_lines(found), as_json=args.json)
    return ExitCode.OK


def _last_run(config: Config, now: float) -> tuple[Span, str]:
    """The result and time of the last run between nodes that was sent to this node's daemon.

    Raises:
        UsageError: there is none, it is too old, or what is known of it cannot be read.
    """
    from commwatch.cluster.node_record import STATE_NAME, NodeHistory

    hand = "commwatch cluster probe hands its result to the daemon of each node"
    try:
        history = read_record(state_path(config) / f"{STATE_NAME}.json", NodeHistory)
    except StateError as error:
        raise UsageError(f"estimate: --network measured: {error}") from error
    last = history.last if history else None
    if last is None or last.network is None:
        raise UsageError(f"estimate: --network measured: no run between nodes is known in {state_path(config)}; {hand}")
    ago = format_seconds(max(0.0, now - last.finished_at))
    if not is_current(last.finished_at, config.cluster.interval, now):
        raise UsageError(f"estimate: --network measured: the last run between nodes is {ago} old; {hand}")
    low, high = sorted(float(f"{rate:.3g}") for rate in (last.network.low, last.network.high))
    return Span(low, high), f"measured {ago} ago between {last.nodes} nodes over {last.backend}"

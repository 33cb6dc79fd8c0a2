"""commwatch estimate: what a training step would take over more GPUs and nodes, and which layout to choose."""

from __future__ import annotations

import argparse
import time

from commwatch.config.settings import Config
from commwatch.errors import ExitCode
from commwatch.service.log import configure_logging
from commwatch.views.terminal import json_option, print_json, print_lines


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], parents: list[argparse.ArgumentParser]
) -> None:
    """Add this command to the command line."""
    parser = subparsers.add_parser(
        "estimate",
        parents=parents,
        help="say before a run what more GPUs and nodes would bring",
        description="Estimates what a training step sends, how long it takes between the hierarchical bound and a flat "
        "ring, how well more GPUs and nodes scale, whether the model state fits, and which layout to choose; prints "
        "all it assumes. Unless they are given, bandwidths within the node are the last ones of the daemon, those "
        "between nodes are the line rate of the NICs. Nothing is measured. A B is 10^9, a GB/s 10^9 bytes/s, a "
        "Gbit/s 10^9 bits/s.",
        epilog="example: commwatch estimate --parameters 1.5B --strategy zero3 --nodes 2 --gpus-per-node 2 --step-time "
        "1.03s --network 9Gbit/s",
    )
    parser.add_argument("--parameters", metavar="1.5B", default="", help="of the model: K, M, B (10^9) or T")
    parser.add_argument("--trainable", metavar="20M", default="", help="of them, such as LoRA adapters (default: all)")
    parser.add_argument(
        "--strategy", metavar="NAME", default="ddp",
        help="ddp (default), zero1, zero2, zero3, fsdp, fsdp-grad-op, hsdp, tp (tensor parallel in a node)",
    )  # fmt: skip
    parser.add_argument(
        "--gpus-per-node", "--gpus", metavar="N", default="", help="GPUs of each node (default: those measured here)"
    )
    parser.add_argument("--nodes", metavar="N", default="1", help="default: 1")
    compute = parser.add_argument_group("computing")
    compute.add_argument(
        "--step-time", metavar="1.03s", default="", help="what one GPU alone computes on a micro-batch, both passes"
    )
    compute.add_argument("--tokens", metavar="4096", default="", help="or: tokens of a micro-batch of one GPU")
    compute.add_argument("--recompute", action="store_true", help="activations are computed again (checkpointing)")
    compute.add_argument(
        "--observed-step", metavar="8.68s", default="", help="what a step took on this layout: the rest is scaled by it"
    )
    compute.add_argument("--micro-batches", metavar="N", default="1", help="of a GPU in a step (default: 1)")
    compute.add_argument("--gpu", metavar="A10", default="", help="model (default: that of this node)")
    compute.add_argument("--gpu-flops", metavar="125TFLOP/s", default="", help="its peak (default: by the model)")
    compute.add_argument(
        "--mfu", metavar="SHARE", default="", help="share of the peak that is reached (default: as published)"
    )
    model = parser.add_argument_group("model state")
    model.add_argument("--precision", metavar="NAME", default="bf16", help="of parameters: bf16 (default), fp16, fp32")
    model.add_argument("--gradient-precision", metavar="NAME", default="", help="default: that of the parameters")
    model.add_argument(
        "--optimizer", metavar="NAME", default="adam",
        help="adam (default; fp32 copy and moments), adam-pure (moments as the parameters), sgd (fp32 momentum)",
    )  # fmt: skip
    model.add_argument("--gpu-memory", metavar="24GB", default="", help="of a GPU (default: by the model)")
    model.add_argument("--hidden", metavar="N", default="", help="size of the hidden state, for tensor parallel")
    model.add_argument("--layers", metavar="N", default="", help="of the model, for tensor parallel")
    rates = parser.add_argument_group("bandwidths; of several values the range takes the slowest and the fastest")
    rates.add_argument(
        "--network", metavar="9Gbit/s", nargs="+", default=[],
        help="measured between two nodes: all NICs of a node together, one direction; measured: by the last commwatch "
        "cluster probe of this node (default: line rate of the NICs)",
    )  # fmt: skip
    rates.add_argument(
        "--intra-node", metavar="20GB/s", nargs="+", default=[], help="bus bandwidth of collectives within a node"
    )
    json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, config: Config) -> int:
    """Read, estimate, print."""
    from commwatch.diagnosis.estimate.answer import answer, answer_lines
    from commwatch.diagnosis.estimate.request import read_request

    configure_logging(config.log)
    found = answer(read_request(args, config, time.time()))
    if args.json:
        print_json(found)
    else:
        print_lines(answer_lines(found))
    return ExitCode.OK

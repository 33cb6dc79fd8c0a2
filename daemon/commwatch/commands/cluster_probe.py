"""commwatch cluster probe: what each node sends to others, and which part of the network is slow."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from commwatch.commands.cluster_locate import document_of, draw, lines_of
from commwatch.commands.cluster_members import (
    MEMBER_OPTIONS,
    OUTPUT,
    Ended,
    check_files,
    groups_option,
    name_list,
    take_part,
)
from commwatch.commands.command import command, option
from commwatch.commands.options import IGNORE_SCHEDULER, quantity
from commwatch.config.settings import Config
from commwatch.errors import ExitCode
from commwatch.units import format_seconds, parse_rate
from commwatch.views.terminal import show

if TYPE_CHECKING:
    from commwatch.cluster.member import Progress, Run
    from commwatch.cluster.node_report import NodeReport
    from commwatch.cluster.probe_store import ProbeResult
    from commwatch.cluster.probing import Asked

_NO_PART = {
    "busy": "did not measure, as the node was not free",
    "absent": "did not come",
    "lost": "came, and left or did not answer in time; its measurements do not count",
    "gave way": "gave way during the run",
}


_RATE = quantity(parse_rate, "1kB/s")

MEASURE_OPTIONS = (
    option(
        "--backend",
        default="auto",
        metavar="NAME",
        help="nccl, gloo, tcp or simulated (default: nccl where there are GPUs and torch, else tcp)",
    ),
    option(
        "--rails",
        default="",
        metavar="NAME,...",
        help="RDMA devices (nccl) or interfaces, in the same order on all nodes (default: with nccl each RDMA device, "
        "else the interface of --interface)",
    ),
    option("--rounds", type=int, choices=(1, 2, 3), default=3, help="number of rounds (default 3)"),
    groups_option("leaf of each node, in place of what Slurm says"),
    option("--expected", type=_RATE, metavar="RATE", help="what a rail should carry one way: 48GB/s"),
    option("--intra-node", type=_RATE, metavar="RATE", help="what the GPUs of a node exchange, for comparison"),
)
"""Options for the measurement."""
REPORT = option("--report", type=Path, metavar="FILE", help="save the run, for cluster locate (member 0)")


@command(
    "probe",
    "bandwidth and latency of pairs of nodes, each way; names the slow NIC, node, leaf or uplink",
    "Measures pairs of nodes in three rounds, each rail and each direction by itself, and names the "
    "part that is slow. Needs an allocation of its own: start one member a node, with the same run key in "
    "COMMWATCH_CLUSTER_KEY; a node that is not free stays out. Member 0 prints the result.",
    "export COMMWATCH_CLUSTER_KEY=$(openssl rand -hex 32); srun --exclusive --gpus-per-node=8 "
    "--ntasks-per-node=1 commwatch cluster probe --report run.json",
    *MEMBER_OPTIONS,
    *MEASURE_OPTIONS,
    REPORT,
    OUTPUT,
    IGNORE_SCHEDULER,
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Take part, and as member 0 print what was found.

    Raises:
        BrokenRun: the run cannot begin, or has broken; a member that did not get to the store says why.
        RunUnreadable: the groups cannot be used.
        BadOutput: a file cannot be written.
    """
    from commwatch.service.log import configure_logging

    check_files(args)
    configure_logging(config.log)
    _, result, daemon = probed(args, config, asked_of(args))
    if result is None:
        return ExitCode.FOUND
    if isinstance(result, int):
        return result
    document = {**saved(args, result), "daemon": daemon.outcome}
    show(document, (*probe_lines(result), daemon.words), as_json=args.json)
    if args.output is not None:
        draw(args.output, result.run, result.verdict)
    return result.exit_code


def probed(args: argparse.Namespace, config: Config, asked: Asked, *, shift: int = 0) -> Ended[ProbeResult | int]:
    """Take part in a probe; see ``take_part``."""
    from commwatch.cluster.node_report import OPERATION
    from commwatch.cluster.probing import probe

    async def work(started: Run, progress: Progress, take: Callable[[NodeReport], None]) -> ProbeResult | int:
        return await probe(started, asked, config, progress, take)

    return take_part(args, config, OPERATION, work, shift=shift)


def asked_of(args: argparse.Namespace, diagnosis: str = "") -> Asked:
    """The request of a member.

    Raises:
        RunUnreadable: the groups cannot be used.
    """
    from commwatch.cluster.probe_store import Wanted
    from commwatch.cluster.probing import Asked
    from commwatch.cluster.run_file import read_groups

    leaves = {} if args.groups is None else read_groups(args.groups)
    wanted = Wanted(rounds=args.rounds, leaves=leaves, expected=args.expected, inside=args.intra_node)
    return Asked(args.backend, tuple(filter(None, args.rails.split(","))), args.ignore_scheduler, wanted, diagnosis)


def saved(args: argparse.Namespace, result: ProbeResult) -> dict[str, object]:
    """Save the run if that was asked for; the result as JSON.

    Raises:
        BadOutput: the file cannot be written.
    """
    from commwatch.cluster.run_file import encode_run
    from commwatch.diagnosis.output_file import new_file

    if args.report is not None:
        with new_file("--report", args.report, 0o666) as stream:
            stream.write(encode_run(result.run))
    kept = ("backend", "members", "seconds", "occupied_seconds", "no_adapter_latency", "strangers")
    return {**document_of(result.verdict), **{name: getattr(result, name) for name in kept}}


def probe_lines(result: ProbeResult) -> Iterator[str]:
    probed = sum(one.state == "probed" for one in result.members)
    occupied = f", a GPU occupied for {result.occupied_seconds:.1f} s at most" if result.occupied_seconds else ""
    yield f"{probed} of {len(result.members)} nodes probed over {result.backend}, {result.seconds:.1f} s{occupied}"
    yield from lines_of(result.run, result.verdict)
    yield f"latency of the adapters (ib_write_lat): {_adapter_latency(result)}"
    for state, words in _NO_PART.items():
        if here := [one for one in result.members if one.state == state]:
            why = "".join(f"; {one.name}: {one.detail}" for one in here[:8] if one.detail)
            yield f"{state}: {name_list([one.name for one in here])}: {words}{why}"
    for one in result.strangers:
        yield f"turned away: {one}"


def _adapter_latency(result: ProbeResult) -> str:
    """The latency of the adapters alone, compared with the mark of InfiniBand HDR where they are that."""
    from commwatch.diagnosis.marks.table import INFINIBAND_HDR

    members = result.run.members
    measured = [(one, one.adapter_latency) for one in result.run.measured if one.adapter_latency is not None]
    if not measured:
        return f"not measured: {result.no_adapter_latency}"
    seconds = [value for _, value in measured]
    words = f"{format_seconds(median(seconds))} usual, {format_seconds(max(seconds))} at most"
    hdr = [
        (f"{members[one.first].name} with {members[one.second].name} on rail {one.rail}", value)
        for one, value in measured
        if one.rail in result.hdr_rails
    ]
    if not hdr:
        return words
    slow = [where for where, value in hdr if value > INFINIBAND_HDR.figure]
    mark = f"InfiniBand HDR should take at most {format_seconds(INFINIBAND_HDR.figure)}"
    return f"{words}; {mark}: {f'missed by {name_list(slow)}' if slow else 'reached'}"

"""commwatch cluster check: whether the nodes of a job fit together and reach each other, before it starts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from commwatch.commands.cluster_members import MEMBER_OPTIONS, Handed, name_list, take_part
from commwatch.commands.command import command
from commwatch.config.settings import Config
from commwatch.errors import ExitCode
from commwatch.views.terminal import show

if TYPE_CHECKING:
    from commwatch.cluster.messages import Verdict


@command(
    "check",
    "versions, names, interfaces, ports both ways, large packets; no GPU, seconds",
    "Compares the nodes of a job and tries the connections that it will need. Needs no GPU and no idle "
    "node; start one member a node, with the same run key in COMMWATCH_CLUSTER_KEY. Member 0 prints the result.",
    "export COMMWATCH_CLUSTER_KEY=$(openssl rand -hex 32); srun --ntasks-per-node=1 commwatch cluster check",
    *MEMBER_OPTIONS,
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Take part, and as member 0 print the verdict.

    Raises:
        BrokenRun: the run cannot begin, or has broken; a member that did not get to the store says why.
    """
    from commwatch.cluster.check import check
    from commwatch.cluster.node_report import CHECK_OPERATION

    rank, verdict, daemon = take_part(args, config, CHECK_OPERATION, check)
    if verdict is None:
        return ExitCode.FOUND
    if rank == 0:
        document = {**msgspec.to_builtins(verdict), "daemon": daemon.outcome}
        show(document, check_lines(verdict, daemon), as_json=args.json)
    return {"fine": ExitCode.OK, "named": ExitCode.FOUND, "too_few": ExitCode.NOT_KNOWN}[verdict.outcome]


def check_lines(verdict: Verdict, daemon: Handed) -> Iterator[str]:
    states = {state: [one.name for one in verdict.members if one.state == state] for state in ("absent", "lost")}
    checked = len(verdict.members) - sum(map(len, states.values()))
    of_all = f"{checked} of {len(verdict.members)} nodes checked"
    yield f"{of_all}, {verdict.paths} connections tried, {verdict.seconds:.1f} s"
    for state, words in (("absent", "did not come"), ("lost", "came, and left or did not report in time")):
        if names := states[state]:
            yield f"{state}: {name_list(names)}: {words}"
    yield from (one.line for one in verdict.failures if not one.minor)
    yield from (f"note: {one.line}" for one in verdict.failures if one.minor)
    yield from (f"turned away: {one}" for one in verdict.strangers)
    if verdict.outcome == "fine":
        yield "nothing is wrong between these nodes"
    elif verdict.outcome == "too_few":
        yield "fewer than two nodes: nothing can be said"
    if daemon.outcome != "no_daemon":  # a check needs none
        yield daemon.words

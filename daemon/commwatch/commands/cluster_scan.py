"""commwatch cluster scan: check, probe and what each node says of itself, in one run and one report."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from commwatch.commands.cluster_check import check_lines
from commwatch.commands.cluster_locate import draw
from commwatch.commands.cluster_members import MEMBER_OPTIONS, OUTPUT, Handed, check_files, take_part
from commwatch.commands.cluster_probe import MEASURE_OPTIONS, REPORT, asked_of, probe_lines, probed, saved
from commwatch.commands.command import command
from commwatch.commands.options import IGNORE_SCHEDULER
from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode
from commwatch.lines import printable
from commwatch.units import format_seconds
from commwatch.views.terminal import show

if TYPE_CHECKING:
    from commwatch.cluster.messages import Verdict
    from commwatch.cluster.probe_store import ProbedMember, ProbeResult

SCHEMA = "commwatch-cluster-scan/1"


@command(
    "scan",
    "check, probe and the diagnosis of each node, in one run and one report",
    "Runs cluster check and cluster probe one after the other, and adds what the daemon of each node says of it. Needs "
    "an allocation of its own, as cluster probe does: start one member a node, with the same run key in "
    "COMMWATCH_CLUSTER_KEY. Members meet at the port of the job for the check, and four ports further for the probe. "
    "Member 0 prints the report.",
    "export COMMWATCH_CLUSTER_KEY=$(openssl rand -hex 32); srun --exclusive --gpus-per-node=8 --ntasks-per-node=1 "
    "commwatch cluster scan",
    *MEMBER_OPTIONS,
    *MEASURE_OPTIONS,
    REPORT,
    OUTPUT,
    IGNORE_SCHEDULER,
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Take part in both, and as member 0 print the report.

    Raises:
        BrokenRun: a run cannot begin, or has broken; a member that did not get to the store says why.
        RunUnreadable: the groups cannot be used.
        BadOutput: a file cannot be written.
    """
    from commwatch.cluster.check import check
    from commwatch.cluster.member import PORTS_TRIED
    from commwatch.cluster.node_report import CHECK_OPERATION
    from commwatch.service.log import configure_logging

    check_files(args)
    configure_logging(config.log)
    asked = asked_of(args, diagnosis_of(config))
    _, checked, _ = take_part(args, config, CHECK_OPERATION, check)
    if checked is None:
        return ExitCode.FOUND
    _, result, daemon = probed(args, config, asked, shift=PORTS_TRIED)
    if result is None:
        return ExitCode.FOUND
    if isinstance(result, int):
        return ExitCode.FOUND if checked.outcome == "named" else result
    document = {
        "schema": SCHEMA, "check": msgspec.to_builtins(checked), "probe": saved(args, result), "daemon": daemon.outcome,
    }  # fmt: skip
    show(document, scan_lines(checked, result, daemon), as_json=args.json)
    if args.output is not None:
        draw(args.output, result.run, result.verdict)
    return ExitCode.FOUND if checked.outcome == "named" else result.exit_code


def diagnosis_of(config: Config) -> str:
    """The diagnosis by the daemon of this node: the word and the line of its verdict."""
    from commwatch.config.thresholds import load_thresholds
    from commwatch.diagnosis.known import ask
    from commwatch.diagnosis.walk import diagnose
    from commwatch.state.client import of_the_only_daemon

    try:
        known = ask(of_the_only_daemon(config), load_thresholds(config.thresholds))
        verdict = diagnose(known, "quick").verdict
    except CommwatchError as error:
        return f"Unknown: {printable(str(error))}"
    return f"{verdict.word}: {printable(verdict.line)}"


def scan_lines(checked: Verdict, result: ProbeResult, daemon: Handed) -> Iterator[str]:
    """The report: connections, the network, then the nodes that do not say that they are well."""
    yield "connections:"
    yield from (f"  {line}" for line in check_lines(checked, Handed("no_daemon")))
    yield "network:"
    yield from (f"  {line}" for line in (*probe_lines(result), *_latency_lines(result)))
    yield "nodes:"
    yield from (f"  {line}" for line in _node_lines(result.members))
    yield daemon.words


def _latency_lines(result: ProbeResult) -> Iterator[str]:
    """Small messages between nodes against what a collective may take."""
    from commwatch.diagnosis.marks.table import COLLECTIVE_LATENCY

    if latencies := [one.latency for one in result.run.measured if one.latency is not None]:
        is_met = max(latencies) <= COLLECTIVE_LATENCY.figure
        yield (
            f"latency between nodes: {format_seconds(median(latencies))} usual, {format_seconds(max(latencies))} at "
            f"most; a collective should take {COLLECTIVE_LATENCY.required}: {'reached' if is_met else 'missed'}"
        )


def _node_lines(members: tuple[ProbedMember, ...]) -> Iterator[str]:
    others = [one for one in members if not one.diagnosis.startswith("OK")]
    yield f"{len(members) - len(others)} of {len(members)} are well by their own diagnosis"
    yield from (f"{one.name}: {printable(one.diagnosis)}" for one in others if one.diagnosis)

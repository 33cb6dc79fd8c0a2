"""commwatch marks learn: the floors of a site, from what its good nodes give."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.command import command, group, option
from commwatch.commands.endpoint import CREDENTIALS, credentials
from commwatch.commands.options import quantity
from commwatch.config.settings import Config
from commwatch.errors import CommwatchError, ExitCode, UsageError
from commwatch.units import format_percent, parse_share, utc
from commwatch.views.terminal import show

if TYPE_CHECKING:
    import ssl

    from commwatch.diagnosis.marks.floors import GoodNode, SiteFloor
    from commwatch.findings.verdict import Verdict

_ENDINGS = (".yaml", ".yml")
_MODE = 0o644
_SCHEMA = "commwatch-marks/1"
_FEW_NODES = 5
"""Of fewer nodes a bad one among them may have set the floor."""


class _LeftOut(CommwatchError):
    """A source that is not learned from, and why."""


@command(
    "learn",
    "write the floors of a site, learned from its good nodes",
    "Reads what the probes of good nodes measured: outputs of commwatch diagnose --full-scan --json, or daemons. "
    "Writes a floor for each bandwidth and kind of node. A node whose verdict is not OK is left out.",
    "commwatch marks learn --output site-marks.yaml node1.json node2.json https://node3:28029",
    option("sources", nargs="+", metavar="FILE|URL", help="diagnoses of good nodes, or endpoints of their daemons"),
    option("--output", required=True, metavar="FILE", type=Path, help="the file to write (.yaml)"),
    option("--replace", action="store_true", help="replace the file if it is there"),
    option(
        "--quantile",
        metavar="SHARE",
        type=quantity(parse_share),
        default=0.1,
        help="of the nodes' values that a floor is taken from (default: 10%%)",
    ),
    option(
        "--margin",
        metavar="SHARE",
        type=quantity(parse_share),
        default=0.05,
        help="share by which it stays below that (default: 5%%)",
    ),
    group("daemons", *CREDENTIALS),
    reads_settings=False,
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Read, learn, write, and print the number of nodes.

    Raises:
        UsageError: a source or the output cannot be used.
        CommwatchError: no node is left to learn from.
    """
    if args.margin >= 1:
        raise UsageError("--margin: expected less than 100 %, which would leave floors of 0")
    from commwatch.diagnosis.marks.floors import floors_text, kinds, learned
    from commwatch.diagnosis.output_file import check_output, new_file

    check_output("--output", args.output, _ENDINGS)
    if args.output.exists() and not args.replace:
        raise UsageError(f"--output {args.output}: is there already; --replace replaces it")
    nodes, left_out = _read(args)
    if not nodes:
        raise CommwatchError(f"no good node to learn from: {'; '.join(left_out)}", ExitCode.NOT_KNOWN)
    if len({node.simulated is None for node in nodes}) > 1:
        raise UsageError("simulated nodes and real ones do not go together: a floor of one says nothing of the other")
    floors = learned(nodes, args.quantile, args.margin)
    how = f"the {format_percent(args.quantile)} quantile of each measure, less {format_percent(args.margin)}"
    heading = [f"Floors of this site, learned by commwatch marks learn on {utc(time.time())}: {how}.", *kinds(nodes)]
    if simulated := sorted({node.simulated for node in nodes if node.simulated}):
        heading.append(f"Simulated ({', '.join(simulated)}): no floor for a real node.")
    with new_file("--output", args.output, _MODE) as stream:
        stream.write(floors_text(floors, heading).encode())
    lines = [f"{len(floors)} floors written to {args.output}: {how}", *heading[1:]]
    document = {
        "schema": _SCHEMA, "file": str(args.output), "quantile": args.quantile, "margin": args.margin,
        "nodes": [node.name for node in nodes], "left_out": left_out, "floors": [one._asdict() for one in floors],
    }  # fmt: skip
    show(document, [*lines, *(f"left out: {one}" for one in left_out), *_warnings(nodes, floors)], as_json=args.json)
    return ExitCode.OK


def _warnings(nodes: Sequence[GoodNode], floors: Sequence[SiteFloor]) -> list[str]:
    found = []
    if len(nodes) < _FEW_NODES:
        found.append(f"warning: of fewer than {_FEW_NODES} nodes, a bad one among them may have set a floor")
    if not floors:
        found.append("warning: nothing was measured on these nodes; commwatch diagnose --full-scan measures it")
    return found


def _read(args: argparse.Namespace) -> tuple[list[GoodNode], list[str]]:
    nodes: list[GoodNode] = []
    left_out: list[str] = []
    if len(set(args.sources)) < len(args.sources):
        raise UsageError("a source is named twice; each node counts once")
    urls = [one for one in args.sources if "://" in one]
    known = credentials(args) if urls else None
    for source in args.sources:
        try:
            nodes.append(_of_daemon(source, *known) if known and source in urls else _of_file(source))
        except _LeftOut as error:
            left_out.append(f"{source}: {error}")
    for one in left_out:
        print(f"commwatch: left out: {one}", file=sys.stderr)
    return nodes, left_out


def _of_file(source: str) -> GoodNode:
    from commwatch.commands.diagnose import read_diagnosis
    from commwatch.diagnosis.marks.measures import bandwidths

    found = read_diagnosis(source)
    _check(found.verdict, found.gpu_model, found.gpus)
    return _good(source, found.gpu_model, found.gpus, bandwidths(found.measures), found.simulated)


def _of_daemon(url: str, context: ssl.SSLContext, authorization: str) -> GoodNode:
    from contextlib import closing

    from commwatch.diagnosis.marks.measures import bandwidths, measures_of
    from commwatch.diagnosis.marks.results import gpu_name
    from commwatch.findings.facts import Facts
    from commwatch.findings.history import CounterHistory
    from commwatch.findings.rules.gpu_ways import gpus_of
    from commwatch.findings.verdict import verdict_of
    from commwatch.views.top.daemon import Endpoint

    with closing(Endpoint(url, context, authorization)) as endpoint:
        try:
            documents = endpoint.ask()
        except UsageError:
            raise
        except CommwatchError as error:
            raise _LeftOut(str(error)) from error
    facts = Facts(documents.snapshot.node, CounterHistory({}), documents.snapshot.time)
    gpu, gpus = gpu_name(facts), len(facts.derived(gpus_of))
    _check(verdict_of(documents.findings, documents.findings.time), gpu, gpus)
    return _good(url, gpu, gpus, bandwidths(measures_of(facts)), documents.snapshot.simulated)


def _check(verdict: Verdict, gpu: str, gpus: int) -> None:
    if verdict.word != "OK":
        raise _LeftOut(f"{verdict.word}: {verdict.line}")
    if not gpu or not gpus:
        raise _LeftOut("its GPUs are of several models, or an earlier version wrote it and names none")


def _good(name: str, gpu: str, gpus: int, rates: dict[str, float], simulated: str | None) -> GoodNode:
    from commwatch.diagnosis.marks.floors import GoodNode

    positive = {measure: rate for measure, rate in rates.items() if rate > 0}
    if not positive:
        raise _LeftOut("nothing was measured; commwatch diagnose --full-scan --json measures it")
    return GoodNode(name, gpu, gpus, positive, simulated)

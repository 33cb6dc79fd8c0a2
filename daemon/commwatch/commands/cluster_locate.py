"""commwatch cluster locate: which part of the network is slow, from a saved run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.cluster_members import OUTPUT, check_files, groups_option, name_list
from commwatch.commands.command import command, option
from commwatch.config.settings import Config
from commwatch.errors import ExitCode, UsageError
from commwatch.probes.rounds import Pair
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch.views.terminal import show

if TYPE_CHECKING:
    from commwatch.cluster.locate import Named, Slower, Verdict
    from commwatch.cluster.run_file import Rail, Run
    from commwatch.views.heatmap.grid import View

SCHEMA = "commwatch-cluster-verdict/1"
MOST_NODES = 256
"""Of a picture."""
_SHOWN = 20
"""Parts that are shown; JSON has all."""


@command(
    "locate",
    "which NIC, node, leaf or uplink is slow, from a saved run",
    "Judges a saved run (docs/using/cluster.md has its format): which NIC, node, leaf or uplink "
    "is slow, failed or goes over a socket; of two nodes, whether they reach what their network should carry. It "
    "measures nothing.",
    "commwatch cluster locate run.json --groups leaves.txt",
    option("file", type=Path, metavar="FILE", help="the saved run"),
    groups_option("leaves in place of those of the run"),
    OUTPUT,
    reads_settings=False,
)
def run(args: argparse.Namespace, config: Config) -> int:
    """Judge and print.

    Raises:
        RunUnreadable: the run or the groups cannot be used.
        BadOutput: the picture cannot be written.
    """
    from commwatch.cluster.locate import locate
    from commwatch.cluster.run_file import grouped, read_groups, read_run

    check_files(args)
    saved = read_run(args.file)
    if args.groups is not None:
        saved = grouped(saved, read_groups(args.groups), args.groups)
    verdict = locate(saved)
    if args.output is not None:
        draw(args.output, saved, verdict)
    show(document_of(verdict), lines_of(saved, verdict), as_json=args.json)
    if verdict.nodes < 2:
        return ExitCode.NOT_KNOWN
    return ExitCode.FOUND if verdict.named or verdict.open else ExitCode.OK


def draw(file: Path, saved: Run, verdict: Verdict) -> None:
    """Draw a run.

    Raises:
        UsageError: more than a picture can show.
        BadOutput: the file cannot be written.
    """
    from commwatch.diagnosis.output_file import new_file
    from commwatch.views.heatmap.svg import matrix_svg

    picture = matrix_svg(_view_of(saved, verdict, [line_of(one) for one in verdict.named]))
    with new_file("--output", file, 0o666) as stream:
        stream.write(f"{picture}\n".encode())


def document_of(verdict: Verdict) -> dict[str, object]:
    """The verdict as JSON; suspects and whom to doubt are for the schedule of round 3."""
    kept = ("nodes", "pairs", "named", "open", "paths", "slower", "figures", "whole")
    return {"schema": SCHEMA, **{name: getattr(verdict, name) for name in kept}}


def lines_of(saved: Run, verdict: Verdict) -> Iterator[str]:
    leaves = len({one.leaf for one in saved.members} - {""})
    source = "" if saved.leaf_source == "none" else f" ({saved.leaf_source})"
    groups = f"{leaves} leaves{source}" if leaves else "no groups"
    yield f"{verdict.nodes} nodes, {verdict.pairs} measured pair{'s' * (verdict.pairs != 1)}, {groups}"
    if verdict.nodes < 2:
        yield "fewer than two nodes: nothing can be said"
        return
    for one in verdict.named[:_SHOWN]:
        yield line_of(one)
    if len(verdict.named) > _SHOWN:
        yield f"{len(verdict.named) - _SHOWN} more parts; --json has them all"
    for one in verdict.open[:_SHOWN]:
        yield f"open: {_open_line(one)}"
    if verdict.slower is not None:
        yield _slower_line(verdict.slower)
    if verdict.paths:
        yield (
            f"not named: {verdict.paths} bad measurement{'s' * (verdict.paths > 1)} between nodes that are good with "
            "others (one way through the network, or a moment)"
        )
    yield from _whole_lines(verdict)
    for of in verdict.figures:
        scope = "" if not leaves else "within a leaf, " if of.scope == "leaf" else "between leaves, "
        models = "" if of.models == ("", "") else f"{' with '.join(dict.fromkeys(of.models))}, "
        latency = "" if of.latency is None else f"; latency {format_seconds(of.latency)}"
        yield (
            f"{scope}{models}a rail one way: {format_rate(of.usual)} usual, {format_rate(of.low)} to "
            f"{format_rate(of.high)}{latency}"
        )


def _open_line(one: Named) -> str:
    """A part that may be at fault, and what would decide."""
    if one.kind == "pair":
        return f"{line_of(one)}; {one.elements[0]} or {one.elements[1]}: measure each with another node"
    groups = "name the nodes of each switch with --groups FILE"
    if one.kind == "network":
        return f"{one.measurements} nodes met nobody but over slower paths, and may be slow themselves: {groups}"
    return f"{line_of(one)}; it met nobody but over slower paths: {groups}"


def _slower_line(slower: Slower) -> str:
    """Paths that are slower as a whole, which is how the network is built or a fault above all nodes."""
    pairs = f"{slower.pairs} pair{'s' * (slower.pairs > 1)}"
    share = format_percent(slower.ratio)
    if slower.islands:
        first, second = (name_list(list(one)) for one in slower.islands)
        return (
            f"the fabric has two islands: {first}; and {second}; between them {share} of the bandwidth within "
            f"({pairs}); each path is compared with its like"
        )
    return (
        f"the fabric has slower paths: {pairs} of good nodes carry {share} of what others do, as between "
        "pods or islands; each is compared with its like"
    )


def _whole_lines(verdict: Verdict) -> Iterator[str]:
    whole = verdict.whole
    is_fine = not verdict.named and not verdict.open
    if whole is None:
        if is_fine:
            yield "nothing was measured"
        return
    carried = f"a node sends {format_rate(whole.node)} to another one"
    if whole.expected is not None:
        carried += f", {format_percent(whole.node / whole.expected)} of the {format_rate(whole.expected)} expected"
    if whole.inside is not None:
        carried += f"; its own GPUs exchange {format_rate(whole.inside)}, {whole.inside / whole.node:.3g} times that"
    if whole.is_bottleneck:
        yield f"no part is slow, the network is the bottleneck: {carried}"
        yield (
            "whether one node wins: commwatch estimate --nodes 2 "
            f"--network {8e-9 * whole.low:.3g}Gbit/s {8e-9 * whole.high:.3g}Gbit/s "
            f"--intra-node {1e-9 * (whole.inside or 0):.3g}GB/s, with your model and step time"
        )
    else:
        yield f"no part is slow: {carried}" if is_fine else carried


def line_of(one: Named) -> str:
    """A part that is named, what is wrong with it and how sure that is."""
    place = _place(one)
    ways = {"out": "sending", "in": "receiving", "both": "both ways"}[one.direction]
    if one.kind == "pair":
        first, second = one.elements
        ways = {"out": f"{first} to {second}", "in": f"{second} to {first}", "both": "both ways"}[one.direction]
    cells = f"{one.measurements} measurement{'s' * (one.measurements > 1)}"
    if one.fault == "failed":
        return f"{place} reaches nobody, {ways}: {one.reason}; {cells}"
    ratio = 0.0 if one.ratio is None else one.ratio
    if one.fault == "transport":
        alone = f"and no RDMA adapter: {format_percent(ratio)} of the expected bandwidth"
        where = alone if ratio else "where others do not"
        return f"{place} goes over a socket ({one.reason}) {where}; {cells}"
    if one.fault == "latency":
        return f"{place} has {ratio:.2g} times the usual latency; {cells}"
    return f"{place} is slow, {ways}: {format_percent(ratio)} of the {one.reason or 'usual'} bandwidth; {cells}"


def _place(one: Named) -> str:
    rails = _rails(one.rails)
    if one.kind == "network":
        return f"the network{rails}"
    if one.kind == "pair":
        return f"pair {one.elements[0]} and {one.elements[1]}{rails}"
    name = {"leaf": "leaf", "uplink": "uplink of", "node": "node", "nic": "NIC of"}[one.kind]
    return f"{name} {' or '.join(one.elements)}{rails}"


def _rails(rails: tuple[Rail, ...]) -> str:
    numbers = [str(one) for one in rails if one is not None]
    if not numbers:
        return ""
    return f" on rail{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


def _view_of(run: Run, verdict: Verdict, lines: Sequence[str]) -> View:
    """The picture of one run.

    Raises:
        UsageError: more than can be drawn.
    """
    from commwatch.views.heatmap.grid import View
    from commwatch.views.heatmap.matrix_view import scale_of, suspect_letter, unit_of

    if len(run.members) > MOST_NODES:
        raise UsageError(f"--output: {len(run.members)} nodes; a picture shows at most {MOST_NODES}")
    slowest: dict[Pair, float] = {}
    for one in run.measured:
        for pair, value in (((one.first, one.second), one.forward), ((one.second, one.first), one.backward)):
            if (carried := one.both if value is None else value) is not None:
                slowest[pair] = min(carried, slowest.get(pair, carried))
    unit, factor = unit_of(slowest.values(), "bandwidth")
    numbers = {pair: value / factor for pair, value in slowest.items()}
    low, high = scale_of(list(numbers.values()), "bandwidth", relative=False)
    rails = len({one.rail for one in run.measured})
    marks: dict[Pair, str] = {}
    for place, named in reversed(list(enumerate(verdict.named))):
        marks.update((pair, suspect_letter(place)) for pair in _cells(run, named) if pair in slowest)
    return View(
        heading="Bandwidth between nodes, one way",
        facts=(f"{verdict.nodes} nodes, {verdict.pairs} measured pairs, slowest of {rails} rail{'s' * (rails > 1)}",),
        unit=unit,
        names=tuple(one.name for one in run.members),
        numbers=numbers,
        low=low,
        high=high,
        marks=marks,
        notes=tuple(f"{suspect_letter(place)}  {line}" for place, line in enumerate(lines)),
    )


def _cells(run: Run, named: Named) -> Iterator[Pair]:
    parts = [one.leaf if named.kind in ("leaf", "uplink") else one.name for one in run.members]
    inside = {place for place, part in enumerate(parts) if part in named.elements}
    own = {parts.index(named.elements[0])} if named.kind == "pair" else inside
    for source, destination in permutations(range(len(parts)), 2):
        within = source in inside and destination in inside
        if (named.kind == "pair" and not within) or (named.kind == "uplink" and within):
            continue
        if (named.direction != "in" and source in own) or (named.direction != "out" and destination in own):
            yield source, destination

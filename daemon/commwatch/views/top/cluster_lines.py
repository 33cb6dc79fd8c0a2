"""The rails of a screen as the last run between nodes measured them; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.lines import Line, Segment, folded
from commwatch.units import format_percent, format_rate, format_seconds
from commwatch.views.top.table import section, table
from commwatch.views.top.words import ABSENT, BAD, DIM, age
from commwatch_exporters.node.model import ClusterRail, ClusterRuns, ClusterSuspect, Node


def cluster_lines(node: Node, width: int, now: float) -> Iterator[Line]:
    """A row for each rail, and what was named; nothing where no run has measured this node."""
    runs = node.part(ClusterRuns)
    last = runs.last_completion_timestamp_seconds
    if last is None:
        return
    yield from section("Between nodes", f"last run {age(now - last)} ago; usual: among equal nodes of the run")
    rails = sorted(
        {rail for rail, _, _ in node.each_keyed(ClusterRail.pairs)}, key=lambda rail: (len(rail.number), rail.number)
    )
    if not rails:
        yield [("too old to say anything", "")]
        return
    yield from table(("Rail", "Sends", "usual", "Receives", "usual", "Latency", "Pairs"), list(map(_row, rails)), width)
    for part, count in node.each(ClusterSuspect.runs):
        place = part.kind if part.kind == part.element else f"{part.kind} {part.element}"
        share = "" if part.ratio is None else f", {format_percent(part.ratio)} of the usual"
        told = f"{part.symptom}{share}, in {count:g} run{'s' * (count != 1)} in a row"
        yield from folded([(f"{place}: ", BAD), (told, "")], width, 2)


def _row(rail: ClusterRail) -> list[Segment]:
    latency = rail.latency_seconds
    pairs = ", ".join(f"{count:g} {outcome}" for outcome, count in rail.pairs.items() if count)
    return [
        (rail.device or rail.number, ""),
        *_direction(rail, "sent"),
        *_direction(rail, "received"),
        (ABSENT if latency is None else format_seconds(latency), ""),
        (pairs or ABSENT, ""),
    ]


def _direction(rail: ClusterRail, direction: str) -> tuple[Segment, Segment]:
    rate, share = rail.bandwidth_bytes_per_second.get(direction), rail.peer_ratio.get(direction)
    return (
        (ABSENT if rate is None else format_rate(rate), ""),
        (ABSENT if share is None else format_percent(share), DIM),
    )

"""The result of the last run between nodes for this node: a row for each rail, and the named parts."""

from __future__ import annotations

from commwatch.views.node_page.markup import ABSENT, cell, judged, number, section, table, tag
from commwatch_exporters.node.model import ClusterCheck, ClusterRail, ClusterRuns, ClusterSuspect, Node

_HEADINGS = ("Rail", "#Sends", "#of usual", "#Receives", "#of usual", "#Latency", "Pairs")


def between_nodes_table(node: Node) -> str:
    """By rail; nothing where no run has measured this node."""
    runs = node.part(ClusterRuns)
    if runs.last_completion_timestamp_seconds is None:
        return ""
    rails = node.cluster_rails
    if not rails:
        return section("between", "Between nodes", '<p class="dim">The last run is too old to say anything.</p>')
    title = f"Between nodes, {runs.nodes:g} measured" if runs.nodes is not None else "Between nodes"
    named = {part.element for part, _ in node.each(ClusterSuspect.runs)}
    rows = [
        [
            cell(rail.device or rail.number),
            _rate(rail.bandwidth_bytes_per_second.get("sent")),
            _share(rail.peer_ratio.get("sent")),
            _rate(rail.bandwidth_bytes_per_second.get("received")),
            _share(rail.peer_ratio.get("received")),
            number(ABSENT if rail.latency_seconds is None else f"{1e6 * rail.latency_seconds:.3g} µs"),
            _pairs(rail, is_named=rail.device in named),
        ]
        for rail in rails
    ]
    return table("between", title, _HEADINGS, rows, "", stacks=True)


def last_check(node: Node) -> str:
    """The causes for which the last check between nodes blames this node; empty if no current check exists."""
    if not (failed := node.part(ClusterCheck).failed):
        return ""
    causes = ", ".join(cause for cause, checks in failed.items() if checks)
    words = tag("warn", f"blames this node: {causes}") if causes else "blames this node for nothing"
    return section("check", "Last check between nodes", f"<p>{words}</p>")


def _rate(value: float | None) -> str:
    return number(ABSENT if value is None else f"{value * 8 / 1e9:.3g} Gbit/s")


def _share(value: float | None) -> str:
    return number(ABSENT if value is None else f"{value:.0%}")


def _pairs(rail: ClusterRail, *, is_named: bool) -> str:
    words = ", ".join(f"{count:g} {outcome}" for outcome, count in rail.pairs.items() if count) or "none"
    return judged("warn", f"named: {words}") if is_named else cell(words)

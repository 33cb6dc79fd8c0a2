"""Between nodes: repeated results of commwatch cluster probe, and of checks, about this node."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.gpu_ways import WAYS, GpuWays, ways_of
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import (
    ClusterCheck,
    ClusterConnections,
    ClusterRail,
    ClusterRuns,
    ClusterSuspect,
    Gpu,
    Interface,
    RdmaPort,
)

_SYMPTOMS = {
    "bandwidth": "less bandwidth than others",
    "latency": "more latency than others",
    "failed": "reaches nobody",
    "transport": "over sockets",
}
"""By label: a page may hold symptoms of another version."""


def suspects(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Parts that several runs in a row named."""
    least, failing = thresholds.cluster_suspect_runs, thresholds.cluster_leaf_failing_ratio
    for part, runs in facts.each(ClusterSuspect.runs):
        if runs < least or (code := _code(part, failing)) is None:
            continue
        evidence = [Evidence("runs in a row that name it", runs, "", least, "cluster_suspect_runs")]
        if part.ratio is not None:
            of = "latency" if part.symptom == "latency" else "bandwidth"
            limit = (failing, "cluster_leaf_failing_ratio") if code == "cluster_leaf_failing" else ()
            evidence.append(Evidence(f"over the usual {of}", part.ratio, "ratio", *limit))
        yield Match(code, _component(facts, part), tuple(evidence), _SYMPTOMS.get(part.symptom, part.symptom))


_UNREACHABLE = ("refused", "filtered", "no_route", "mtu")


def failed_checks(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Causes for which several checks in a row blamed this node."""
    least = thresholds.cluster_suspect_runs
    for _, cause, checks in facts.each_keyed(ClusterCheck.failed):
        if checks < least:
            continue
        evidence = [Evidence("checks in a row that blame this node", checks, "", least, "cluster_suspect_runs")]
        evidence += [
            Evidence(f"nodes not reached, {way.port_kind} ports {way.direction}", peers)
            for way, peers in facts.each(ClusterConnections.unreachable_peers)
            if peers
        ]
        code = "cluster_connections_failed" if cause in _UNREACHABLE else "cluster_check_failed"
        yield Match(code, Component("part", f"between_nodes/check/{cause}", f"check: {cause}"), tuple(evidence))


def _code(part: ClusterSuspect, failing: float) -> str | None:
    """The code of a suspect; None of a kind of another version."""
    if part.kind in ("leaf", "uplink"):
        low = part.symptom == "bandwidth" and part.ratio is not None and part.ratio < failing
        return "cluster_leaf_failing" if low or part.symptom == "failed" else "cluster_leaf_slow"
    if part.kind in ("pair", "network"):
        return "cluster_network_slow"
    if part.kind in ("nic", "node"):
        return "cluster_peers_unreachable" if part.symptom == "failed" else f"cluster_{part.kind}_slow"
    return None


def _component(facts: Facts, part: ClusterSuspect) -> Component:
    names = {part.element} if part.kind == "nic" else {one.device for one, _, _ in facts.each_keyed(ClusterRail.pairs)}
    shown = part.kind if part.kind == part.element else f"{part.kind} {part.element}"
    key = f"between_nodes/{part.kind}/{part.element}/{part.symptom}"
    return Component("part", key, shown, _parts(facts, facts.derived(ways_of), names))


def _parts(facts: Facts, ways: GpuWays, names: set[str]) -> frozenset[str]:
    """The devices with their interfaces and PCIe links."""
    ports = [port for port, _ in facts.each(RdmaPort.info) if port.device in names]
    own = names | {port.interface for port in ports if port.interface}
    addresses = {port.address for port in ports if port.address}
    addresses |= {one.address for one, _ in facts.each(Interface.info) if one.name in own and one.address}
    return frozenset(own).union(*(ways.to_host(address) for address in addresses))


def stale(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """A node that has taken part in runs, has been free for an hour, and has not been measured for long."""
    if any(busy for _, busy in facts.each(Gpu.busy)):
        return
    limit = thresholds.cluster_stale_after_seconds
    for _, last in facts.each(ClusterRuns.last_completion_timestamp_seconds):
        if (age := facts.now - last) >= limit:
            evidence = Evidence("since the last run", age, "seconds", limit, "cluster_stale_after_seconds")
            yield Match("cluster_probe_stale", Component("node", ""), (evidence,))


_RUN = "commwatch cluster probe"

CLUSTER = RuleSet(
    name="Between nodes",
    codes=(
        FindingCode(
            name="cluster_nic_slow",
            title="A rail of this node is slow between nodes",
            severity="warning",
            role="symptom",
            meaning="Two runs between nodes in a row measured this rail below the same rail of equal nodes, with each"
            " partner. All nodes of a job wait for it.",
            next_step="Drain the node. Once it is free: link errors: clean or swap cable and module; fewer PCIe lanes: "
            f"power cycle it; neither: check the switch port. {_RUN} shows whether it is cured.",
            alert="CommwatchRailSlowBetweenNodes",
            opens_after=0.0,
        ),
        FindingCode(
            name="cluster_node_slow",
            title="This node is slow between nodes",
            severity="warning",
            role="symptom",
            meaning="Two runs between nodes in a row measured most rails of this node below those of equal nodes. All"
            " nodes of a job wait for it.",
            next_step="Drain the node. Check the causes listed; without one, compare settings, firmware, PCIe links "
            "and clocks with an equal node: all rails share the cause.",
            alert="CommwatchNodeSlowBetweenNodes",
            opens_after=0.0,
        ),
        FindingCode(
            name="cluster_leaf_slow",
            title="The leaf switch of this node, or its uplink, is slow",
            severity="warning",
            role="fault",
            meaning="In two runs between nodes in a row most nodes of this leaf were slow, or failed, among themselves "
            "or to other leaves. Jobs over several nodes may be slower. The network is the likely cause.",
            next_step="Log in to the switch and look for ports and uplinks that are down, have errors, or carry other "
            "jobs. Leave the nodes below it in service; keep large jobs within other leaves.",
            alert="CommwatchLeafSlow",
            opens_after=0.0,
        ),
        FindingCode(
            name="cluster_leaf_failing",
            title="The leaf switch of this node, or its uplink, carries far less than others",
            severity="critical",
            role="fault",
            meaning="As cluster_leaf_slow, below 60 % of what is usual, or nothing at all. Jobs over several nodes may "
            "be much slower or fail. The network is the likely cause.",
            next_step="Log in to the switch and look for ports and uplinks that are down or have errors. Until they "
            "are mended, start no job over several nodes below it.",
            alert="CommwatchLeafFailing",
            opens_after=0.0,
        ),
        FindingCode(
            name="cluster_peers_unreachable",
            title="This node does not reach other nodes",
            severity="warning",
            role="symptom",
            meaning="In two runs between nodes in a row all measurements of this node or rail failed, while its "
            "partners reached others. Jobs with this node do not start, or hang.",
            next_step="Drain the node. Run commwatch cluster check on it and on another one: it names port, direction "
            "and the command that cures it.",
            alert="CommwatchPeersUnreachable",
            opens_after=0.0,
        ),
        FindingCode(
            name="cluster_connections_failed",
            title="Connections between this node and others fail",
            severity="warning",
            role="fault",
            meaning="Two runs of commwatch cluster check in a row blame this node: refused, filtered, no_route or mtu. "
            "Jobs with this node do not start, or hang.",
            next_step="Drain the node. Run commwatch cluster check on it and on another one: it names port, direction "
            "and the command that cures it.",
            alert="CommwatchPeersUnreachable",
            opens_after=0.0,
        ),
        FindingCode(
            name="cluster_check_failed",
            title="This node does not fit the others of its jobs",
            severity="info",
            role="state",
            meaning="Two runs of commwatch cluster check in a row blame this node: name, wrong_interface, version, "
            "busy_port or parts.",
            next_step="Run commwatch cluster check with another node: it prints the values and the cure.",
            opens_after=0.0,
        ),
        FindingCode(
            name="cluster_network_slow",
            title="The network is below what it should carry",
            severity="info",
            role="state",
            meaning="In two runs in a row all nodes were below their ports' rate or the expectation, none worse than "
            "the others (of two nodes: which one is unknown).",
            next_step=f"Over sockets: give {_RUN} /dev/infiniband. Measure more nodes with it; compare MTU, routing "
            "and congestion control with what its rate needs.",
            opens_after=0.0,
        ),
        FindingCode(
            name="cluster_probe_stale",
            title="This node has not been measured with others for long",
            severity="info",
            role="state",
            meaning="The last run between nodes that measured this free node is a week old. Its rails' values are "
            "absent.",
            next_step="See in systemctl list-timers or squeue whether what starts commwatch cluster probe still runs.",
            alert="CommwatchClusterProbeStale",
            opens_after=3600.0,
        ),
    ),
    rules=(
        Rule(
            suspects,
            ("cluster_nic_slow", "cluster_node_slow", "cluster_leaf_slow", "cluster_leaf_failing",
             "cluster_peers_unreachable", "cluster_network_slow"),
            reads=(ClusterSuspect.runs, ClusterSuspect.ratio),
            details=(ClusterRail.pairs, RdmaPort.info, Interface.info, *WAYS),
            thresholds=("cluster_suspect_runs", "cluster_leaf_failing_ratio"),
        ),
        Rule(
            failed_checks,
            ("cluster_connections_failed", "cluster_check_failed"),
            reads=(ClusterCheck.failed,),
            details=(ClusterConnections.unreachable_peers,),
            thresholds=("cluster_suspect_runs",),
        ),
        Rule(
            stale,
            ("cluster_probe_stale",),
            reads=(ClusterRuns.last_completion_timestamp_seconds, Gpu.busy),
            thresholds=("cluster_stale_after_seconds",),
        ),
    ),
)  # fmt: skip

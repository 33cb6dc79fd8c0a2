"""What runs between nodes say of a node as findings: at their edge, with their parts, and what explains them."""

from __future__ import annotations

import pytest

from commwatch.findings.causes import join
from commwatch.findings.finding import Component, Match
from support.facts import NOW, Numbers, codes_of, facts_of, seen_in, shipped
from support.findings import incident, incidents
from support.machines import merged
from support.passes import in_one_pass

LIMITS = shipped()
LEAST = LIMITS.cluster_suspect_runs
STALE = LIMITS.cluster_stale_after_seconds
RUNS, RATIO = "commwatch_cluster_suspect_runs", "commwatch_cluster_suspect_ratio"


def seen(*numbers: Numbers) -> list[Match]:
    facts = facts_of(merged(*numbers))
    return seen_in(facts)


def suspect(kind: str, element: str, symptom: str = "bandwidth", runs: float = LEAST, ratio: float = 0.7) -> Numbers:
    labels = (kind, element, symptom)
    return {RUNS: {labels: runs}, RATIO: {labels: ratio}}


@in_one_pass(
    "kind, element, symptom, code",
    [
        ("nic", "mlx5_1", "bandwidth", "cluster_nic_slow"),
        ("nic", "mlx5_1", "latency", "cluster_nic_slow"),
        ("nic", "mlx5_1", "transport", "cluster_nic_slow"),
        ("nic", "mlx5_1", "failed", "cluster_peers_unreachable"),
        ("node", "node", "bandwidth", "cluster_node_slow"),
        ("node", "node", "failed", "cluster_peers_unreachable"),
        ("leaf", "leaf7", "bandwidth", "cluster_leaf_slow"),
        ("leaf", "leaf7", "latency", "cluster_leaf_slow"),
        ("uplink", "leaf7", "failed", "cluster_leaf_failing"),
        ("pair", "pair", "bandwidth", "cluster_network_slow"),
        ("network", "network", "bandwidth", "cluster_network_slow"),
    ],
)
def test_a_part_that_two_runs_in_a_row_name_is_a_finding(kind: str, element: str, symptom: str, code: str) -> None:
    """Named by one run it is none, nor is a kind of another version."""
    assert seen(suspect(kind, element, symptom, LEAST - 1)) == []
    assert seen(suspect("spine", element, symptom)) == []
    [found] = seen(suspect(kind, element, symptom))
    assert (found.code, found.component.identity) == (code, f"part/between_nodes/{kind}/{element}/{symptom}")
    assert [one.value for one in found.evidence] == [LEAST, 0.7]


@pytest.mark.parametrize("kind", ["leaf", "uplink"])
def test_a_leaf_far_below_the_usual_is_failing(kind: str) -> None:
    """Below the limit only, by bandwidth only, and not where its share is not known."""
    limit = LIMITS.cluster_leaf_failing_ratio
    [slow] = seen(suspect(kind, "leaf7", ratio=limit))
    [failing] = seen(suspect(kind, "leaf7", ratio=limit - 0.01))
    [late] = seen(suspect(kind, "leaf7", "latency", ratio=limit - 0.01))
    [unknown] = seen({RUNS: {(kind, "leaf7", "bandwidth"): LEAST}})
    assert [one.code for one in (slow, failing, late, unknown)] == [
        "cluster_leaf_slow", "cluster_leaf_failing", "cluster_leaf_slow", "cluster_leaf_slow",
    ]  # fmt: skip
    assert failing.evidence[1].threshold == limit
    assert seen(suspect(kind, "leaf7", runs=LEAST - 1, ratio=0.1)) == []


@in_one_pass(
    "cause, code",
    [
        ("filtered", "cluster_connections_failed"),
        ("mtu", "cluster_connections_failed"),
        ("version", "cluster_check_failed"),
        ("busy_port", "cluster_check_failed"),
    ],
)
def test_a_node_that_two_checks_in_a_row_blame_is_a_finding(cause: str, code: str) -> None:
    """One check is none, and a check without the cause ends it; the number of nodes not reached is evidence."""
    peers: Numbers = {"commwatch_cluster_unreachable_peers": {("ephemeral", "in"): 3.0, ("ephemeral", "out"): 0.0}}
    failed = "commwatch_cluster_check_failed"
    assert seen(peers) == []
    assert seen({failed: {(cause,): LEAST - 1}}, peers) == []
    assert seen({failed: {(cause,): 0.0}}, peers) == []
    [found] = seen({failed: {(cause,): LEAST}}, peers)
    assert (found.code, found.component.identity) == (code, f"part/between_nodes/check/{cause}")
    assert [one.value for one in found.evidence] == [LEAST, 3.0]


def test_what_could_not_be_measured_has_no_ratio() -> None:
    """The number of runs is evidence enough."""
    [found] = seen({RUNS: {("nic", "mlx5_1", "failed"): 3.0}})
    assert [(one.value, one.threshold) for one in found.evidence] == [(3.0, LEAST)]


def test_a_rail_stands_on_its_device_and_a_node_on_all_rails() -> None:
    """With the interface beside it."""
    pairs: Numbers = {
        "commwatch_cluster_pairs": {("0", "mlx5_0", "good"): 3.0, ("1", "mlx5_1", "slow"): 3.0},
    }
    [rail] = seen(suspect("nic", "mlx5_1"), pairs)
    [node] = seen(suspect("node", "node"), pairs)
    assert rail.component.parts == {"mlx5_1"}
    assert node.component.parts == {"mlx5_0", "mlx5_1"}
    assert (rail.component.name, node.component.name) == ("nic mlx5_1", "node")


def test_a_fault_of_the_port_explains_the_slow_rail() -> None:
    """A port below its speed carries less to every partner."""
    [rail] = seen(suspect("nic", "mlx5_1"))
    port = Component("rdma_port", "mlx5_1/1", "", frozenset({"mlx5_1"}))
    found = [
        *incidents([rail], NOW),
        incident("rdma_port_slow", port, NOW),
    ]
    [told] = [one for one in join(found) if one.code == "cluster_nic_slow"]
    assert [cause.code for cause in told.causes] == ["rdma_port_slow"]


def test_a_free_node_that_no_run_has_measured_for_a_week_is_said() -> None:
    """At a week, and not where a job is on it, nor where it never took part."""
    last = "commwatch_cluster_last_completion_timestamp_seconds"
    idle: Numbers = {"commwatch_gpu_busy": {("0", "0000:17:00.0"): 0.0}}
    busy: Numbers = {"commwatch_gpu_busy": {("0", "0000:17:00.0"): 1.0}}
    assert seen(idle) == []
    assert seen(idle, {last: {(): NOW - STALE + 1}}) == []
    assert codes_of(seen(idle, {last: {(): NOW - STALE}})) == [("cluster_probe_stale", "node")]
    assert seen(busy, {last: {(): NOW - STALE}}) == []

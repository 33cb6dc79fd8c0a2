"""Labels that a site gives its targets: clusters of one Prometheus are told apart by theirs, no other is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from commwatch.config.assets import asset
from support.promtool_cases import needed_groups, promtool, shipped_groups, write_cases

CASES = asset("alerts/tests")
CLUSTERS = ("a", "b")
OF_EACH_SHAPE = (
    "GpuBelowProduct",
    "GpuSlowedDown",
    "JobHeldUp",
    "NcclErrors",
    "NvlinkBelowSiblings",
    "NvlinkP2pRefused",
    "PcieFatal",
    "RdmaPortMissing",
    "TextfileStale",
)
"""Alerts whose expressions join and count series in the ways that rules do; those of the fleet are below."""
WITH_JOINS = (
    *OF_EACH_SHAPE,
    "NvlinkBitErrors",
    "PcieCorrected",
    "PcieReplays",
    "ProbeBandwidthBelowPeers",
    "ProbeBandwidthLow",
    "ProbeLatencyAbovePeers",
    "RuleFailing",
    "WorkerRestarting",
)
"""Those whose expressions match many series to one."""

WITHOUT_CLUSTER = {"on (job, digest)", "by (job)"}
"""The rules are rendered once for all clusters, so that their digest belongs to none; and a job without any target."""


def test_series_are_joined_and_counted_within_a_cluster() -> None:
    """Wherever an expression names the job to tell series apart, it names the cluster too."""
    lists = {
        found
        for group in shipped_groups()
        for rule in group["rules"]
        for found in re.findall(r"\b(?:on|by) \([^)]*\bjob\b[^)]*\)", rule["expr"])
    }

    assert {found for found in lists if "cluster" not in found} == WITHOUT_CLUSTER


def _in_each_cluster(items: list[dict[str, Any]], key: str, rack: str = "") -> list[dict[str, Any]]:
    """Series or samples once for each cluster."""
    return [
        {**item, key: item[key].replace("{", f'{{cluster="{cluster}", {rack}', 1)}
        for item in items
        for cluster in CLUSTERS
    ]


def _doubled(test: dict[str, Any]) -> dict[str, Any]:
    """The same test with all nodes in both clusters, under the same names, and in a rack."""
    for check in test.get("promql_expr_test", ()):
        check["expr"] = re.sub(r"\bby \(", "by (cluster, ", check["expr"])
        check["expr"] = re.sub(r"\bcount\(", "count by (cluster) (", check["expr"])
        check["exp_samples"] = _in_each_cluster(check.get("exp_samples") or [], "labels")
    for check in test.get("alert_rule_test", ()):
        check["exp_alerts"] = [
            {
                "exp_labels": {**alert["exp_labels"], "cluster": cluster, "rack": "r1"},
                "exp_annotations": {
                    name: f"{words}&var-cluster={cluster}" if "var-instance=" in words else words
                    for name, words in alert["exp_annotations"].items()
                },
            }
            for alert in check.get("exp_alerts") or ()
            for cluster in CLUSTERS
        ]
    return {**test, "input_series": _in_each_cluster(test["input_series"], "series", 'rack="r1", ')}


@pytest.mark.prometheus
def test_nodes_of_one_name_in_two_clusters_are_two_nodes(tmp_path: Path) -> None:
    """Each alert fires once in each cluster, with the words that it has where there is one, and links to its own."""
    files = [write_cases(CASES / f"Commwatch{name}.yaml", tmp_path) for name in OF_EACH_SHAPE]
    for file in files:
        document = json.loads(file.read_text())
        document["tests"] = [_doubled(test) for test in document["tests"]]
        file.write_text(json.dumps(document))

    result = promtool("test", "rules", *files)

    assert result.returncode == 0, result.stdout


def _beside_a_node_scraped_twice(test: dict[str, Any]) -> dict[str, Any]:
    """The same test beside a node with the series of the others, each in two racks."""
    series = {
        re.sub(r'instance="[^"]*"', 'instance="twice"', one["series"]): one["values"]
        for one in test["input_series"]
        if "instance=" in one["series"]
    }
    twice = [
        {"series": name.replace("{", f'{{rack="{rack}", ', 1), "values": values}
        for name, values in series.items()
        for rack in ("r1", "r2")
    ]
    return {**test, "input_series": [*test["input_series"], *twice]}


def _fires(test: dict[str, Any]) -> bool:
    checks = [*test.get("alert_rule_test", ()), *test.get("promql_expr_test", ())]
    return any(check.get("exp_alerts") or check.get("exp_samples") for check in checks)


@pytest.mark.prometheus
def test_a_node_scraped_twice_fails_no_rule(tmp_path: Path) -> None:
    """Nor does a target whose labels change: old and new series overlap for as long as a rule looks back."""
    files = [write_cases(CASES / f"Commwatch{name}.yaml", tmp_path) for name in WITH_JOINS]
    for file in files:
        document = json.loads(file.read_text())
        # Series are matched one by one only where the alert fires: `and` and `unless` take any number.
        document["tests"] = [_beside_a_node_scraped_twice(test) for test in document["tests"] if _fires(test)]
        file.write_text(json.dumps(document))

    said = promtool("test", "rules", *files).stdout.splitlines()

    assert len([line for line in said if line.startswith("Unit Testing:")]) == len(files)
    assert not [line for line in said if "many-to-many" in line]


@pytest.mark.prometheus
def test_a_cluster_has_its_own_share_of_faulty_nodes_and_its_own_silence(tmp_path: Path) -> None:
    """Three nodes of the 40 of a cluster are a fault of many nodes, two are not; one cluster falls silent alone."""
    ups = {"a": (40, "1x20"), "b": (40, "1x20"), "gone": (2, "0x20")}
    faulty = {"a": 3, "b": 2}
    series = [
        (f'{metric}{{cluster="{cluster}", job="commwatch", instance="node{node}"{labels}}}', values)
        for cluster, (nodes, up) in ups.items()
        for node in range(nodes)
        for metric, labels, values in (
            ("up", "", up),
            ("commwatch_simulated", "", "0x20"),
            (
                "commwatch_gpu_state",
                ', gpu="0", pci_bus_id="0000:17:00.0"',
                f"{2 * (node < faulty.get(cluster, 0))}x20",
            ),
        )
    ]
    alerts = ["CommwatchFaultOnManyNodes", "CommwatchGpuLost", "CommwatchDaemonAbsent"]
    fired = [("DaemonAbsent", "gone", 1), ("FaultOnManyNodes", "a", 1), ("GpuLost", "a", 3), ("GpuLost", "b", 2)]
    samples = [
        {"labels": f'{{alertname="Commwatch{name}", cluster="{cluster}"}}', "value": count}
        for name, cluster, count in fired
    ]
    check = {
        "expr": 'count by (alertname, cluster) (ALERTS{alertstate="firing"})', "eval_time": "4m", "exp_samples": samples
    }  # fmt: skip
    groups = sorted(needed_groups(alerts), key=lambda group: group["name"].startswith("commwatch_fleet"))
    (tmp_path / "rules.json").write_text(json.dumps({"groups": groups}))
    test = {
        "interval": "15s", "promql_expr_test": [check],
        "input_series": [{"series": name, "values": values} for name, values in series],
    }  # fmt: skip
    document = {
        "rule_files": ["rules.json"], "evaluation_interval": "15s", "tests": [test],
        "group_eval_order": [group["name"] for group in groups],
    }  # fmt: skip
    (tmp_path / "cases.json").write_text(json.dumps(document))

    result = promtool("test", "rules", tmp_path / "cases.json")

    assert result.returncode == 0, result.stdout

"""What holds for all rules, judged by promtool: dying nodes, old counts, many nodes, ranges of Prometheus 3."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from commwatch.config.assets import asset
from commwatch_exporters.catalogue import family_of
from support.promtool_cases import duration_ms, left_open, needed_groups, promtool, shipped_groups

pytestmark = pytest.mark.prometheus

GPU = {"gpu": "3", "pci_bus_id": "0000:5d:00.0"}


def series(metric: str, node: int, values: str, **labels: str) -> dict[str, str]:
    """An input series of a node."""
    pairs = {"job": "commwatch", "instance": f"node{node}:28029", **labels}
    return {
        "series": f"{metric}{{{', '.join(f'{key}={json.dumps(one)}' for key, one in pairs.items())}}}",
        "values": values,
    }


def healthy(node: int, values: str = "{}x200") -> list[dict[str, str]]:
    """What every node has."""
    return [
        series("up", node, values.format(1)),
        series("commwatch_simulated", node, values.format(0)),
        series("commwatch_maintenance", node, values.format(0), reason="none"),
    ]


def link_down(node: int) -> list[dict[str, str]]:
    """A link that is lost at the third sample."""
    return [series("commwatch_nvlink_link_down", node, "_x2 0x200", **GPU, link="11")]


def judged(folder: Path, groups: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]], interval: str) -> str:
    """What promtool has to complain about; empty if nothing."""
    (folder / "rules.json").write_text(json.dumps({"groups": groups}))
    order = [group["name"] for group in groups]
    # As the server would find them settled: what others read is evaluated first, the fleet last.
    read = ["commwatch_node", "commwatch_recording", "commwatch_peers"]
    order.sort(key=lambda name: (name.startswith("commwatch_fleet"), read.index(name) if name in read else len(read)))
    document = {
        "rule_files": ["rules.json"], "evaluation_interval": interval, "group_eval_order": order,
        "tests": [{"interval": interval, **case} for case in cases],
    }  # fmt: skip
    (folder / "cases.json").write_text(json.dumps(document))
    result = promtool("test", "rules", folder / "cases.json")
    return "" if result.returncode == 0 else result.stdout


def firing(at: str, expected: Mapping[str, int]) -> dict[str, Any]:
    """How many alerts of which names fire at a time, the watchdog apart."""
    return {
        "eval_time": at,
        "expr": 'count by (alertname) (ALERTS{alertstate="firing", alertname!="CommwatchWatchdog"})',
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": count} for name, count in expected.items()],
    }


def test_a_node_that_dies_keeps_its_page_for_ten_minutes(tmp_path: Path) -> None:
    """Its series end at the second minute; the page stands until the twelfth, and a ticket tells of the node."""
    gone = "{}x8 stale"
    node = [
        series("up", 1, "1x8 0x200"),
        *healthy(1, gone)[1:],
        series("commwatch_nvlink_link_down", 1, "_x2 0x6 stale", **GPU, link="11"),
        series("commwatch_gpu_state", 1, "0x1 2x6 stale", gpu="4", pci_bus_id="0000:ab:00.0"),
    ]
    pages, down = {"CommwatchNvlinkDown": 1, "CommwatchGpuLost": 1}, {"CommwatchDaemonDown": 1}
    times = (("2m", pages), ("11m45s", pages | down), ("13m15s", down), ("40m", down))
    checks = [firing(at, expected) for at, expected in times]
    case = {"name": "dies", "input_series": node, "promql_expr_test": checks}

    assert judged(tmp_path, needed_groups([*pages, *down]), [case], "15s") == ""


@pytest.mark.parametrize(
    ("nodes", "faulty", "pages"), [(40, 40, 1), (40, 2, 0), (40, 3, 1), (100, 4, 0), (100, 5, 1), (5, 3, 1)]
)
def test_a_fault_on_a_twentieth_of_the_nodes_is_one_page(tmp_path: Path, nodes: int, faulty: int, pages: int) -> None:
    """From 5 % and three nodes on; it fires as soon as the alerts of the nodes do, before any of these pages."""
    inputs = [one for node in range(nodes) for one in healthy(node, "{}x8")]
    inputs += [one for node in range(faulty) for one in link_down(node)]
    expected = {"CommwatchNvlinkDown": faulty} | ({"CommwatchFaultOnManyNodes": 1} if pages else {})
    case = {"name": "many", "input_series": inputs, "promql_expr_test": [firing("30s", {}), firing("45s", expected)]}

    assert judged(tmp_path, needed_groups(["CommwatchNvlinkDown", "CommwatchFaultOnManyNodes"]), [case], "15s") == ""


def test_no_symptom_is_left_when_the_page_that_explains_it_is_over(tmp_path: Path) -> None:
    """A link is down for half a minute, and where it ends is not known: the Xid of its GPU and the SXid of its NVSwitch
    end before its page does."""
    explained = ("CommwatchXidFabric", "CommwatchSxidFatal")
    node = [
        *healthy(1, "{}x120"),
        series("commwatch_nvlink_link_down", 1, "_x2 0x1 stale", **GPU, link="11", nvswitch="0000:08:00.0"),
        series("commwatch_gpu_xid_events_recent", 1, "_x2 1x19 stale", **GPU, xid="74"),
        series("commwatch_nvswitch_sxid_events_recent", 1, "_x2 1x19 stale", device="0000:08:00.0", sxid="20034"),
    ]
    alone = (
        f'count(ALERTS{{alertname=~"{"|".join(explained)}", alertstate="firing"}}) unless '
        'count(ALERTS{alertname="CommwatchNvlinkDown", alertstate="firing"})'
    )
    checks = [
        firing("1m", {"CommwatchNvlinkDown": 1, **dict.fromkeys(explained, 1)}),
        firing("9m", {"CommwatchNvlinkDown": 1, **dict.fromkeys(explained, 1)}),
        *({"eval_time": f"{minute}m", "expr": alone, "exp_samples": []} for minute in range(1, 20)),
        firing("20m", {}),
    ]
    case = {"name": "explained", "input_series": node, "promql_expr_test": checks}

    assert judged(tmp_path, needed_groups(["CommwatchNvlinkDown", *explained]), [case], "15s") == ""


def _of_the_fleet(folder: Path, alerts: Sequence[str], faults: Sequence[tuple[str, dict[str, str]]]) -> str:
    """What promtool has to say of three faulty nodes of forty, whose fleet alert must be ``alerts[0]`` alone."""
    inputs = [one for node in range(40) for one in healthy(node, "{}x8")]
    for node in range(3):
        inputs += [series(metric, node, "_x2 2x200", **GPU, **labels) for metric, labels in faults]
    fault, severity = alerts[0], "warning" if alerts[0] == "CommwatchXidGpu" else "critical"
    labels = f'alertname="CommwatchFaultOnManyNodes", fault="{fault}", severity="{severity}"'
    check = {
        "eval_time": "90s",
        "expr": 'count by (alertname, fault, severity) (ALERTS{alertname="CommwatchFaultOnManyNodes"})',
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 1}],
    }
    nodes = {
        "eval_time": "90s",
        "expr": 'count by (alertname) (ALERTS{alertname!="CommwatchFaultOnManyNodes"})',
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 3} for name in alerts],
    }
    case = {"name": "fleet", "input_series": inputs, "promql_expr_test": [check, nodes]}
    return judged(folder, needed_groups([*alerts, "CommwatchFaultOnManyNodes"]), [case], "15s")


def test_a_ticket_on_many_nodes_is_a_ticket_of_the_fleet(tmp_path: Path) -> None:
    """The alert of the fleet is as severe as the one that it counts."""
    told = _of_the_fleet(tmp_path, ["CommwatchXidGpu"], [("commwatch_gpu_xid_events_recent", {"xid": "95"})])

    assert told == ""


def test_the_fleet_counts_causes_and_not_their_symptoms(tmp_path: Path) -> None:
    """GPUs that are lost on many nodes, with their links and their place in the fabric, are one alert of the fleet."""
    told = _of_the_fleet(
        tmp_path,
        ["CommwatchGpuLost", "CommwatchFabricUnhealthy"],
        [
            ("commwatch_gpu_state", {}),
            ("commwatch_fabric_health", {}),
            ("commwatch_nvlink_link_down", {"link": "11"}),
            ("commwatch_gpu_xid_events_recent", {"xid": "79"}),
        ],
    )

    assert told == ""


def fires(name: str, node: int, begins: int, ends: int = 200) -> dict[str, str]:
    """An alert of a port that fires between two samples."""
    labels = {"alertname": name, "fault": name, "alertstate": "firing", "severity": "warning", "device": "mlx5_0"}
    return series("ALERTS", node, f"_x{begins} 1x{ends - begins} stale", **labels, port="1")


def test_a_repair_of_some_nodes_pages_for_none_of_the_others(tmp_path: Path) -> None:
    """A fault on six of a hundred nodes is one alert until fewer than three have it, although four are no twentieth."""
    inputs = [one for node in range(100) for one in healthy(node)]
    inputs += [fires("CommwatchRdmaPortDown", node, 1, (200, 200, 150, 150, 100, 100)[node]) for node in range(6)]
    checks = [
        {
            "eval_time": at,
            "expr": 'count(ALERTS{alertname="CommwatchFaultOnManyNodes"})',
            "exp_samples": [{"labels": "{}", "value": 1}] if is_firing else [],
        }
        for at, is_firing in (("2m", True), ("99m", True), ("110m", True), ("149m", True), ("160m", False))
    ]
    case = {"name": "repair", "input_series": inputs, "promql_expr_test": checks}

    assert judged(tmp_path, needed_groups(["CommwatchFaultOnManyNodes"]), [case], "1m") == ""


def test_symptoms_that_are_explained_make_no_fault_new(tmp_path: Path) -> None:
    """Three nodes wait for their repair. The ports of three others go down, which explains the same alert there."""
    inputs = [one for node in range(40) for one in healthy(node)]
    inputs += [fires("CommwatchRdmaRetransmitting", node, 1 + 30 * node) for node in range(3)]
    for node in range(3, 6):
        inputs += [fires(name, node, 150) for name in ("CommwatchRdmaRetransmitting", "CommwatchRdmaPortDown")]
    check = {
        "eval_time": "155m",
        "expr": 'count by (fault) (ALERTS{alertname="CommwatchFaultOnManyNodes"})',
        "exp_samples": [{"labels": '{fault="CommwatchRdmaPortDown"}', "value": 1}],
    }
    case = {"name": "explained", "input_series": inputs, "promql_expr_test": [check]}

    assert judged(tmp_path, needed_groups(["CommwatchFaultOnManyNodes"]), [case], "1m") == ""


@pytest.mark.parametrize("recoveries", [4, 6])
def test_recoveries_between_two_scrapes_are_seen_by_a_rule_of_every_2_min(tmp_path: Path, recoveries: int) -> None:
    """A link recovers six times within 15 s: the ticket is there whenever that was in the 2 min, and not for four."""
    inputs = [one for node in range(8) for one in healthy(node, "{}x60")]
    for node in range(8):
        values = f"0x{14 + node} {recoveries}x30"
        inputs.append(series("commwatch_rdma_port_link_error_recovery_total", node, values, device="mlx5_0", port="1"))
    for one in inputs:
        # Scrapes rarely come at the very time at which rules are evaluated.
        one["values"] = f"_ {one['values']}"
    checks = [firing("4m", {}), firing("6m", {"CommwatchRdmaErrors": 8} if recoveries == 6 else {})]
    case = {"name": "recovers", "interval": "15001ms", "input_series": inputs, "promql_expr_test": checks}

    assert judged(tmp_path, needed_groups(["CommwatchRdmaErrors"]), [case], "2m") == ""


def test_the_fleet_is_looked_at_before_its_nodes_page() -> None:
    """Two looks at the fleet fit into the time for which Alertmanager waits with the page of a node."""
    (interval,) = [group["interval"] for group in shipped_groups() if group["name"] == "commwatch_fleet_fault"]
    example = yaml.safe_load(asset("alerts/alertmanager.example.yml").read_text(encoding="utf-8"))
    waits = [route["group_wait"] for route in example["route"]["routes"] if route["receiver"] in {"page", "drill"}]

    assert len(waits) == 2
    assert 2 * duration_ms(interval) < min(map(duration_ms, waits))


SPECIAL = {
    "xid": "74", "sxid": "12020", "category": "network", "reason": "timeout", "pci_bus_id": GPU["pci_bus_id"],
    "gpu": GPU["gpu"],
}  # fmt: skip
"""Labels that rules ask for; of the others any value will do."""


def counters_of_the_rules() -> list[str]:
    """The cumulative counters that the rules read."""
    text = " ".join(rule["expr"] for group in shipped_groups() for rule in group["rules"])
    return sorted(set(re.findall(r"(?<![:\w])commwatch_\w+_total\b", text)))


def counters(values: str) -> list[dict[str, str]]:
    """Each of these counters once."""
    return [
        series(metric, 1, values, **{label: SPECIAL.get(label, "1") for label in family_of(metric).labels})
        for metric in counters_of_the_rules()
    ]


def test_a_count_that_was_there_before_is_silent(tmp_path: Path) -> None:
    """Every counter that a rule reads is 5 at the first scrape and stays so: no alert; rising ones: many."""
    quiet = {
        "name": "old counts", "input_series": [*healthy(1), *counters("5x200")],
        "promql_expr_test": [firing(at, {}) for at in ("5m", "10m", "1h4m")],
    }  # fmt: skip

    assert len(counters_of_the_rules()) > 20
    assert judged(tmp_path, shipped_groups(), [quiet], "1m") == ""

    rising = {
        "name": "rising", "input_series": [*healthy(1), *counters("5+100000x200")],
        "promql_expr_test": [firing("10m", {})],
    }  # fmt: skip
    told = judged(tmp_path, shipped_groups(), [rising], "1m")
    assert len(set(re.findall(r'{alertname="(\w+)"}', told))) >= 20


def test_the_ranges_of_prometheus_3_are_taken_for_what_they_are(tmp_path: Path) -> None:
    """Of a sample every 15 s, a minute holds five with both ends and four without its start."""
    assert left_open("rate(x[1h30m]) + y[5m:1m] offset 2h") == "rate(x[5399999ms]) + y[299999ms:1m] offset 2h"
    case = {
        "name": "ranges", "input_series": [{"series": "x", "values": "1x20"}],
        "promql_expr_test": [
            {"eval_time": "3m", "expr": expression, "exp_samples": [{"labels": "{}", "value": count}]}
            for expression, count in (
                ("count_over_time(x[1m])", 5), (left_open("count_over_time(x[1m])"), 4),
                ("count_over_time(x[1m:15s])", 5), (left_open("count_over_time(x[1m:15s])"), 4),
            )
        ],
    }  # fmt: skip

    assert judged(tmp_path, [{"name": "none", "rules": [{"record": "a:b:c", "expr": "x"}]}], [case], "15s") == ""

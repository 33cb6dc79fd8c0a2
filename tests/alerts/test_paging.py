"""From alerts to notifications, in a real Alertmanager with the example's routes and inhibitions at short waits."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from commwatch.config.assets import asset
from commwatch.generate import alert_rules
from support.alertmanager import Alertmanager, Post, alertmanager
from support.passes import in_one_pass
from support.promtool_cases import shipped_groups

pytestmark = pytest.mark.prometheus

EXAMPLE = asset("alerts/alertmanager.example.yml")
LINK = {
    "summary": "GPU 3: NVLink 11 down",
    "description": "Node node1:28029: link 11 of GPU 3 is inactive. No job was on the node. "
    "First action: drain the node, then see whether other links are down too.",
    "runbook_url": "http://localhost:3000/public/runbooks/CommwatchNvlinkDown.md",
    "dashboard_url": "http://localhost:3000/d/commwatch-node?var-job=commwatch&var-instance=node1:28029",
}  # fmt: skip


def alert(name: str, cluster: str, node: int | None = 1, severity: str = "critical", **labels: str) -> dict[str, str]:
    """The labels of an alert of a node, or with None of the fleet."""
    where = {} if node is None else {"instance": f"node{node}:28029", "fault": f"Commwatch{name}"}
    return {
        "alertname": f"Commwatch{name}",
        "cluster": cluster,
        "job": "commwatch",
        "severity": severity,
        **where,
        **labels,
    }


def link_down(cluster: str, node: int) -> dict[str, str]:
    return alert("NvlinkDown", cluster, node, gpu="3", pci_bus_id="0000:5d:00.0", link="11")


def on_many(cluster: str, fault: str = "NvlinkDown") -> dict[str, str]:
    return alert("FaultOnManyNodes", cluster, None, fault=f"Commwatch{fault}")


TICKET = {"severity": "warning"}


@dataclass
class Story:
    """What Alertmanager posted while the alerts of this module came and went."""

    manager: Alertmanager
    firing_early: list[Post]
    """Of the cluster ``early``, until its alerts were resolved."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """All cases at once, each in a cluster of its own: the waits of Alertmanager pass once for all."""
    with alertmanager(tmp_path_factory.mktemp("alertmanager")) as manager:
        manager.post({"alertname": "CommwatchWatchdog", "cluster": "live", "severity": "info"})
        manager.post(on_many("storm"), annotations={"summary": "CommwatchNvlinkDown on many nodes"})
        manager.post(*[link_down("storm", node) for node in range(40)])
        manager.post(*[link_down("early", node) for node in range(2)])
        manager.post(link_down("group", 1), annotations=LINK)
        manager.post(
            alert("NvlinkDown", "tickets", 1), alert("PcieReplays", "tickets", 1, "warning"),
            alert("PcieReplays", "tickets", 2, "warning"), alert("RdmaCongested", "tickets", 3, "info"),
        )  # fmt: skip
        manager.post(link_down("dying", 1), alert("DaemonDown", "dying", 1, "warning"))
        manager.post(on_many("event"), on_many("event", "RdmaPortDown"), on_many("event", "XidGpu") | TICKET)
        manager.post(alert("DaemonAbsent", "event", None))
        manager.post(link_down("rehearsal", 1) | {"simulated": "true"}, on_many("rehearsal") | {"simulated": "true"})

        manager.until(lambda: len(manager.posts("early")) == 2 and manager.posts("group"))
        manager.post(*[link_down("early", node) for node in range(2, 40)], on_many("early"))
        manager.post(alert("GpuLost", "group", gpu="3", pci_bus_id="0000:5d:00.0"))
        manager.until(lambda: len(manager.posts("group")) == 2 and len(manager.posts("early")) == 3)
        manager.until(lambda: len(manager.posts("dying")) == 2 and len(manager.posts("event")) == 3)
        manager.until(lambda: manager.posts("tickets") and len(manager.posts("live")) >= 2)
        time.sleep(3.5)  # another interval of the groups, in which nothing more may come
        firing_early = manager.posts("early")
        for cluster in ("storm", "early"):
            manager.post(*[link_down(cluster, node) for node in range(40)], on_many(cluster), resolved=True)
        manager.until(lambda: manager.posts("storm", "resolved") and len(manager.posts("early", "resolved")) == 3)
        yield Story(manager, firing_early)


def test_one_fault_on_forty_nodes_at_once_is_one_page(story: Story) -> None:
    """The alert of the fleet silences those of the nodes before they page; the resolve is one as well."""
    for status in ("firing", "resolved"):
        (page,) = story.manager.posts("storm", status)
        assert (page.to, page.names) == ("page", ["CommwatchFaultOnManyNodes"])


def test_one_event_of_the_fleet_is_one_page(story: Story) -> None:
    """All faults that are on many nodes of a job at one time; a ticket of them is a ticket."""
    found = sorted(
        (post.to, [one["labels"]["fault"] for one in post.body["alerts"]])
        for post in story.manager.posts("event")
        if "CommwatchFaultOnManyNodes" in post.names
    )

    assert [(to, sorted(faults)) for to, faults in found] == [
        ("page", ["CommwatchNvlinkDown", "CommwatchRdmaPortDown"]),
        ("ticket", ["CommwatchXidGpu"]),
    ]


def test_another_alert_of_the_fleet_is_a_page_of_its_own(story: Story) -> None:
    """That a job has no daemon is no fault on many nodes, although both are about the same job."""
    pages = sorted(sorted({*post.names}) for post in story.manager.posts("event") if post.to == "page")

    assert pages == [["CommwatchDaemonAbsent"], ["CommwatchFaultOnManyNodes"]]


def test_nodes_that_were_seen_first_page_and_the_others_do_not(story: Story) -> None:
    """Two nodes page before the fault is on three: forty nodes give at most three notifications, and three ends."""
    nodes = [page.body["groupLabels"].get("instance", "fleet") for page in story.firing_early]
    ends = [page.body["groupLabels"].get("instance", "fleet") for page in story.manager.posts("early", "resolved")]

    assert sorted(nodes) == ["fleet", "node0:28029", "node1:28029"]
    assert sorted(ends) == sorted(nodes)


def test_a_gpu_lost_after_its_link_is_the_same_page(story: Story) -> None:
    """One group, one key: the pager updates its incident, and the lost GPU silences its link."""
    first, second = story.manager.posts("group")

    assert first.body["groupKey"] == second.body["groupKey"]
    assert (first.names, second.names) == (["CommwatchNvlinkDown"], ["CommwatchGpuLost"])


def test_tickets_come_from_nodes_without_a_page(story: Story) -> None:
    """A warning makes a ticket, also beside a page of another fault, and an info tells no one."""
    found = {(post.to, post.body["groupLabels"]["instance"], *post.names) for post in story.manager.posts("tickets")}

    assert found == {
        ("page", "node1:28029", "CommwatchNvlinkDown"),
        ("ticket", "node1:28029", "CommwatchPcieReplays"),
        ("ticket", "node2:28029", "CommwatchPcieReplays"),
    }


def test_a_node_that_dies_in_its_incident_pages_once(story: Story) -> None:
    """That its daemon cannot be seen is a ticket beside its page: no second page, and not silenced by the first."""
    found = sorted((post.to, post.names) for post in story.manager.posts("dying"))

    assert found == [("page", ["CommwatchNvlinkDown"]), ("ticket", ["CommwatchDaemonDown"])]


def test_a_rehearsal_wakes_no_one(story: Story) -> None:
    """Whatever is simulated goes to the drill alone, the fleet apart from the nodes."""
    assert {(post.to, *post.names) for post in story.manager.posts("rehearsal")} == {
        ("drill", "CommwatchFaultOnManyNodes")
    }


def test_the_watchdog_is_heard_again_and_again(story: Story) -> None:
    """The dead-man's switch hears from Alertmanager at each interval."""
    assert {post.to for post in story.manager.posts("live")} == {"dead-man"}
    assert len(story.manager.posts("live")) >= 2


def test_the_pager_shows_where_what_and_what_to_do(story: Story) -> None:
    """PagerDuty's event names node, part, value, first action and runbook; its key comes from a file."""
    events = [one for one in story.manager.messages("pagerduty") if "group" in one["payload"]["summary"]]
    payload = events[0]["payload"]
    details = payload["custom_details"]

    assert events[0]["routing_key"] == "key-from-a-file"
    assert len({one["dedup_key"] for one in events}) == 1
    assert payload["summary"] == "[FIRING] node1 in group: GPU 3: NVLink 11 down"
    assert (payload["severity"], payload["component"]) == ("critical", "node1 in group")
    assert details["node"] == "node1 in group"
    assert "Part: gpu 3, link 11, pci_bus_id 0000:5d:00.0" in details["faults"]
    assert "is inactive" in details["faults"]
    assert re.search(r"node1:28029, since \d+ \w{3} \d\d:\d\d UTC\n", details["faults"])
    assert details["first_action"].startswith("drain the node, then see")
    assert details["runbook"] == events[0]["links"][0]["href"] == LINK["runbook_url"]


def test_slack_shows_the_same(story: Story) -> None:
    """One message with title, link to the dashboard, part, value, first action and runbook."""
    (shown,) = [one["attachments"][0] for one in story.manager.messages("slack") if LINK["runbook_url"] in str(one)]

    assert (shown["title"], shown["color"]) == ("[FIRING] node1 in group: GPU 3: NVLink 11 down", "danger")
    assert shown["title_link"] == LINK["dashboard_url"]
    first, *others = shown["text"].splitlines()
    assert re.fullmatch(r"\*CommwatchNvlinkDown\* \(critical\) on node1:28029, since \d+ \w{3} \d\d:\d\d UTC", first)
    assert others == [
        "Part: gpu 3, link 11, pci_bus_id 0000:5d:00.0",
        "Node node1:28029: link 11 of GPU 3 is inactive. No job was on the node.",
        "First action: drain the node, then see whether other links are down too.",
        f"Runbook: {LINK['runbook_url']}",
    ]


def test_the_page_of_the_fleet_names_the_fault(story: Story) -> None:
    """Its title says what is on many nodes, and of which job."""
    titles = [one["attachments"][0]["title"] for one in story.manager.messages("slack")]

    assert "[FIRING] scrape job commwatch in storm: CommwatchNvlinkDown on many nodes" in titles
    assert "[FIRING] node1 in dying: CommwatchNvlinkDown" in titles, "an alert without a summary has its name"


def test_a_webhook_shows_the_same(story: Story) -> None:
    """What is posted holds the labels of the part and the words of the rule."""
    (one,) = story.manager.posts("group")[0].body["alerts"]

    assert (one["labels"]["gpu"], one["labels"]["link"]) == ("3", "11")
    assert one["annotations"] == LINK


def test_a_group_that_still_fires_tells_of_what_fires(tmp_path: Path) -> None:
    """Not of the alert of the same node that is over, whichever comes first."""

    def told(name: str, status: str, number: int) -> dict[str, object]:
        notes = {"summary": f"Part {number} is down",
                 "description": f"Words. First action: act {number}.", "runbook_url": f"r{number}",
                 "dashboard_url": f"d{number}"}  # fmt: skip
        return {"status": status, "labels": alert(name, "a"), "annotations": notes}

    def shown(*alerts: dict[str, object], **common: str) -> list[str]:
        status = "firing" if any(one["status"] == "firing" for one in alerts) else "resolved"
        data = tmp_path / "data.json"
        data.write_text(json.dumps({"status": status, "alerts": alerts, "commonLabels": common}))
        names = ("status", "place", "what", "first_action", "runbook", "dashboard")
        text = "|".join(f'{{{{ template "commwatch.{name}" . }}}}' for name in names)
        render = ["amtool", "template", "render", f"--template.glob={EXAMPLE.with_name('alertmanager.tmpl')}",
                  f"--template.data={data}", f"--template.text={text}"]  # fmt: skip
        return subprocess.run(render, capture_output=True, text=True, check=True).stdout.strip().split("|")

    over, there = told("FabricUnhealthy", "resolved", 1), told("NvlinkDown", "firing", 2)
    assert shown(over, there, instance="n:1") == ["STILL FIRING", "n", "Part 2 is down", "act 2.", "r2", "d2"]
    assert shown(over, instance="10.0.0.7:1", node="node17") == [
        "RESOLVED", "node17", "Part 1 is down", "act 1.", "r1", "d1"]  # fmt: skip
    assert shown(there, told("GpuLost", "firing", 3), instance="n") == [
        "FIRING",
        "n",
        "Part 2 is down (+1)",
        "act 2.",
        "r2",
        "d2",
    ]


GPU3, GPU5 = {"gpu": "3", "pci_bus_id": "0000:5d:00.0"}, {"gpu": "5", "pci_bus_id": "0000:ab:00.0"}
LINK11, LINK12 = GPU3 | {"link": "11"}, GPU3 | {"link": "12"}
PORT, OTHER_PORT = {"device": "mlx5_0", "port": "1"}, {"device": "mlx5_1", "port": "1"}
REDUCE, COPIES = {"probe": "all_reduce", "backend": "nccl"}, {"probe": "host_copies", "backend": "nccl"}


NODE2 = {"instance": "node2:28029"}


def of(name: str, severity: str = "critical", **labels: str) -> dict[str, str]:
    """An alert of node 1, unless its labels name another one."""
    return alert(name, "", 1, severity) | labels


HUSHES = [
    # Another fault of the same node: each is sent.
    (of("NvlinkDown", **LINK11), of("XidGpu", "warning", xid="95", **GPU5), False),
    (of("NvlinkDown", **LINK11), of("XidGpu", "warning", xid="95", **GPU3), False),
    (of("NvlinkDown", **LINK11), of("XidFabric", xid="74", **GPU5), False),
    (of("NvlinkDown", **LINK11), of("PcieWidthDropped", **GPU3), False),
    (of("NvlinkDown", **LINK11), of("PcieReplays", "warning", **GPU3), False),
    (of("NvlinkDown", **LINK11), of("GpuSlowedDown", "warning", reason="hw_slowdown", **GPU5), False),
    (of("NvlinkDown", **LINK11), of("NvlinkReplays", "warning", **LINK12), False),
    (of("NvlinkDown", **LINK11), of("RdmaErrors", "warning", counter="symbol_errors", **PORT), False),
    (of("NvlinkDown", **LINK11), of("CollectorFailing", "warning", collector="rdma"), False),
    (of("NvlinkDown", **LINK11), of("DaemonDown", "warning"), False),
    (of("NvlinkDown", **LINK11), of("ProbeBandwidthLow", "warning", **COPIES), False),
    (of("NvlinkDown", **LINK11), of("ProbeWrongResult", reason="wrong", **REDUCE), False),
    (of("NvlinkDown", **LINK11), of("PartSuspect", "warning", kind="gpu", element="GPU5", gpu="5"), False),
    (of("NvlinkDown", **LINK11), of("NcclErrors", "warning", category="ib_retry"), False),
    (of("GpuLost", **GPU3), of("XidGpu", "warning", xid="95", **GPU3), False),
    (of("GpuLost", **GPU3), of("NvlinkDown", **GPU5, link="11"), False),
    (of("GpuLost", **GPU3), of("RdmaPortDown", **PORT), False),
    (of("GpuNotAnswering", **GPU3), of("WorkerStuck", "warning", worker="rdma"), False),
    (of("DriverUnusable", reason="no_gpu"), of("RdmaPortDown", **PORT), False),
    (of("DriverUnusable", reason="no_gpu"), of("XidGpu", "warning", xid="95", **GPU3), False),
    (of("PcieWidthDropped", **GPU3), of("PcieReplays", "warning", **GPU5), False),
    (of("PcieWidthDropped", **GPU3), of("ProbeBandwidthLow", "warning", **REDUCE), False),
    (of("PcieGenerationLow", "warning", **GPU3), of("ProbeBandwidthLow", "warning", **REDUCE), False),
    (of("RdmaPortDown", **PORT), of("RdmaErrors", "warning", counter="symbol_errors", **OTHER_PORT), False),
    (of("RdmaPortDown", **PORT), of("NcclErrors", "warning", category="cuda"), False),
    (of("NvlinkDown", **LINK11, nvswitch="sw0"), of("SxidFatal", device="sw1", nvswitch="sw1", sxid="20034"), False),
    (of("NvlinkDown", **LINK11, nvswitch="sw0"), of("SxidFatal", device="sw0", nvswitch="sw0", sxid="12020"), False),
    (of("NvlinkDown", **LINK11), of("SxidFatal", device="sw0", nvswitch="sw0", sxid="20034"), False),
    (of("NvlinkDown", **GPU3, link="several"), of("SxidFatal", device="sw1", nvswitch="sw1", sxid="20034"), False),
    (
        of("NvlinkDown", gpu="all", pci_bus_id="sw0", link="several", nvswitch="sw0"),
        of("SxidFatal", device="sw1", nvswitch="sw1", sxid="20034"),
        False,
    ),
    (of("NvlinkDown", gpu="all", pci_bus_id="sw0", link="5"), of("XidFabric", xid="74", **GPU5), False),
    (of("DaemonDown", "warning"), of("XidGpu", "warning", xid="95", **GPU3), False),
    (of("DaemonDown", "warning"), of("NvlinkDown", **LINK11), False),
    (of("GpuNotAnswering", **GPU3), of("GpuLost", **GPU3), False),
    (of("ProbeBandwidthLow", "warning", **REDUCE), of("NvlinkReduced", "warning", **GPU3), False),
    (of("DriverUnusable", reason="no_driver"), of("SourceUnread", source="rdma"), False),
    (of("DriverUnusable", reason="no_driver"), of("CollectorFailing", "warning", collector="rdma_ports"), False),
    (of("DriverUnusable", reason="no_driver"), of("WorkerStuck", "warning", worker="rdma"), False),
    # A symptom of the same part is not.
    (of("DriverUnusable", reason="no_driver"), of("CollectorFailing", "warning", collector="nvml_gpu"), True),
    (of("NvlinkDown", **LINK11), of("NvlinkReplays", "warning", **LINK11), True),
    (of("NvlinkDown", **LINK11), of("XidFabric", xid="74", **GPU3), True),
    (of("NvlinkDown", **LINK11, nvswitch="sw0"), of("SxidFatal", device="sw0", nvswitch="sw0", sxid="20034"), True),
    (
        of("NvlinkDown", gpu="all", pci_bus_id="all", link="several"),
        of("SxidFatal", device="sw1", nvswitch="sw1", sxid="20034"),
        True,
    ),
    (of("NvlinkDown", **GPU3, link="several"), of("XidFabric", xid="74", **GPU3), True),
    (of("NvlinkDown", gpu="all", pci_bus_id="sw0", link="5"), of("XidNonfatal", "warning", xid="74", **GPU5), True),
    (of("NvlinkDown", **LINK11), of("PartSuspect", "warning", kind="gpu", element="GPU3", gpu="3"), True),
    (of("NvlinkDown", **LINK11), of("NvlinkBelowSiblings", "warning", direction="transmit", **GPU3), True),
    (of("NvlinkDown", **LINK11), of("ProbeBandwidthLow", "warning", **REDUCE), True),
    (of("NvlinkDown", **LINK11), of("ProbeBandwidthLow", "warning", **NODE2, **REDUCE), False),
    (of("NvlinkReduced", "warning", **GPU3), of("ProbeBandwidthLow", "warning", **REDUCE), False),
    (of("FabricUnhealthy", **GPU3), of("NvlinkP2pRefused", "warning"), True),
    (of("NvlinkDown", **GPU3, link="several"), of("NvlinkP2pRefused", "warning"), True),
    (of("NvlinkDown", **LINK11), of("NvlinkP2pRefused", "warning"), False),
    (of("GpuLost", **GPU3), of("GpuNotAnswering", **GPU3), True),
    (of("GpuLost", **GPU3), of("GpuNotAnswering", **GPU5), False),
    (of("GpuLost", **GPU3), of("XidFabric", xid="79", **GPU3), True),
    (of("GpuLost", **GPU3), of("XidFatal", xid="199", **GPU3), True),
    (of("GpuLost", **GPU3), of("XidFatal", xid="199", **GPU5), False),
    (of("GpuLost", **GPU3), of("ProbeFailing", "warning", **REDUCE), True),
    (of("GpuLost", **GPU3), of("NcclErrors", "warning", category="cuda"), True),
    (of("GpuNotAnswering", **GPU3), of("PcieWidthDropped", **GPU3), True),
    (of("GpuNotAnswering", **GPU3), of("XidGpu", "warning", xid="119", **GPU3), True),
    (of("GpuNotAnswering", **GPU3), of("WorkerStuck", "warning", worker="nvml"), True),
    (of("DriverUnusable", reason="no_gpu"), of("GpuLost", **GPU3), True),
    (of("DriverUnusable", reason="no_gpu"), of("GpuLost", **NODE2, **GPU3), False),
    (of("PcieWidthDropped", **GPU3), of("PcieReplays", "warning", **GPU3), True),
    (of("PcieFatal", device="0000:5d:00.0"), of("PcieNonfatal", "warning", device="0000:5d:00.0"), True),
    (of("RdmaPortDown", **PORT), of("RdmaPortFlapping", "warning", **PORT), True),
    (of("RdmaPortDown", **PORT), of("NcclErrors", "warning", category="ib_retry"), True),
    (of("ProbeWrongResult", reason="wrong", **REDUCE), of("ProbeFailing", "warning", **REDUCE), True),
    (of("ProbeFailing", "warning", **REDUCE), of("ProbeErrorRateRise", "warning", **REDUCE), True),
    (of("PartsNeverSeen", kind="gpu"), of("InventoryBelowPeers", "warning", kind="gpu"), True),
    (of("DaemonDown", "warning"), of("CollectorFailing", "warning", collector="rdma"), True),
    # Many nodes.
    (alert("DaemonAbsent", "", None), of("DaemonDown", "warning"), True),
    (alert("DaemonAbsent", "", None), on_many("", "DaemonDown"), True),
    (alert("DaemonAbsent", "", None), on_many("", "NvlinkDown"), False),
    (alert("DaemonAbsent", "", None), alert("FaultOnMoreNodes", "", None, fault="CommwatchDaemonDown"), True),
    (on_many("", "NvlinkDown"), of("NvlinkDown", **LINK11), True),
    (on_many("", "NvlinkDown"), alert("FaultOnMoreNodes", "", None, fault="CommwatchNvlinkDown"), False),
    (on_many("", "PcieReplays"), of("PcieReplays", "warning", **GPU3), True),
    (on_many("", "NvlinkDown"), of("PcieWidthDropped", **GPU3), False),
    (
        alert("SoftwareFaultOnManyNodes", "", None, "warning", fault="CommwatchNcclSettingHarmful"),
        of("NcclSettingHarmful", "warning"),
        True,
    ),
    (on_many("", "NvlinkDown") | {"simulated": "true"}, of("NvlinkDown", **LINK11), False),
]
"""First alert, second alert of (in most cases) the same node, and whether the first silences the second."""


def test_each_cause_hushes_its_symptoms_and_nothing_else(story: Story) -> None:
    """A second fault of the same node is sent; a symptom of the same part is not."""
    clusters = [f"hush{number}" for number in range(len(HUSHES))]
    for cluster, (cause, symptom, _) in zip(clusters, HUSHES, strict=True):
        story.manager.post(cause | {"cluster": cluster}, symptom | {"cluster": cluster})
    story.manager.until(lambda: all(len(story.manager.silenced(one)) == 2 for one in clusters))

    for cluster, (cause, symptom, expected) in zip(clusters, HUSHES, strict=True):
        silenced = story.manager.silenced(cluster)
        name = " ".join(symptom[key] for key in ("alertname", "instance") if key in symptom)
        assert silenced[name] == expected, (cause, symptom)


def test_a_restart_of_alertmanager_neither_repeats_nor_loses_a_page(story: Story) -> None:
    """Prometheus hands the alerts over again: what has paged does not page again, and a new one does."""
    manager = story.manager
    before = [len(manager.posts(cluster)) for cluster in ("group", "tickets", "rehearsal")]
    manager.restart()

    manager.post(alert("GpuLost", "group", gpu="3", pci_bus_id="0000:5d:00.0"), annotations=LINK)
    manager.post(alert("NvlinkDown", "tickets", 1), alert("PcieReplays", "tickets", 2, "warning"))
    manager.post(on_many("rehearsal") | {"simulated": "true"}, link_down("rehearsal", 1) | {"simulated": "true"})
    manager.post(link_down("afterwards", 1))
    manager.until(lambda: manager.posts("afterwards"))
    time.sleep(1.5)  # longer than tickets wait for their group

    assert [len(manager.posts(cluster)) for cluster in ("group", "tickets", "rehearsal")] == before


@in_one_pass(
    "labels, receiver",
    [
        ("severity=critical instance=node1", "page"),
        ("severity=warning instance=node1", "ticket"),
        ("severity=info instance=node1", "none"),
        ("severity=critical", "page"),
        ("severity=warning", "ticket"),
        ("severity=info", "none"),
        ("severity=critical simulated=true", "drill"),
        ("severity=critical instance=node1 simulated=true", "drill"),
        ("severity=info instance=node1 simulated=true", "drill"),
        ("severity=info alertname=CommwatchWatchdog", "dead-man"),
    ],
)
def test_alerts_reach_their_receiver(labels: str, receiver: str) -> None:
    """Critical pages, warning makes a ticket, info goes nowhere, and a simulated node reaches only the drill."""
    route = ["amtool", "config", "routes", "test", f"--config.file={EXAMPLE}", *labels.split()]

    assert subprocess.run(route, capture_output=True, text=True, check=True).stdout.split() == [receiver]


def test_amtool_accepts_the_example() -> None:
    result = subprocess.run(["amtool", "check-config", EXAMPLE], capture_output=True, text=True)

    assert result.returncode == 0, result.stderr
    assert "1 templates" in result.stdout


def test_the_example_holds_no_secret() -> None:
    """Keys and addresses that are secrets stand in files of their own."""
    text = EXAMPLE.read_text(encoding="utf-8")
    keys = {"routing_key", "service_key", "api_url", "slack_api_url", "credentials", "password", "bearer_token"}

    assert not any(f"{key}:" in text for key in keys)


MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')


def _matches(matchers: list[str], labels: Mapping[str, str]) -> bool:
    """Whether labels match, as Alertmanager sees it."""
    for label, operator, value in (found.groups() for found in map(MATCHER.fullmatch, matchers) if found):
        is_equal = re.fullmatch(value, labels.get(label, "")) if "~" in operator else labels.get(label, "") == value
        if bool(is_equal) == operator.startswith("!"):
            return False
    return True


def test_a_fault_on_many_nodes_hushes_its_own_alert_on_them_and_no_other() -> None:
    """Of all alerts of all nodes: where cluster, job and simulated agree, by the label that the rules give each."""
    rules = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["inhibit_rules"]
    shipped = alert_rules.shipped_alerts()
    of_nodes = {
        rule["alert"]: {"alertname": rule["alert"], "instance": "node1:28029", "cluster": "a", **rule["labels"]}
        for group in shipped_groups() for rule in group["rules"]
        if "alert" in rule and shipped[rule["alert"]]
    }  # fmt: skip

    def hushed(source: Mapping[str, str]) -> set[str]:
        hushing = [rule for rule in rules if _matches(rule["source_matchers"], source)]
        return {
            name
            for name, target in of_nodes.items()
            for rule in hushing
            if _matches(rule["target_matchers"], target)
            and all(source.get(label, "") == target.get(label, "") for label in rule["equal"])
        }

    assert len(of_nodes) > 70
    for fleet in ("CommwatchFaultOnManyNodes", "CommwatchSoftwareFaultOnManyNodes"):
        for name in of_nodes:
            source = {"alertname": fleet, "cluster": "a", "severity": "critical", "fault": name}
            assert hushed(source) == {name}
            assert hushed(source | {"cluster": "b"}) == set()
            assert hushed(source | {"simulated": "true"}) == set()

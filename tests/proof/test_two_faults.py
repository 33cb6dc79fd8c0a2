"""Two faults of one node, in a real Prometheus and Alertmanager: both are sent, symptoms of the first are not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

import pytest

from support.alertmanager import Alertmanager, Post, alertmanager
from support.handler_server import serving
from support.prometheus import QUICK, Prometheus, prometheus, quick_rules

pytestmark = pytest.mark.prometheus

HEALTHY = 'commwatch_simulated 0\ncommwatch_maintenance{reason="none"} 0\n'
GPU3, GPU5 = 'gpu="3",pci_bus_id="0000:5d:00.0"', 'gpu="5",pci_bus_id="0000:ab:00.0"'
LINK_DOWN = f'commwatch_nvlink_link_down{{{GPU3},link="11"}} 0\n'
GPU_LOST = f"commwatch_gpu_state{{{GPU3}}} 2\n"
GPU_HUNG = f"commwatch_gpu_state{{{GPU3}}} 1\n"
NARROW = f"commwatch_pcie_link_width_lanes{{{GPU3}}} 8\ncommwatch_pcie_link_width_expected_lanes{{{GPU3}}} 16\n"
PORT_DOWN = (
    'commwatch_rdma_port_state{device="mlx5_0",port="1"} 1\ncommwatch_rdma_port_expected{device="mlx5_0",port="1"} 1\n'
)
NO_DRIVER = 'commwatch_driver_unusable{reason="not_loaded"} 1\n'


def xid(number: int, gpu: str) -> str:
    return f'commwatch_gpu_xid_events_recent{{{gpu},xid="{number}"}} 1\n'


def slow_probe(name: str) -> str:
    probe = f'probe="{name}",backend="nccl"'
    return (
        f"commwatch_probe_low_bandwidth_streak{{{probe}}} 3\n"
        f'commwatch_probe_info{{{probe},expected_source="configured"}} 1\n'
    )


@dataclass(frozen=True)
class Pair:
    """What a node exposes, and what must come of it."""

    page: str
    pages: set[str]
    tickets: set[str]
    symptoms: frozenset[str] = frozenset()
    """Alerts that fire, and are not sent."""


PAIRS = {
    "a link and the memory of another GPU": Pair(
        LINK_DOWN + xid(74, GPU3) + xid(95, GPU5), {"NvlinkDown"}, {"XidGpu"}, frozenset({"XidFabric"})
    ),
    "a link and the memory of the same GPU": Pair(LINK_DOWN + xid(95, GPU3), {"NvlinkDown"}, {"XidGpu"}),
    "a link and the slot of another GPU": Pair(
        LINK_DOWN + NARROW.replace(GPU3, GPU5), {"NvlinkDown", "PcieWidthDropped"}, set()
    ),
    "a link and the links of another GPU": Pair(
        LINK_DOWN + f"commwatch_nvlink_bandwidth_mode{{{GPU5}}} 3\n", {"NvlinkDown"}, {"NvlinkReduced"}
    ),
    "a link, the collectives over it, and copies to the host": Pair(
        LINK_DOWN + slow_probe("all_reduce") + slow_probe("host_copies"), {"NvlinkDown"}, {"ProbeBandwidthLow"}
    ),
    "a link and a slow GPU of the matrix": Pair(
        LINK_DOWN
        + 'commwatch_suspect_ratio{kind="gpu",element="GPU3"} 0.9\n'
        + 'commwatch_suspect_ratio{kind="gpu",element="GPU5"} 0.9\n',
        {"NvlinkDown"},
        {"PartSuspect"},
    ),
    "a slot and a slow probe over NVLink": Pair(
        NARROW + slow_probe("all_reduce"), {"PcieWidthDropped"}, {"ProbeBandwidthLow"}
    ),
    "a lost GPU and an adapter": Pair(
        GPU_LOST
        + LINK_DOWN
        + xid(79, GPU3)
        + 'commwatch_pcie_device_link_degraded{device="0000:18:00.0",role="nic",aspect="width"} 1\n',
        {"GpuLost"},
        {"PcieDeviceDegraded"},
    ),
    "a lost GPU and another one that does not answer": Pair(
        GPU_LOST + f"commwatch_gpu_state{{{GPU5}}} 1\n", {"GpuLost", "GpuNotAnswering"}, set()
    ),
    "a GPU that does not answer and a reader of the adapters": Pair(
        GPU_HUNG
        + xid(119, GPU3)
        + 'commwatch_worker_stuck{worker="nvml"} 1\ncommwatch_worker_stuck{worker="rdma"} 1\n',
        {"GpuNotAnswering"},
        {"WorkerStuck"},
        frozenset({"XidGpu"}),
    ),
    "a port and a GPU that asks for a reset": Pair(
        PORT_DOWN + f"commwatch_gpu_recovery_action{{{GPU5}}} 1\n", {"RdmaPortDown", "GpuRecoveryNeeded"}, set()
    ),
    "no driver and a port": Pair(
        NO_DRIVER + GPU_LOST + PORT_DOWN, {"DriverUnusable", "RdmaPortDown"}, set(), frozenset({"GpuLost"})
    ),
}  # fmt: skip
"""Two faults of one node, with what the first does to its own parts."""


@dataclass(frozen=True)
class Played:
    """All pairs, each on a node of its own."""

    manager: Alertmanager
    server: Prometheus
    nodes: dict[str, str]
    """Address by name of the pair."""

    def posts(self, pair: str, to: str) -> list[Post]:
        """What came about a pair."""
        posts = self.manager.posts("c")
        return [one for one in posts if one.to == to and one.body["groupLabels"]["instance"] == self.nodes[pair]]

    def sent(self, pair: str, to: str) -> set[str]:
        """The alerts that were sent of it."""
        return {name.removeprefix("Commwatch") for post in self.posts(pair, to) for name in post.names}


def _node(page: str) -> type[BaseHTTPRequestHandler]:
    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (HEALTHY + page).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            del args

    return Node


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """All at once: the waits pass once for all. No pair is on enough nodes to be a fault of the fleet."""
    folder = tmp_path_factory.mktemp("pairs")
    waits = {**QUICK, "for: 1m": "for: 1s"}
    rules = [file for file in quick_rules(folder, waits) if file.name != "fleet.yaml"]
    with ExitStack() as stack:
        nodes = {name: stack.enter_context(serving(_node(pair.page))) for name, pair in PAIRS.items()}
        manager = stack.enter_context(alertmanager(folder))
        targets = [{"targets": list(nodes.values()), "labels": {"cluster": "c"}}]
        settings = {
            "scrape_configs": [{"job_name": "commwatch", "static_configs": targets}],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.address]}]}]},
        }
        server = stack.enter_context(prometheus(folder, rules, settings=settings))
        played = Played(manager, server, nodes)

        def all_sent() -> bool:
            return all(
                played.sent(name, "page") >= pair.pages and played.sent(name, "ticket") >= pair.tickets
                for name, pair in PAIRS.items()
            )

        manager.until(all_sent)
        time.sleep(5)  # two more intervals of the groups, in which a symptom would come
        yield played


@pytest.mark.parametrize("name", PAIRS)
def test_both_faults_are_sent_and_no_symptom_of_the_first(played: Played, name: str) -> None:
    """Pages in one notification of the node; tickets too."""
    pair = PAIRS[name]
    node = played.nodes[name]
    fired = {alert.removeprefix("Commwatch") for alert, all_of in played.server.firing().items()
             if any(one["labels"].get("instance") == node for one in all_of)}  # fmt: skip

    assert played.sent(name, "page") == pair.pages
    assert played.sent(name, "ticket") == pair.tickets
    assert fired == pair.pages | pair.tickets | pair.symptoms


def test_a_page_names_what_else_is_open_on_its_node(played: Played) -> None:
    """With the part; a node with one fault alone has no such sentence."""
    firing = played.server.firing()
    texts = {
        one["labels"]["instance"]: one["annotations"]["description"]
        for alert in ("CommwatchNvlinkDown", "CommwatchPcieWidthDropped")
        for one in firing[alert]
    }

    beside = texts[played.nodes["a link and the memory of another GPU"]]
    assert "Also open on this node: CommwatchXidFabric at 0000:5d:00.0, CommwatchXidGpu at 0000:ab:00.0." in beside
    ticket = next(one for one in firing["CommwatchXidGpu"] if one["labels"]["pci_bus_id"] == "0000:ab:00.0")
    assert "CommwatchNvlinkDown at 0000:5d:00.0 link 11" in ticket["annotations"]["description"]


def test_two_tickets_of_one_name_are_told_apart(played: Played) -> None:
    """Of two probes, suspects and readers the one that the page explains is left out."""
    labels = {
        "a link, the collectives over it, and copies to the host": ("probe", "host_copies"),
        "a link and a slow GPU of the matrix": ("gpu", "5"),
        "a GPU that does not answer and a reader of the adapters": ("worker", "rdma"),
    }
    for name, (label, value) in labels.items():
        (post,) = played.posts(name, "ticket")
        assert [one["labels"][label] for one in post.body["alerts"]] == [value]

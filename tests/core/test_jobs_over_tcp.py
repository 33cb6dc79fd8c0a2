"""A job that left RDMA shows in the counters: its payload goes over the default route, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commwatch_exporters.snapshot import Series, Value
from support.core import block
from support.fed_daemon import FedDaemon

SLOT, PID, STEP = "0000:17:00.0", 101, 15.0
HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
ROUTE = "{}\t00000000\t0100000A\t{}\t0\t0\t0\t00000000\t0\t0\t0\n"
ROUTE_IPV6 = "0" * 32 + " 00 " + "0" * 32 + " 00 fe80 00000400 00000001 00000000 {} {}\n"


class Node:
    """A GPU with a job, an RDMA port, and the interface of the default route beside another one."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self.daemon = FedDaemon(folder, patched)
        self.procfs = folder / "procfs"
        (self.procfs / "net").mkdir()
        (self.procfs / "net/route").write_text(HEAD + ROUTE.format("eth0", "0003"))
        self.store = self.daemon.engine.store
        self.store.occupants = {SLOT: (PID,)}
        self.others: dict[str, dict[Any, Value]] = {}
        """Interfaces beside the one whose name is ``name``."""
        self.transmit: float = 1e9
        self.receive: float = 1e9
        self.rdma: float | None = 1e6
        self.state: float = 4
        self.use: Value = 1.0
        self.master = ""
        self.name = "eth0"
        self.functions: Value = None
        self.rdma_shows = True
        self.rdma_is_late = False
        self._counts = {"transmit": 0.0, "receive": 0.0, "rdma": 0.0}

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self.daemon.clock.now

    def read(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.daemon.clock.now += STEP
            for name in self._counts:
                self._counts[name] += (getattr(self, name) or 0.0) * STEP
            use: dict[Any, Value] = {("commwatch_gpu_utilization_ratio", ("0", SLOT)): self.use}
            self.store.put("nvml_gpu", SLOT, block(use, self.now), 1e9)
            port: dict[Any, Value] = {("commwatch_rdma_port_state", ("mlx5_0", "1")): self.state}
            port["commwatch_rdma_port_virtual_functions", ("mlx5_0", "1")] = self.functions
            if self.rdma is not None:
                port["commwatch_rdma_port_transmit_bytes_total", ("mlx5_0", "1")] = self._counts["rdma"]
            states: dict[Any, Value] = {("commwatch_counters_state", ("rdma", "port_xmit_data")): 0}
            self.store.put("rdma", "", block(states, self.now), 1e9)
            if self.rdma_shows and not self.rdma_is_late:
                self.store.put("rdma", "mlx5_0", block(port, self.now), 1e9)
            interface: dict[Any, Value] = {
                (f"commwatch_ethernet_{way}_bytes_total", (self.name,)): self._counts[way]
                for way in ("transmit", "receive")
            }
            interface["commwatch_ethernet_info", (self.name, "", "mlx5_core", self.master)] = 1
            self.daemon.feed("network", {self.name: interface, **self.others})

    def shown(self) -> dict[str, dict[tuple[str, ...], Value]]:
        found = {name: self.daemon.series(f"job_over_tcp_{name}") for name in ("seconds", "bytes_per_second")}
        return {name: series for name, series in found.items() if series}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_the_time_counts_while_tcp_carries_what_rdma_does_not(node: Node) -> None:
    """At the lowest GPU in use, with the interface; it ends as RDMA carries more than a tenth."""
    node.read(135)
    assert node.shown() == {"seconds": {("0", SLOT, "eth0"): 120}, "bytes_per_second": {("0", SLOT, "eth0"): 2e9}}
    node.rdma = 2.1e8
    node.read(15)
    assert not node.shown()
    node.rdma = 1.9e8
    node.read(15)
    assert node.shown()["seconds"] == {("0", SLOT, "eth0"): 15}


def test_a_bond_that_has_the_default_route_is_counted_by_its_parts(node: Node) -> None:
    """As the kernel counts them."""
    (node.procfs / "net/route").write_text(HEAD + ROUTE.format("bond0", "0003"))
    node.name, node.master = "ens1f0", "bond0"
    node.read(60)
    assert set(node.shown()["seconds"]) == {("0", SLOT, "ens1f0")}


def test_a_bond_beside_its_parts_is_not_counted_twice(node: Node) -> None:
    """With ``physical_only: false`` it is an interface of its own, whose counters are the sum of theirs."""
    (node.procfs / "net/route").write_text(HEAD + ROUTE.format("bond0", "0003"))
    for _ in range(4):
        node.name, node.master = "ens1f0", "bond0"
        node.read(STEP)
        whole: dict[Series, Value] = {
            (f"commwatch_ethernet_{way}_bytes_total", ("bond0",)): node.now * 1e9 for way in ("transmit", "receive")
        }
        node.others = {"bond0": whole}
    assert node.shown()["bytes_per_second"] == {("0", SLOT, "ens1f0"): 2e9}


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda node: setattr(node, "transmit", 49e6),
        lambda node: setattr(node, "receive", 49e6),
        lambda node: setattr(node, "state", 1),
        lambda node: setattr(node, "rdma", None),
        lambda node: setattr(node, "rdma_shows", False),
        lambda node: setattr(node, "functions", 8),
        lambda node: setattr(node, "use", None),
        lambda node: setattr(node, "use", 0.05),
        lambda node: setattr(node, "name", "eth1"),
        lambda node: setattr(node.store, "occupants", {}),
        lambda node: setattr(node.store, "single_node", frozenset({PID})),
        lambda node: (node.procfs / "net/route").unlink(),
        lambda node: (node.procfs / "net/route").write_text(HEAD + ROUTE.format("eth0", "0002")),
        lambda node: (node.procfs / "net/route").write_text(HEAD + ROUTE.format("eth0", "x")),
    ],
    ids=[
        "a data set", "a checkpoint", "no active port", "RDMA not counted", "RDMA not read",
        "RDMA of virtual functions", "use not read", "idle",
        "another interface", "no job", "a job of this node alone", "no routes", "route down", "rubbish",
    ],
)  # fmt: skip
def test_nothing_is_shown_of_other_traffic_or_without_a_reading(node: Node, otherwise: Callable[[Node], Any]) -> None:
    """Whatever is missing, nothing is guessed."""
    otherwise(node)
    node.read(300)
    assert not node.shown()


def test_what_an_efa_adapter_answers_to_remote_reads_is_rdma(node: Node) -> None:
    """It counts that apart from what it sends."""
    for number in range(8):
        moved: dict[Any, Value] = {
            (f"commwatch_rdma_{way}_bytes_total", ("efa_0", "1")): number * STEP * rate
            for way, rate in (("transmit", 0.0), ("read_response", 1e9))
        }
        node.store.put("rdma", "efa_0", block(moved, node.now + STEP), 1e9)
        node.read(STEP)
    assert not node.shown()


def test_a_gap_and_a_counter_that_begins_again_are_no_traffic(node: Node) -> None:
    """The time begins again."""
    node.read(60)
    node.daemon.clock.now += 121
    node.read(15)
    assert not node.shown()
    node.read(30)
    assert node.shown()["seconds"] == {("0", SLOT, "eth0"): 30}
    node._counts["transmit"] = -1e12
    node.read(15)
    assert not node.shown()


def test_the_time_counts_before_the_processes_are_listed(node: Node) -> None:
    """They are each minute; nothing is shown until then, nor of a job that turns out to be on this node alone."""
    node.store.occupants = {}
    node.read(60)
    assert not node.shown()
    node.store.occupants = {SLOT: (PID,)}
    node.read(60)
    assert node.shown()["seconds"] == {("0", SLOT, "eth0"): 105}
    node.store.single_node = frozenset({PID})
    node.read(STEP)
    assert not node.shown()
    node.store.single_node = frozenset()
    node.read(STEP)
    assert node.shown()["seconds"] == {("0", SLOT, "eth0"): STEP}


def test_readers_of_one_interval_come_in_any_order(node: Node) -> None:
    """A reading of RDMA that comes after that of the network counts at the next one, and ends nothing."""
    node.read(STEP)
    for number in range(8):
        node.rdma_is_late = number % 2 == 0
        node.read(STEP)
    assert node.shown()["seconds"] == {("0", SLOT, "eth0"): 7 * STEP}


def test_the_default_route_of_ipv6_counts_where_ipv4_has_none(node: Node) -> None:
    """Not that of the loopback, by which the kernel rejects what it cannot reach."""
    (node.procfs / "net/route").unlink()
    routes = ROUTE_IPV6.format("00200200", "lo") + ROUTE_IPV6.format("00450003", "eth3")
    (node.procfs / "net/ipv6_route").write_text(routes)
    node.name = "eth3"
    node.read(60)
    assert set(node.shown()["seconds"]) == {("0", SLOT, "eth3")}
    (node.procfs / "net/route").write_text(HEAD + ROUTE.format("eth0", "0003"))
    node.read(120)
    assert not node.shown()

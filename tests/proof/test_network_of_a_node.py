"""Findings about the network of a whole simulated node, over the hours that it takes to learn, to fail and to heal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commwatch.findings.causes import join
from commwatch.findings.codes import EVENTS, WATCHED
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Finding
from commwatch.findings.history import CounterHistory
from commwatch.findings.register import Register
from commwatch.findings.rule_engine import RuleEngine
from commwatch.findings.rules import RULE_SETS
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Block, Layout, Snapshot
from support.facts import shipped
from support.findings import Observer
from support.simulated_daemon import SimulatedDaemon, whole_node

NETWORK = [rules for rules in RULE_SETS if rules.name in (
    "RDMA ports", "RDMA errors", "RDMA traffic", "Network interfaces", "Traffic of network interfaces", "Flapping links"
)]  # fmt: skip
STEP = 30.0
LEARNED = 80.0
"""Minutes after the boot: the first reading is an hour after it, and what is stable for 10 min is expected."""


class Watched:
    """A node that is looked at every 30 s of its own time."""

    def __init__(self, node: SimulatedDaemon) -> None:
        self._node = node
        self._failed: list[str] = []
        self.history = CounterHistory(WATCHED, EVENTS)
        self._engine = RuleEngine(
            NETWORK, shipped(), self.history, lambda rule, error: self._failed.append(f"{rule}: {error}")
        )  # fmt: skip
        self._register = Register()

    @property
    def page(self) -> Snapshot:
        """What is exposed now."""
        return self._node.snapshot()

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._node.clock.time()

    def until(self, minutes: float) -> list[tuple[str, str]]:
        """Code and component of what is open so many minutes after the boot."""
        return [(one.code, one.component.identity) for one in self.findings(minutes)]

    def findings(self, minutes: float) -> list[Finding]:
        """What is open then, with its causes."""
        while self._node.time < minutes * 60.0:
            self._node.time += STEP
            self._node.run("rdma", "network", "ethtool")
            self._register.update(self._engine.evaluate(self.page, self.now), Observer(), self.now)
        assert self._failed == []
        return join(self._register.open_incidents())


@contextmanager
def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, faults: str) -> Iterator[Watched]:
    with whole_node("h100x8ndr", folder, monkeypatch, faults=faults) as node:
        yield Watched(node)


def test_a_healthy_network_has_nothing_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it learns, while a job begins, sends and ends."""
    job = "- {at: 85m, fault: job, gpu: 0, rdma_utilization: 0.7, for: 20m}\n"
    with watched(tmp_path, monkeypatch, job) as node:
        assert [node.until(minutes) for minutes in (LEARNED, 86, 100, 110)] == [[], [], [], []]


def test_faults_of_ports_open_and_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on its own port; a port that comes back has flapped, and that too is over an hour later."""
    faults = """
- {at: 80m, fault: rdma_port_down, device: mlx5_0, for: 5m}
- {at: 80m, fault: rdma_errors, device: mlx5_1, counter: symbol_error, rate: 10/min, for: 30m}
- {at: 80m, fault: rdma_errors, device: mlx5_2, counter: local_ack_timeout_err, rate: 30/min, for: 30m}
- {at: 80m, fault: rdma_saturated, device: mlx5_3, counter: excessive_buffer_overrun_errors, for: 30m}
"""
    with watched(tmp_path, monkeypatch, faults) as node:
        assert node.until(LEARNED - 1) == []
        assert set(node.until(84)) == {
            ("rdma_port_down", "rdma_port/mlx5_0/1"),
            ("rdma_counter_saturated", "rdma_port/mlx5_3/1"),
            ("rdma_errors", "rdma_port/mlx5_3/1"),
        }
        assert set(node.until(95)) == {
            ("rdma_port_flapped", "rdma_port/mlx5_0/1"),
            ("rdma_errors", "rdma_port/mlx5_1/1"),
            ("rdma_retransmitting", "rdma_port/mlx5_2/1"),
            ("rdma_counter_saturated", "rdma_port/mlx5_3/1"),
            ("rdma_errors", "rdma_port/mlx5_3/1"),
        }
        assert set(node.until(120)) == {
            ("rdma_port_flapped", "rdma_port/mlx5_0/1"),
            ("rdma_errors", "rdma_port/mlx5_1/1"),
            ("rdma_errors", "rdma_port/mlx5_3/1"),
        }
        assert node.until(180) == []


def test_no_metric_that_goes_away_makes_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not read matches nothing, on a node with faults too and where the collectors say that all is well."""
    faults = """
- {at: 80m, fault: rdma_port_down, device: mlx5_0}
- {at: 80m, fault: ethernet_down, interface: ens11f0np0}
- {at: 80m, fault: rdma_errors, device: mlx5_2, counter: local_ack_timeout_err, rate: 30/min}
"""
    own = dict.fromkeys((("rdma",), ("network",)), 1.0)
    layout = Layout(("commwatch_collector_success", labels) for labels in own)
    with watched(tmp_path, monkeypatch, faults) as node:
        node.until(82)
        page = Snapshot((*node.page.blocks, Block(layout, list(own.values()), 0.0)))
        all_told = matched(page, node)
        metrics = {metric for block in page.blocks for metric in block.layout.families}

        assert len(all_told) > 3
        for metric in metrics:
            assert matched(Snapshot(page.blocks, hidden={metric}), node) <= all_told, metric


def matched(page: Snapshot, node: Watched) -> set[tuple[str, str]]:
    facts = Facts(Node(page), node.history, node.now)
    evaluations = [rule.evaluate for rules in NETWORK for rule in rules.rules]
    return {(one.code, one.component.identity) for evaluate in evaluations for one in evaluate(facts, shipped())}


def test_a_cable_of_roce_is_one_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Port and interface lose their link together: the port is the finding, the interface its cause."""
    with watched(tmp_path, monkeypatch, "- {at: 80m, fault: ethernet_down, interface: ens11f0np0, for: 30m}\n") as node:
        [finding] = node.findings(85)

    assert (finding.code, finding.component.identity, finding.severity) == (
        "rdma_port_down", "rdma_port/mlx5_8/1", "critical"
    )  # fmt: skip
    assert [(cause.code, cause.component.identity) for cause in finding.causes] == [
        ("ethernet_down", "interface/ens11f0np0")
    ]


def test_congestion_and_damage_of_an_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and drops are for information; damaged packets count for an hour."""
    faults = """
- {at: 80m, fault: ethernet_congestion, interface: ens11f0np0, rate: 1000/s, for: 10m}
- {at: 80m, fault: ethernet_discards, interface: ens11f1np1, rate: 200/s, for: 10m}
- {at: 80m, fault: ethernet_symbol_errors, interface: ens11f1np1, rate: 60/min, for: 10m}
"""
    with watched(tmp_path, monkeypatch, faults) as node:
        assert node.until(83) == []
        assert set(node.until(89)) == {
            ("ethernet_paused", "interface/ens11f0np0"),
            ("ethernet_dropping", "interface/ens11f1np1"),
            ("ethernet_errors", "interface/ens11f1np1"),
        }
        assert node.until(100) == [("ethernet_errors", "interface/ens11f1np1")]

"""Whether a fault could be seen now: what was read of its component, by whom, and what is known without reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from commwatch.findings.finding import Component
from commwatch.findings.rules import RULE_SETS
from commwatch.node.run import Collector
from commwatch.readings import Absence
from commwatch.service.visibility import PROBES, Observability
from commwatch.workers.sources import SOURCES
from commwatch_exporters.node import model
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, block
from support.fed_daemon import FedDaemon
from support.simulated_daemon import whole_node

GPU = Component("gpu", SLOTS[0], parts=frozenset({SLOTS[0]}))
LINK = Component("nvlink", f"{SLOTS[0]}/3", parts=frozenset({SLOTS[0]}))
PORT = Component("rdma_port", "mlx5_0/1", parts=frozenset({"mlx5_0"}))
STATE, INFO = "commwatch_nvlink_link_state", "commwatch_nvlink_info"
ANOMALY = "commwatch_counters_anomaly"
FLAPS = "commwatch_rdma_port_flaps_total"
STREAK = "commwatch_probe_latency_spike_streak"
PROBE = Component("probe", "all_reduce", parts=frozenset({SLOTS[0]}))


class Node:
    """Collectors of which a test says what they did, and the store that they and trackers fill."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self._engine = FedDaemon(folder, patched).engine
        self.store, self.collection = self._engine.store, self._engine.collection
        for group in ("inventory", "verdict", "software", "driver"):
            self.store.drop_group(group)
        self.observability = Observability(self.store, self.collection)

    def collector(self, name: str) -> Collector:
        return self.collection.collectors[name]

    def ran(self, name: str, *absences: Absence) -> None:
        self.collector(name).attempted = True
        self.collector(name).failing = frozenset(absences)

    def put(self, group: str, device: str, values: Mapping[Series, Value]) -> None:
        self.store.put(group, device, block(values), float("inf"))

    def sees(self, component: Component, metrics: Iterable[str]) -> bool:
        return self.observability.sees(component, metrics, model.Node(self.store.snapshot()))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Nothing was read yet."""
    return Node(tmp_path, monkeypatch)


def states(*links: str) -> dict[Series, Value]:
    return {(STATE, ("0", SLOTS[0], link)): 1 for link in links}


def test_what_was_never_read_cannot_be_seen(node: Node) -> None:
    """Neither before the first run nor of a rule that has not asked for anything."""

    assert not node.sees(LINK, [STATE])
    node.ran("nvml_nvlink")
    assert not node.sees(LINK, [STATE])
    assert not node.sees(LINK, [])


def test_what_is_shown_is_seen(node: Node) -> None:
    """A series of the very component is enough, whatever its collector said of others."""
    node.ran("nvml_nvlink", Absence(SLOTS[0], "deadline", ""))
    node.put("nvml_nvlink", SLOTS[0], states("3"))

    assert node.sees(LINK, [STATE])
    assert node.sees(GPU, [STATE])


def test_another_link_or_port_is_not_it(node: Node) -> None:
    """Link 2 says nothing of link 3 of a GPU that was not read to the end; nor does the index of a GPU."""
    node.ran("nvml_nvlink", Absence(SLOTS[0], "deadline", ""))
    node.put("nvml_nvlink", SLOTS[0], {**states("2"), (STATE, ("3", SLOTS[0], "1")): 1})

    assert not node.sees(LINK, [STATE])


@pytest.mark.parametrize(("device", "seen"), [("mlx5_0:1", False), ("mlx5_0:2", True), ("mlx5_1:1", True)])
def test_a_port_that_failed_cannot_be_seen(node: Node, device: str, seen: bool) -> None:
    """The source names it as NCCL does; the adapter's other port and other adapters do not matter."""
    node.put("rdma", "mlx5_0:1", {("commwatch_rdma_port_state", ("mlx5_0", "1")): 1})
    port = Component("rdma_port", "mlx5_0/1", parts=frozenset({"mlx5_0/1", "ens1np0", "0000:18:00.0/port/1"}))
    assert node.sees(port, ["commwatch_rdma_port_state"])
    node.store.drop("rdma", "mlx5_0:1")

    node.ran("rdma", Absence(device, "unreadable", ""))
    assert node.sees(port, ["commwatch_rdma_port_state"]) == seen


def test_all_that_a_rule_reads_must_be_read(node: Node) -> None:
    """A fault that shows in two metrics is not gone while one of them is not read; one that never was is left out."""
    node.put("nvml_nvlink", SLOTS[0], states("3"))
    node.put("nvml_identity", SLOTS[0], {(INFO, ("0", SLOTS[0], "3", *[""] * 4)): 1})
    node.ran("nvml_nvlink")
    node.ran("nvml_identity")
    metrics = [STATE, INFO, "commwatch_nvlink_recoveries_total"]

    assert node.sees(LINK, metrics)
    node.store.drop_group("nvml_identity")
    assert node.sees(LINK, metrics), "the driver lists no such link"
    node.ran("nvml_identity", Absence("", "no_driver", ""))
    assert not node.sees(LINK, metrics)


@pytest.mark.parametrize("device", [SLOTS[0], f"{SLOTS[0]}/3", ""])
def test_a_device_that_failed_cannot_be_seen(node: Node, device: str) -> None:
    """The link itself, its GPU, or the whole source; another GPU's failure does not matter."""
    node.put("nvml_nvlink", SLOTS[0], states("3"))
    assert node.sees(LINK, [STATE])
    node.store.drop("nvml_nvlink", SLOTS[0])

    node.ran("nvml_nvlink", Absence(device, "deadline", ""))
    assert not node.sees(LINK, [STATE])
    node.ran("nvml_nvlink", Absence(SLOTS[1], "deadline", ""))
    assert node.sees(LINK, [STATE])


def test_a_fault_of_the_node_needs_all_devices(node: Node) -> None:
    """What is about the whole node is not gone while part of it is not read."""
    whole = Component("node", "")
    node.put("services", "", {("commwatch_service_running", ("nv-fabricmanager",)): 1})
    node.ran("services")
    assert node.sees(whole, ["commwatch_service_running"])
    node.store.drop_group("services")

    node.ran("services", Absence("x", "unreadable", ""))
    assert not node.sees(whole, ["commwatch_service_running"])


def test_an_analysis_is_as_good_as_its_collector(node: Node) -> None:
    """Flaps of a port are known while the port is read."""
    node.put("rdma_port_flaps", "mlx5_0/1", {(FLAPS, ("mlx5_0", "1")): 0})
    node.ran("rdma")
    assert node.sees(PORT, [FLAPS])
    node.store.drop_group("rdma_port_flaps")

    assert node.sees(PORT, [FLAPS])
    node.ran("rdma", Absence("mlx5_0/1", "unreadable", ""))
    assert not node.sees(PORT, [FLAPS])


def test_an_anomaly_is_over_when_its_source_was_read(node: Node) -> None:
    """There is no series of a counter that can be trusted again."""
    node.put("counters_anomaly", "rdma", {(ANOMALY, ("rdma", "mlx5_0/1", "rdma_port_link_downed_total")): 4})
    assert not node.sees(PORT, [ANOMALY])
    node.ran("rdma")
    assert node.sees(PORT, [ANOMALY])
    assert not node.sees(LINK, [ANOMALY]), "the driver was not read"
    node.store.drop_group("counters_anomaly")

    assert node.sees(PORT, [ANOMALY])
    node.ran("rdma", Absence("", "crashed", ""))
    assert not node.sees(PORT, [ANOMALY])


def test_what_shows_only_while_something_is_wrong_is_over_after_a_restart(node: Node) -> None:
    """A daemon that has not seen a series of it yet knows all the same who would have one."""
    setting = Component("setting", "NCCL_P2P_DISABLE/p2p_off")
    assert not node.sees(PORT, [ANOMALY])
    assert not node.sees(setting, ["commwatch_nccl_setting_processes"])
    assert node.sees(Component("daemon", "nvml"), ["commwatch_worker_restarts_total"])
    node.ran("rdma")
    node.ran("nccl_settings")

    assert node.sees(PORT, [ANOMALY])
    assert node.sees(setting, ["commwatch_nccl_setting_processes"])


def test_where_no_probe_runs_what_it_showed_is_over(node: Node) -> None:
    """After a restart with probes switched off there is no series of a probe, and there will be none."""
    assert node.sees(PROBE, [STREAK])


def test_a_result_that_grew_old_says_nothing_of_its_probe(node: Node) -> None:
    """As under a long job: its streak is gone, and only of a probe that is not configured any more it is over; in a
    pause of none."""
    node.put(PROBES, "all_reduce", {(STREAK, ("all_reduce", "nccl")): 3})
    assert node.sees(PROBE, [STREAK])
    attempts: Series = ("commwatch_probe_attempts_total", ("all_reduce", "nccl"))
    node.put(PROBES, "all_reduce", {attempts: 9})
    assert not node.sees(PROBE, [STREAK])
    node.put(PROBES, "all_reduce", {attempts: 9, ("commwatch_probe_setup_seconds", ("all_reduce", "nccl")): 2.5})
    assert node.sees(PROBE, [STREAK]), "a current result that has no such series says that there is nothing to tell"
    node.store.drop_group(PROBES)

    assert node.sees(PROBE, [STREAK])
    node.store.maintenance = "upgrade"
    node.collection.tend()
    assert not node.sees(PROBE, [STREAK])


def test_pairs_that_were_not_measured_for_long_say_nothing_of_a_pair_or_part(node: Node) -> None:
    """Nor does a node that has just started; a current matrix without a suspect does, and so does a node that measures
    no pairs."""
    probe, rate, suspect = ("pairs", "nccl"), "commwatch_pair_bandwidth_bytes_per_second", "commwatch_suspect_ratio"
    info: Series = ("commwatch_probe_info", (*probe, "pairs", "0", "8", "8", "", "", "", "none"))
    setup: Series = ("commwatch_probe_setup_seconds", probe)
    pair = Component("pair", f"{SLOTS[0]}-{SLOTS[1]}", parts=frozenset(SLOTS[:2]))
    assert node.sees(GPU, [suspect])
    node.put(PROBES, "all_reduce", {("commwatch_probe_attempts_total", ("all_reduce", "nccl")): 9})
    assert node.sees(GPU, [suspect])
    node.put(PROBES, "pairs", {info: 1, (rate, ("0", "1", "nccl")): 4e9, setup: 2.5})
    assert node.sees(GPU, [suspect])
    assert node.sees(pair, [rate, suspect])

    for old in ({info: 1, setup: None}, {info: 1}):
        node.put(PROBES, "pairs", old)
        assert not node.sees(GPU, [suspect])
        assert not node.sees(pair, [rate, suspect])


def test_a_group_that_reads_nothing_is_known_at_any_time(node: Node) -> None:
    """The daemon's own record needs no reading: a collector that rests does not fail."""
    node.put("daemon", "", {("commwatch_worker_stuck", ("nvml",)): 1})
    assert node.sees(Component("service", "nvml"), ["commwatch_worker_stuck"])
    node.store.drop_group("daemon")

    assert node.sees(Component("service", "nvml"), ["commwatch_worker_stuck"])


def test_every_group_of_a_node_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new analysis must say which collectors stand behind it, and each of these is one."""
    collectors = {row.name for source in SOURCES.values() for row in source.collectors}
    with whole_node("h100x8ndr", tmp_path, monkeypatch) as node:
        groups, store = {group for group, _ in node.store.blocks()}, node.store

    behind = {group: set(store.collectors(group)) for group in groups - collectors}
    assert all(names <= collectors for names in behind.values()), behind
    assert store.silent <= {metric for rules in RULE_SETS for rule in rules.rules for metric in rule.metrics_read}

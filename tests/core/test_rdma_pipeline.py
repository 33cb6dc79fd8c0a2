"""RDMA ports from the collector through analysis into the store, and nodes that have none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from commwatch.config.settings import Config, Duration, Inventory, RdmaSection, Sources
from commwatch.readings import Absence
from commwatch_exporters.snapshot import Block, Layout, Value
from support.core import ScriptedReader, collected
from support.fed_daemon import FedDaemon
from support.infiniband import add_device, add_port, write

FORGOTTEN_SECONDS = 3600.0
"""After which a port that is gone is another one when it comes back."""
PORT = ("mlx5_0", "1")
KEY = "mlx5_0:1"
LAYOUT = Layout((
    ("commwatch_rdma_port_state", PORT),
    ("commwatch_rdma_port_speed_bytes_per_second", PORT),
    ("commwatch_rdma_port_transmit_bytes_total", PORT),
    ("commwatch_rdma_port_receive_bytes_total", PORT),
    ("commwatch_rdma_out_of_sequence_total", PORT),
    ("commwatch_rdma_port_info", (*PORT, "InfiniBand", "0x1", "0x1", "28", "MT4129", "0000:18:00.0", "")),
))  # fmt: skip


class Node(FedDaemon):
    """A node with RDMA ports; it learns within 10 s."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patched, Config(inventory=Inventory(learn_after=Duration(10))))

    def run(self, state: Value, sent: Value = 0, lost: Value = 0, *absences: Absence, here: bool = True) -> None:
        """Five seconds later the port has this state and these counters."""
        values = [state, 50e9 if state == 4 else None, sent, sent, lost, 1]
        blocks = {KEY: Block(LAYOUT, values, self.clock.now + 5)} if here else {}
        self.feed("rdma", collected(blocks, *absences), 5)
        self.observe()

    def port(self, name: str) -> Value:
        return self.value(name, *PORT)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_a_port_is_learned_used_and_missed(node: Node) -> None:
    """Active for the learning time it is expected; its use shows; when it drops the flap and the time are counted."""
    for number in range(4):
        node.run(4, number * 100_000_000_000)
    assert node.port("rdma_port_transmit_utilization_ratio") == pytest.approx(0.4)
    assert (node.port("rdma_port_expected"), node.value("expected", "rdma_port")) == (1, 1)
    assert (node.port("rdma_port_flaps_total"), node.port("rdma_port_down_seconds_total")) == (0, 0)

    node.run(1, 400_000_000_000)
    node.run(1, 400_000_000_000)

    assert (node.port("rdma_port_flaps_total"), node.port("rdma_port_down_seconds_total")) == (1, 5)
    assert (node.value("expected", "rdma_port"), node.value("present", "rdma_port")) == (1, 0)
    assert node.port("rdma_port_expected") == 1


def test_a_port_that_is_reset_in_maintenance_has_not_flapped(node: Node) -> None:
    """Its drops are counted all the same, and after the maintenance they are of interest again."""
    node.run(4)
    node.pause()
    for state in (1, 4):
        node.run(state)
    node.resume()
    node.run(4)
    assert (node.port("rdma_port_flaps_total"), node.port("rdma_port_flaps_recent")) == (1, None)

    node.run(1)
    assert (node.port("rdma_port_flaps_total"), node.port("rdma_port_flaps_recent")) == (2, 1)


def test_a_device_that_goes_leaves_only_what_is_expected(node: Node) -> None:
    """Its values, its use and its drops are gone; that it should be here stays."""
    for number in range(4):
        node.run(4, number)
    node.run(None, here=False)

    assert node.port("rdma_port_state") is None
    assert node.port("rdma_port_transmit_utilization_peak_ratio") is None
    assert node.port("rdma_port_flaps_total") is None
    assert node.port("rdma_port_expected") == 1


def test_a_port_that_comes_back_goes_on_counting_within_an_hour(node: Node) -> None:
    """A driver that is loaded again is no new port; one of a pod that ended an hour ago is."""
    for state in (4, 1, 4):
        node.run(state)
    node.run(None, here=False)
    node.run(4)
    assert (node.port("rdma_port_flaps_total"), len(node.resets())) == (1, 1)

    node.clock.now += FORGOTTEN_SECONDS
    node.run(None, here=False)
    assert node.resets() == {}
    node.run(4)

    assert node.port("rdma_port_flaps_total") == 0


def test_when_the_last_port_goes_none_is_present(node: Node) -> None:
    """The source looked for ports and found none, which is not the same as not having looked."""
    for number in range(4):
        node.run(4, number)
    node.feed("rdma", {"": {}}, 5)
    node.observe()

    assert node.value("expected", "rdma_port") == 1
    assert node.value("present", "rdma_port") == 0


GONE = None
FULL, WRAPPED = (1000, 2**32 - 1), (1001, 4)
LOST, SENT, USE = "out_of_sequence_total", "port_transmit_bytes_total", "port_transmit_utilization_ratio"
COUNTED: dict[str, tuple[list[tuple[int, int] | None], str, Any, int]] = {
    "a counter of 32 bits that wraps goes on growing": ([FULL, WRAPPED], LOST, 2**32 + 4, 0),
    "a driver that is loaded again is a reset": ([FULL, WRAPPED, (0, 0)], LOST, 0, 1),
    "one that has wrapped goes on when its port comes back": ([FULL, WRAPPED, GONE, (1002, 6)], LOST, 2**32 + 6, 0),
    "of a port that is gone nothing is left of one that never wrapped": ([FULL, GONE, WRAPPED], LOST, 4, 0),
    "counters that somebody cleared are a reset, seen once": ([(1000, 0), (2000, 0), (5, 0), (6, 0)], SENT, 6, 1),
    "what a port had sent when it went says nothing of now": ([(0, 0), GONE, (10**9, 0)], USE, None, 0),
    "the use of a port begins again when it comes back": (
        [(0, 0), GONE, (10**9, 0), (2 * 10**9, 0)], USE, pytest.approx(0.2e9 / 50e9), 0),
}  # fmt: skip
"""Bytes sent and packets out of sequence of each run, None while the port is gone; a metric, its value, and resets."""


@pytest.mark.parametrize(("runs", "metric", "shown", "resets"), COUNTED.values(), ids=COUNTED)
def test_a_counter_grows_or_is_seen_to_begin_again(
    node: Node, runs: list[tuple[int, int] | None], metric: str, shown: Value, resets: int
) -> None:
    """Containers' ports come and go, drivers are loaded again, and counters of 32 bits wrap."""
    for counters in runs:
        node.run(None, here=False) if counters is None else node.run(4, *counters)

    assert node.port(f"rdma_{metric}") == shown
    assert node.resets().get(("rdma", KEY), 0) == resets


@pytest.mark.parametrize(
    ("boot", "after", "exposed"),
    [("boot", 5, 2**32 + 5), ("boot", 3, 3), ("another boot", 5, 5), ("", 5, 5)],
)
def test_a_wrap_outlives_the_daemon(node: Node, boot: str, after: int, exposed: int) -> None:
    """After a restart the number goes on; not after a boot, and not where the counter is lower than it was."""
    node.run(4, 1000, 2**32 - 1)
    node.run(4, 1001, 4)
    node.save()
    node.restart(boot)
    node.run(4, 1002, after)
    assert node.port("rdma_out_of_sequence_total") == exposed
    node.run(4, 1003, after + 1)
    assert node.port("rdma_out_of_sequence_total") == exposed + 1


def test_a_reset_is_not_kept(node: Node) -> None:
    """Counters that began again before the daemon ended have lost nothing any more."""
    for sent, lost in ((1000, 2**32 - 1), (1001, 4)):
        node.run(4, sent, lost)
    node.save()
    node.run(4, 0, 0)
    node.save()
    node.restart()
    node.run(4, 1000, 10)
    assert node.port("rdma_out_of_sequence_total") == 10


@pytest.mark.parametrize("is_of_020", [False, True])
@pytest.mark.parametrize(
    ("exclude", "expected"), [("mlx5_0", None), ("0000:18:*", None), ("mlx5_1", 1), ("0000:19:*", 1)]
)
def test_a_port_that_the_configuration_leaves_out_is_not_missed(
    node: Node, tmp_path: Path, exclude: str, expected: int | None, *, is_of_020: bool
) -> None:
    """It was learned before somebody named it, such as one that manages NVSwitches; 0.2.0 kept no addresses."""
    for _ in range(4):
        node.run(4)
    if is_of_020:
        add_device(tmp_path / "sysfs")
        node.engine.pipeline.inventory.state.rdma_addresses.clear()
    node.save()
    node.restart(config=Config(sources=Sources(rdma=RdmaSection(exclude=(exclude,)))))
    node.run(4, here=expected is not None)
    node.run(4, here=False)

    assert (node.port("rdma_port_expected"), node.value("expected", "rdma_port")) == (expected, expected)


@pytest.mark.parametrize(("gids", "expected"), [((), None), (("0",), 1), (None, 1)])
def test_a_port_for_packets_alone_is_not_missed(
    node: Node, tmp_path: Path, gids: tuple[str, ...] | None, expected: int | None
) -> None:
    """Version 0.2.0 learned it; where no GID table shows, nothing says that it is one."""
    for _ in range(4):
        node.run(4)
    node.save()
    port = add_port(add_device(tmp_path / "sysfs"))
    if gids is not None:
        (port / "gids").mkdir()
        write(port / "gids", dict.fromkeys(gids, "fe80::"))
    node.restart()
    node.run(4, here=False)

    assert (node.port("rdma_port_expected"), node.value("expected", "rdma_port")) == (expected, expected)


HOME, AWAY, BOND = "eth0", "net1", "bond0"
"""Names of the interface of a RoCE port: on the host, in a container, and of the host's bond; the last two are not
read."""
ROUTED, LOCAL = "roce_v2_ipv4", "roce_v2_link_local"
IN_A_POD = (4, AWAY, ROUTED, None)
GIVEN_BACK = (1, HOME, LOCAL, None)
ROCE: dict[str, tuple[list[tuple[int, str, str, Value]], int | None]] = {
    "a container has given it back": ([IN_A_POD, GIVEN_BACK], None),
    "and another one has taken it": ([IN_A_POD, GIVEN_BACK, IN_A_POD], 1),
    "whose link is lost then": ([IN_A_POD, GIVEN_BACK, IN_A_POD, (1, AWAY, ROUTED, None)], 1),
    "the host has given it an address": ([IN_A_POD, (1, HOME, ROUTED, None)], 1),
    "the host has switched it on, and it has no link": ([IN_A_POD, (1, HOME, LOCAL, 0)], 1),
    "no container had it": ([(4, HOME, ROUTED, 1), GIVEN_BACK], 1),
    "the host's bond had it, and is gone": ([(4, BOND, ROUTED, 1), GIVEN_BACK], 1),
}
"""State, interface, kind of the best GID and carrier of a RoCE port from phase to phase."""


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("phases", "expected"), ROCE.values(), ids=ROCE)
def test_a_port_that_a_container_gives_back_switched_off_is_not_missed(
    node: Node, phases: list[tuple[int, str, str, Value]], expected: int | None, *, is_restarted: bool
) -> None:
    """The host does not use it, and the next container sets it up; what the host has set up itself is missed."""
    for state, interface, kind, carrier in phases:
        if is_restarted:
            node.save()
            node.restart()
        for _ in range(4):
            ethernet: dict[Any, Value] = {
                ("commwatch_ethernet_info", ("eth9", "0000:19:00.0", "mlx5_core", "")): 1,
                ("commwatch_ethernet_carrier", ("eth9",)): 1,
            }
            if interface != AWAY:
                master = BOND if interface == BOND else ""
                ethernet["commwatch_ethernet_info", (HOME, "0000:18:00.0", "mlx5_core", master)] = 1
                ethernet["commwatch_ethernet_carrier", (HOME,)] = carrier
            node.feed("network", {HOME: ethernet})
            port: dict[Any, Value] = {
                ("commwatch_rdma_port_state", PORT): state,
                ("commwatch_rdma_port_gids", PORT): 1,
                ("commwatch_rdma_port_gid_index", (*PORT, kind)): 0,
                ("commwatch_rdma_port_info", (*PORT, "Ethernet", "", "", "28", "MT4129", "0000:18:00.0", interface)): 1,
            }
            node.feed("rdma", {KEY: port}, 5)
            node.observe()

    assert (node.port("rdma_port_expected"), node.value("expected", "rdma_port")) == (expected, expected)
    assert expected or node.port("rdma_port_flaps_recent") is None


@pytest.mark.parametrize("has_rdma", [False, True])
def test_a_node_without_rdma_starts_no_process(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_rdma: bool
) -> None:
    """Nothing is ordered of the reader, which starts its worker at the first order."""
    monkeypatch.undo()
    if has_rdma:
        add_port(add_device(tmp_path / "sysfs"))
    collection = node.engine.collection
    collection.tend()
    reader = collection.reader_of(collection.collectors["rdma"])

    assert isinstance(reader, ScriptedReader)
    assert [name for name, _ in reader.orders if name == "rdma"] == ["rdma"] * has_rdma
    assert ("rdma" in collection.absent_sources) == (not has_rdma)


@pytest.mark.parametrize(("is_learned", "absent"), [(True, None), (False, "no RDMA device")])
def test_ports_that_should_be_here_are_missed(
    node: Node, monkeypatch: pytest.MonkeyPatch, absent: str | None, *, is_learned: bool
) -> None:
    """Where ports were learned, a class that is gone is a fault of the node; where none were, the source is absent."""
    if is_learned:
        for _ in range(4):
            node.run(4)
    monkeypatch.undo()

    assert node.engine.presence.why_absent("rdma") == absent


@pytest.mark.parametrize(
    ("error", "absent"),
    [
        (FileNotFoundError, "no RDMA device"), (NotADirectoryError, "no RDMA device"), (PermissionError, None),
        (OSError, None),
    ],
)  # fmt: skip
def test_a_class_that_cannot_be_listed_is_no_node_without_rdma(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: type[OSError], absent: str | None
) -> None:
    """The source is read, and gives the reason for which it is not."""

    def refuse(path: str) -> list[str]:
        raise error(path)

    monkeypatch.undo()
    monkeypatch.setattr(os, "listdir", refuse)
    assert node.engine.presence.why_absent("rdma") == absent


def test_what_must_not_be_lost_is_told_from_what_goes_on(node: Node) -> None:
    """A port that is seen first, expected or dropped is to be saved at once; while it stays as it is, nothing is."""
    changed, version = [], node.engine.version
    for state in (4, 4, 4, 4, 1, 1, 4):
        node.run(state)
        changed.append(node.engine.version != version)
        version = node.engine.version

    assert changed == [True, False, True, False, True, False, False]

"""RDMA ports in the inventory: learned like interfaces, told from ports that were not read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from commwatch.node.inventory import Inventory
from commwatch.node.inventory_state import InventoryState
from commwatch.node.observation import Observation, SeenPort, observe_blocks
from commwatch_exporters.snapshot import Block, Layout, Value

UP, DOWN, UNREAD = SeenPort(is_up=True, speed=50e9), SeenPort(is_up=False), SeenPort(is_up=None)
EXPECTED = "commwatch_rdma_port_expected"


def node(ports: Mapping[str, SeenPort]) -> Observation:
    return Observation(rdma_ports=ports)


def watch(subject: Inventory, ports: Mapping[str, SeenPort], start: float, end: float) -> list[str]:
    """Observe the same every minute from start to end, both included."""
    learned = []
    now = start
    while now <= end:
        learned += subject.observe(node(ports), now)
        now += 60
    return learned


def learned_two() -> Inventory:
    """Two ports are expected; a third has no cable."""
    subject = Inventory(InventoryState(), {}, learn_after_seconds=600)
    watch(subject, {"mlx5_0:1": UP, "mlx5_1:1": UP, "mlx5_2:1": DOWN}, 0, 600)
    return subject


def numbers(subject: Inventory) -> tuple[int | None, int | None]:
    return subject.expected()["rdma_port"], subject.present()["rdma_port"]


def test_ports_are_expected_once_they_were_active() -> None:
    """For good after ten minutes; a port without a cable is no part of the node, and no interface is."""
    subject = Inventory(InventoryState(), {}, learn_after_seconds=600)
    ports = {"mlx5_0:1": UP, "mlx5_1:1": DOWN}

    assert watch(subject, ports, 0, 540) == []
    assert numbers(subject) == (1, 1)
    assert watch(subject, ports, 600, 600) == ["RDMA port mlx5_0:1 is expected at 50 GB/s"]
    assert numbers(subject) == (1, 1)
    assert subject.expected()["ethernet_port"] is None
    block = subject.block(600)
    assert (block.get(EXPECTED, "mlx5_0", "1"), block.get(EXPECTED, "mlx5_1", "1")) == (1, None)


def test_what_is_expected_is_told_with_its_speed() -> None:
    """Of ports and interfaces alike: the fastest that was stable; no speed where none was ever read."""
    subject = Inventory(InventoryState(), {}, learn_after_seconds=600)
    unknown = SeenPort(is_up=True)
    for now in range(0, 1260, 60):
        port = UP if now <= 660 else SeenPort(is_up=True, speed=25e9)
        subject.observe(Observation(rdma_ports={"mlx5_0:1": port}, ports={"ens1": port, "ens2": unknown}), now)
    block = subject.block(1200)

    for family, labels in (("rdma_port", ("mlx5_0", "1")), ("ethernet", ("ens1",))):
        assert block.get(f"commwatch_{family}_expected", *labels) == 1
        assert block.get(f"commwatch_{family}_speed_expected_bytes_per_second", *labels) == 50e9
    assert block.get("commwatch_ethernet_expected", "ens2") == 1
    assert block.get("commwatch_ethernet_speed_expected_bytes_per_second", "ens2") is None


def test_a_port_that_went_down_or_away_stays_expected() -> None:
    """Only the operator lowers an expectation; a restart keeps it."""
    subject = learned_two()
    subject.observe(node({"mlx5_0:1": DOWN, "mlx5_2:1": DOWN}), 660)
    kept = msgspec.json.decode(msgspec.json.encode(subject.state), type=InventoryState)
    subject = Inventory(kept, {}, learn_after_seconds=600)
    subject.observe(node({"mlx5_0:1": DOWN, "mlx5_2:1": DOWN}), 720)

    assert numbers(subject) == (2, 0)
    assert subject.block(720).get(EXPECTED, "mlx5_1", "1") == 1
    assert subject.accept() == [
        "RDMA port mlx5_0:1 is no longer expected",
        "RDMA port mlx5_1:1 is no longer expected",
    ]
    assert numbers(subject) == (None, 0)


@pytest.mark.parametrize("seen", [node({"mlx5_0:1": UP, "mlx5_1:1": UNREAD}), Observation()], ids=["one", "none"])
def test_a_port_that_was_not_read_leaves_the_number_open(seen: Observation) -> None:
    """It is neither up nor down; accepting keeps what was learned of it, also where nothing gave any port."""
    subject = learned_two()
    subject.observe(seen, 660)

    assert numbers(subject) == (2, None)
    assert subject.accept() == []
    assert numbers(subject) == (2, None)


def test_a_port_that_nobody_expects_hides_nothing() -> None:
    """One that never could be read leaves the number of the others as it is."""
    subject = learned_two()
    subject.observe(node({"mlx5_0:1": UP, "mlx5_1:1": DOWN, "mlx5_2:1": UNREAD}), 660)

    assert numbers(subject) == (2, 1)


def test_a_port_not_read_for_a_while_goes_on_learning() -> None:
    """A run in which it could not be read is no break of the ten minutes, as it says nothing."""
    subject = Inventory(InventoryState(), {}, learn_after_seconds=600)
    watch(subject, {"mlx5_0:1": UP}, 0, 300)
    watch(subject, {"mlx5_0:1": UNREAD}, 360, 360)

    assert watch(subject, {"mlx5_0:1": UP}, 420, 660) == ["RDMA port mlx5_0:1 is expected at 50 GB/s"]


def test_the_largest_stable_speed_is_the_capacity() -> None:
    """A link that comes up slower keeps the capacity of before."""
    subject = Inventory(InventoryState(), {}, learn_after_seconds=600)
    subject.observe(node({"mlx5_0:1": SeenPort(is_up=True, speed=25e9)}), 0)
    assert subject.rdma_capacity("mlx5_0:1") == 25e9
    watch(subject, {"mlx5_0:1": UP}, 60, 660)
    watch(subject, {"mlx5_0:1": SeenPort(is_up=True, speed=25e9)}, 720, 1440)

    assert subject.rdma_capacity("mlx5_0:1") == 50e9
    assert subject.rdma_capacity("mlx5_9:1") is None


def test_blocks_say_which_ports_are_active() -> None:
    """Active alone is up; a port of which only the identity is known was not read."""
    states: dict[str, Value] = {"mlx5_0": 4, "mlx5_1": 2, "mlx5_2": 1, "mlx5_3": None}
    blocks = []
    for device, state in states.items():
        layout = Layout((
            ("commwatch_rdma_port_state", (device, "1")),
            ("commwatch_rdma_port_speed_bytes_per_second", (device, "1")),
            ("commwatch_rdma_port_info", (device, "1", "InfiniBand", "0x1", "0x1", "28", "MT4129", "", "")),
        ))  # fmt: skip
        blocks.append(Block(layout, [state, 50e9 if state == 4 else None, 1], 0.0))

    assert observe_blocks(blocks, {"rdma"}).rdma_ports == {
        "mlx5_0:1": UP,
        "mlx5_1:1": DOWN,
        "mlx5_2:1": DOWN,
        "mlx5_3:1": UNREAD,
    }
    assert observe_blocks(blocks, {"network"}).rdma_ports is None

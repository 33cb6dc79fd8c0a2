"""Devices that a collector could not read whole: named while it lasts, once by collector, device and reason."""

from __future__ import annotations

from commwatch.node.inventory import Inventory
from commwatch.node.inventory_state import InventoryState
from commwatch.node.observation import Observation, SeenGpu
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.unread_tracker import UnreadDevices
from commwatch.readings import Absence
from support.core import SLOTS, ScriptedReader, collected, collector


class Watched:
    """A collector whose runs go as they are told."""

    def __init__(self) -> None:
        self.store = Store()
        inventory = Inventory(InventoryState(), {}, 60.0)
        inventory.observe(Observation(gpus=(SeenGpu("GPU-0", 0, SLOTS[0]),)), 0.0)
        self.devices = UnreadDevices(self.store, inventory)

    def run(self, *absences: Absence, name: str = "nvml_gpu", at: float = 0.0) -> list[tuple[str, str, str]]:
        self.devices.on_batch(Outcome(collector(name, ScriptedReader()), collected({}, *absences), None, at))
        return self.named()

    def named(self) -> list[tuple[str, str, str]]:
        samples = self.store.snapshot().samples("commwatch_collector_device_failing")
        return [(labels["collector"], labels["device"], labels["reason"]) for labels, _ in samples]


def test_a_device_that_fails_is_named_until_it_is_read() -> None:
    """By its address where only its index was told; two failures of one reason are one."""
    watched = Watched()
    unknown = Absence("index:0", "unreadable", "a"), Absence(SLOTS[0], "unreadable", "b")

    assert watched.run(*unknown) == [("nvml_gpu", SLOTS[0], "unreadable")]
    assert watched.run(name="nvml_pcie") == [("nvml_gpu", SLOTS[0], "unreadable")]
    assert watched.run() == []


def test_what_is_the_whole_source_is_no_device() -> None:
    """It is a failing collector."""
    assert Watched().run(Absence("", "unreadable", "x")) == []


def test_during_maintenance_no_device_of_the_driver_is_named() -> None:
    """Its collectors do not run; others do."""
    watched = Watched()
    watched.run(Absence(SLOTS[0], "unreadable", "x"))
    watched.run(Absence("mlx5_0:1", "unreadable", "x"), name="rdma")

    watched.devices.pause()

    assert watched.named() == [("rdma", "mlx5_0:1", "unreadable")]


def test_many_devices_are_not_all_named() -> None:
    """A node of ten thousand interfaces has one page."""
    watched = Watched()

    assert len(watched.run(*(Absence(f"eth{n}", "unreadable", "x") for n in range(100)), name="network")) == 64

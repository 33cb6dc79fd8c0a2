"""PCIe links behind the collectors: what is degraded stands in the store while it is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.config.settings import Config, Duration, Inventory
from commwatch.readings import Absence
from commwatch_exporters.snapshot import Series, Value
from support.core import collected
from support.fed_daemon import FedDaemon

GPU = ("0", "0000:18:00.0")
SLOT, PORT, NIC, NIC_PORT = GPU[1], "0000:17:01.0", "0000:3a:00.0", "0000:39:01.0"
IDENTITY, LINKS, USE, GPM, PCI = "nvml_identity", "nvml_pcie", "nvml_gpu", "nvml_gpm", "pci"
LEARN_SECONDS = 15.0
LINK_DEGRADED = "pcie_link_degraded"
DEVICE_DEGRADED = "pcie_device_link_degraded"


class Node(FedDaemon):
    """A node with one GPU and one adapter, each under a port of its own."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patched, Config(inventory=Inventory(learn_after=Duration(LEARN_SECONDS))))

    def identify(self) -> None:
        info: dict[Series, Value] = {("commwatch_gpu_info", (*GPU, "GPU-0", "1", "H100", "hopper")): 1}
        driver: dict[Series, Value] = {("commwatch_software_info", ("580", "13", "13.0")): 1}
        self.feed(IDENTITY, collected({"": self.block(driver), SLOT: self.block(info)}))

    def link(self, width: Value = 16, generation: Value = 5) -> None:
        """NVML's word on the link: both ends can do 16 lanes of generation 5."""
        values = {"width_lanes": width, "generation": generation, "width_max_lanes": 16, "generation_max": 5}
        series: dict[Series, Value] = {(f"commwatch_pcie_link_{name}", GPU): value for name, value in values.items()}
        self.feed(LINKS, collected({SLOT: self.block(series)}))

    def use(self, ratio: Value, state: Value = None) -> None:
        values: dict[Series, Value] = {
            ("commwatch_gpu_utilization_ratio", GPU): ratio,
            ("commwatch_gpu_performance_state", GPU): state,
        }
        self.feed(USE, collected({SLOT: self.block(values)}))

    def traffic(self, rate: Value, total: Value = None) -> None:
        values: dict[Series, Value] = {
            ("commwatch_pcie_transmit_rate_bytes_per_second", GPU): rate,
            ("commwatch_pcie_receive_rate_bytes_per_second", GPU): 0.0,
            ("commwatch_pcie_transmit_bytes_total", GPU): total,
            ("commwatch_pcie_receive_bytes_total", GPU): 0,
        }
        self.feed(GPM, collected({SLOT: self.block(values)}))

    def tree(self, adapter: tuple[Value, Value] = (5, 16), port_above_gpu: tuple[Value, Value] = (5, 16)) -> None:
        """What sysfs says: generation and width now of the adapter, and the maxima of the port above the GPU."""
        devices = {
            PORT: ("root_port", "pci0000:17", (5, 16), port_above_gpu),
            SLOT: ("gpu", PORT, (5, 16), (5, 16)),
            NIC_PORT: ("root_port", "pci0000:39", (5, 16), (5, 16)),
            NIC: ("nic", NIC_PORT, adapter, (5, 16)),
        }
        blocks = {}
        for address, (role, parent, now, most) in devices.items():
            metric = "commwatch_pcie_device_link"
            blocks[address] = self.block({
                (f"{metric}_generation", (address,)): now[0],
                (f"{metric}_width_lanes", (address,)): now[1],
                (f"{metric}_generation_max", (address,)): most[0],
                (f"{metric}_width_max_lanes", (address,)): most[1],
                ("commwatch_pcie_device_info", (address, role, parent, "0", "0x10de", "0x2330")): 1,
            })  # fmt: skip
        self.feed(PCI, collected(blocks))

    def cycle(self, width: Value = 16, generation: Value = 5, use: Value = 1.0) -> None:
        self.use(use)
        self.link(width, generation)
        self.clock.now += 10

    def verdict(self, aspect: str) -> Value:
        return self.value(LINK_DEGRADED, *GPU, aspect)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node of which nothing is known."""
    return Node(tmp_path, monkeypatch)


def test_a_narrow_link_is_degraded_until_it_is_accepted(node: Node) -> None:
    """Before anything was learned the maximum counts, then what was learned; accepting it ends the verdict."""
    node.identify()
    node.link(width=8)
    assert node.verdict("width") == 1
    for _ in range(4):
        node.identify()
        node.cycle()
    assert node.verdict("width") == 0
    node.cycle(width=8)
    assert node.verdict("width") == 1

    node.identify()
    node.accept()
    node.cycle(width=8)
    assert node.verdict("width") == 0


def test_a_slow_link_counts_under_load_alone(node: Node) -> None:
    """An idle GPU has no verdict on its generation; under load it is degraded, and the seconds count."""
    node.cycle(generation=1, use=0.0)
    node.cycle(generation=1, use=0.0)
    assert node.verdict("generation") is None

    for _ in range(4):
        node.cycle(generation=3)
    assert node.verdict("generation") == 1
    assert node.value("pcie_link_degraded_seconds_total", *GPU, "generation") == 20


def test_traffic_is_load(node: Node) -> None:
    """A GPU that moves data over PCIe without a kernel is under load."""
    for _ in range(3):
        node.use(0.0)
        node.traffic(20e9)
        node.link(generation=4)
        node.clock.now += 10

    assert node.verdict("generation") == 1


@pytest.mark.parametrize(
    ("states", "degraded"), [((0, 0, 0), 1), ((2, 2, 2), None), ((0, 0, 2), None), ((None, None, None), 1)]
)
def test_a_generation_is_judged_between_two_looks_in_the_highest_state(
    node: Node, states: tuple[Value, ...], degraded: Value
) -> None:
    """Boards that work in P2 run their links slower by design, and so does one that is about to leave P0."""
    for state in states:
        node.use(1.0, state)
        node.traffic(20e9)
        node.link(generation=4)
        node.clock.now += 10

    assert node.verdict("generation") == degraded


def test_the_port_above_sets_a_limit_too(node: Node) -> None:
    """Where sysfs shows that the slot can do less than the driver says, that is no fault."""
    node.tree(port_above_gpu=(4, 8))
    for _ in range(3):
        node.cycle(width=8, generation=4)

    assert (node.verdict("width"), node.verdict("generation")) == (0, 0)


def test_a_gpu_that_is_not_read_has_no_verdict(node: Node) -> None:
    """With the readings the verdict goes; its seconds go on from where they were."""
    for _ in range(3):
        node.cycle(width=8)
    node.feed(LINKS, collected(None, Absence(SLOT, "lost", "nvml: GPU is lost")))
    assert node.verdict("width") is None

    node.clock.now += 100
    node.cycle(width=8)
    assert node.value("pcie_link_degraded_seconds_total", *GPU, "width") == 20


def test_the_driver_let_go_leaves_no_verdict(node: Node) -> None:
    """In maintenance the driver is not read, and nothing is said of its links."""
    node.cycle(width=8)
    node.pause()

    assert node.verdict("width") is None


def test_an_adapters_link_stands_beside_its_device(node: Node) -> None:
    """A slow or narrow link of an adapter is degraded without any load, and told once in the log."""
    node.tree(adapter=(5, 8))
    node.tree(adapter=(5, 8))
    assert node.value(DEVICE_DEGRADED, NIC, "nic", "width") == 1
    assert node.value(DEVICE_DEGRADED, NIC, "nic", "generation") == 0
    node.tree()

    assert node.value(DEVICE_DEGRADED, NIC, "nic", "width") == 0
    told = [(one["event"], one["device"], one["aspect"]) for one in node.log if "a PCIe link" in one["event"]]
    assert told == [
        ("a PCIe link is degraded", NIC, "width"),
        ("a PCIe link is as it should be again", NIC, "width"),
    ]


def test_without_the_tree_there_is_no_verdict_on_adapters(node: Node) -> None:
    """When sysfs cannot be read any more, or its worker is gone, nothing is said."""
    node.tree(adapter=(5, 8))
    node.feed(PCI, collected(None, Absence("", "crashed", "the worker ended")))

    assert node.value(DEVICE_DEGRADED, NIC, "nic", "width") is None


def test_pcie_use_is_of_the_expected_link(node: Node) -> None:
    """The use of a GPU's PCIe link is of 63 GB/s, its expected 16 lanes of generation 5."""
    node.identify()
    node.link()
    node.identify()
    node.traffic(0.0, total=0)
    node.clock.now += 10
    node.traffic(1.0, total=630_153_846_154)

    used = node.value("pcie_transmit_utilization_ratio", *GPU)
    assert used == pytest.approx(1.0)

"""The node in types: how a part finds its numbers, and what tells parts apart."""

from __future__ import annotations

import pytest

from commwatch_exporters.node.model import Gpu, Node, NvLink, PcieDevice, RdmaPort
from commwatch_exporters.node.parts import Column, Keyed, KeyedColumn, Number, Part
from support.pages import snapshot_of

SLOT = "0000:17:00.0"
STATE, EXPECTED = "commwatch_nvlink_link_state", "commwatch_nvlink_link_expected"


def test_a_number_is_that_of_now_and_absent_where_it_was_not_read() -> None:
    """Of a class it is the column itself."""
    node = Node(snapshot_of({(STATE, ("0", SLOT, "3")): 1, (STATE, ("0", SLOT, "4")): None}))

    assert NvLink.state == Column(NvLink, STATE)
    assert [(link.number, state) for link, state in node.each(NvLink.state)] == [("3", 1)]
    assert node.part(NvLink, SLOT, "3").state == 1
    assert node.part(NvLink, SLOT, "4").state is None
    assert node.part(NvLink, SLOT, "3").recoveries is None


def test_a_part_of_a_gpu_is_known_whatever_the_index() -> None:
    """The index of a GPU moves when another one is lost; what was learned bears the one of then."""
    node = Node(snapshot_of({(STATE, ("1", SLOT, "3")): 0}, {(EXPECTED, ("2", SLOT, "3")): 1}))
    [(link, _)] = node.each(NvLink.state)

    assert link.expected == 1
    assert link.gpu.index == "1"
    assert (link.gpu.links, link.gpu.links_up, link.gpu.links_expected) == ([link], 0, 1)


def test_gpus_without_an_address_stay_apart() -> None:
    """One that needs a reset from the first start on has no address; its index stands for it."""
    node = Node(snapshot_of({("commwatch_gpu_state", (index, "")): 4 for index in ("5", "6")}))

    assert [(gpu.index, gpu.state) for gpu in node.gpus] == [("5", 4), ("6", 4)]


def test_numbers_by_a_key_are_a_mapping() -> None:
    """Of each part its own."""
    metric = "commwatch_pcie_link_degraded"
    node = Node(snapshot_of({(metric, ("0", SLOT, "width")): 1, (metric, ("1", "0000:18:00.0", "width")): 0}))

    assert Gpu.pcie_degraded == KeyedColumn(Gpu, metric, "aspect")
    assert [(gpu.index, aspect, flag) for gpu, aspect, flag in node.each_keyed(Gpu.pcie_degraded)] == [
        ("0", "width", 1), ("1", "width", 0)
    ]  # fmt: skip
    assert node.part(Gpu, SLOT).pcie_degraded == {"width": 1}
    assert node.part(Gpu, "0000:19:00.0").pcie_degraded == {}


def test_labels_come_from_the_own_series_or_the_info() -> None:
    """Where neither has one it is empty."""
    info = ("mlx5_0", "1", "InfiniBand", "1", "2", "28.39", "MT4129", SLOT, "ib0")
    node = Node(snapshot_of({("commwatch_rdma_port_info", info): 1, ("commwatch_rdma_port_state", ("mlx5_1", "1")): 4}))

    assert node.part(RdmaPort, "mlx5_0", "1").interface == "ib0"
    assert [(port.device, port.link_layer) for port in node.rdma_ports] == [("mlx5_0", "InfiniBand"), ("mlx5_1", "")]


def test_the_way_up_ends_where_nothing_is_read_and_in_no_circle() -> None:
    """A host bridge is no device; a parent that is itself below would never end."""
    metric = "commwatch_pcie_device_info"
    devices = {"gpu": ("gpu", "switch"), "switch": ("switch_port", "pci0000:16"), "loop": ("nic", "loop")}
    node = Node(snapshot_of({(metric, (one, role, up, "0", "", "")): 1 for one, (role, up) in devices.items()}))

    assert [one.address for one in node.part(PcieDevice, "gpu").above] == ["switch", "pci0000:16"]
    assert [one.address for one in node.part(PcieDevice, "loop").above] == ["loop"]


def test_a_kind_refuses_a_metric_that_does_not_name_it() -> None:
    """A column that could never be found is an error when the kind is defined."""

    class Wrong(Part):
        IDENTITY = ("device", "port")

    for column, problem in (
        (Number("nvlink_link_state"), "does not name a Wrong"),
        (Number("rdma_retries_exceeded_total"), r"has the labels \('kind',\) too"),
        (Keyed("rdma_port_state"), "expected one more label"),
    ):
        with pytest.raises(TypeError, match=problem):
            column.__set_name__(Wrong, "number")

"""The classes of paths, against tables worked out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.topology.model import Gpu, PciDevice, PcieLink, Topology
from topology.harness import driver, gpu, links, matrix, shown, topology
from topology.trees import Tree, domains, hgx, rtx3090x4, two_sockets, virtual_machine


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            rtx3090x4,
            "X PIX NODE NODE NODE\nPIX X NODE NODE NODE\nNODE NODE X PIX NODE\nNODE NODE PIX X NODE\n"
            "NODE NODE NODE NODE X",
        ),
        (
            hgx,  # NIC0 is mlx5_2 on the second socket
            "X PIX SYS SYS SYS PIX\nPIX X SYS SYS SYS PIX\nSYS SYS X PIX PIX SYS\nSYS SYS PIX X PIX SYS\n"
            "SYS SYS PIX PIX X SYS\nPIX PIX SYS SYS SYS X",
        ),
        (two_sockets, "X PHB SYS NODE\nPHB X SYS NODE\nSYS SYS X SYS\nNODE NODE SYS X"),
        (virtual_machine, "X PHB PHB\nPHB X PHB\nPHB PHB X"),
        (domains, "X PXB ? PXB\nPXB X ? PXB\n? ? X ?\nPXB PXB ? X"),
    ],
)
def test_classes_of_known_machines(build: Callable[[Path], Tree], expected: str, tmp_path: Path) -> None:
    """GPUs first, then NICs: each cell is what nvidia-smi would say for PCIe alone."""
    assert matrix(topology(build(tmp_path).root)) == expected


def test_functions_of_one_card_have_a_single_bridge_between(tmp_path: Path) -> None:
    """Two functions below one port have that port alone in common."""
    tree = Tree(tmp_path)
    for function in (0, 1):
        tree.add("pci0000:16", "0000:16:01.0", f"0000:17:00.{function}", kind="nic", rdma=(f"mlx5_{function}",))

    [way] = shown(topology(tmp_path)).paths

    assert (way.path_class, way.bridges) == ("PIX", 1)


def test_a_switch_below_a_switch_is_several_bridges(tmp_path: Path) -> None:
    """One device directly behind the upper switch, the other behind a second one: PXB; both behind the lower: PIX."""
    tree = Tree(tmp_path)
    top = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
    tree.add(*top, "0000:12:00.0", "0000:13:00.0", kind="gpu")
    for slot in (0, 1):
        tree.add(*top, "0000:12:01.0", "0000:14:00.0", f"0000:15:0{slot}.0", f"0000:{16 + slot}:00.0", kind="gpu")

    assert matrix(topology(tmp_path)) == "X PXB PXB\nPXB X PIX\nPXB PIX X"


def test_an_unknown_numa_node_of_the_device_is_taken_from_the_bridge_above(tmp_path: Path) -> None:
    """The bus knows its NUMA node although the device's own file says -1."""
    tree = two_sockets(tmp_path)
    for address in ("0000:17:00.0", "0000:99:00.0"):
        (tree.root / "bus/pci/devices" / address / "numa_node").write_text("-1\n")

    assert matrix(topology(tmp_path)).splitlines()[0] == "X PHB SYS NODE"


def test_links_to_a_switch_count_for_every_pair(tmp_path: Path) -> None:
    """Behind NVSwitches a pair has as many links as the GPU with fewer active ones."""
    gpus = [gpu(place, address, links(18, kind="switch")) for place, address in enumerate(_addresses(hgx(tmp_path)))]
    weak = gpu(3, gpus[3].address, [*links(16, kind="switch"), *links(2, kind="switch", state=0)])

    rows = matrix(topology(tmp_path, driver(*gpus[:3], weak))).splitlines()

    assert rows[0] == "X NV18 NV18 NV16 SYS PIX"
    assert rows[3] == "NV16 NV16 NV16 X PIX SYS"


def test_far_ends_that_the_driver_does_not_name_count_as_switches(tmp_path: Path) -> None:
    """In a virtual machine kind and address of the far end are empty."""
    gpus = [gpu(place, address, links(18, kind="")) for place, address in enumerate(_addresses(hgx(tmp_path)))]

    assert matrix(topology(tmp_path, driver(*gpus))).splitlines()[0] == "X NV18 NV18 NV18 SYS PIX"


def test_bridged_pairs_have_nvlink_only_with_their_partner(tmp_path: Path) -> None:
    """Links that lead to a GPU join these two and nobody else; inactive and disabled ones do not count."""
    one, two, three, four = _addresses(rtx3090x4(tmp_path))
    gpus = (
        gpu(0, one, links(4, three)),
        gpu(1, two, links(4, four, state=3)),
        gpu(2, three, [*links(3, one), *links(1, one, state=0)]),
        gpu(3, four, links(4, two, state=0)),
    )

    rows = matrix(topology(tmp_path, driver(*gpus))).splitlines()

    assert rows[0] == "X PIX NV3 NODE NODE"
    assert rows[1] == "PIX X NODE NODE NODE"


def test_links_that_were_not_read_are_not_zero(tmp_path: Path) -> None:
    """A GPU that gave no answer leaves the number unknown and the class that of PCIe."""
    one, two = _addresses(rtx3090x4(tmp_path))[:2]
    silent = Gpu(two, 1)
    way = shown(topology(tmp_path, driver(gpu(0, one, links(4, two)), silent))).paths[0]

    assert (way.path_class, way.nvlinks) == ("PIX", 0)


def test_nearest_nic_is_the_one_of_the_lowest_class(tmp_path: Path) -> None:
    """Each GPU of an HGX machine has the NIC behind its own switch."""
    node = shown(topology(hgx(tmp_path).root))

    assert [nic.rdma_devices for nic in node.nics] == [("mlx5_2",), ("mlx5_10",)]
    assert [(one.nearest_nic_class, one.nearest_nics) for one in node.gpus] == [
        ("PIX", ["NIC1"]), ("PIX", ["NIC1"]), ("PIX", ["NIC0"]), ("PIX", ["NIC0"]),
    ]  # fmt: skip


def test_all_nics_of_the_nearest_class_are_the_nearest(tmp_path: Path) -> None:
    """As NCCL takes them: of two on the GPU's host bridge also the one behind a switch, and none of another socket."""
    tree = Tree(tmp_path)
    tree.add("pci0000:10", "0000:10:01.0", "0000:11:00.0", kind="gpu")
    tree.add("pci0000:10", "0000:10:02.0", "0000:12:00.0", "0000:13:00.0", "0000:14:00.0", kind="nic", rdma=("mlx5_0",))
    tree.add("pci0000:10", "0000:10:03.0", "0000:20:00.0", kind="nic", rdma=("mlx5_1",))
    tree.add("pci0000:90", "0000:90:00.0", kind="nic", rdma=("mlx5_2",), numa=1)

    [one] = shown(topology(tmp_path)).gpus
    assert (one.nearest_nic_class, one.nearest_nics) == ("PHB", ["NIC0", "NIC1"])


def test_a_node_without_nic_has_no_nearest_one(tmp_path: Path) -> None:
    """Nothing is made up where there is none."""
    Tree(tmp_path).add("pci0000:10", "0000:10:01.0", "0000:11:00.0", kind="gpu")
    [one] = shown(topology(tmp_path)).gpus

    assert (one.nearest_nics, one.nearest_nic_class) == ([], None)


def test_cpus_come_from_the_device_or_its_numa_node(tmp_path: Path) -> None:
    """local_cpulist where the kernel gives one, else the CPUs of the NUMA node, else nothing."""
    for build, address, cpus in (
        (hgx, "0000:97:00.0", "32-63"), (two_sockets, "0000:99:00.0", "32-63"), (virtual_machine, "0000:00:05.0", ""),
    ):  # fmt: skip
        node = shown(topology(build(tmp_path / build.__name__).root))
        assert {one.pci_bus_id: one.cpu_affinity for one in node.gpus}[address] == cpus


def test_a_link_is_as_good_as_its_lesser_end(tmp_path: Path) -> None:
    """A gen 5 card below a gen 4 x8 port has a gen 4 x8 link; within a switch there is none."""
    tree = Tree(tmp_path)
    tree.add("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0", kind="gpu", link=(5, 16))
    tree.port("0000:12:00.0", (4, 8))
    links_of = {one.pci_bus_id: one.link for one in shown(topology(tmp_path)).pci_devices}
    link = links_of["0000:13:00.0"]

    assert link is not None
    assert (link.generation_max, link.lanes_max) == (4, 8)
    assert links_of["0000:12:00.0"] is None
    assert links_of["0000:10:01.0"] is None


@st.composite
def trees(draw: st.DrawFn) -> Topology:
    """Some host bridges with bridges below them to any depth, and GPUs anywhere."""
    devices: dict[str, PciDevice] = {}
    hosts = [
        (f"pci0000:{number:02x}", draw(st.sampled_from([None, 0, 1]))) for number in range(draw(st.integers(1, 3)))
    ]
    places = list(hosts)
    for number in range(draw(st.integers(0, 8))):
        parent, numa = draw(st.sampled_from(places))
        address = f"0000:{number + 16:02x}:00.0"
        devices[address] = PciDevice(address, "switch_upstream", parent, numa, "", PcieLink())
        places.append((address, numa))
    gpus = []
    for number in range(draw(st.integers(1, 6))):
        parent, numa = draw(st.sampled_from(places))
        address = f"0000:{number + 64:02x}:00.0"
        devices[address] = PciDevice(address, "gpu", parent, numa, "", PcieLink())
        gpus.append(Gpu(address, number))
    return Topology(tuple(gpus), (), (), MappingProxyType(devices), ())


CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS", "?")
"""The nearest first."""


def above(node: Topology, address: str) -> list[str]:
    """The bridges above a device, the nearest first, and the host bridge at the end."""
    found = [node.devices[address].parent]
    while found[-1] in node.devices:
        found.append(node.devices[found[-1]].parent)
    return found


class Way(NamedTuple):
    """The way between two GPUs."""

    place: int
    """Of its class."""
    bridges: int
    common: str
    """Where they meet; empty where they do not."""


def ways(node: Topology) -> dict[frozenset[str], Way]:
    """By the labels of both GPUs; where they meet is worked out here."""
    tops = {one.label: above(node, one.address) for one in node.gpus}
    return {
        frozenset((path.source, path.target)): Way(
            CLASSES.index(path.path_class),
            path.bridges,
            next((one for one in tops[path.source] if one in tops[path.target]), ""),
        )
        for path in shown(node).paths
    }


@given(trees())
def test_paths_are_the_same_in_both_directions(node: Topology) -> None:
    """Class and bridges do not depend on where one starts."""
    assert ways(replace(node, gpus=node.gpus[::-1])) == ways(node)


@given(trees())
def test_where_two_meet_decides_how_near_they_are(node: Topology) -> None:
    """Who meets below a bridge is nearer than who meets at the host bridge, and that is nearer than not to meet."""
    for label in (one.label for one in node.gpus):
        found = [way for ends, way in ways(node).items() if label in ends]
        at_bridges = [way for way in found if way.common in node.devices]
        at_host = [way for way in found if way.common and way.common not in node.devices]
        apart = [way for way in found if not way.common]

        for nearer, farther in itertools.combinations((at_bridges, at_host, apart), 2):
            assert all(near.place < far.place for near in nearer for far in farther)


@given(trees())
def test_a_bridge_more_is_never_a_nearer_class(node: Topology) -> None:
    """Of two devices that one meets at the same bridge, the one with more bridges above it is at least as far."""
    for label in (one.label for one in node.gpus):
        found = [way for ends, way in ways(node).items() if label in ends]
        for one, other in itertools.permutations(found, 2):
            if one.common and one.common == other.common and one.bridges <= other.bridges:
                assert one.place <= other.place


def _addresses(tree: Tree) -> list[str]:
    devices = tree.root / "bus/pci/devices"
    return sorted(one.name for one in devices.iterdir() if (one / "class").read_text().startswith("0x03"))

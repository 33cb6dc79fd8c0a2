"""What paths should carry, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commwatch.node.topology.model import Cpu, Topology
from support.passes import in_one_pass
from topology.harness import driver, gpu, links, topology, way
from topology.trees import Tree, hgx, rtx3090x4, two_sockets, virtual_machine


def between(found: Topology, first: int, second: int, kind: str = "gpu") -> Any:
    """The expected bandwidth; None where it is not known."""
    return way(found, first, second, kind).expected


def test_nvlink_is_links_times_what_one_achieves(tmp_path: Path) -> None:
    """18 links of NVLink 4: 370.8 GB/s planned, 450 GB/s nominal, although the driver reports 26,562 MB/s a link."""
    hgx(tmp_path)
    gpus = [
        gpu(place, address, [replace(one, line_rate=26562e6) for one in links(18, kind="switch", version="4.0")])
        for place, address in enumerate(("0000:17:00.0", "0000:18:00.0"))
    ]

    found = between(topology(tmp_path, driver(*gpus)), 0, 1)

    assert found.bytes_per_second == pytest.approx(370.8e9)
    assert found.nominal_bytes_per_second == 450e9
    assert (found.source, found.basis) == ("nccl_nvlink", "18 NVLinks × 20.6 GB/s")


def test_pcie_is_the_narrowest_link_at_its_best(tmp_path: Path) -> None:
    """An idle gen 1 link counts as gen 4; the x4 adapter decides on its way."""
    tree = rtx3090x4(tmp_path)
    (tree.root / "bus/pci/devices/0000:23:00.0/current_link_speed").write_text("2.5 GT/s PCIe\n")
    found = topology(tmp_path)

    near, far = between(found, 0, 1), between(found, 0, 0, "nic")

    assert near.bytes_per_second == near.narrowed_bytes_per_second == 24e9
    assert near.nominal_bytes_per_second == pytest.approx(31_507_692_307, rel=1e-9)
    assert (far.bytes_per_second, far.basis) == (3e9, "PCIe gen 3 x4")


def test_missing_lanes_lower_only_what_is_possible_now(tmp_path: Path) -> None:
    """x8 of x16: the expected figure stays, so that it does not shrink with the fault."""
    tree = rtx3090x4(tmp_path)
    (tree.root / "bus/pci/devices/0000:23:00.0/current_link_width").write_text("8\n")

    found = between(topology(tmp_path), 0, 1)

    assert (found.bytes_per_second, found.narrowed_bytes_per_second) == (24e9, 12e9)


def test_the_switch_uplink_counts_on_the_way_to_the_cpu(tmp_path: Path) -> None:
    """A gen 3 uplink limits what leaves the switch, not what stays within."""
    tree = rtx3090x4(tmp_path)
    tree.port("0000:21:00.0", (3, 16))
    node = replace(topology(tmp_path), cpu=Cpu("amd", 0x19, 1))

    within, beyond = between(node, 0, 1), between(node, 0, 2)

    assert (within.bytes_per_second, beyond.bytes_per_second) == (24e9, 12e9)


def test_gpus_that_may_not_read_each_other_go_through_host_memory(tmp_path: Path) -> None:
    """Half of what their own links give, whatever the processor; the way to the NIC stays, and so do nominal rates."""
    rtx3090x4(tmp_path)
    pair = frozenset(("0000:23:00.0", "0000:24:00.0"))
    node = replace(topology(tmp_path), cpu=Cpu("amd", 0x19, 1), peers_refused=frozenset({pair}))

    refused, allowed, nic = (between(node, *way) for way in ((0, 1), (2, 3), (0, 0, "nic")))

    assert (refused.bytes_per_second, refused.basis) == (12e9, "PCIe gen 4 x16, through host memory")
    assert refused.narrowed_bytes_per_second == 12e9
    assert refused.nominal_bytes_per_second == allowed.nominal_bytes_per_second
    assert (allowed.bytes_per_second, nic.bytes_per_second) == (24e9, 3e9)


@pytest.mark.parametrize(
    ("cpu", "rate", "basis"),
    [
        (Cpu("intel", 6, 0x6A), 10e9, "the link between the CPUs"),
        (Cpu("intel", 6, 0xCF), 12e9, "PCIe gen 4 x16, through host memory"),
        (Cpu("amd", 0x19, 1), 24e9, "PCIe gen 4 x16"),
        (Cpu("other"), 12e9, "PCIe gen 4 x16, through host memory; link between CPUs: no figure"),
        (None, 12e9, "PCIe gen 4 x16, through host memory; link between CPUs: no figure"),
    ],
)
def test_between_sockets_the_lesser_of_pcie_and_socket_link(
    cpu: Cpu | None, rate: float, basis: str, tmp_path: Path
) -> None:
    """NCCL's figure for the processor, where it has one; else what PCIe gives, and it says so."""
    node = replace(topology(two_sockets(tmp_path).root), cpu=cpu)

    found = between(node, 0, 2)

    assert (found.bytes_per_second, found.basis) == (rate, basis)


def test_the_socket_link_does_not_count_within_a_numa_node(tmp_path: Path) -> None:
    """PHB stays below one host bridge."""
    node = replace(topology(two_sockets(tmp_path).root), cpu=Cpu("intel", 6, 0x4F))

    found = between(node, 0, 1)

    assert found.bytes_per_second == 12e9  # as through host memory; 6 GB/s between the sockets


def test_an_unknown_link_gives_no_figure(tmp_path: Path) -> None:
    """In a virtual machine the kernel knows no link: nothing is made up."""
    assert between(topology(virtual_machine(tmp_path).root), 0, 1) is None


def test_unknown_numa_nodes_still_have_a_pcie_figure(tmp_path: Path) -> None:
    """Whether a socket link is on the way is not known, and the basis says so."""
    tree = Tree(tmp_path)
    for bus in ("16", "98"):
        tree.add(f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{int(bus) + 1}:00.0", kind="gpu", numa=-1)
    node = replace(topology(tmp_path), cpu=Cpu("intel", 6, 0xCF))

    found = between(node, 0, 1)

    assert found.basis == "PCIe gen 4 x16, through host memory; less between CPUs"


@in_one_pass(
    "name, line_rate_mb, links_up, version, planned, nominal",
    [
        ("V100", 25_781, 6, "2.0", 20e9, 150e9), ("RTX 3090", 14_062, 4, "3.1", 12e9, 56.25e9),
        ("A100", 25_000, 12, "3.0", 20e9, 300e9), ("H100", 26_562, 18, "4.0", 20.6e9, 450e9),
        ("B200", 53_125, 18, "5.0", 40.1e9, 900e9),
        # A line rate that is not in the table is the best figure; without one the version decides.
        ("other", 100_000, 1, "5.0", 40.1e9, 100e9), ("not read", None, 1, "3.1", 12e9, 14.0625e9),
        ("zero", 0, 1, "4.0", 20.6e9, 25e9), ("unknown", None, 1, "7.0", None, None),
    ],
)  # fmt: skip
def test_nvlinks_have_the_figures_of_the_product_and_of_nccl(
    tmp_path_factory: pytest.TempPathFactory, name: str, line_rate_mb: float | None, links_up: int, version: str,
    planned: float | None, nominal: float | None,
) -> None:  # fmt: skip
    """Nominal is what the vendor publishes for the GPU."""
    tree = hgx(tmp_path_factory.mktemp("tree"))
    rate = None if line_rate_mb is None else line_rate_mb * 1e6
    joined = [replace(one, line_rate=rate) for one in links(links_up, kind="switch", version=version)]
    gpus = [gpu(place, address, joined) for place, address in enumerate(("0000:17:00.0", "0000:18:00.0"))]
    found = between(topology(tree.root, driver(*gpus)), 0, 1)

    if planned is None:
        assert found is None
    else:
        assert found.bytes_per_second == pytest.approx(planned * links_up)
        assert found.nominal_bytes_per_second == nominal


@in_one_pass(
    "generation, lanes, planned, nominal",
    [
        (1, 16, 3e9, 4_000_000_000), (2, 8, 3e9, 4_000_000_000), (3, 16, 12e9, 15_753_846_154),
        (4, 8, 12e9, 15_753_846_154), (4, 16, 24e9, 31_507_692_308), (5, 4, 12e9, 15_753_846_154),
        (5, 16, 48e9, 63_015_384_615), (6, 16, 96e9, 121_000_000_000), (5, 0, None, None),
    ],
)  # fmt: skip
def test_a_pcie_link_has_the_published_rate_and_the_figure_of_nccl(
    tmp_path_factory: pytest.TempPathFactory, generation: int, lanes: int, planned: float | None, nominal: float | None
) -> None:
    """Transfers times lanes times encoding give the published one."""
    tree = Tree(tmp_path_factory.mktemp("tree"))
    for slot in (0, 1):
        way = ("0000:10:01.0", "0000:11:00.0", f"0000:12:0{slot}.0", f"0000:{13 + slot}:00.0")
        tree.add("pci0000:10", *way, kind="gpu", link=(generation, lanes))
        tree.port(way[2], (generation, lanes))
    found = between(topology(tree.root), 0, 1)

    assert (found is None) is (planned is None)
    if found is not None:
        assert found.bytes_per_second == planned
        assert found.nominal_bytes_per_second == pytest.approx(nominal, abs=1)


@in_one_pass(
    "cpu, rate",
    [
        (Cpu("intel", 6, 0x4F), 6e9),  # Broadwell
        (Cpu("intel", 6, 0x55), 10e9),  # Skylake
        (Cpu("intel", 6, 0x8F), 22e9),  # Sapphire Rapids
        (Cpu("intel", 6, 0xCF), 40e9),  # Emerald Rapids
        (Cpu("intel", 6, 0xAD), 40e9),  # Granite Rapids
        (Cpu("intel", 15, 6), 6e9),
        (Cpu("amd", 0x17, 0x31), 16e9),
        (Cpu("amd", 0x19, 0x01), 24e9),
        (Cpu("amd", 0x1A, 0x02), 32e9),
        (Cpu("arm", None, None), 6e9),
        (Cpu("intel", None, None), None),
        (Cpu("other", 6, 1), None),
    ],
)
def test_socket_links_by_processor(tmp_path_factory: pytest.TempPathFactory, cpu: Cpu, rate: float | None) -> None:
    """NCCL's planning figure by processor generation, where PCIe of generation 6 gives more."""
    tree = two_sockets(tmp_path_factory.mktemp("tree"))
    for device in (tree.root / "bus/pci/devices").iterdir():
        tree.port(device.name, (6, 16))
    found = between(replace(topology(tree.root), cpu=cpu), 0, 2)

    assert (found.bytes_per_second, "no figure" in found.basis) == ((48e9, True) if rate is None else (rate, False))

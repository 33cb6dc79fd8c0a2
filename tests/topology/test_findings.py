"""What is uneven in a topology is found, named and explained; an even one has no finding."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

from commwatch.node.topology.document import NodeDocument
from commwatch.node.topology.model import Gpu
from commwatch.node.topology.nvlink import DriverFacts
from topology.harness import codes, driver, gpu, links, shown, topology
from topology.harness import finding as one
from topology.trees import Tree, domains, hgx, rtx3090x4, two_sockets, virtual_machine

CARDS = ("0000:23:00.0", "0000:24:00.0", "0000:63:00.0", "0000:64:00.0")
HGX = ("0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0")


def found(root: Path, *gpus: Gpu) -> NodeDocument:
    return shown(topology(root, driver(*gpus)))


def test_an_even_machine_has_no_finding(tmp_path: Path) -> None:
    """All GPUs joined alike, each with its NIC."""
    gpus = [gpu(place, address, links(18, kind="switch")) for place, address in enumerate(HGX)]

    assert codes(found(hgx(tmp_path).root, *gpus)) == []


def test_pairs_behind_separate_switches_are_named_with_what_to_choose(tmp_path: Path) -> None:
    """The finding gives the lists for CUDA_VISIBLE_DEVICES and says that CUDA counts otherwise."""
    rtx3090x4(tmp_path)

    finding = one(found(tmp_path, *(gpu(place, address) for place, address in enumerate(CARDS))), "gpu_groups")

    assert finding.components == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert finding.text == (
        "GPU0 and GPU1 share a PCIe switch (PIX); GPU2 and GPU3 share a PCIe switch (PIX). "
        "Between these groups all traffic goes through the CPU (NODE)."
    )
    assert "For 2-GPU jobs choose GPUs of one group" in finding.meaning
    assert "CUDA_VISIBLE_DEVICES=0,1 or CUDA_VISIBLE_DEVICES=2,3" in finding.meaning
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in finding.meaning


def test_indexes_out_of_pci_order_are_not_given_as_numbers_for_cuda(tmp_path: Path) -> None:
    """CUDA counts by PCI address: under the driver's numbers it would take other GPUs."""
    rtx3090x4(tmp_path)

    finding = one(
        found(tmp_path, *(gpu(place, address) for place, address in enumerate(CARDS[2:] + CARDS[:2]))), "gpu_groups"
    )

    assert finding.text.startswith("GPU0 and GPU1 share a PCIe switch (PIX); GPU2 and GPU3 share a PCIe switch (PIX).")
    assert finding.meaning.endswith("For 2-GPU jobs choose GPUs of one group.")


def test_bridged_pairs_are_groups_too(tmp_path: Path) -> None:
    """Two pairs joined by NVLink bridges over separate host bridges; the pairs' missing links are named as uneven."""
    two_sockets(tmp_path)
    one_, two, three = "0000:17:00.0", "0000:18:00.0", "0000:99:00.0"

    all_ = found(tmp_path, gpu(0, one_, links(4, two)), gpu(1, two, links(4, one_)), gpu(2, three))

    assert one(all_, "gpu_groups").text.startswith("GPU0 and GPU1 are joined by NVLink; GPU2 stands alone.")
    assert "CUDA_VISIBLE_DEVICES=0,1." in one(all_, "gpu_groups").meaning
    assert one(all_, "nvlink_uneven").components == ("GPU2",)


def test_a_gpu_that_joins_two_groups_makes_them_one(tmp_path: Path) -> None:
    """The groups are those that NVLink and switches join, whatever the order of the GPUs."""
    rtx3090x4(tmp_path)
    gpus = [gpu(0, CARDS[0]), gpu(1, CARDS[2]), gpu(2, CARDS[1], links(4, CARDS[2])), gpu(3, CARDS[3])]
    gpus[1] = gpu(1, CARDS[2], links(4, CARDS[1]))

    assert "gpu_groups" not in codes(found(tmp_path, *gpus))


def test_gpus_that_all_stand_alone_are_even(tmp_path: Path) -> None:
    """Where no pair is near, there is nothing to choose."""
    tree = Tree(tmp_path)
    for bus in ("10", "20"):
        tree.add(f"pci0000:{bus}", f"0000:{bus}:01.0", f"0000:{int(bus) + 1}:00.0", kind="gpu")

    assert codes(found(tmp_path, gpu(0, "0000:11:00.0"), gpu(1, "0000:21:00.0"))) == []


def test_lanes_missing_now_are_found_and_an_idle_generation_is_not(tmp_path: Path) -> None:
    """x8 of x16 is degraded at any time; a GPU's generation falls in idle."""
    tree = rtx3090x4(tmp_path)
    (tree.root / f"bus/pci/devices/{CARDS[1]}/current_link_width").write_text("8\n")
    (tree.root / f"bus/pci/devices/{CARDS[2]}/current_link_speed").write_text("2.5 GT/s PCIe\n")

    finding = one(shown(topology(tmp_path)), "link_narrowed")

    assert finding.text == f"The PCIe link of GPU1 ({CARDS[1]}) runs at x8; both of its ends can do x16."


def test_a_slow_switch_uplink_is_found(tmp_path: Path) -> None:
    """Switches and NICs do not slow down in idle."""
    tree = rtx3090x4(tmp_path)
    (tree.root / "bus/pci/devices/0000:21:00.0/current_link_speed").write_text("8.0 GT/s PCIe\n")

    finding = one(shown(topology(tmp_path)), "link_narrowed")

    assert "the device at 0000:21:00.0 runs at gen 3 x16; both of its ends can do gen 5 x16" in finding.text


def test_a_slot_below_its_siblings_is_found(tmp_path: Path) -> None:
    """Three GPUs in x16 slots, one in an x8 slot: that one is named, and the others are not."""
    rtx3090x4(tmp_path).port("0000:62:01.0", (4, 8))
    (tmp_path / f"bus/pci/devices/{CARDS[3]}/current_link_width").write_text("8\n")

    finding = one(shown(topology(tmp_path)), "link_below_siblings")

    assert finding.components == ("GPU3",)
    assert "gen 4 x8; its siblings have gen 4 x16" in finding.text


def test_gpus_of_another_model_are_no_siblings(tmp_path: Path) -> None:
    """A small card may have a small link."""
    rtx3090x4(tmp_path).port("0000:62:01.0", (4, 8))
    gpus = [gpu(place, address) for place, address in enumerate(CARDS)]

    assert "link_below_siblings" not in codes(found(tmp_path, *gpus[:3], replace(gpus[3], name="NVIDIA Other")))


def test_links_without_a_bridge_are_found(tmp_path: Path) -> None:
    """Links exist and all are inactive."""
    rtx3090x4(tmp_path)

    all_ = found(tmp_path, *(gpu(place, address, links(4, state=0)) for place, address in enumerate(CARDS)))

    assert "no bridge is fitted" in one(all_, "nvlink_no_bridge").text
    assert "nvlink_uneven" not in codes(all_)


def test_a_fabric_that_did_not_come_up_is_not_a_missing_bridge(tmp_path: Path) -> None:
    """Where there are NVSwitches, Fabric Manager is the place to look."""
    hgx(tmp_path)

    all_ = found(tmp_path, *(gpu(place, address, links(18, state=0)) for place, address in enumerate(HGX)))

    assert "Fabric Manager" in one(all_, "nvlink_fabric_down").meaning


def test_a_gpu_with_fewer_links_is_named_with_its_inactive_ones(tmp_path: Path) -> None:
    """One GPU of four lost a link: it, and the link."""
    hgx(tmp_path)
    gpus = [gpu(place, address, links(18, kind="switch")) for place, address in enumerate(HGX)]
    broken = list(gpus[2].nvlinks or ())
    broken[7] = replace(broken[7], state=0)
    gpus[2] = gpu(2, HGX[2], broken)

    finding = one(found(tmp_path, *gpus), "nvlink_uneven")

    assert finding.components == ("GPU2",)
    assert finding.text == "GPU2 reaches the others over 17 NVLinks; other pairs have 18. Inactive: GPU2 link 7."


def test_refused_peer_access_is_found(tmp_path: Path) -> None:
    """Links are active and the driver refuses P2P over them; a pair without links is no matter of NVLink."""
    hgx(tmp_path)
    gpus = [gpu(place, address, links(18, kind="switch")) for place, address in enumerate(HGX[:3])]
    pairs = frozenset({frozenset(HGX[:2]), frozenset((HGX[0], HGX[3]))})
    facts = DriverFacts((*gpus, gpu(3, HGX[3])), nvlink_refused=pairs)

    assert one(shown(topology(tmp_path, facts)), "nvlink_refused").components == ("GPU0-GPU1",)


def test_gpus_without_any_peer_access_are_found(tmp_path: Path) -> None:
    """All pairs at once are one finding; the way leads through the host's memory."""
    rtx3090x4(tmp_path)
    gpus = tuple(gpu(place, address) for place, address in enumerate(CARDS[:2]))
    facts = DriverFacts(gpus, peers_refused=frozenset({frozenset(CARDS[:2])}))

    finding = one(shown(topology(tmp_path, facts)), "peers_refused")

    assert finding.text == "The driver does not let GPU0-GPU1 read each other's memory (no P2P)."


def test_no_group_is_recommended_that_is_not_expected_to_be_faster(tmp_path: Path) -> None:
    """Without peer access all ways lead through the host's memory: before a measurement all pairs are equal."""
    rtx3090x4(tmp_path)
    gpus = tuple(gpu(place, address) for place, address in enumerate(CARDS))
    facts = DriverFacts(gpus, peers_refused=frozenset(map(frozenset, combinations(CARDS, 2))))

    meaning = one(shown(topology(tmp_path, facts)), "gpu_groups").meaning

    assert meaning.startswith("No group is expected to be faster than GPUs of two groups: measure the pairs")
    assert "CUDA_VISIBLE_DEVICES" not in meaning


def test_a_gpu_without_near_nic_is_found_where_others_have_one(tmp_path: Path) -> None:
    """A switch with a GPU and a NIC, and a GPU on its own."""
    tree = Tree(tmp_path)
    top = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
    tree.add(*top, "0000:12:00.0", "0000:13:00.0", kind="gpu")
    tree.add(*top, "0000:12:01.0", "0000:14:00.0", kind="nic", rdma=("mlx5_0",))
    tree.add("pci0000:80", "0000:80:01.0", "0000:81:00.0", kind="gpu", numa=1)

    finding = one(shown(topology(tmp_path)), "gpu_without_near_nic")

    assert finding.components == ("GPU1",)
    assert finding.text == "GPU1 reaches its nearest NIC only by SYS; GPU0 has one at PIX."
    assert "NVLink" not in finding.meaning


def test_adapters_without_rdma_do_not_count_beside_one_with_it(tmp_path: Path) -> None:
    """The Ethernet port of the board near GPU1 is not what jobs use."""
    tree = two_sockets(tmp_path)
    tree.add("pci0000:98", "0000:98:02.0", "0000:9a:00.0", kind="ethernet", numa=1, net=("eno1",))

    finding = one(shown(topology(tmp_path)), "gpu_without_near_nic")

    assert finding.text == "GPU2 reaches its nearest NIC only by SYS; GPU0 and GPU1 have one at NODE."


def test_a_flat_tree_is_that_of_a_virtual_machine(tmp_path: Path) -> None:
    """No port above any GPU: trust the provider's file."""
    finding = one(shown(topology(virtual_machine(tmp_path).root)), "tree_flat")

    assert "NCCL_TOPO_FILE" in finding.meaning


def emulated(root: Path, flags: str, bridge: tuple[int, int] | None) -> NodeDocument:
    """Two GPUs and a NIC, each below a port that says this of its link, in a machine with these flags of its CPU."""
    tree = Tree(root)
    for place, kind in enumerate(("gpu", "gpu", "nic")):
        port = f"0000:00:0{place + 1}.0"
        tree.add("pci0000:00", port, f"0000:0{place + 1}:00.0", kind=kind, rdma=("mlx5_0",) if kind == "nic" else ())
        if bridge is None:
            (root / f"bus/pci/devices/{port}/max_link_speed").write_text("Unknown\n")
        else:
            tree.port(port, bridge)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    return found(root, gpu(0, "0000:01:00.0"), gpu(1, "0000:02:00.0"))


def test_an_emulated_switch_is_found_by_what_nccl_reads(tmp_path: Path) -> None:
    """Below 1 GB/s by both ends, in a virtual machine alone; an unknown speed counts as fast, as it does there."""
    cases: dict[str, tuple[str, tuple[int, int] | None, bool]] = {
        "emulated": ("fpu hypervisor", (1, 1), True),
        "just below": ("fpu hypervisor", (1, 4), True),
        "just above": ("fpu hypervisor", (1, 8), False),
        "hardware": ("fpu", (1, 1), False),
        "unknown": ("fpu hypervisor", None, False),
    }
    for name, (flags, bridge, is_found) in cases.items():
        machine = emulated(tmp_path / name, flags, bridge)
        assert ("link_emulated" in codes(machine)) == is_found, name

    finding = one(emulated(tmp_path / "again", "hypervisor", (1, 1)), "link_emulated")
    assert finding.components == ("GPU0", "GPU1", "NIC0")
    assert "below 1 GB/s (gen 1 x1)" in finding.text
    assert "NCCL_TOPO_FILE" in finding.meaning


def test_a_way_over_an_emulated_link_has_no_expected_bandwidth(tmp_path: Path) -> None:
    """What is made up must not become the level that a measurement has to reach."""
    for name, flags in (("real", "fpu"), ("unreal", "hypervisor")):
        paths = emulated(tmp_path / name, flags, (1, 1)).paths
        assert {one.expected is None for one in paths} == {name == "unreal"}


def test_unknown_numa_nodes_are_explained(tmp_path: Path) -> None:
    """Different host bridges and no NUMA node: NODE and SYS cannot be told apart."""
    finding = one(shown(topology(domains(tmp_path).root)), "numa_unknown")

    assert finding.components == ("GPU0", "GPU1", "GPU2", "NIC0")
    assert "NCCL_TOPO_FILE" in finding.meaning


def test_a_driver_that_was_not_read_is_said(tmp_path: Path) -> None:
    """NVLink is unknown, with the reason; no verdict on links."""
    all_ = shown(topology(rtx3090x4(tmp_path).root))

    assert "no_driver: no library" in one(all_, "nvlink_unknown").text
    assert not {"nvlink_no_bridge", "nvlink_uneven"} & set(codes(all_))


def test_a_gpu_whose_links_were_not_read_is_said(tmp_path: Path) -> None:
    """As one that is split by MIG: it is not taken for one that lacks links."""
    gpus = [gpu(place, address, links(18, kind="switch")) for place, address in enumerate(HGX)]
    all_ = found(hgx(tmp_path).root, replace(gpus[0], nvlinks=None), *gpus[1:])

    assert one(all_, "nvlink_unknown").components == ("GPU0",)
    assert "nvlink_uneven" not in codes(all_)


def test_gpus_that_only_one_side_knows_are_said(tmp_path: Path) -> None:
    """On the bus and not in the driver, and the other way round."""
    rtx3090x4(tmp_path)

    all_ = found(tmp_path, *(gpu(place, address) for place, address in enumerate(CARDS[:3])), gpu(3, "0000:f0:00.0"))

    assert one(all_, "gpu_without_index").components == (CARDS[3],)
    assert one(all_, "gpu_without_path").components == ("GPU3",)

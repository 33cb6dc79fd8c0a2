"""What lies between the GPUs of a probe, against machines worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from commwatch.node.topology.model import Cpu, Gpu, NvLink, Topology
from commwatch.node.topology.reach import GpuPaths, gpu_paths
from topology.harness import driver, gpu, links, topology
from topology.trees import Tree, hgx, rtx3090x4, two_sockets, virtual_machine

PAIRS = ("0000:23:00.0", "0000:24:00.0", "0000:63:00.0", "0000:64:00.0")
"""The GPUs of ``rtx3090x4``: two behind each of two switches."""
FOUR = ("0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0")
"""The GPUs of ``hgx``."""
AMD = Cpu("amd", 0x19, 1)


def mesh(down: Sequence[tuple[int, int]] = (), version: str = "3.0", *, is_kept: bool = False) -> list[Gpu]:
    """Four GPUs with four links from each to each other.

    Args:
        down: GPU and link number of the ends that are down.
        version: of all links.
        is_kept: whether the far end of a link that is down is known.
    """
    found = []
    for place, address in enumerate(FOUR):
        others = [one for one in FOUR if one != address]
        ends = [
            NvLink(number, 0, version, *(("gpu", others[number // 4]) if is_kept else ()))
            if (place, number) in down
            else NvLink(number, 1, version, "gpu", others[number // 4])
            for number in range(12)
        ]
        found.append(gpu(place, address, ends))
    return found


def without_driver_gpus(found: Topology) -> Topology:
    """The same with GPUs of which the driver says that they have no NVLinks."""
    gpus = tuple(replace(one, name="NVIDIA Test", nvlinks=()) for one in found.gpus)
    return replace(found, gpus=gpus, driver_note="")


def paths_of(found: Topology, addresses: Sequence[str]) -> GpuPaths:
    paths = gpu_paths(found, addresses)
    assert paths is not None
    return paths


def test_directly_joined_gpus_have_the_links_between_them(tmp_path: Path) -> None:
    """Four of twelve links lead to each other GPU: 80 GB/s for a pair."""
    hgx(tmp_path)
    paths = paths_of(topology(tmp_path, driver(*mesh())), FOUR)

    one = paths.between(0, 3)

    assert one is not None
    assert (one.label, one.nvlinks, one.bytes_per_second, one.basis) == ("NV4", 4, 80e9, "4 NVLinks × 20 GB/s")
    assert paths.switch_rates == (0, 0, 0, 0)
    assert paths.direct_rate(0, 3) == 80e9
    assert paths.between(0, 4) is None


def test_gpus_behind_switches_have_all_their_links_with_each_other(tmp_path: Path) -> None:
    """18 links lead to any other GPU."""
    hgx(tmp_path)
    gpus = [gpu(place, address, links(18, kind="switch", version="4.0")) for place, address in enumerate(FOUR)]
    paths = paths_of(topology(tmp_path, driver(*gpus)), FOUR)

    one = paths.between(2, 1)

    assert one is not None
    assert (one.label, one.through_switches) == ("NV18", True)
    assert one.bytes_per_second == pytest.approx(370.8e9)
    assert paths.direct_rate(0, 1) == 0
    assert paths.shared_links(0, 1) == frozenset()


def test_ranks_follow_the_order_that_is_asked_for(tmp_path: Path) -> None:
    """Rank 0 is the first address handed in, whatever its index; a GPU that is not here gives nothing."""
    hgx(tmp_path)
    found = topology(tmp_path, driver(*mesh()))
    gpus = found.gpus
    named = replace(found, gpus=(*gpus[:3], replace(gpus[3], name="NVIDIA Other")))

    paths = paths_of(named, (FOUR[3], FOUR[0]))

    assert paths.names == ("NVIDIA Other", "NVIDIA Test")
    assert paths.common_name((0, 1)) == ""
    assert paths.common_name((1,)) == "NVIDIA Test"
    assert gpu_paths(named, (FOUR[0], "0000:99:00.0")) is None
    assert gpu_paths(named, ()) is None


def test_an_expected_link_that_is_down_counts(tmp_path: Path) -> None:
    """The fault does not lower what is expected: both ends miss one, so it led from one to the other."""
    hgx(tmp_path)
    found = topology(tmp_path, driver(*mesh(down=[(0, 0), (1, 0)])))

    unlearned = gpu_paths(found, FOUR)
    learned = gpu_paths(found, FOUR, dict.fromkeys(FOUR, frozenset(range(12))))

    assert unlearned is not None
    assert learned is not None
    assert [paths.between(0, 1).nvlinks for paths in (unlearned, learned)] == [3, 4]  # type: ignore[union-attr]
    assert learned.between(0, 2).nvlinks == 4  # type: ignore[union-attr]


def test_a_gpu_without_any_link_left_is_expected_to_have_them_all(tmp_path: Path) -> None:
    """One GPU misses twelve, each other one four: all of these led to it."""
    hgx(tmp_path)
    down = [(0, number) for number in range(12)] + [(place, number) for place in (1, 2, 3) for number in range(4)]
    found = topology(tmp_path, driver(*mesh(down=down)))

    paths = gpu_paths(found, FOUR, dict.fromkeys(FOUR, frozenset(range(12))))

    assert paths is not None
    assert [paths.between(0, other).nvlinks for other in (1, 2, 3)] == [4, 4, 4]  # type: ignore[union-attr]
    assert paths.between(1, 2).nvlinks == 4  # type: ignore[union-attr]


def test_missing_links_that_could_lead_anywhere_count_nowhere(tmp_path: Path) -> None:
    """Four ends are down on four GPUs: two links, and nobody knows between whom."""
    hgx(tmp_path)
    found = topology(tmp_path, driver(*mesh(down=[(0, 0), (1, 0), (2, 11), (3, 11)])))

    paths = gpu_paths(found, FOUR, dict.fromkeys(FOUR, frozenset(range(12))))

    assert paths is not None
    assert paths.between(0, 1).nvlinks == 3  # type: ignore[union-attr]
    assert paths.between(0, 2).nvlinks == 4  # type: ignore[union-attr]


def test_links_that_are_down_count_where_they_are_known_to_have_led(tmp_path: Path) -> None:
    """Links of two pairs of GPUs, or all of two GPUs; one that nobody expects does not."""
    hgx(tmp_path)
    two_links = [(0, 0), (1, 0), (2, 11), (3, 11)]
    two_gpus = [(place, link) for place in (0, 1) for link in range(12)] + [
        (place, link) for place in (2, 3) for link in range(8)
    ]
    for down in (two_links, two_gpus):
        found = topology(tmp_path, driver(*mesh(down, is_kept=True)))
        expected, accepted = (
            gpu_paths(found, FOUR, dict.fromkeys(FOUR, frozenset(range(12)) - gone)) for gone in (frozenset[int](), {0})
        )
        assert expected is not None
        assert accepted is not None
        assert {reach.label for reach in expected.pairs.values()} == {"NV4"}
        assert accepted.between(0, 1).label == "NV3"  # type: ignore[union-attr]


def test_missing_links_to_switches_count(tmp_path: Path) -> None:
    """Behind switches it does not matter where a link led."""
    hgx(tmp_path)
    gpus = [gpu(place, address, links(18, kind="switch", version="4.0")) for place, address in enumerate(FOUR)]
    dead = gpu(1, FOUR[1], links(18, kind="", state=0, version="4.0"))
    found = topology(tmp_path, driver(gpus[0], dead, *gpus[2:]))

    paths = gpu_paths(found, FOUR, dict.fromkeys(FOUR, frozenset(range(18))))

    assert paths is not None
    assert paths.between(0, 1).label == "NV18"  # type: ignore[union-attr]
    assert paths.switch_rates[1] == pytest.approx(370.8e9)


def test_links_that_were_not_read_have_no_rate(tmp_path: Path) -> None:
    """A GPU that gave no answer may have NVLinks or not; its PCIe links may be shared all the same."""
    rtx3090x4(tmp_path)
    gpus = [gpu(place, address) for place, address in enumerate(PAIRS)]
    found = topology(tmp_path, driver(*gpus[:2], Gpu(PAIRS[2], 2), gpus[3]))

    paths = paths_of(found, PAIRS)

    silent, known = paths.between(0, 2), paths.between(0, 1)
    assert silent is not None
    assert known is not None
    assert (silent.label, silent.bytes_per_second) == ("?", None)
    assert "0000:21:00.0" in paths.shared_links(0, 2)
    assert (known.label, known.bytes_per_second) == ("PIX", 24e9)


def test_links_of_an_unknown_version_have_no_rate(tmp_path: Path) -> None:
    """They are there, and nobody knows what they carry."""
    hgx(tmp_path)
    paths = paths_of(topology(tmp_path, driver(*mesh(version="9.9"))), FOUR)

    one = paths.between(0, 1)

    assert one is not None
    assert (one.label, one.bytes_per_second) == ("NV4", None)


def on(cpu: Cpu | None, found: Topology) -> Topology:
    """The same machine with another processor."""
    return replace(found, cpu=cpu)


def test_pairs_behind_switches_share_the_uplinks(tmp_path: Path) -> None:
    """Two cards behind a switch have it to themselves; what leaves a switch shares its uplink with the other card."""
    found = on(AMD, without_driver_gpus(topology(rtx3090x4(tmp_path).root)))

    paths = paths_of(found, PAIRS)

    assert paths.shared_links(0, 1) == frozenset()
    assert paths.shared_links(0, 2) == paths.shared_links(3, 1) == {"0000:21:00.0", "0000:61:00.0"}
    assert paths.shared_links(0, 1) & paths.shared_links(2, 3) == frozenset()
    near, far = paths.between(0, 1), paths.between(0, 2)
    assert near is not None
    assert far is not None
    assert near.pcie_links == (("0000:23:00.0", 24e9), ("0000:24:00.0", 24e9))
    assert (far.label, far.bytes_per_second, far.basis) == ("NODE", 24e9, "PCIe gen 4 x16")


@pytest.mark.parametrize("cpu", [Cpu("intel", 6, 143), Cpu("arm"), Cpu("other"), None])
def test_past_a_host_bridge_only_amd_lets_gpus_reach_each_other(cpu: Cpu | None, tmp_path: Path) -> None:
    """NCCL goes by the host's memory elsewhere: half the rate of the GPUs' own links, and the same links as before."""
    found = on(cpu, without_driver_gpus(topology(rtx3090x4(tmp_path).root)))

    paths = paths_of(found, PAIRS)

    near, far = paths.between(0, 1), paths.between(0, 2)
    assert near is not None
    assert far is not None
    assert (near.bytes_per_second, near.basis) == (24e9, "PCIe gen 4 x16")
    assert (far.bytes_per_second, far.basis) == (12e9, "PCIe gen 4 x16, through host memory")
    assert sorted(far.pcie_links) == [
        ("0000:21:00.0", 48e9),
        ("0000:23:00.0", 12e9),
        ("0000:61:00.0", 48e9),
        ("0000:63:00.0", 12e9),
    ]
    assert paths.host_rates == (24e9,) * 4


def test_a_narrowed_link_does_not_lower_what_is_expected(tmp_path: Path) -> None:
    """x8 of x16 now: the best of both ends counts, between GPUs and to the host."""
    tree = rtx3090x4(tmp_path)
    (tree.root / "bus/pci/devices/0000:23:00.0/current_link_width").write_text("8\n")

    paths = paths_of(without_driver_gpus(topology(tree.root)), PAIRS)

    assert paths.between(0, 1).bytes_per_second == 24e9  # type: ignore[union-attr]
    assert paths.host_rates == (24e9,) * 4


def test_copies_are_limited_by_the_narrowest_link_to_the_host(tmp_path: Path) -> None:
    """A switch with an uplink of generation 3 halves the copies of both cards behind it."""
    tree = rtx3090x4(tmp_path)
    tree.port("0000:21:00.0", (3, 16))

    paths = paths_of(without_driver_gpus(topology(tree.root)), PAIRS)

    assert paths.host_rates == (12e9, 12e9, 24e9, 24e9)


def test_a_link_on_the_way_to_the_host_that_is_not_known_leaves_the_rate_unknown(tmp_path: Path) -> None:
    """The card's own link is known, that of the switch above it is not."""
    tree = rtx3090x4(tmp_path)
    for address in ("0000:20:01.0", "0000:21:00.0"):
        (tree.root / "bus/pci/devices" / address / "max_link_speed").write_text("Unknown\n")

    paths = paths_of(without_driver_gpus(topology(tree.root)), PAIRS)

    assert paths.host_rates == (None, None, 24e9, 24e9)
    assert paths.between(0, 1).bytes_per_second == 24e9  # type: ignore[union-attr]
    assert paths.between(0, 2).bytes_per_second is None  # type: ignore[union-attr]


def test_gpus_that_may_not_reach_each_other_go_through_host_memory(tmp_path: Path) -> None:
    """Half the rate of their own links, and up to the host and down again: a switch's uplink is crossed twice."""
    found = on(AMD, without_driver_gpus(topology(rtx3090x4(tmp_path).root)))
    refused = frozenset({frozenset(PAIRS[:2])})
    found = replace(found, peers_refused=refused)

    paths = paths_of(found, PAIRS)

    one = paths.between(0, 1)
    assert one is not None
    assert (one.bytes_per_second, one.basis) == (12e9, "PCIe gen 4 x16, through host memory")
    assert one.pcie_links == (
        ("0000:23:00.0", 12e9),
        ("0000:21:00.0", 48e9),
        ("0000:24:00.0", 12e9),
        ("0000:21:00.0", 48e9),
    )
    assert paths.shared_links(0, 1) == {"0000:21:00.0"}
    assert paths.between(2, 3).bytes_per_second == 24e9  # type: ignore[union-attr]


def test_what_leaves_a_numa_node_shares_the_way_between_the_processors(tmp_path: Path) -> None:
    """Two GPUs of different sockets share it with all others that cross; within a socket nothing is shared."""
    found = without_driver_gpus(topology(two_sockets(tmp_path).root))

    paths = paths_of(found, ("0000:17:00.0", "0000:18:00.0", "0000:99:00.0"))

    assert paths.shared_links(0, 2) == paths.shared_links(1, 2) == {"between CPUs"}
    assert paths.shared_links(0, 1) == frozenset()


@pytest.mark.parametrize(
    ("cpu", "rate", "basis"),
    [
        (Cpu("intel", 6, 85), 10e9, "the link between the CPUs"),
        (Cpu("intel", 6, 143), 12e9, "PCIe gen 4 x16, through host memory"),
        (Cpu("amd", 0x17, 49), 16e9, "the link between the CPUs"),
        (Cpu("amd", 0x19, 1), 24e9, "PCIe gen 4 x16"),
        (None, 12e9, "PCIe gen 4 x16, through host memory"),
    ],
)
def test_the_link_between_sockets_limits_where_its_rate_is_known(
    cpu: Cpu | None, rate: float, basis: str, tmp_path: Path
) -> None:
    """Those of Skylake and Rome are slower than what PCIe gives; of an unknown processor nothing is said."""
    found = on(cpu, without_driver_gpus(topology(two_sockets(tmp_path).root)))

    one = paths_of(found, ("0000:17:00.0", "0000:99:00.0")).between(0, 1)

    assert one is not None
    assert (one.bytes_per_second, one.basis) == (rate, basis)


def test_a_virtual_machine_shows_no_links(tmp_path: Path) -> None:
    """No rate between GPUs and none to the host, rather than a guess."""
    found = without_driver_gpus(topology(virtual_machine(tmp_path).root))

    paths = paths_of(found, ("0000:00:05.0", "0000:00:06.0"))

    assert paths.between(0, 1).bytes_per_second is None  # type: ignore[union-attr]
    assert paths.host_rates == (None, None)


def test_an_emulated_link_is_no_level_that_a_probe_has_to_reach(tmp_path: Path) -> None:
    """In a virtual machine it says gen 1 x1, beside which each result would look fast."""
    tree = Tree(tmp_path)
    gpus = ("0000:01:00.0", "0000:02:00.0")
    for place, address in enumerate(gpus, 1):
        tree.add("pci0000:00", f"0000:00:0{place}.0", address, kind="gpu")
        tree.port(f"0000:00:0{place}.0", (1, 1))
    real = without_driver_gpus(topology(tmp_path))

    hardware, virtual = (paths_of(replace(real, virtual=one), gpus) for one in (False, True))

    assert [one.bytes_per_second for one in hardware.pairs.values()] == [93.75e6] * 2  # half, through host memory
    assert None not in hardware.host_rates
    assert {(one.bytes_per_second, one.basis) for one in virtual.pairs.values()} == {
        (None, f"the PCIe link of {gpus[0]} is emulated")
    }
    assert virtual.host_rates == (None, None)

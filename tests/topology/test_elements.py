"""The parts on the way between GPUs, against machines worked out by hand and against the generator's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.culprit_cases import dice, pair_matrix
from analysis.culprit_generator import Machine, fault_of
from analysis.culprit_nodes import Board, Cell, Node, Part, gpu_link, nvswitch, pcie, switch_port
from commwatch.node.topology.elements import ways_between, ways_of
from commwatch.node.topology.model import Gpu, NvLink, Topology
from commwatch.node.topology.reach import gpu_paths
from commwatch.node.topology.ways import Parts, Ways
from commwatch.probes.results.culprit import find_suspects
from topology.harness import driver, gpu, links, topology
from topology.trees import Tree, hgx, rtx3090x4, two_sockets

PAIRS = ("0000:23:00.0", "0000:24:00.0", "0000:63:00.0", "0000:64:00.0")
"""The GPUs of ``rtx3090x4``: two behind each of two switches."""
FOUR = ("0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0")
"""The GPUs of ``hgx``: two behind one switch on each of two sockets."""


def ways(found: Topology) -> Ways:
    return ways_between(found, found.gpus)


def passed(found: Ways, cell: Cell) -> set[tuple[str, str, str]]:
    """Kind, name and direction of the parts on a way."""
    return {(one.element.kind, one.element.name, one.direction) for one in found[cell].passages}


def without_nvlink(addresses: Sequence[str]) -> list[Gpu]:
    return [gpu(place, address) for place, address in enumerate(addresses)]


WHOLE = ("node", "node0", "through")


def ends(source: int, target: int) -> set[tuple[str, str, str]]:
    return {("gpu", f"GPU{source}", "out"), ("gpu", f"GPU{target}", "in"), WHOLE}


def test_pairs_behind_one_switch_and_behind_two(tmp_path: Path) -> None:
    """Within a switch there is no other link; between two there are both uplinks and the CPU."""
    rtx3090x4(tmp_path)
    found = ways(topology(tmp_path, driver(*without_nvlink(PAIRS))))

    own = {("pcie_link", PAIRS[0], "out"), ("pcie_link", PAIRS[1], "in")}
    assert passed(found, (0, 1)) == ends(0, 1) | own | {("pcie_switch", "0000:21:00.0", "through")}
    assert passed(found, (3, 0)) == ends(3, 0) | {
        ("pcie_link", PAIRS[3], "out"),
        ("pcie_switch", "0000:61:00.0", "out"),
        ("pcie_link", "0000:61:00.0", "out"),
        ("numa_node", "NUMA0", "through"),
        ("pcie_link", "0000:21:00.0", "in"),
        ("pcie_switch", "0000:21:00.0", "in"),
        ("pcie_link", PAIRS[0], "in"),
    }
    assert found[0, 1].peers != found[0, 2].peers == found[3, 1].peers


def test_the_link_between_sockets_has_a_direction(tmp_path: Path) -> None:
    """Out from the lower NUMA node to the higher, in the other way."""
    two_sockets(tmp_path)
    addresses = ("0000:17:00.0", "0000:18:00.0", "0000:99:00.0")
    found = ways(topology(tmp_path, driver(*without_nvlink(addresses))))

    assert passed(found, (2, 1)) == ends(2, 1) | {
        ("pcie_link", addresses[2], "out"),
        ("numa_node", "NUMA1", "out"),
        ("socket_link", "NUMA0-NUMA1", "in"),
        ("numa_node", "NUMA0", "in"),
        ("pcie_link", addresses[1], "in"),
    }
    assert ("socket_link", "NUMA0-NUMA1", "out") in passed(found, (0, 2))
    assert ("numa_node", "NUMA0", "through") in passed(found, (0, 1))


def test_through_nvswitches_each_gpu_has_its_own_links(tmp_path: Path) -> None:
    """No PCIe part is on the way; a GPU with fewer links up is still compared with the others."""
    hgx(tmp_path)
    gpus = [gpu(place, address, links(18 - 2 * place, kind="switch")) for place, address in enumerate(FOUR)]
    found = ways(topology(tmp_path, driver(*gpus)))

    assert passed(found, (1, 2)) == ends(1, 2) | {("link_group", "GPU1", "out"), ("link_group", "GPU2", "in")}
    assert {way.peers for way in found.values()} == {"NV switch"}


def bridged(state: int = 1) -> list[Gpu]:
    """Two bridges of four links: GPU0 with GPU1, GPU2 with GPU3."""
    return [gpu(place, FOUR[place], links(4, FOUR[place ^ 1], state=state)) for place in range(4)]


def test_direct_links_belong_to_the_pair(tmp_path: Path) -> None:
    """One group for both directions, named in the order of the GPUs; other pairs go over PCIe."""
    hgx(tmp_path)
    found = ways(topology(tmp_path, driver(*bridged())))

    assert passed(found, (0, 1)) == ends(0, 1) | {("link_group", "GPU0-GPU1", "out")}
    assert passed(found, (1, 0)) == ends(1, 0) | {("link_group", "GPU0-GPU1", "in")}
    assert ("socket_link", "NUMA0-NUMA1", "out") in passed(found, (0, 2))


@pytest.mark.parametrize("reason", ["down", "refused"])
def test_links_that_carry_nothing_are_on_no_way(reason: str, tmp_path: Path) -> None:
    """Where NVLink is down or refused by the driver, the pair goes over PCIe."""
    hgx(tmp_path)
    found = topology(tmp_path, driver(*bridged(state=0 if reason == "down" else 1)))
    if reason == "refused":
        found = replace(found, nvlink_refused=frozenset({frozenset(FOUR[:2])}))

    kinds = {kind for kind, _, _ in passed(ways(found), (0, 1))}
    assert kinds == {"gpu", "node", "pcie_link", "pcie_switch"}


def test_without_peer_access_all_goes_through_the_hosts_memory(tmp_path: Path) -> None:
    """Two GPUs behind one switch use its uplink up and down, and the NUMA node's memory: a class of their own."""
    rtx3090x4(tmp_path)
    plain = topology(tmp_path, driver(*without_nvlink(PAIRS)))
    node = replace(plain, peers_refused=frozenset({frozenset(PAIRS[:2])}))
    found = ways(node)

    assert passed(found, (0, 1)) >= {
        ("pcie_switch", "0000:21:00.0", "through"),
        ("pcie_link", "0000:21:00.0", "through"),
        ("numa_node", "NUMA0", "through"),
    }
    assert found[0, 1].peers != found[2, 3].peers


def test_nothing_is_said_of_a_way_whose_nvlinks_were_not_read(tmp_path: Path) -> None:
    """It may be NVLink, it may be PCIe: only the ends and the machine are certain."""
    rtx3090x4(tmp_path)
    found = ways(topology(tmp_path))

    assert passed(found, (0, 1)) == ends(0, 1)
    assert found[0, 1].peers == "?"


def test_only_ways_that_are_built_alike_are_peers(tmp_path: Path) -> None:
    """A slot of eight lanes is no fault of the others' peer, nor is another model of GPU."""
    tree = Tree(tmp_path)
    for place, lanes in enumerate((16, 16, 16, 8)):
        tree.add(f"pci0000:{place}0", f"0000:{place}0:01.0", f"0000:{place}1:00.0", kind="gpu", link=(4, lanes))
    gpus = without_nvlink([f"0000:{place}1:00.0" for place in range(4)])
    even, mixed = (
        ways(topology(tmp_path, driver(*found))) for found in (gpus, [replace(gpus[0], name="NVIDIA Other"), *gpus[1:]])
    )

    assert even[0, 1].peers == even[1, 2].peers != even[0, 3].peers == even[3, 2].peers
    assert mixed[0, 1].peers == mixed[2, 0].peers != mixed[1, 2].peers


def test_the_ranks_of_a_probe_give_the_places(tmp_path: Path) -> None:
    """A probe may use some of the GPUs, in any order."""
    rtx3090x4(tmp_path)
    found = topology(tmp_path, driver(*without_nvlink(PAIRS)))
    paths = gpu_paths(found, [PAIRS[3], PAIRS[0]])
    assert paths is not None
    chosen = ways_of(found, paths)

    assert chosen.keys() == {(0, 1), (1, 0)}
    assert passed(chosen, (0, 1)) == passed(ways(found), (3, 0))


def tree_of(board: Board, root: Path) -> Topology:
    """The machine of a board as sysfs and the driver show it."""
    tree = Tree(root)
    for place in range(board.gpus):
        switch, socket = board.switch(place), board.socket(place)
        if switch is None:
            way = [f"pci0000:{place + 0x40:02x}", f"0000:{place + 0x40:02x}:01.0"]
        else:
            host = f"{switch + 0x40:02x}"
            way = [
                f"pci0000:{host}",
                f"0000:{host}:01.0",
                switch_port(switch),
                f"0000:{0xA0 + switch:02x}:{place:02x}.0",
            ]
        tree.add(*way, gpu_link(place), kind="gpu", numa=socket)
    for socket in range(board.sockets):
        tree.numa_node(socket, f"{8 * socket}-{8 * socket + 7}")
    ends = [links(4, gpu_link(place ^ 1)) if board.bridges else [] for place in range(board.gpus)]
    return topology(root, driver(*(gpu(place, gpu_link(place), ends[place]) for place in range(board.gpus))))


def cells_of(found: Ways) -> dict[tuple[str, str], dict[Cell, str]]:
    """The ways of each part, with the direction."""
    parts: dict[tuple[str, str], dict[Cell, str]] = {}
    for cell, way in found.items():
        for one in way.passages:
            parts.setdefault((one.element.kind, one.element.name), {})[cell] = one.direction
    return parts


def generated(node: Node) -> dict[tuple[str, str], dict[Cell, str]]:
    parts: dict[tuple[str, str], dict[Cell, str]] = {}
    for cell, way in node.ways.items():
        for one in way.passed:
            parts.setdefault((one.part.kind, one.part.name), {})[cell] = one.direction
    return parts


BOARDS = [
    Board(1, 2, 2),
    Board(1, 1, 4),
    Board(1, 4, 2),
    Board(2, 1, 4),
    Board(2, 2, 2),
    Board(2, 2, 4),
    Board(1, 0, 4),
    Board(2, 0, 3),
    Board(1, 0, 4, bridges=True),
    Board(2, 1, 4, bridges=True),
]


@pytest.mark.parametrize("board", BOARDS, ids=str)
def test_a_machine_read_from_sysfs_has_the_parts_that_it_was_built_of(board: Board, tmp_path: Path) -> None:
    """Every part lies on the ways, and in the direction, that the generator of the confusion table says."""
    found, made = ways(tree_of(board, tmp_path)), pcie(board)
    assert cells_of(found) == generated(made)
    classes = {made.ways[cell].peers: way.peers for cell, way in found.items()}
    assert len(set(classes.values())) == len(classes)
    assert all(classes[made.ways[cell].peers] == way.peers for cell, way in found.items())


def test_a_suspect_is_told_with_its_address_and_what_to_check(tmp_path: Path) -> None:
    """From the tree to the sentence: the GPU, its address, its NVLinks, and the command to look with."""
    hgx(tmp_path)
    found = topology(tmp_path, driver(*(gpu(place, one, links(18, kind="switch")) for place, one in enumerate(FOUR))))
    node = nvswitch(4)
    fault = fault_of(node, Part("gpu", "GPU3"), 0.5, dice("words"))
    machine = Machine(node, dice("words"))
    row = [pair_matrix(node, machine.matrix([fault])) for _ in range(3)]

    suspects = find_suspects(row, Parts(ways(found), tuple(f"GPU{place}" for place in range(4))))

    assert suspects[0].words.startswith(
        "GPU3 (0000:98:00.0) or the NVLinks of GPU3: 6 of its 6 paths between two GPUs carry"
    )
    assert "nvidia-smi nvlink -s -i 3" in suspects[0].words


def test_a_link_of_unknown_far_end_counts_as_one_to_a_switch(tmp_path: Path) -> None:
    """In a virtual machine the driver gives neither kind nor address of what an active link leads to."""
    hgx(tmp_path)
    gpus = [gpu(place, address, [NvLink(0, 1, "4.0")]) for place, address in enumerate(FOUR)]
    assert ("link_group", "GPU0", "out") in passed(ways(topology(tmp_path, driver(*gpus))), (0, 1))

"""What is printed: text, JSON and graph."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.node.topology.document import SCHEMA_VERSION, document
from commwatch.node.topology.model import Topology
from topology.harness import driver, gpu, links, printed, topology
from topology.trees import Tree, domains, hgx, rtx3090x4, two_sockets, virtual_machine

BUILDERS = (rtx3090x4, hgx, two_sockets, virtual_machine, domains)


def as_json(found: Topology) -> Any:
    return json.loads(msgspec.json.encode(document(found, simulated=False, problems=("x",))))


@pytest.fixture
def nvlinked(tmp_path: Path) -> Topology:
    """An HGX machine with four GPUs behind NVSwitches."""
    tree = hgx(tmp_path)
    addresses = ("0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0")
    gpus = [gpu(place, one, links(18, kind="switch", version="4.0")) for place, one in enumerate(addresses)]
    return topology(tree.root, driver(*gpus))


def test_the_matrix_is_that_of_nvidia_smi(nvlinked: Topology) -> None:
    """Rows and columns of GPUs and NICs, then CPUs and NUMA node."""
    lines = printed(nvlinked)

    assert lines[:7] == [
        "      GPU0  GPU1  GPU2  GPU3  NIC0  NIC1  CPU affinity  NUMA",
        "GPU0  X     NV18  NV18  NV18  SYS   PIX   0-31          0",
        "GPU1  NV18  X     NV18  NV18  SYS   PIX   0-31          0",
        "GPU2  NV18  NV18  X     NV18  PIX   SYS   32-63         1",
        "GPU3  NV18  NV18  NV18  X     PIX   SYS   32-63         1",
        "NIC0  SYS   SYS   PIX   PIX   X     SYS   32-63         1",
        "NIC1  PIX   PIX   SYS   SYS   SYS   X     0-31          0",
    ]
    assert "  NIC0: mlx5_2, ibp1 (0000:99:00.0)" in lines
    assert "  GPU0 GPU1: NIC1 (PIX)" in lines


@pytest.mark.parametrize("missing", ["max_link_speed", "max_link_width"])
def test_a_link_of_which_half_is_unknown_is_not_known(tmp_path: Path, missing: str) -> None:
    """Neither the generation nor the lanes alone say what a link can carry."""
    tree = rtx3090x4(tmp_path)
    card = "0000:23:00.0"
    whole = printed(topology(tree.root, driver(gpu(0, card))))
    for file in tmp_path.rglob(f"*/{missing}"):
        file.unlink()

    assert not any("link not known" in line for line in whole)
    assert any(f"{card}  link not known" in line for line in printed(topology(tree.root, driver(gpu(0, card)))))


def test_the_legend_explains_the_classes_that_occur(nvlinked: Topology) -> None:
    """And no others."""
    lines = printed(nvlinked)
    start = lines.index("Legend")

    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["X", "NV#", "PIX", "SYS"]
    assert lines[start + 5] == ""


def test_expected_bandwidth_is_grouped_by_class(nvlinked: Topology) -> None:
    """One line for all pairs that should carry the same."""
    lines = [line.split() for line in printed(nvlinked)]

    assert ["NV18", "GPU-GPU", "371", "GB/s", "450", "GB/s", "18", "NVLinks", "×", "20.6", "GB/s"] in lines
    assert ["PIX", "GPU-NIC", "48", "GB/s", "63", "GB/s", "PCIe", "gen", "5", "x16"] in lines


def test_a_degraded_link_stands_out_in_the_tree(tmp_path: Path) -> None:
    """With what it is and what it could be."""
    tree = rtx3090x4(tmp_path)
    (tree.root / "bus/pci/devices/0000:24:00.0/current_link_width").write_text("8\n")

    lines = printed(topology(tmp_path))

    assert "      GPU1 0000:24:00.0  gen 4 x16  DEGRADED: now gen 4 x8" in lines
    assert "      GPU0 0000:23:00.0  gen 4 x16" in lines


def test_what_is_not_known_prints_as_such(tmp_path: Path) -> None:
    """A virtual machine: no NUMA node, no CPUs, no link, and why."""
    lines = printed(topology(virtual_machine(tmp_path).root))

    assert lines[1] == "GPU0  X     PHB   PHB   N/A           N/A"
    assert "    GPU0 0000:00:05.0  link not known" in lines
    assert any(line.split()[:4] == ["PHB", "GPU-GPU", "not", "known"] for line in lines)


def test_virtual_functions_and_other_adapters_are_listed(tmp_path: Path) -> None:
    """Below the NIC that they belong to, and apart."""
    tree = domains(tmp_path)
    tree.add("pci10003:00", "10003:00:00.0", "10003:01:00.0", kind="ethernet", net=("eno1",))

    lines = printed(topology(tmp_path))

    assert "  NIC0: mlx5_0, eth0 (10001:20:00.0), 1 virtual functions: eth0v0" in lines
    assert "  without RDMA, not in the matrix: eno1" in lines


def test_a_machine_without_anything_says_so(tmp_path: Path) -> None:
    """No empty table."""
    assert printed(topology(Tree(tmp_path).root)) == ["No GPU and no network adapter was found on the PCI bus."]


def test_eight_gpus_and_two_nics_fit_eighty_columns(tmp_path: Path) -> None:
    """With CPU lists of two ranges."""
    tree = Tree(tmp_path)
    gpus = []
    for number in range(8):
        address = f"0000:{number + 2:x}1:00.0"
        top = (f"pci0000:{number + 2:x}0", f"0000:{number + 2:x}0:01.0")
        tree.add(*top, address, kind="gpu", cpus="48-95,144-191")
        gpus.append(gpu(number, address, links(18, kind="switch")))
    for number in range(2):
        tree.add("pci0000:d0", f"0000:d0:0{number}.0", f"0000:d{number + 1}:00.0", kind="nic", rdma=(f"mlx5_{number}",))

    assert max(map(len, printed(topology(tmp_path, driver(*gpus)))[:11])) <= 80


@pytest.mark.parametrize("build", BUILDERS)
def test_the_document_has_its_schema(build: Callable[[Path], Tree], tmp_path: Path) -> None:
    """Version 1 has these keys; a key that goes away or changes its meaning is a new version."""
    found = as_json(topology(build(tmp_path).root))

    assert (found["schema_version"], SCHEMA_VERSION, found["simulated"], found["problems"]) == (1, 1, False, ["x"])
    (node,) = found["nodes"]
    assert set(node) == {
        "node", "driver_read", "driver_note", "gpus", "nics", "nvswitches", "pci_devices", "numa_nodes", "paths",
        "measurement", "measurement_note", "findings",
    }  # fmt: skip
    assert set(node["gpus"][0]) == {
        "label", "index", "pci_bus_id", "name", "uuid", "architecture", "numa_node", "cpu_affinity", "nvlinks",
        "nvlinks_active", "nearest_nics", "nearest_nic_class",
    }  # fmt: skip
    assert set(node["nics"][0]) == {
        "label", "pci_bus_id", "rdma_devices", "interfaces", "virtual_functions", "numa_node", "cpu_affinity",
    }  # fmt: skip
    assert set(node["paths"][0]) == {
        "source", "target", "class", "nvlinks", "pci_class", "bridges", "expected", "measured", "note",
    }  # fmt: skip
    assert {key for one in node["pci_devices"] for key in one} == {
        "pci_bus_id", "role", "parent", "numa_node", "link",
    }  # fmt: skip
    assert all(set(one) == {"code", "components", "text", "meaning"} for one in node["findings"])
    ends = len(node["gpus"]) + len(node["nics"])
    assert len(node["paths"]) == ends * (ends - 1) // 2


def test_the_document_says_what_the_matrix_says(nvlinked: Topology) -> None:
    """Class, links and expected bandwidth of a pair, with the source."""
    way = as_json(nvlinked)["nodes"][0]["paths"][0]

    assert (way["source"], way["target"], way["class"], way["nvlinks"], way["pci_class"]) == (
        "GPU0", "GPU1", "NV", 18, "PIX",
    )  # fmt: skip
    assert way["expected"]["bytes_per_second"] == pytest.approx(370.8e9)
    assert way["expected"]["source"] == "nccl_nvlink"


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    """Never 0, never empty where a number belongs."""
    node = as_json(topology(virtual_machine(tmp_path).root))["nodes"][0]

    assert (node["gpus"][0]["numa_node"], node["gpus"][0]["nvlinks"], node["gpus"][0]["nvlinks_active"]) == (None,) * 3
    assert node["paths"][0]["expected"] is None


VERTEX = re.compile(r'^ +("(?:[^"\\]|\\.)*") \[label=')
EDGE = re.compile(r'^ +("(?:[^"\\]|\\.)*") -- ("(?:[^"\\]|\\.)*")')


@pytest.mark.parametrize("build", BUILDERS)
def test_the_graph_has_every_device_once(build: Callable[[Path], Tree], tmp_path: Path) -> None:
    """Braces balance, each device and host bridge is one vertex, and edges join vertices that exist."""
    found = topology(build(tmp_path).root)
    devices = found.devices
    hosts = {one.parent for one in devices.values() if one.parent.startswith("pci")}

    lines = printed(found, "--dot")

    assert lines[0] == "graph topology {"
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", "\n".join(lines))
    assert outside.count("{") == outside.count("}")
    vertices = [match[1] for line in lines if (match := VERTEX.match(line))]
    edges = [match.groups() for line in lines if (match := EDGE.match(line))]
    assert sorted(vertices) == sorted(f'"n0:{name}"' for name in (*devices, *hosts))
    assert len(edges) == len(devices)
    assert {end for edge in edges for end in edge} <= set(vertices)


def test_nvlinks_are_edges_of_the_graph(nvlinked: Topology, tmp_path: Path) -> None:
    """To the fabric where there are NVSwitches, else between the two GPUs, once."""
    assert "\n".join(printed(nvlinked, "--dot")).count('label="NV18"') == 4

    rtx3090x4(tmp_path / "pair")
    pair = "0000:23:00.0", "0000:63:00.0"
    gpus = gpu(0, pair[0], links(4, pair[1])), gpu(1, pair[1], links(4, pair[0]))
    assert "\n".join(printed(topology(tmp_path / "pair", driver(*gpus)), "--dot")).count('label="NV4"') == 1

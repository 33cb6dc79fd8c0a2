"""Nodes of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from commwatch.config.simulated import absolute, names_a_file, node_name
from commwatch.errors import ConfigError
from commwatch_rehearsal.simulation.presets import PRESETS, find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset
from simulation.asking import handle
from simulation.harness import Rehearsal


@pytest.fixture
def node(tmp_path: Path) -> Callable[[str], Preset]:
    """Reads a node from a text."""

    def read(text: str) -> Preset:
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        return find_preset(str(file))

    return read


Node = Callable[[str], Preset]


def test_a_file_that_changes_nothing_is_its_preset(node: Node) -> None:
    """But for the name, for each preset."""
    for name, preset in PRESETS.items():
        found = node(f"like: {name}")
        assert found.name == "mine"
        assert (found.gpus, found.devices, found.model, found.interfaces, found.rdma_ports) == (
            preset.gpus, preset.devices, preset.model, preset.interfaces, preset.rdma_ports,
        )  # fmt: skip


def test_fewer_gpus_take_their_bridges_with_them(node: Node) -> None:
    """Of eight GPUs behind four switches three keep two switches, one of them with one port; other devices stay but the
    NVSwitches, which such a node does not see."""
    found = node("{like: h100x8, gpus: 3}")

    assert found.gpus == PRESETS["h100x8"].gpus[:3]
    roles = [device.role for device in found.devices]
    assert roles.count("gpu") == 3
    assert "nvswitch" not in roles
    # One switch holds a network adapter alone.
    assert roles.count("switch_upstream") == 3
    assert {device.parent for device in found.devices} - {device.address for device in found.devices} == {
        "pci0000:14", "pci0000:37", "pci0000:97",
    }  # fmt: skip


def test_other_gpus_and_links(node: Node) -> None:
    """Name, memory, PCIe link and number of NVLinks; the PCIe tree says the same as the driver."""
    found = node(
        "{like: h100x8, nvlink: {links: 12},"
        " gpu: {name: NVIDIA X, architecture: Ada, memory: 96GiB, pcie_generation: 4, pcie_width: 8}}"
    )

    assert (found.model.name, found.model.architecture, found.model.memory_bytes) == ("NVIDIA X", 8, 96 * 2**30)
    assert {(one.generation, one.width) for one in found.devices if one.role == "gpu"} == {(4, 8)}
    assert found.model.nvlink is not None
    assert found.model.nvlink.links == 12
    assert node("{like: h100x8, nvlink: {links: 0}}").model.nvlink is None


def test_bridges_join_pairs(node: Node) -> None:
    """All links of GPU 0 lead to GPU 1; one without a partner leads nowhere."""
    found = node("{like: rtx3090x4, gpus: 3, nvlink: {remote: bridge}}")

    assert [found.peer(0, link) for link in range(4)] == [(1, link) for link in range(4)]
    assert found.peer(2, 0) is None


def test_adapters_have_their_places(node: Node) -> None:
    """Beside a GPU below its switch, or on a root port of their own; nothing of the preset's adapters is left."""
    found = node(
        "like: h100x8\nnics:\n"
        "- {rdma: ib0, speed: 400, near_gpu: 2}\n"
        "- {interface: eth9, rdma: roce0, speed: 200, numa: 1, bond: bond7}\n"
        "- {interface: eth8, speed: 25}\n"
    )
    numa = {device.address: device.numa_node for device in found.devices}
    infiniband, roce = found.rdma_ports

    assert [one.name for one in found.interfaces] == ["eth9", "eth8"]
    switch_of_gpu = found.ancestors(found.gpus[2].pci_address)[1]
    assert switch_of_gpu in found.ancestors(infiniband.pci_address)
    assert (infiniband.link_layer, infiniband.rate_gigabits_per_second, infiniband.speed_name) == (
        "InfiniBand",
        400,
        "NDR",
    )
    assert (roce.link_layer, roce.interface, roce.speed_name) == ("Ethernet", "eth9", "HDR")
    assert numa[roce.pci_address] == 1
    assert found.interfaces[0].bond == "bond7"
    assert sum(device.role == "nic" for device in found.devices) == 3
    assert len(numa) == len(found.devices)


def test_an_adapter_near_a_gpu_without_a_switch_shares_its_host_bridge(node: Node) -> None:
    """Below a root port of its own."""
    found = node("like: a10x2\nnics: [{rdma: mlx5_0, speed: 100, near_gpu: 1}]")

    own, of_gpu = (found.ancestors(address) for address in (found.rdma_ports[0].pci_address, found.gpus[1].pci_address))
    assert own[-1] == of_gpu[-1]
    assert own[0] != of_gpu[0]


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ("gpus: 3", 1, "like", "missing"),
        ("like: h100x9", 1, "like", "no preset 'h100x9'"),
        ("like: h100x8\ngpus: 9", 2, "gpus", "has 8 GPUs"),
        ("like: h100x8\ngpus: 0", 2, "gpus", ">= 1"),
        ("like: h100x8\ncolour: red", 2, "colour", "unknown key"),
        ("like: h100x8\ngpu:\n  lanes: 4", 3, "gpu.lanes", "unknown key"),
        ("like: h100x8\ngpu:\n  pcie_width: 3", 3, "gpu.pcie_width", "3 is not possible; possible: 1, 2, 4"),
        ("like: h100x8\nnuma: [0, 1]", 2, "numa", "expected 8 numbers"),
        ("like: h100x8\nnuma: [0, 1, 0, 0, 0, 0, 0, 0]", 2, "numa", "shares its root port"),
        ("like: h100x8\nnics:\n- {speed: 100}", 3, "nics[0]", "needs an interface"),
        ("like: h100x8\nnics:\n- {speed: fast, rdma: a}", 3, "nics[0].speed", "expected a whole number; got text"),
        ("like: h100x8\nnics:\n- {speed: 1, rdma: a}\n- {speed: 1, rdma: a}", 4, "nics[1]", "a appears twice"),
        ("like: h100x8\nnics:\n- {speed: 1, rdma: a, near_gpu: 8}", 3, "nics[0]", "no GPU 8"),
        ("- like: h100x8", 1, "", "expected settings"),
    ],
)
def test_a_wrong_file_is_one_line_with_file_line_and_key(
    node: Node, text: str, line: int, key: str, problem: str
) -> None:
    """Whatever is wrong."""
    with pytest.raises(ConfigError) as caught:
        node(text)

    assert (Path(caught.value.file).name, caught.value.line, caught.value.key) == ("mine.yaml", line, key)
    assert problem in caught.value.problem


def test_names(tmp_path: Path) -> None:
    """A preset is a word, a file has a slash or an ending; its stem is fit for a directory."""
    assert [names_a_file(text) for text in ("h100x8", "a.yaml", "a.yml", "./a")] == [False, True, True, True]
    assert node_name("h100x8") == "h100x8"
    assert node_name("/x/my node!.yaml") == "my_node_"
    assert absolute("h100x8") == "h100x8"
    assert Path(absolute("a.yaml")).is_absolute()
    with pytest.raises(ConfigError, match="cannot be read"):
        find_preset(str(tmp_path / "nosuch.yaml"))


def test_the_driver_shows_the_node(driver: Callable[..., Rehearsal], tmp_path: Path) -> None:
    """Through the real binding."""
    file = tmp_path / "pair.yaml"
    file.write_text("{like: rtx3090x4, gpus: 2, nvlink: {remote: bridge}}")
    driver(str(file))

    assert pynvml.nvmlDeviceGetCount() == 2
    assert [pynvml.nvmlDeviceGetNvLinkState(handle(0), link) for link in range(4)] == [1, 1, 1, 1]
    assert pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle(0), 0) == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU

"""Interfaces, RDMA ports and ways to GPU memory, as sysfs and /proc show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.jobs.settings.node_network import NodeNetwork, read_node_network


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def read(folder: Path) -> NodeNetwork:
    return read_node_network(folder / "sys", folder / "proc")


def test_nothing_is_known_of_a_tree_that_is_not_there(tmp_path: Path) -> None:
    """Not an empty node."""
    assert read(tmp_path) == NodeNetwork(None, None, None, None, None)


def test_a_node_without_adapters_has_none(tmp_path: Path) -> None:
    """Where the kernel shows its classes, a missing one is an answer."""
    write(tmp_path / "sys/class/net/lo/operstate", "unknown\n")
    (tmp_path / "sys/module").mkdir()

    found = read(tmp_path)

    assert (found.rdma_ports, found.peermem, found.interfaces) == ((), False, {"lo": True})


def test_interfaces_are_up_down_or_not_known(tmp_path: Path) -> None:
    """By the kernel's word; a file of the bonding driver is no interface."""
    states = {"lo": "unknown", "eno1": "up", "eno2": "down", "eno3": "lowerlayerdown", "eno4": "testing"}
    for name, state in states.items():
        write(tmp_path / "sys/class/net" / name / "operstate", f"{state}\n")
    write(tmp_path / "sys/class/net/bonding_masters", "bond0\n")

    assert read(tmp_path).interfaces == {"lo": True, "eno1": True, "eno2": False, "eno3": False, "eno4": None}


def test_ports_come_with_state_rate_and_filled_gids(tmp_path: Path) -> None:
    """GIDs of Ethernet ports only; empty entries hold zeros."""
    device = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    write(device / "state", "4: ACTIVE\n")
    write(device / "link_layer", "Ethernet\n")
    write(device / "rate", "200 Gb/sec (4X HDR)\n")
    write(device / "gids/0", "fe80:0000:0000:0000:0e42:a1ff:fe00:0001\n")
    write(device / "gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n")
    other = tmp_path / "sys/class/infiniband/mlx5_1/ports/1"
    write(other / "state", "1: DOWN\n")
    write(other / "link_layer", "InfiniBand\n")
    write(other / "rate", "2.5 Gb/sec (1X SDR)\n")

    first, second = read(tmp_path).rdma_ports or ()

    assert (first.device, first.port, first.active, first.rate_gbit) == ("mlx5_0", 1, True, 200.0)
    assert first.gids == frozenset({0})
    assert (second.active, second.link_layer, second.rate_gbit, second.gids) == (False, "InfiniBand", 2.5, None)
    assert not first.is_virtual


@pytest.mark.parametrize("beside", [True, False])
def test_the_port_of_a_virtual_function_is_told_apart(tmp_path: Path, *, beside: bool) -> None:
    """It is no rail of the node; in a pod, which has no device of the adapter, it is."""
    folder = tmp_path / "sys/devices/pci0000:17/0000:18:00.2"
    (folder.parent / "0000:18:00.0" / ("infiniband/mlx5_0" if beside else "")).mkdir(parents=True)
    folder.mkdir()
    (folder / "physfn").symlink_to("../0000:18:00.0")
    write(tmp_path / "sys/class/infiniband/mlx5_8/ports/1/state", "4: ACTIVE\n")
    (tmp_path / "sys/class/infiniband/mlx5_8/device").symlink_to(folder)

    assert [one.is_virtual for one in read(tmp_path).rdma_ports or ()] == [beside]


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"])
def test_the_modules_of_gpu_memory_are_seen(tmp_path: Path, module: str) -> None:
    """Under the new name and the old one."""
    (tmp_path / "sys/module" / module).mkdir(parents=True)

    assert read(tmp_path).peermem is True


@pytest.mark.parametrize(
    ("version", "dma_buf"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06\n", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05\n", False),
    ],
)
def test_the_open_kernel_module_gives_dma_buf(tmp_path: Path, version: str, dma_buf: bool) -> None:
    """The driver says which one it is."""
    write(tmp_path / "proc/driver/nvidia/version", version)

    assert read(tmp_path).dma_buf is dma_buf


@pytest.mark.parametrize(
    ("text", "virtual"),
    [("flags\t\t: fpu vme hypervisor lm\n", True), ("flags\t\t: fpu vme lm\n", False), ("processor\t: 0\n", None)],
)
def test_a_virtual_machine_shows_by_a_flag_of_its_processor(tmp_path: Path, text: str, virtual: bool | None) -> None:
    """Processors without flags say nothing."""
    write(tmp_path / "proc/cpuinfo", text)

    assert read(tmp_path).virtual is virtual

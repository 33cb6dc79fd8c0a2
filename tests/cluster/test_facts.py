"""What a member reads of its node, without asking a GPU and without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commwatch.cluster import facts
from commwatch.cluster.connections import port_owner, port_range, result_of
from commwatch.cluster.facts import addresses_of, nccl_version, read_facts
from commwatch.jobs.settings.variables import known_variables
from support.infiniband import add_device, add_port

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
GPU = "Model: \t\t NVIDIA H100 80GB HBM3\nVideo BIOS: \t 96.00.99.00.01\nGPU Firmware: \t 570.86.15\n"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with two GPUs and two adapters, as files."""
    for path, text in {
        "proc/driver/nvidia/version": DRIVER,
        "proc/driver/nvidia/gpus/0000:17:00.0/information": GPU,
        "proc/driver/nvidia/gpus/0000:18:00.0/information": GPU,
        "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "proc/net/tcp": "  sl  local_address rem_address   st\n   0: 0100007F:733C 00000000:0000 0A 0 0 0 0 0 777\n",
        "proc/4711/comm": "python3\n",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002\n",
        "sys/class/infiniband/mlx5_1/fw_ver": "28.39.1002\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
        "sys/class/infiniband/mlx5_1/ports/1/link_layer": "InfiniBand\n",
        "sys/class/infiniband/mlx5_1/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "nccl.conf": "NCCL_IB_TC=106\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "proc/4711/fd").mkdir()
    (tmp_path / "proc/4711/fd/3").symlink_to("socket:[777]")
    return tmp_path


def test_versions_and_parts_come_from_files(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal parts are counted, so that one that is missing or not active shows."""
    monkeypatch.setitem(sys.modules, "torch", None)
    variables = {"NCCL_IB_TC": "106", "NCCL_DEBUG_FILE": "/tmp/%h", "HOME": "/root"}

    found = read_facts(node / "sys", node / "proc", variables, known_variables(), "localhost", conf=node / "nccl.conf")

    kept = {name: found.versions[name] for name in ("driver", "kernel", "NIC firmware", "GPU firmware", "GPU VBIOS")}
    assert kept == {
        "driver": "570.86.15", "kernel": "6.8.0-45-generic", "NIC firmware": "2 x 28.39.1002",
        "GPU firmware": "2 x 570.86.15", "GPU VBIOS": "2 x 96.00.99.00.01",
    }  # fmt: skip
    assert len(found.versions["/etc/nccl.conf"]) == 12
    assert found.parts == {
        "GPUs": "2 x NVIDIA H100 80GB HBM3",
        "RDMA ports": "1 x InfiniBand 400 Gbit/s, 1 x InfiniBand 400 Gbit/s, not active",
        "RoCE GIDs": "none",
    }
    assert found.settings == {"NCCL_IB_TC": "106"}
    assert found.master_addresses


def test_firmware_of_virtual_functions_is_not_counted(tmp_path: Path) -> None:
    """Pods come and go with them, and nodes would differ by it."""
    for name, address in (("mlx5_0", "0000:18:00.0"), ("mlx5_1", "0000:18:00.2")):
        add_port(add_device(tmp_path, name, address))
    (tmp_path / "devices/pci0000:15/0000:15:01.0/0000:18:00.2/physfn").symlink_to("../0000:18:00.0")

    found = read_facts(tmp_path, tmp_path, {}, known_variables(), "nowhere.invalid", conf=tmp_path / "none")

    assert found.versions["NIC firmware"] == "1 x 28.39.1002"
    assert found.parts["RDMA ports"] == "1 x InfiniBand 400 Gbit/s"


def test_a_node_without_any_of_it_has_none(tmp_path: Path) -> None:
    """Nothing is made up."""
    found = read_facts(tmp_path, tmp_path, {}, known_variables(), "nowhere.invalid", conf=tmp_path / "none")

    assert {found.versions[name] for name in ("driver", "kernel", "NIC firmware", "/etc/nccl.conf")} == {"none"}
    assert set(found.parts.values()) == {"none"}
    assert (found.settings, found.master_addresses) == ({}, ())


def test_the_nccl_that_torch_would_load_is_found_without_loading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preloaded one wins over the package's, and that over the loader's folders; by file name, else by its text."""
    named, plain = tmp_path / "a", tmp_path / "b"
    named.mkdir()
    plain.mkdir()
    (named / "libnccl.so.2.26.2").write_bytes(b"\x7fELF")
    (named / "libnccl.so.2").symlink_to("libnccl.so.2.26.2")
    (plain / "libnccl.so.2").write_bytes(b"\x7fELF" + bytes(9000) + b"NCCL version 2.27.7+cuda12.9\0")
    monkeypatch.setattr(facts, "_package", lambda name: "")

    assert nccl_version({"LD_LIBRARY_PATH": f"{named}:{plain}"}) == "2.26.2"
    assert nccl_version({"LD_LIBRARY_PATH": f"/nowhere:{plain}"}) == "2.27.7"
    monkeypatch.setattr(facts, "_package", lambda name: "2.28.3" if name.endswith("12") else "")
    assert nccl_version({"LD_LIBRARY_PATH": str(named)}) == "2.28.3"
    assert nccl_version({"LD_PRELOAD": f"{named}/libnccl.so.2"}) == "2.26.2"


def test_a_port_has_its_range_and_its_owner(node: Path, tmp_path: Path) -> None:
    """As far as the kernel shows it to us."""
    assert port_range(node / "proc") == (32768, 60999)
    assert port_range(tmp_path / "nowhere") == (32768, 60999)
    assert port_owner(node / "proc", 29500) == "python3 (pid 4711)"
    assert port_owner(node / "proc", 29501) == ""


def test_errors_of_connections_have_a_cause_each() -> None:
    """EPERM is the own firewall's answer."""
    import errno
    import socket

    causes = {number: result_of(OSError(number, "")) for number in (
        errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EPERM, errno.ETIMEDOUT, errno.ECONNRESET
    )}  # fmt: skip
    assert list(causes.values()) == ["no_route", "no_route", "filtered", "filtered", "refused"]
    assert result_of(socket.gaierror(-2, "")) == "name"
    assert addresses_of("127.0.0.1") == ("127.0.0.1",)

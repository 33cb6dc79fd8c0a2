"""Reads the PCIe tree, NUMA nodes and the processor from sysfs and /proc/cpuinfo, without interpreting them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from commwatch.node.topology.model import Cpu, NumaNode, PcieLink
from commwatch.sources import files
from commwatch.sources.pci_attributes import ancestors_of, endpoint_role, parse_generation, parse_width
from commwatch.sources.presence import is_virtual

_NUMA_NODE = re.compile(r"node([0-9]{1,6})")
_CPU_LIST = re.compile(rb"[0-9,\-]*")
_CPU_INFO_BYTES = 64 * 1024
"""Enough for the first processor."""


@dataclass(frozen=True, slots=True)
class PciFacts:
    address: str
    role: Literal["gpu", "nic", "nvswitch", "bridge"]
    ancestors: tuple[str, ...]
    """Bridges above it, nearest first, the host bridge last."""
    numa_node: int | None
    cpus: str
    link: PcieLink
    physical_function: str
    """Of a virtual function; empty for all else."""
    rdma_devices: tuple[str, ...]
    interfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SysfsFacts:
    devices: tuple[PciFacts, ...]
    """GPUs, NICs, NVSwitches and the bridges above them, by address."""
    numa_nodes: tuple[NumaNode, ...]
    cpu: Cpu | None
    problems: tuple[str, ...]
    """Inputs that could not be read, for the operator."""
    virtual: bool | None = None
    """Whether this is a virtual machine; None where not known."""


def read_sysfs(sysfs: Path, procfs: Path) -> SysfsFacts:
    """Read the tree once: ``bus/pci/devices``, ``devices/system/node`` and ``cpuinfo``. Blocks."""
    root = sysfs / "bus/pci/devices"
    problems: list[str] = []
    try:
        addresses = sorted(filter(files.is_pci_address, os.listdir(root)))
    except OSError as error:
        addresses = []
        problems.append(f"{root}: {error.strerror}")
    ends = [facts for address in addresses if (facts := _read_end(str(root), address)) is not None]
    above = sorted({name for end in ends for name in end.ancestors if files.is_pci_address(name)})
    bridges = [_read_device(str(root), address, "bridge", "") for address in above]
    devices = sorted((*ends, *bridges), key=lambda facts: facts.address)
    return SysfsFacts(tuple(devices), read_numa_nodes(sysfs), read_cpu(procfs), tuple(problems), is_virtual(procfs))


def _read_end(root: str, address: str) -> PciFacts | None:
    words = [files.parse_word(files.read_if_there(f"{root}/{address}/{name}") or b"") for name in ("class", "vendor")]
    role = endpoint_role(*words)
    if role not in ("gpu", "nic", "nvswitch"):
        return None
    return _read_device(root, address, role, files.link_name(f"{root}/{address}/physfn"))  # type: ignore[arg-type]


def _read_device(
    root: str, address: str, role: Literal["gpu", "nic", "nvswitch", "bridge"], physical_function: str
) -> PciFacts:
    base = f"{root}/{address}"

    def content(name: str) -> bytes:
        return files.read_if_there(f"{base}/{name}") or b""

    numa_node = files.parse_integer(content("numa_node"))
    return PciFacts(
        address=address,
        role=role,
        ancestors=tuple(ancestors_of(files.device_chain(base))),
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        cpus=parse_cpu_list(content("local_cpulist")),
        link=PcieLink(
            generation=parse_generation(content("current_link_speed")),
            lanes=parse_width(content("current_link_width")),
            generation_max=parse_generation(content("max_link_speed")),
            lanes_max=parse_width(content("max_link_width")),
        ),
        physical_function=physical_function if files.is_pci_address(physical_function) else "",
        rdma_devices=_names(f"{base}/infiniband"),
        interfaces=_names(f"{base}/net") or _virtio_interfaces(base),
    )


def _names(folder: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(map(files.label_of, os.listdir(folder)), key=natural))
    except OSError:
        return ()


def _virtio_interfaces(base: str) -> tuple[str, ...]:
    """The interfaces of a virtual adapter, which are one level lower."""
    below = [name for name in _names(base) if name.startswith("virtio")]
    return tuple(interface for name in below for interface in _names(f"{base}/{name}/net"))


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts ``mlx5_2`` before ``mlx5_10``."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts)


def parse_cpu_list(data: bytes) -> str:
    """A list of CPUs as the kernel writes it, such as ``0-31,64-95``; empty for any other text."""
    text = data.strip()
    return text.decode() if _CPU_LIST.fullmatch(text) else ""


def read_numa_nodes(sysfs: Path) -> tuple[NumaNode, ...]:
    """The NUMA nodes that have CPUs or memory; none where the kernel shows none."""
    root = sysfs / "devices/system/node"
    try:
        names = os.listdir(root)
    except OSError:
        return ()
    numbers = sorted(int(match[1]) for match in map(_NUMA_NODE.fullmatch, names) if match)
    return tuple(
        NumaNode(number, parse_cpu_list(files.read_if_there(f"{root}/node{number}/cpulist") or b""))
        for number in numbers
    )


def read_cpu(procfs: Path) -> Cpu | None:
    """The processor; None if ``cpuinfo`` is missing or does not name it."""
    try:
        with open(procfs / "cpuinfo", "rb") as file:
            return parse_cpu(file.read(_CPU_INFO_BYTES))
    except OSError:
        return None


def parse_cpu(data: bytes) -> Cpu | None:
    """The first processor of ``/proc/cpuinfo``; None for text that names none."""
    fields = dict(_fields(data.decode("utf-8", "replace").splitlines()))
    if "CPU implementer" in fields:
        return Cpu("arm")
    vendors: dict[str, Literal["intel", "amd"]] = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
    if "vendor_id" not in fields:
        return None
    numbers = [files.parse_integer(fields.get(name, "").encode()) for name in ("cpu family", "model")]
    return Cpu(vendors.get(fields["vendor_id"], "other"), *numbers)


def _fields(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, colon, value = line.partition(":")
        if not line.strip():
            return
        if colon:
            yield name.strip(), value.strip()

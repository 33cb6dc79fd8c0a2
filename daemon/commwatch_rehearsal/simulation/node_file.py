"""A user's own node: a YAML file with its differences from a preset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from commwatch.config.settings import Section, Size
from commwatch.config.simulated import node_name
from commwatch.config.yaml_file import YamlDocument, decode, read_yaml
from commwatch_rehearsal.simulation.node_changes import (
    NoPlace,
    place_adapter,
    with_first_gpus,
    with_gpu_model,
    with_numa_nodes,
    without_adapters,
)
from commwatch_rehearsal.simulation.presets import PRESETS
from commwatch_rehearsal.simulation.presets.parts import EthernetInterface, Preset, RdmaPort
from commwatch_rehearsal.simulation.presets.platform import part

_LANE_NAMES = {100: "NDR", 50: "HDR", 25: "EDR", 200: "XDR"}
"""Gbit/s of one of four lanes: the name that the kernel writes."""

_ARCHITECTURES = {"Ampere": 7, "Ada": 8, "Hopper": 9, "Blackwell": 10}
"""The numbers of ``nvmlDeviceGetArchitecture``."""
_ETHERNET, _INFINIBAND = 0x020000, 0x020700
"""PCI classes."""
_MELLANOX, _CONNECTX = 0x15B3, 0x1021
_BACKGROUND_BYTES_PER_SECOND = 3.0e6

_NAME = r"^(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,15}\Z"
"""Of an interface, and of its folder in sysfs: neither this one nor the one above."""
_RDMA_NAME = r"^(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,63}\Z"
_BOND_NAME = r"^(?!\.{1,2}\Z)[A-Za-z0-9_.-]{0,15}\Z"


class GpuChange(Section, frozen=True):
    name: str | None = None
    architecture: Literal["Ampere", "Ada", "Hopper", "Blackwell"] | None = None
    """Decides on further features: GPM, for one, came with Hopper."""
    memory: Size | None = None
    pcie_generation: Annotated[int, Meta(ge=1, le=6)] | None = None
    pcie_width: Literal[1, 2, 4, 8, 16] | None = None
    """Lanes."""
    power_limit_watts: Annotated[int, Meta(ge=1, le=5000)] | None = None


class NVLinkChange(Section, frozen=True):
    """Changes to the NVLinks of every GPU."""

    links: Annotated[int, Meta(ge=0, le=18)] | None = None
    """0: none at all."""
    remote: Literal["switch", "gpu", "bridge", "none"] | None = None


class Adapter(Section, frozen=True):
    """One port of a network adapter, on a PCIe device of its own."""

    speed: Annotated[int, Meta(ge=1, le=1600)]
    """Gbit/s."""
    interface: Annotated[str, Meta(pattern=_NAME)] | None = None
    """Network interface; none on InfiniBand."""
    rdma: Annotated[str, Meta(pattern=_RDMA_NAME)] | None = None
    """RDMA device; none for an adapter without."""
    near_gpu: Annotated[int, Meta(ge=0)] | None = None
    """Below the PCIe switch of this GPU, or on its host bridge where it has none."""
    numa: Annotated[int, Meta(ge=-1, le=255)] = 0
    """For an adapter without ``near_gpu``: on a root port of this NUMA node."""
    bond: Annotated[str, Meta(pattern=_BOND_NAME)] = ""
    pcie_generation: Annotated[int, Meta(ge=1, le=6)] = 5
    pcie_width: Literal[1, 2, 4, 8, 16] = 16

    def __post_init__(self) -> None:
        if self.interface is None and self.rdma is None:
            raise ValueError("needs an interface (Ethernet), an RDMA device (InfiniBand) or both (RoCE)")


class NodeFile(Section, frozen=True):
    like: str
    gpus: Annotated[int, Meta(ge=1)] | None = None
    """The first GPUs of the preset, by this number."""
    gpu: GpuChange = field(default_factory=GpuChange)
    nvlink: NVLinkChange = field(default_factory=NVLinkChange)
    numa: tuple[Annotated[int, Meta(ge=-1, le=255)], ...] | None = None
    nics: tuple[Adapter, ...] | None = None
    """In place of all adapters of the preset."""
    driver_version: Annotated[str, Meta(pattern=r"^\d{3}(\.\d+){1,2}\Z")] | None = None


def read_node(path: Path) -> Preset:
    """The node of a file (docs/using/simulation.md).

    Raises:
        ConfigError: it cannot be used; it names file, line and key.
    """
    document = read_yaml(path)
    node = decode(document, NodeFile)
    if node.like not in PRESETS:
        raise document.error(("like",), f"no preset {node.like!r}; there are {', '.join(PRESETS)}")
    preset = PRESETS[node.like]
    if node.gpus is not None and node.gpus > len(preset.gpus):
        raise document.error(("gpus",), f"{node.like} has {len(preset.gpus)} GPUs")
    if node.gpus is not None:
        preset = with_first_gpus(preset, node.gpus)
    try:
        if node.numa is not None:
            preset = with_numa_nodes(preset, node.numa)
    except NoPlace as error:
        raise document.error(("numa",), str(error)) from None
    preset = with_gpu_model(preset, _set_keys(node.gpu), _set_keys(node.nvlink))
    if node.nics is not None:
        preset = _with_adapters(without_adapters(preset), node.nics, document)
    version = preset.driver_version if node.driver_version is None else node.driver_version
    return replace(preset, name=node_name(str(path)), driver_version=version)


def _set_keys(section: Section) -> dict[str, Any]:
    """The settings that the file has, under the names of the preset's fields."""
    values = {key: value for key in section.__struct_fields__ if (value := getattr(section, key)) is not None}
    if "memory" in values:
        values["memory_bytes"] = int(values.pop("memory"))
    if "architecture" in values:
        values["architecture"] = _ARCHITECTURES[values["architecture"]]
    return values


def _with_adapters(preset: Preset, adapters: Sequence[Adapter], document: YamlDocument) -> Preset:
    seen: set[str] = set()
    for position, adapter in enumerate(adapters):
        for name in {adapter.interface, adapter.rdma} - {None}:
            if name in seen:
                raise document.error(("nics", position), f"{name} appears twice")
            seen.add(str(name))
        kind = _INFINIBAND if adapter.interface is None else _ETHERNET
        lanes = adapter.pcie_generation, adapter.pcie_width
        device = replace(part("nic", kind, _MELLANOX, _CONNECTX, *lanes, "mlx5_core"), numa_node=adapter.numa)
        try:
            preset, address = place_adapter(preset, device, adapter.near_gpu)
        except NoPlace as error:
            raise document.error(("nics", position), str(error)) from None
        preset = _with_ports(preset, adapter, address)
    return preset


def _with_ports(preset: Preset, adapter: Adapter, address: str) -> Preset:
    if adapter.interface is not None:
        interface = EthernetInterface(
            adapter.interface, address, adapter.speed * 1000, _BACKGROUND_BYTES_PER_SECOND, adapter.bond
        )
        preset = replace(preset, interfaces=(*preset.interfaces, interface))
    if adapter.rdma is not None:
        port = RdmaPort(
            device=adapter.rdma,
            port=1,
            pci_address=address,
            link_layer="InfiniBand" if adapter.interface is None else "Ethernet",
            rate_gigabits_per_second=adapter.speed,
            speed_name=_LANE_NAMES.get(adapter.speed // 4, "EDR"),
            interface=adapter.interface or "",
        )
        preset = replace(preset, rdma_ports=(*preset.rdma_ports, port))
    return preset

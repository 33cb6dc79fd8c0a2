"""The topology of a machine: GPUs, NICs, NVSwitches, the PCIe tree above them, and NUMA nodes; values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from commwatch_exporters.state_words import NVLINK_UP

PciRole: TypeAlias = Literal["gpu", "nic", "nvswitch", "root_port", "switch_upstream", "switch_downstream"]


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A PCIe link; each part is None where the kernel does not know it."""

    generation: int | None = None
    """Now; falls while a GPU is idle."""
    lanes: int | None = None
    """Now."""
    generation_max: int | None = None
    lanes_max: int | None = None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One function of the PCIe tree: an end or a bridge."""

    address: str
    """As sysfs spells it: ``0000:17:00.0``."""
    role: PciRole
    parent: str
    """Address of the bridge above, or the host bridge (``pci0000:14``); empty where the tree does not show it."""
    numa_node: int | None
    """None where the firmware does not say (-1)."""
    cpus: str
    """CPUs near it as the kernel lists them (``0-31,64-95``); empty where not known."""
    link: PcieLink
    """As this end of the link sees it."""


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU, from the GPU's side."""

    number: int
    state: int | None
    """NVML's code: 0 inactive, 1 active, 2 sleep, 3 active with traffic disabled; None where not read."""
    version: str = ""
    """``4.0``; empty where not known."""
    remote_type: str = ""
    """gpu, switch or ibmnpu; empty where the driver does not say."""
    remote_address: str = ""
    """PCI address of what it leads to; empty where the driver does not say."""
    line_rate: float | None = None
    """Bytes per second, one direction, before FEC and framing."""

    @property
    def active(self) -> bool:
        """Whether it carries traffic."""
        return self.state in NVLINK_UP


@dataclass(frozen=True, slots=True)
class Gpu:
    address: str
    index: int | None
    """NVML's; None for a GPU on the bus that the driver does not have. Without a driver: the place in PCI order."""
    name: str = ""
    uuid: str = ""
    architecture: str = ""
    nvlinks: tuple[NvLink, ...] | None = field(default=None, hash=False)
    """None where not read, or not answered; empty where the GPU has none."""

    @property
    def label(self) -> str:
        """``GPU0``, or the end of the PCI address in brackets for a GPU without index."""
        return f"({self.address.partition(':')[2]})" if self.index is None else f"GPU{self.index}"


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A virtual function of a NIC; its path is that of the physical function."""

    address: str
    rdma_devices: tuple[str, ...]
    interfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Nic:
    """One network adapter function."""

    address: str
    index: int
    """By the number in the name of its RDMA device, those without one after them, by address."""
    rdma_devices: tuple[str, ...]
    """``mlx5_0``."""
    interfaces: tuple[str, ...]
    """``ens1np0``."""
    virtual_functions: tuple[VirtualFunction, ...] = ()

    @property
    def all_rdma_devices(self) -> tuple[str, ...]:
        """With those of its virtual functions: a container may have these alone."""
        return (*self.rdma_devices, *(name for one in self.virtual_functions for name in one.rdma_devices))

    @property
    def label(self) -> str:
        """``NIC0``."""
        return f"NIC{self.index}"


@dataclass(frozen=True, slots=True)
class NumaNode:
    number: int
    cpus: str
    """``0-31,64-95``."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Which processor the machine has, as /proc/cpuinfo numbers it."""

    vendor: Literal["intel", "amd", "arm", "other"]
    family: int | None = None
    model: int | None = None


End: TypeAlias = Gpu | Nic


@dataclass(frozen=True, slots=True)
class Topology:
    gpus: tuple[Gpu, ...] = ()
    """By index, those without one last."""
    nics: tuple[Nic, ...] = ()
    """By index."""
    nvswitches: tuple[str, ...] = ()
    """PCI addresses."""
    devices: Mapping[str, PciDevice] = field(default_factory=dict)
    """The ends and all bridges above them, by address."""
    numa_nodes: tuple[NumaNode, ...] = ()
    cpu: Cpu | None = None
    driver_note: str = ""
    """Why the driver said nothing; empty where it answered. Then NVLink is unknown."""
    nvlink_refused: frozenset[frozenset[str]] = frozenset()
    """Pairs of GPUs, by PCI address, that the driver does not let reach each other over NVLink."""
    peers_refused: frozenset[frozenset[str]] = frozenset()
    """Pairs that it does not let read each other's memory at all."""
    virtual: bool | None = None
    """Whether this is a virtual machine; None where not known."""

    @property
    def driver_read(self) -> bool:
        """Whether NVML answered; else indexes are the places in PCI order."""
        return not self.driver_note

    @property
    def fabric_nics(self) -> tuple[Nic, ...]:
        """The NICs that GPU traffic would use: those with an RDMA device, or all where none has one."""
        return tuple(nic for nic in self.nics if nic.all_rdma_devices) or self.nics

    @property
    def ends(self) -> tuple[End, ...]:
        """The GPUs, then the fabric NICs."""
        return (*self.gpus, *self.fabric_nics)

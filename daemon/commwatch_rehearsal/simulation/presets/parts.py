"""Parts of a simulated node: GPUs, NVLinks, PCIe tree, network interfaces, RDMA ports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

NVIDIA = 0x10DE
"""PCI vendor."""
NVLINK_5 = 7
"""Code of ``nvmlDeviceGetNvLinkVersion`` for 5.0."""


Remote: TypeAlias = Literal["switch", "gpu", "bridge", "none"]
"""The remote ends of a GPU's links.

``switch``: NVSwitches; ``gpu``: all other GPUs, evenly; ``bridge``: all links of GPU 0 lead to GPU 1, those of GPU 2 to
GPU 3, and so on; ``none``: no bridge is fitted, every link is inactive.
"""


PciRole: TypeAlias = Literal["root_port", "switch_upstream", "switch_downstream", "gpu", "nic", "nvswitch"]


@dataclass(frozen=True, slots=True)
class NVLinkModel:
    """The NVLinks of a GPU model (one generation, all links alike)."""

    links: int
    version: int
    """Code of ``nvmlDeviceGetNvLinkVersion``: 4 = 3.0, 5 = 3.1, 6 = 4.0, 7 = 5.0."""
    line_rate_megabytes_per_second: int
    """One link, one direction, 10⁶ bytes: what NVML fields 90 and 164 answer."""
    nominal_bytes_per_second: float
    """Product figure of one link, one direction."""
    remote: Remote
    background_bytes_per_second: float = 3e6
    """Traffic of one active link, each direction, on a node without a job."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    name: str
    architecture: int
    """Code of ``nvmlDeviceGetArchitecture``: 7 = Ampere, 9 = Hopper, 10 = Blackwell."""
    pci_device_id: int
    pci_subsystem_id: int
    memory_bytes: int
    pcie_generation: int
    pci_class: int = 0x030200
    pcie_width: int = 16
    """Lanes."""
    idle_pcie_generation: int = 1
    """Generation of the link while the GPU is idle."""
    power_limit_watts: int = 300
    pcie_peer_access: bool = True
    """Whether GPUs may reach each other over PCIe; GeForce drivers refuse it."""
    mig: bool = False
    pcie_background_bytes_per_second: float = 2e5
    """Traffic over PCIe, each direction, on a node without a job."""
    nvlink: NVLinkModel | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    pci_address: str
    """As sysfs spells it: ``0000:17:00.0``."""
    uuid: str
    serial: str | None
    """None: the driver does not report it (GeForce)."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    address: str
    parent: str
    """Address of the bridge above, or ``pciDDDD:BB`` for a device on a host bridge."""
    role: PciRole
    pci_class: int
    vendor_id: int
    device_id: int
    numa_node: int
    generation: int
    width: int
    """Lanes."""
    driver: str


@dataclass(frozen=True, slots=True)
class EthernetInterface:
    """One physical network interface with a link."""

    name: str
    pci_address: str
    speed_megabits_per_second: int
    background_bytes_per_second: float
    """Traffic of a node without a job, each direction."""
    bond: str = ""
    """The bond that it is a member of; empty: none."""
    mtu: int = 1500
    """Bytes of the largest packet."""


@dataclass(frozen=True, slots=True)
class RdmaPort:
    device: str
    """As ``/sys/class/infiniband`` names it: ``mlx5_0``."""
    port: int
    """From 1."""
    pci_address: str
    link_layer: Literal["InfiniBand", "Ethernet"]
    rate_gigabits_per_second: int
    """As in the port's ``rate`` file: 400 for four lanes of NDR."""
    lanes: int = 4
    speed_name: str = "NDR"
    interface: str = ""
    """The network interface of the same port (RoCE); empty for InfiniBand."""
    background_bytes_per_second: float = 2e6
    """RDMA traffic of a node without a job, each direction."""


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    model: GpuModel
    gpus: tuple[Gpu, ...]
    devices: tuple[PciDevice, ...]
    """The PCIe tree; a parent comes before its children."""
    interfaces: tuple[EthernetInterface, ...]
    nvswitches: tuple[str, ...] = ()
    """PCI addresses."""
    rdma_ports: tuple[RdmaPort, ...] = ()
    driver_version: str = "580.95.05"
    cuda_driver_version: int = 13000
    """1000 × major + 10 × minor."""
    wires: Mapping[tuple[int, int], tuple[int, int]] | None = None
    """The other end of each link between two GPUs: GPU and link, from 0; None: as ``peer`` assumes."""
    inactive: frozenset[tuple[int, int]] = frozenset()
    """Links, by GPU and number, that are never trained."""

    def ancestors(self, address: str) -> tuple[str, ...]:
        """The ancestors of a device, the nearest first, the host bridge (``pciDDDD:BB``) last."""
        parents = {device.address: device.parent for device in self.devices}
        above = []
        while address in parents:
            address = parents[address]
            above.append(address)
        return tuple(above)

    def root_port(self, address: str) -> str:
        """The root port above a device, or the device itself where it is one."""
        return (address, *self.ancestors(address))[-2]

    def peer(self, gpu: int, link: int) -> tuple[int, int] | None:
        """The GPU and link at the other end of a link, both from 0; None: a switch, or nothing."""
        nvlink = self.model.nvlink
        if nvlink is None or nvlink.remote in {"switch", "none"}:
            return None
        if self.wires is not None:
            return self.wires.get((gpu, link))
        count = len(self.gpus)
        if nvlink.remote == "bridge":
            other = gpu ^ 1
            return (other, link) if other < count else None
        links_per_peer = nvlink.links // (count - 1) if count > 1 else 0
        if links_per_peer == 0 or link >= links_per_peer * (count - 1):
            return None
        turn, lane = divmod(link, links_per_peer)
        other = turn + (turn >= gpu)
        back = gpu - (gpu > other)
        return other, back * links_per_peer + lane

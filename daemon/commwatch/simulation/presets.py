"""The nodes that can be simulated: their GPUs, NVLinks, PCIe tree and network interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

NVIDIA = 0x10DE
"""PCI vendor."""


@dataclass(frozen=True, slots=True)
class NVLinkModel:
    """The NVLinks of a GPU model (one generation, all links alike)."""

    links: int
    version: int
    """Code of ``nvmlDeviceGetNvLinkVersion``: 4 = 3.0, 5 = 3.1, 6 = 4.0."""
    line_rate_megabytes_per_second: int
    """One link, one direction, 10⁶ bytes: what NVML fields 90 and 164 answer."""
    nominal_bytes_per_second: float
    """Product figure of one link, one direction."""
    remote: Literal["switch", "none"]
    """What the links lead to; ``none``: no bridge is fitted, every link is inactive."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What all GPUs of a node have in common."""

    name: str
    architecture: int
    """Code of ``nvmlDeviceGetArchitecture``: 7 = Ampere, 9 = Hopper."""
    pci_class: int
    pci_device_id: int
    pci_subsystem_id: int
    memory_bytes: int
    pcie_generation: int
    pcie_width: int
    """Lanes."""
    idle_pcie_generation: int
    """What the link falls back to while the GPU has no work."""
    nvlink: NVLinkModel | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU in its slot."""

    pci_address: str
    """As sysfs spells it: ``0000:17:00.0``."""
    uuid: str
    serial: str | None
    """None: the driver does not tell it (GeForce)."""


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One device of the PCIe tree."""

    address: str
    parent: str
    """Address of the bridge above, or ``pciDDDD:BB`` for a device on a host bridge."""
    role: Literal["root_port", "switch_upstream", "switch_downstream", "gpu", "nic", "nvswitch"]
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


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """One port of an RDMA device."""

    device: str
    """As ``/sys/class/infiniband`` names it: ``mlx5_0``."""
    port: int
    """From 1."""
    pci_address: str
    link_layer: Literal["InfiniBand", "Ethernet"]
    rate_gigabits_per_second: int
    """As the port's ``rate`` file says: 400 for four lanes of NDR."""
    lanes: int = 4
    speed_name: str = "NDR"
    interface: str = ""
    """The network interface of the same port (RoCE); empty for InfiniBand."""
    background_bytes_per_second: float = 2e6
    """RDMA traffic of a node without a job, each direction."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One simulated node."""

    name: str
    model: GpuModel
    gpus: tuple[Gpu, ...]
    devices: tuple[PciDevice, ...]
    """The PCIe tree; a parent comes before its children."""
    nvswitches: tuple[str, ...]
    """PCI addresses."""
    interfaces: tuple[EthernetInterface, ...]
    rdma_ports: tuple[RdmaPort, ...] = ()
    driver_version: str = "580.95.05"
    cuda_driver_version: int = 13000
    """1000 × major + 10 × minor."""

    def ancestors(self, address: str) -> tuple[str, ...]:
        """What lies above a device, the nearest first, the host bridge (``pciDDDD:BB``) last."""
        parents = {device.address: device.parent for device in self.devices}
        above = []
        while address in parents:
            address = parents[address]
            above.append(address)
        return tuple(above)


@dataclass(frozen=True, slots=True)
class _Part:
    """A PCIe device before it has a place."""

    role: Literal["gpu", "nic", "nvswitch"]
    pci_class: int
    vendor_id: int
    device_id: int
    generation: int
    width: int
    driver: str


@dataclass(frozen=True, slots=True)
class _Platform:
    """The processor's root ports and the PCIe switches of a node."""

    root_vendor_id: int
    root_device_id: int
    switch_vendor_id: int
    switch_device_id: int
    generation: int

    def _bridge(
        self, role: Literal["root_port", "switch_upstream", "switch_downstream"], address: str, parent: str, numa: int
    ) -> PciDevice:
        root = role == "root_port"
        return PciDevice(
            address=address,
            parent=parent,
            role=role,
            pci_class=0x060400,
            vendor_id=self.root_vendor_id if root else self.switch_vendor_id,
            device_id=self.root_device_id if root else self.switch_device_id,
            numa_node=numa,
            generation=self.generation,
            width=16,
            driver="pcieport",
        )

    def direct(self, bus: int, numa: int, part: _Part) -> list[PciDevice]:
        """A root port on host bridge ``bus`` with one device below it."""
        port = self._bridge("root_port", f"0000:{bus:02x}:01.0", f"pci0000:{bus:02x}", numa)
        return [port, _place(part, bus + 1, port.address, numa)]

    def switch(self, bus: int, numa: int, parts: Iterable[_Part]) -> list[PciDevice]:
        """A root port on host bridge ``bus`` with a PCIe switch below it, one downstream port for each part."""
        root = self._bridge("root_port", f"0000:{bus:02x}:01.0", f"pci0000:{bus:02x}", numa)
        upstream = self._bridge("switch_upstream", f"0000:{bus + 1:02x}:00.0", root.address, numa)
        devices = [root, upstream]
        for slot, part in enumerate(parts):
            address = f"0000:{bus + 2:02x}:{slot:02x}.0"
            port = self._bridge("switch_downstream", address, upstream.address, numa)
            devices += [port, _place(part, bus + 3 + slot, port.address, numa)]
        return devices


def _place(part: _Part, bus: int, parent: str, numa: int) -> PciDevice:
    return PciDevice(
        address=f"0000:{bus:02x}:00.0",
        parent=parent,
        role=part.role,
        pci_class=part.pci_class,
        vendor_id=part.vendor_id,
        device_id=part.device_id,
        numa_node=numa,
        generation=part.generation,
        width=part.width,
        driver=part.driver,
    )


def _gpu_part(model: GpuModel) -> _Part:
    return _Part("gpu", model.pci_class, NVIDIA, model.pci_device_id, model.pcie_generation, model.pcie_width, "nvidia")


def _gpus(devices: Iterable[PciDevice], identities: Iterable[tuple[str, str | None]]) -> tuple[Gpu, ...]:
    slots = [device.address for device in devices if device.role == "gpu"]
    return tuple(Gpu(address, uuid, serial) for address, (uuid, serial) in zip(slots, identities, strict=True))


def _h100x8() -> Preset:
    model = GpuModel(
        name="NVIDIA H100 80GB HBM3",
        architecture=9,
        pci_class=0x030200,
        pci_device_id=0x2330,
        pci_subsystem_id=0x16C110DE,
        memory_bytes=81559 * 2**20,
        pcie_generation=5,
        pcie_width=16,
        idle_pcie_generation=1,
        nvlink=NVLinkModel(
            links=18,
            version=6,
            line_rate_megabytes_per_second=26562,
            nominal_bytes_per_second=25e9,
            remote="switch",
        ),
    )
    platform = _Platform(0x8086, 0x352A, 0x1000, 0xC030, generation=5)
    gpu = _gpu_part(model)
    nic = _Part("nic", 0x020000, 0x15B3, 0x1021, 5, 16, "mlx5_core")
    nvswitch = _Part("nvswitch", 0x068000, NVIDIA, 0x22A3, 4, 2, "nvidia-nvswitch")
    devices = [
        *platform.switch(0x05, 0, [nvswitch] * 4),
        *platform.switch(0x14, 0, [gpu, gpu, nic]),
        *platform.switch(0x37, 0, [gpu, gpu]),
        *platform.switch(0x97, 1, [gpu, gpu, nic]),
        *platform.switch(0xB7, 1, [gpu, gpu]),
    ]
    identities = (
        ("GPU-6f2c1b7e-93d4-5a0f-8c61-2e7b90d4f318", "1653023018214"),
        ("GPU-a41d0e95-7b28-c3f6-1d9a-58e3c07b62d1", "1653023018377"),
        ("GPU-0b97e3d2-c586-4f1a-e7b4-9d25f1806c3e", "1653023019052"),
        ("GPU-d85a26f4-1e70-b9c3-42f8-7c06ab5d91e7", "1653023018846"),
        ("GPU-37c9f081-a64b-2d5e-90c7-e1f4836a2bd5", "1652923041190"),
        ("GPU-e20b7d5c-4f93-81a6-b3d0-06a9c7e5f248", "1652923041633"),
        ("GPU-5d4e91a8-0c37-f6b2-6e15-c8b370d9a4f1", "1652923040875"),
        ("GPU-94f6c3b0-d2e8-7a15-058d-b37e4f12c096", "1652923041958"),
    )
    return Preset(
        name="h100x8",
        model=model,
        gpus=_gpus(devices, identities),
        devices=tuple(devices),
        nvswitches=tuple(device.address for device in devices if device.role == "nvswitch"),
        interfaces=(
            EthernetInterface("ens1np0", "0000:19:00.0", 400_000, 8.0e6),
            EthernetInterface("ens2np0", "0000:9c:00.0", 400_000, 5.0e6),
        ),
    )


def _a10x2() -> Preset:
    model = GpuModel(
        name="NVIDIA A10",
        architecture=7,
        pci_class=0x030200,
        pci_device_id=0x2236,
        pci_subsystem_id=0x148210DE,
        memory_bytes=23028 * 2**20,
        pcie_generation=4,
        pcie_width=16,
        idle_pcie_generation=1,
    )
    platform = _Platform(0x8086, 0x347A, 0x1000, 0xC010, generation=4)
    gpu = _gpu_part(model)
    devices = [
        *platform.direct(0x16, 0, gpu),
        *platform.direct(0x4A, 0, _Part("nic", 0x020000, 0x15B3, 0x101D, 4, 16, "mlx5_core")),
        *platform.direct(0x98, 1, gpu),
    ]
    identities = (
        ("GPU-c1709e4b-58a2-d6f3-2b94-f07d35e8a61c", "1321021036419"),
        ("GPU-48be62d7-f3c0-9a15-d781-3e6c0b94f5a2", "1321021036702"),
    )
    return Preset(
        name="a10x2",
        model=model,
        gpus=_gpus(devices, identities),
        devices=tuple(devices),
        nvswitches=(),
        interfaces=(EthernetInterface("ens3f0np0", "0000:4b:00.0", 25_000, 2.0e6),),
    )


def _rtx3090x4() -> Preset:
    model = GpuModel(
        name="NVIDIA GeForce RTX 3090",
        architecture=7,
        pci_class=0x030000,
        pci_device_id=0x2204,
        pci_subsystem_id=0x147D10DE,
        memory_bytes=24576 * 2**20,
        pcie_generation=4,
        pcie_width=16,
        idle_pcie_generation=1,
        nvlink=NVLinkModel(
            links=4,
            version=5,
            line_rate_megabytes_per_second=14062,
            nominal_bytes_per_second=14.0625e9,
            remote="none",
        ),
    )
    platform = _Platform(0x1022, 0x1483, 0x1000, 0xC010, generation=4)
    gpu = _gpu_part(model)
    devices = [
        *platform.switch(0x20, 0, [gpu, gpu]),
        *platform.switch(0x60, 0, [gpu, gpu]),
        *platform.direct(0xC0, 0, _Part("nic", 0x020000, 0x8086, 0x1563, 3, 4, "ixgbe")),
    ]
    identities = (
        ("GPU-7e35d0c9-b146-8f2a-a5d3-40c8e917f6b2", None),
        ("GPU-1fa8b4e6-6d09-c573-3e80-d92b75f0a4c1", None),
        ("GPU-b602c97d-e4f1-305a-97b6-1c5d8fe3a078", None),
        ("GPU-83d9f51a-207e-b4c6-f869-a70e2c4bd135", None),
    )
    return Preset(
        name="rtx3090x4",
        model=model,
        gpus=_gpus(devices, identities),
        devices=tuple(devices),
        nvswitches=(),
        interfaces=(EthernetInterface("enp193s0", "0000:c1:00.0", 10_000, 1.0e6),),
    )


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {preset.name: preset for preset in (_h100x8(), _a10x2(), _rtx3090x4())}
)
"""Every preset by its name."""

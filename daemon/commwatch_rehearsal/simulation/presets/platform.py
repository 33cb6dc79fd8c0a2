"""How the PCIe tree of a simulated node is put together: root ports, switches, and what hangs below them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from commwatch_rehearsal.simulation.presets.parts import (
    NVIDIA,
    EthernetInterface,
    Gpu,
    GpuModel,
    PciDevice,
    PciRole,
    Preset,
)


def part(
    role: PciRole, pci_class: int, vendor_id: int, device_id: int, generation: int, width: int, driver: str
) -> PciDevice:
    """A PCIe device before it has a place."""
    return PciDevice("", "", role, pci_class, vendor_id, device_id, -1, generation, width, driver)


@dataclass(frozen=True, slots=True)
class Platform:
    """The processor's root ports and the PCIe switches of a node."""

    root_vendor_id: int
    root_device_id: int
    switch_vendor_id: int
    switch_device_id: int
    generation: int

    def _bridge(self, role: PciRole, address: str, parent: str, numa: int) -> PciDevice:
        root = role == "root_port"
        vendor = self.root_vendor_id if root else self.switch_vendor_id
        device = self.root_device_id if root else self.switch_device_id
        return PciDevice(address, parent, role, 0x060400, vendor, device, numa, self.generation, 16, "pcieport")

    def direct(self, bus: int, numa: int, what: PciDevice, functions: int = 1) -> list[PciDevice]:
        """A root port on host bridge ``bus`` with one device of one or more functions below it."""
        port = self._bridge("root_port", f"0000:{bus:02x}:01.0", f"pci0000:{bus:02x}", numa)
        return [port, *(_place(what, bus + 1, port.address, numa, function) for function in range(functions))]

    def switch(self, bus: int, numa: int, parts: Iterable[PciDevice]) -> list[PciDevice]:
        """A root port on host bridge ``bus`` with a PCIe switch below it, one downstream port for each part."""
        root = self._bridge("root_port", f"0000:{bus:02x}:01.0", f"pci0000:{bus:02x}", numa)
        upstream = self._bridge("switch_upstream", f"0000:{bus + 1:02x}:00.0", root.address, numa)
        devices = [root, upstream]
        for slot, what in enumerate(parts):
            address = f"0000:{bus + 2:02x}:{slot:02x}.0"
            port = self._bridge("switch_downstream", address, upstream.address, numa)
            devices += [port, _place(what, bus + 3 + slot, port.address, numa)]
        return devices


def _place(what: PciDevice, bus: int, parent: str, numa: int, function: int = 0) -> PciDevice:
    return replace(what, address=f"0000:{bus:02x}:00.{function}", parent=parent, numa_node=numa)


def gpu_part(model: GpuModel) -> PciDevice:
    """The GPU of a model as a PCIe device."""
    return part("gpu", model.pci_class, NVIDIA, model.pci_device_id, model.pcie_generation, model.pcie_width, "nvidia")


def preset_of(
    name: str,
    model: GpuModel,
    devices: Sequence[PciDevice],
    identities: Iterable[tuple[str, str | None]],
    interfaces: Iterable[EthernetInterface],
    **more: Any,
) -> Preset:
    """A node whose GPUs and NVSwitches are those of its PCIe tree; UUIDs and serial numbers are in the tree's order."""
    slots = [device.address for device in devices if device.role == "gpu"]
    return Preset(
        name=name,
        model=model,
        gpus=tuple(Gpu(address, uuid, serial) for address, (uuid, serial) in zip(slots, identities, strict=True)),
        devices=tuple(devices),
        nvswitches=tuple(device.address for device in devices if device.role == "nvswitch"),
        interfaces=tuple(interfaces),
        **more,
    )

"""How the PCIe tree of a simulated node is put together: root ports, switches, and what hangs below them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from commwatch.simulation.presets.parts import NVIDIA, Gpu, GpuModel, PciDevice


@dataclass(frozen=True, slots=True)
class Part:
    """A PCIe device before it has a place."""

    role: Literal["gpu", "nic", "nvswitch"]
    pci_class: int
    vendor_id: int
    device_id: int
    generation: int
    width: int
    driver: str


@dataclass(frozen=True, slots=True)
class Platform:
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

    def direct(self, bus: int, numa: int, part: Part, functions: int = 1) -> list[PciDevice]:
        """A root port on host bridge ``bus`` with one device of one or more functions below it."""
        port = self._bridge("root_port", f"0000:{bus:02x}:01.0", f"pci0000:{bus:02x}", numa)
        return [port, *(_place(part, bus + 1, port.address, numa, function) for function in range(functions))]

    def switch(self, bus: int, numa: int, parts: Iterable[Part]) -> list[PciDevice]:
        """A root port on host bridge ``bus`` with a PCIe switch below it, one downstream port for each part."""
        root = self._bridge("root_port", f"0000:{bus:02x}:01.0", f"pci0000:{bus:02x}", numa)
        upstream = self._bridge("switch_upstream", f"0000:{bus + 1:02x}:00.0", root.address, numa)
        devices = [root, upstream]
        for slot, part in enumerate(parts):
            address = f"0000:{bus + 2:02x}:{slot:02x}.0"
            port = self._bridge("switch_downstream", address, upstream.address, numa)
            devices += [port, _place(part, bus + 3 + slot, port.address, numa)]
        return devices


def _place(part: Part, bus: int, parent: str, numa: int, function: int = 0) -> PciDevice:
    return PciDevice(
        address=f"0000:{bus:02x}:00.{function}",
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


def gpu_part(model: GpuModel) -> Part:
    """The GPU of a model as a PCIe device."""
    return Part("gpu", model.pci_class, NVIDIA, model.pci_device_id, model.pcie_generation, model.pcie_width, "nvidia")


def gpus_in_slots(devices: Iterable[PciDevice], identities: Iterable[tuple[str, str | None]]) -> tuple[Gpu, ...]:
    """The GPUs of a PCIe tree, in its order, with their UUIDs and serial numbers."""
    slots = [device.address for device in devices if device.role == "gpu"]
    return tuple(Gpu(address, uuid, serial) for address, (uuid, serial) in zip(slots, identities, strict=True))

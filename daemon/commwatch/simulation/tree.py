"""The sysfs tree of a simulated node: PCIe devices and network interfaces, as the kernel shows them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from commwatch.simulation.hardware import Epoch, Hardware
from commwatch.simulation.presets import EthernetInterface, PciDevice, Preset

_TRANSFER_RATES = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""PCIe generation: GT/s as the kernel writes it."""
_MEAN_PACKET_BYTES = 900
_OFF_THE_BUS_WIDTH = 63
"""What the kernel makes of a link status register that reads as all ones."""


class SysfsTree:
    """Keeps a tree beneath a directory up to date; remembers what it wrote, and writes only what changed."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self._by_address = {device.address: device for device in preset.devices}
        self._gpu_places = {gpu.pci_address: place for place, gpu in enumerate(preset.gpus)}
        self._paths = {device.address: self._path(device.address) for device in preset.devices}
        self._children = {device.parent: device.address for device in preset.devices}
        self._written: dict[str, str] = {}
        self._root: Path | None = None
        self._epoch: Epoch | None = None

    def write(self, root: Path, hardware: Hardware, time: float) -> None:
        """Bring the tree up to date.

        Args:
            root: what ``--path.sysfs`` names; an empty directory, or one that this preset has written before.
            hardware: the node's parts.
            time: seconds since the node started.
        """
        epoch = hardware.epoch(time)
        if root != self._root:
            self._written.clear()
        if root != self._root or epoch is not self._epoch:
            self._write_pci(root, epoch)
            self._root, self._epoch = root, epoch
        for interface in self._preset.interfaces:
            home = f"{self._paths[interface.pci_address]}/net/{interface.name}"
            for name, content in _interface_files(interface, hardware, time):
                self._put(root, f"{home}/{name}", content)
            self._link(root, f"class/net/{interface.name}", home)
            self._link(root, f"{home}/device", self._paths[interface.pci_address])
        for name, content in _LOOPBACK_FILES.items():
            self._put(root, f"devices/virtual/net/lo/{name}", content)
        self._link(root, "class/net/lo", "devices/virtual/net/lo")

    def _write_pci(self, root: Path, epoch: Epoch) -> None:
        """PCIe devices change only when a fault begins or ends."""
        gone = {gpu.pci_address for place, gpu in enumerate(self._preset.gpus) if place not in epoch.enumerated}
        for address in gone:
            self._remove(root, address)
        for device in self._preset.devices:
            if device.address not in gone:
                for name, content in self._pci_files(device, epoch):
                    self._put(root, f"{self._paths[device.address]}/{name}", content)
                self._link(root, f"bus/pci/devices/{device.address}", self._paths[device.address])
                self._link(root, f"{self._paths[device.address]}/driver", f"bus/pci/drivers/{device.driver}")

    def _path(self, address: str) -> str:
        return "/".join(("devices", *reversed(self._preset.ancestors(address)), address))

    def _pci_files(self, device: PciDevice, epoch: Epoch) -> Iterator[tuple[str, str]]:
        speed, width = self._link_now(device, epoch)
        yield "class", f"0x{device.pci_class:06x}"
        yield "vendor", f"0x{device.vendor_id:04x}"
        yield "device", f"0x{device.device_id:04x}"
        yield "numa_node", str(device.numa_node)
        yield "current_link_speed", speed
        yield "current_link_width", str(width)
        yield "max_link_speed", _speed_text(device.generation)
        yield "max_link_width", str(device.width)

    def _link_now(self, device: PciDevice, epoch: Epoch) -> tuple[str, int]:
        """Speed and lanes now; the port above a device shows what the device shows: it is the same link."""
        below = self._by_address.get(self._children.get(device.address, ""))
        is_port = device.role in {"root_port", "switch_downstream"}
        end = below if is_port and below is not None else device
        place = self._gpu_places.get(end.address)
        if place is None:
            return _speed_text(min(device.generation, end.generation)), min(device.width, end.width)
        condition = epoch.gpus[place]
        if condition.answer in {"lost", "missing"}:
            if is_port:  # nothing answers at the other end: the port waits at the lowest speed, no lane is up
                return _speed_text(1), 0
            return "Unknown", _OFF_THE_BUS_WIDTH
        return _speed_text(condition.pcie_generation), condition.pcie_width

    def _put(self, root: Path, path: str, content: str) -> None:
        if self._written.get(path) == content:
            return
        target = root / path
        if path not in self._written:
            target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the tree, not in it, so that no reader meets it; the process id keeps writers apart.
        draft = root / f".draft-{os.getpid()}"
        draft.write_text(f"{content}\n", encoding="ascii")
        draft.replace(target)
        self._written[path] = content

    def _link(self, root: Path, path: str, to: str) -> None:
        if self._written.get(path) == to:
            return
        link = root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        target = root / to
        target.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            try:
                link.symlink_to(os.path.relpath(target, link.parent))
            except FileExistsError:
                # Another process of the same node was faster; it has made the same link.
                if not link.is_symlink():
                    raise
        self._written[path] = to

    def _remove(self, root: Path, address: str) -> None:
        link, folder = f"bus/pci/devices/{address}", self._paths[address]
        (root / link).unlink(missing_ok=True)
        shutil.rmtree(root / folder, ignore_errors=True)
        self._written = {
            path: content
            for path, content in self._written.items()
            if path != link and not path.startswith(f"{folder}/")
        }


def _speed_text(generation: int) -> str:
    return f"{_TRANSFER_RATES[generation]} GT/s PCIe"


def _interface_files(interface: EthernetInterface, hardware: Hardware, time: float) -> Iterator[tuple[str, str]]:
    up = hardware.ethernet_up(interface.name, time)
    yield "carrier", str(int(up))
    yield "carrier_changes", str(hardware.carrier_changes(interface.name, time))
    yield "operstate", "up" if up else "down"
    yield "speed", str(interface.speed_megabits_per_second if up else -1)
    for direction in ("rx", "tx"):
        count = hardware.ethernet_bytes(interface.name, direction, time)
        yield f"statistics/{direction}_bytes", str(count)
        yield f"statistics/{direction}_packets", str(count // _MEAN_PACKET_BYTES)
        yield f"statistics/{direction}_errors", "0"
        yield f"statistics/{direction}_dropped", "0"


_LOOPBACK_FILES = {
    "carrier": "1",
    "carrier_changes": "0",
    "operstate": "unknown",
    **{
        f"statistics/{direction}_{name}": "0"
        for direction in ("rx", "tx")
        for name in ("bytes", "packets", "errors", "dropped")
    },
}

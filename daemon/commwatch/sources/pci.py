"""PCIe devices on the paths of communication, and how fast and wide their links are: ``/sys/bus/pci/devices``."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from commwatch.sources import files
from commwatch.sources.base import Absence, Batch, DeviceReadings, Report, SourceUnavailable
from commwatch_exporters.snapshot import Series, Value

_NVIDIA = "0x10de"
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCIe generation by transfer rate, GT/s."""
_WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""The widths that PCIe has. The kernel gives 0 or 255 for unknown, 63 for a device that is off its bus."""

_NUMBER = re.compile(rb"\s*([0-9]{1,3}(?:\.[0-9]{1,2})?)(?![0-9.])")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def parse_generation(data: bytes) -> int | None:
    """The generation of a link speed such as ``32.0 GT/s PCIe``; None for ``Unknown`` and all else."""
    match = _NUMBER.match(data)
    return _GENERATIONS.get(float(match[1])) if match else None


def parse_width(data: bytes) -> int | None:
    """The lanes of a link; None where the kernel does not know them."""
    lanes = files.parse_integer(data)
    return lanes if lanes in _WIDTHS else None


def endpoint_role(pci_class: str, vendor: str) -> str | None:
    """``gpu``, ``nic`` or ``nvswitch`` by PCI class (``0x030200``) and vendor (``0x10de``); None for all else."""
    if pci_class.startswith("0x03") and vendor == _NVIDIA:
        return "gpu"
    if pci_class.startswith(("0x0200", "0x0207")):
        return "nic"
    if pci_class.startswith("0x0680") and vendor == _NVIDIA:
        return "nvswitch"
    return None


@dataclass(frozen=True, slots=True)
class _Device:
    """One device, with what does not change while it is plugged in."""

    address: str
    speed_file: str
    width_file: str
    series: tuple[Series, ...]
    """Current generation and width, greatest generation and width, info."""
    fixed: tuple[Value, ...]
    """The values of the last three."""


class PciSource:
    """Reads the PCIe links of GPUs, network adapters and NVSwitches, and of the bridges above them.

    The tree is read when the list of devices changes; a run reads the current speed and width alone. Virtual functions
    are left out: their physical function has the link.
    """

    collectors = ("pci",)
    aliases: Mapping[str, str] = MappingProxyType({})

    def __init__(self, sysfs: Path) -> None:
        self._root = str(sysfs / "bus" / "pci" / "devices")
        self._addresses: list[str] = []
        self._devices: tuple[_Device, ...] = ()
        self._absences: tuple[Absence, ...] = ()
        self._report: Report = _ignore
        self._leave_out: frozenset[str] = frozenset()
        self._only: frozenset[str] | None = None

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Read the tree of devices; see ``Source.open``."""
        self._report, self._leave_out, self._only = report, leave_out, only
        self._scan(self._list())

    def collect(self, collector: str) -> Batch:
        """Read all links once; see ``Source.collect``."""
        if collector not in self.collectors:
            raise ValueError(f"the pci source has no collector {collector}")
        addresses = self._list()
        if addresses != self._addresses or self._absences:
            self._scan(addresses)
        batch = Batch(absences=list(self._absences))
        for device in self._devices:
            self._report(device.address)
            _read(device, batch)
        self._report("")
        return batch

    def close(self) -> None:
        """Nothing stays open between two runs."""
        self._addresses, self._devices, self._absences = [], (), ()

    def _list(self) -> list[str]:
        try:
            return sorted(filter(files.is_pci_address, os.listdir(self._root)))
        except OSError as error:
            raise SourceUnavailable(files.reason_of(error), f"{self._root}: {error.strerror}") from error

    def _scan(self, addresses: list[str]) -> None:
        roles: dict[str, str] = {}
        absences: list[Absence] = []
        for address in filter(self._may_touch, addresses):
            self._report(address)
            try:
                role = self._endpoint_role(address)
            except OSError as error:
                absences.append(Absence(address, files.reason_of(error), f"{error.filename}: {error.strerror}"))
                continue
            if role is not None:
                roles[address] = role
        for endpoint in tuple(roles):
            roles.update(bridge_roles(self._ancestors(endpoint)))
        known = set(filter(self._may_touch, addresses))
        devices = []
        for address in sorted(known.intersection(roles)):
            self._report(address)
            devices.append(self._prepare(address, roles[address]))
        self._report("")
        self._addresses, self._devices, self._absences = addresses, tuple(devices), tuple(absences)

    def _may_touch(self, address: str) -> bool:
        return address not in self._leave_out and (self._only is None or address in self._only)

    def _endpoint_role(self, address: str) -> str | None:
        base = f"{self._root}/{address}"
        if os.path.lexists(f"{base}/physfn"):
            return None
        return endpoint_role(*(files.parse_word(files.read(f"{base}/{name}")) for name in ("class", "vendor")))

    def _ancestors(self, address: str) -> list[str]:
        """The bridges above a device, nearest first, and the host bridge at the end where the tree shows one."""
        return ancestors_of(files.device_chain(f"{self._root}/{address}"))

    def _prepare(self, address: str, role: str) -> _Device:
        base = f"{self._root}/{address}"

        def word(name: str) -> str:
            return files.parse_word(files.read_if_there(f"{base}/{name}") or b"")

        numa_node = files.parse_integer(files.read_if_there(f"{base}/numa_node") or b"")
        max_speed = files.read_if_there(f"{base}/max_link_speed") or b""
        max_width = files.read_if_there(f"{base}/max_link_width") or b""
        info = (
            address,
            role,
            next(iter(self._ancestors(address)), ""),
            str(numa_node) if numa_node is not None and numa_node >= 0 else "",
            word("vendor"),
            word("device"),
        )
        return _Device(
            address=address,
            speed_file=f"{base}/current_link_speed",
            width_file=f"{base}/current_link_width",
            series=(
                ("commwatch_pcie_device_link_generation", (address,)),
                ("commwatch_pcie_device_link_width_lanes", (address,)),
                ("commwatch_pcie_device_link_generation_max", (address,)),
                ("commwatch_pcie_device_link_width_max_lanes", (address,)),
                ("commwatch_pcie_device_info", info),
            ),
            fixed=(parse_generation(max_speed), parse_width(max_width), 1),
        )


def ancestors_of(chain: Iterable[str]) -> list[str]:
    """The bridges in a device's path, nearest first, up to and with the host bridge.

    Args:
        chain: the names on the way from the device to the root, the device first.
    """
    above = []
    for name in list(chain)[1:]:
        if files.is_pci_address(name):
            above.append(name)
        elif _HOST_BRIDGE.fullmatch(name):
            return [*above, name]
    return above


def bridge_roles(ancestors: Sequence[str]) -> dict[str, str]:
    """The role of each bridge above a device: the last before the host bridge is the root port."""
    bridges = [name for name in ancestors if files.is_pci_address(name)]
    return {bridge: "root_port" if bridge == bridges[-1] else "switch_port" for bridge in bridges}


def _ignore(_device: str) -> None:
    """The report of a source that is not open."""


def _read(device: _Device, batch: Batch) -> None:
    now = time.monotonic()
    values: list[Value] = []
    for path, parse in ((device.speed_file, parse_generation), (device.width_file, parse_width)):
        value = None
        try:
            value = parse(files.read(path))
        except OSError as error:
            if error.errno not in files.NO_VALUE_NOW and error.errno != errno.ENOENT:
                reason = files.reason_of(error)
                batch.absences.append(Absence(device.address, reason, f"{path}: {error.strerror}"))
        values.append(value)
    batch.readings.append(DeviceReadings(device.address, now, device.series, [*values, *device.fixed]))

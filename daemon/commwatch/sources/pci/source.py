"""PCIe devices on the paths of communication, and how fast and wide their links are: ``/sys/bus/pci/devices``."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from commwatch.readings import Absence, Batch, DeviceReadings, SourceUnavailable
from commwatch.sources import files
from commwatch.sources.base import Origin, Report, Source
from commwatch.sources.pci.aer import DEVICE_FILES, ROOT_PORT_FILES, AerDevice
from commwatch.sources.pci_attributes import (
    ancestors_of,
    bridge_roles,
    endpoint_role,
    parse_generation,
    parse_width,
)
from commwatch_exporters.snapshot import Series, Value

_LOOK_SECONDS: Final = 60.0
"""Between two readings of attributes that should not change: a device that was off its bus has other maxima when it is
back."""
_FIXED_FILES: Final = ("vendor", "device", "numa_node", "max_link_speed", "max_link_width")
_MAXIMA: Final = 3
"""From this place on ``_FIXED_FILES`` are of the link."""
_LINK_FILES: Final = ("current_link_speed", "current_link_width", *_FIXED_FILES[_MAXIMA:])
_HANDING_ON: Final = ("vfio", "stub", "pciback", "uio")
"""Parts of the names of drivers that hold a device for a virtual machine or a program of a user, such as DPDK."""
_AER_FILES: Final = (*DEVICE_FILES.values(), *ROOT_PORT_FILES.values())


def _states(names: Iterable[str]) -> tuple[Series, ...]:
    return tuple(("commwatch_counters_state", ("pci", name)) for name in names)


_LINK_STATES: Final = _states(_LINK_FILES)
_AER_STATES: Final = _states(_AER_FILES)
"""A counter is named as the kernel names its file; one that no device of the node has is not supported."""


class _Facts(NamedTuple):
    """Attributes that do not change while a device is plugged in and well."""

    place: str
    """The target of the link in the list of devices: all bridges above it."""
    role: str
    contents: tuple[bytes | None, ...]
    """Of ``_FIXED_FILES``; None where a file was not read."""


@dataclass(frozen=True, slots=True)
class _Device:
    """One device as it was found."""

    address: str
    facts: _Facts
    speed_file: str
    width_file: str
    series: tuple[Series, ...]
    """Current generation and width, greatest generation and width, info."""
    fixed: tuple[Value, ...]
    """The values of the last three."""
    aer: AerDevice


class PciSource(Source):
    """Reads the PCIe links of GPUs, network adapters and NVSwitches, and of the bridges above them; and their errors.

    The tree is read when the list of devices changes, and attributes that should not change are read every minute; a
    run of ``pci`` reads only the current speed and width, one of ``aer`` the kernel's error counts. Virtual functions
    are left out: their physical function has the link.
    """

    collectors = ("pci", "aer")

    def __init__(self, sysfs: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._root = str(sysfs / "bus" / "pci" / "devices")
        self._monotonic = monotonic
        self._names: list[str] = []
        self._devices: dict[str, _Device] = {}
        self._absences: tuple[Absence, ...] = ()
        self._listed_at = float("-inf")

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Read the tree of devices; see ``Source.open``."""
        super().open(report, leave_out, only)
        self._scan(self._list())

    def collect(self, collector: str) -> Batch:
        """Read all devices once; see ``Source.collect``."""
        self._follow_changes()
        batch = self._collect_links() if collector == "pci" else self._collect_errors()
        self._report("")
        return batch

    def close(self) -> None:
        """Nothing stays open between two runs."""
        self._names, self._devices, self._absences = [], {}, ()

    def _collect_links(self) -> Batch:
        batch = Batch(absences=list(self._absences))
        has_file = [False] * len(_LINK_FILES)
        unbound = self._unbound()
        for device in self._devices.values():
            self._report(device.address)
            self._read_link(device, batch, has_file, is_unbound=device.address in unbound)
        if self._devices:
            states = [0 if has else 1 for has in has_file]
            batch.readings.append(DeviceReadings("", self._monotonic(), _LINK_STATES, states))
        return batch

    def _unbound(self) -> frozenset[str]:
        """Network adapters without a driver, where an adapter of the same vendor and device id has one of its own.

        Those that are meant for the driver of a virtual machine are left out.
        """
        bound, without = set(), {}
        for address, device in self._devices.items():
            if device.facts.role == "nic":
                base, kind = f"{self._root}/{address}", device.facts.contents[:2]
                driver = files.link_name(f"{base}/driver")
                if not driver and os.path.lexists(base):
                    without[address] = kind
                elif driver and not any(part in driver for part in _HANDING_ON):
                    bound.add(kind)
        return frozenset(
            address
            for address, kind in without.items()
            if kind in bound
            and files.parse_word(files.read_if_there(f"{self._root}/{address}/driver_override") or b"")
            in ("", "(null)")
        )

    def _collect_errors(self) -> Batch:
        batch = Batch()
        has_file = dict.fromkeys(_AER_FILES, False)
        for device in self._devices.values():
            self._report(device.address)
            aer = device.aer
            now = self._monotonic()
            absence = aer.read()
            for name, is_there in aer.has_file().items():
                has_file[name] = has_file[name] or is_there
            if absence is not None:
                batch.absences.append(absence)
            if aer.series:
                batch.readings.append(DeviceReadings(device.address, now, aer.series, aer.values))
        if self._devices:
            states = [0 if has else 1 for has in has_file.values()]
            batch.readings.append(DeviceReadings("", self._monotonic(), _AER_STATES, states))
        return batch

    def _list(self) -> list[str]:
        try:
            return os.listdir(self._root)
        except OSError as error:
            raise SourceUnavailable(files.reason_of(error), f"{self._root}: {error.strerror}") from error

    def _follow_changes(self) -> None:
        """Read the tree again where the list of devices, or what a device is or can do, has changed."""
        names, now = self._list(), self._monotonic()
        is_new = names != self._names or bool(self._absences)
        if not is_new and now - self._listed_at >= _LOOK_SECONDS:
            self._listed_at = now
            is_new = any(self._facts(one.address, one.facts.role) != one.facts for one in self._devices.values())
        if is_new:
            self._scan(names)

    def _scan(self, names: list[str]) -> None:
        roles: dict[str, str] = {}
        absences: list[Absence] = []
        touchable = sorted(filter(self._may_touch, filter(files.is_pci_address, names)))
        for address in touchable:
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
        devices = {}
        for address in touchable:
            if address in roles:
                self._report(address)
                devices[address] = self._device(address, roles[address])
        self._report("")
        self._names, self._devices, self._absences = names, devices, tuple(absences)
        self._listed_at = self._monotonic()

    def _endpoint_role(self, address: str) -> str | None:
        base = f"{self._root}/{address}"
        if os.path.lexists(f"{base}/physfn"):
            return None
        return endpoint_role(*(files.parse_word(files.read(f"{base}/{name}")) for name in ("class", "vendor")))

    def _ancestors(self, address: str) -> list[str]:
        """The bridges above a device, nearest first, and the host bridge at the end where the tree shows one."""
        return ancestors_of(files.device_chain(f"{self._root}/{address}"))

    def _facts(self, address: str, role: str) -> _Facts:
        base = f"{self._root}/{address}"
        try:
            place = os.readlink(base)
        except OSError:
            place = ""
        return _Facts(place, role, tuple(files.read_if_there(f"{base}/{name}") for name in _FIXED_FILES))

    def _device(self, address: str, role: str) -> _Device:
        """The prepared device: as before while it is the same in the same place."""
        facts = self._facts(address, role)
        known = self._devices.get(address)
        if known is not None and known.facts == facts:
            return known
        vendor, device, numa, speed, width = (content or b"" for content in facts.contents)
        numa_node = files.parse_integer(numa)
        info = (
            address,
            role,
            next(iter(self._ancestors(address)), ""),
            str(numa_node) if numa_node is not None and numa_node >= 0 else "",
            files.parse_word(vendor),
            files.parse_word(device),
        )
        base = f"{self._root}/{address}"
        return _Device(
            address=address,
            facts=facts,
            speed_file=f"{base}/current_link_speed",
            width_file=f"{base}/current_link_width",
            series=(
                ("commwatch_pcie_device_link_generation", (address,)),
                ("commwatch_pcie_device_link_width_lanes", (address,)),
                ("commwatch_pcie_device_link_generation_max", (address,)),
                ("commwatch_pcie_device_link_width_max_lanes", (address,)),
                ("commwatch_pcie_device_info", info),
            ),
            fixed=(parse_generation(speed), parse_width(width), 1),
            aer=AerDevice(base, address, role),
        )

    def _read_link(self, device: _Device, batch: Batch, has_file: list[bool], *, is_unbound: bool) -> None:
        """Read the link of one device into the batch, and note which of ``_LINK_FILES`` it has."""
        now = self._monotonic()
        values: list[Value] = []
        for position, (path, parse) in enumerate(
            ((device.speed_file, parse_generation), (device.width_file, parse_width))
        ):
            value, is_there = None, True
            try:
                value = parse(files.read(path))
            except OSError as error:
                is_there = error.errno != errno.ENOENT
                if is_there and error.errno not in files.NO_VALUE_NOW:
                    reason = files.reason_of(error)
                    batch.absences.append(Absence(device.address, reason, f"{path}: {error.strerror}"))
            values.append(value)
            has_file[position] |= is_there
        for position, content in enumerate(device.facts.contents[_MAXIMA:], 2):
            has_file[position] |= content is not None
        unbound: tuple[Series, ...] = (("commwatch_pcie_adapter_unbound", (device.address,)),) if is_unbound else ()
        values = [*values, *device.fixed, *(1 for _ in unbound)]
        batch.readings.append(DeviceReadings(device.address, now, device.series + unbound, values))


def make_source(origin: Origin) -> PciSource:
    """The PCIe devices of this node."""
    return PciSource(origin.sysfs, origin.monotonic)

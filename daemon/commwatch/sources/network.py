"""Network interfaces as the kernel counts them: ``/sys/class/net``."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from commwatch.config.settings import NetworkSection
from commwatch.readings import Absence, Batch, DeviceReadings
from commwatch.sources import files, interfaces
from commwatch.sources.base import Origin, Report, Source
from commwatch_exporters.snapshot import Series, Value

_BYTES_PER_SECOND_PER_MBIT = 125_000


def _count(number: int) -> Value:
    return number if number >= 0 else None


def _speed(mbit_per_second: int) -> Value:
    """Bytes per second; None for -1, 0 and the unsigned spelling of -1, which stand for an unknown speed."""
    return mbit_per_second * _BYTES_PER_SECOND_PER_MBIT if 0 < mbit_per_second < 2**31 else None


class _Counter(NamedTuple):
    metric: str
    file: str
    convert: Callable[[int], Value]


COUNTERS = (
    _Counter("commwatch_ethernet_transmit_bytes_total", "statistics/tx_bytes", _count),
    _Counter("commwatch_ethernet_receive_bytes_total", "statistics/rx_bytes", _count),
    _Counter("commwatch_ethernet_transmit_packets_total", "statistics/tx_packets", _count),
    _Counter("commwatch_ethernet_receive_packets_total", "statistics/rx_packets", _count),
    _Counter("commwatch_ethernet_transmit_errors_total", "statistics/tx_errors", _count),
    _Counter("commwatch_ethernet_receive_errors_total", "statistics/rx_errors", _count),
    _Counter("commwatch_ethernet_transmit_drops_total", "statistics/tx_dropped", _count),
    _Counter("commwatch_ethernet_receive_drops_total", "statistics/rx_dropped", _count),
    _Counter("commwatch_ethernet_receive_crc_errors_total", "statistics/rx_crc_errors", _count),
    _Counter("commwatch_ethernet_receive_missed_total", "statistics/rx_missed_errors", _count),
    _Counter("commwatch_ethernet_carrier_changes_total", "carrier_changes", _count),
    _Counter("commwatch_ethernet_carrier_downs_total", "carrier_down_count", _count),
    _Counter("commwatch_ethernet_carrier", "carrier", _count),
    _Counter("commwatch_ethernet_speed_bytes_per_second", "speed", _speed),
    _Counter("commwatch_ethernet_mtu_bytes", "mtu", _count),
)
_POSITION = {counter.file: position for position, counter in enumerate(COUNTERS)}
_CARRIER, _SPEED = _POSITION["carrier"], _POSITION["speed"]

_STATE_SERIES: tuple[Series, ...] = tuple(
    ("commwatch_counters_state", ("network", counter.file.rpartition("/")[2])) for counter in COUNTERS
)
"""A counter is named as the kernel names its file."""


@dataclass(frozen=True, slots=True)
class _Interface:
    name: str
    device: str
    """The name as a label."""
    links: interfaces.Links
    wanted: bool
    paths: tuple[str, ...]
    series: tuple[Series, ...]


class NetworkSource(Source):
    """Reads the statistics, link and speed of network interfaces.

    ``interfaces.is_wanted`` selects them.
    """

    collectors = ("network",)

    def __init__(self, sysfs: Path, settings: NetworkSection) -> None:
        super().__init__()
        self._root = interfaces.folder(sysfs)
        self._settings = settings
        self._interfaces: Mapping[str, _Interface] = MappingProxyType({})

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Find the interfaces; see ``Source.open``."""
        super().open(report, leave_out, only)
        interfaces.names(self._root)

    def collect(self, collector: str) -> Batch:
        """Read all interfaces that are here now; see ``Source.collect``."""
        batch = Batch()
        has_counter: list[bool] = [False] * len(COUNTERS)
        found: dict[str, _Interface] = {}
        for name in interfaces.names(self._root):
            device = files.label_of(name)
            if not self._may_touch(device):
                continue
            self._report(device)
            interface = found[name] = self._interface(name, device)
            if interface.wanted:
                _read(interface, batch, has_counter)
        self._report("")
        self._interfaces = found
        states = [0 if has else 1 for has in has_counter] if batch.readings else []
        # Without interfaces it is empty, which shows that they were searched for.
        batch.readings.append(DeviceReadings("", time.monotonic(), _STATE_SERIES if states else (), states))
        return batch

    def close(self) -> None:
        """Nothing stays open between two runs."""
        self._interfaces = MappingProxyType({})

    def _interface(self, name: str, device: str) -> _Interface:
        """The prepared interface: as before while it is bound to the same device, driver and master."""
        base = f"{self._root}/{name}"
        links = interfaces.links_of(base)
        known = self._interfaces.get(name)
        if known is not None and known.links == links:
            return known
        chain = files.device_chain(f"{base}/device") if links.device else []
        address = next((part for part in chain if files.is_pci_address(part)), "")
        identity = (device, address, links.driver_name, links.master_name)
        return _Interface(
            name=name,
            device=device,
            links=links,
            wanted=interfaces.is_wanted(name, base, bool(links.device), self._settings),
            paths=tuple(f"{base}/{counter.file}" for counter in COUNTERS),
            series=(
                *((counter.metric, (device,)) for counter in COUNTERS),
                ("commwatch_ethernet_info", identity),
                *([("commwatch_ethernet_bonded", (device,))] if interfaces.is_bonded(base) else []),
            ),
        )


def make_source(origin: Origin) -> NetworkSource:
    return NetworkSource(origin.sysfs, origin.settings.network)


def _read(interface: _Interface, batch: Batch, has_counter: list[bool]) -> None:
    """Read one interface into the batch: its values, and the first thing that went wrong."""
    now = time.monotonic()
    values: list[Value] = [None] * len(COUNTERS)
    absence: Absence | None = None
    is_there = False
    for position, (counter, path) in enumerate(zip(COUNTERS, interface.paths, strict=True)):
        try:
            data = files.read(path)
        except OSError as error:
            if error.errno == errno.ENOENT:  # this kernel does not count it, or the interface is gone
                continue
            if error.errno not in files.NO_VALUE_NOW:
                absence = absence or Absence(interface.device, files.reason_of(error), f"{path}: {error.strerror}")
        else:
            number = files.parse_integer(data)
            if number is None:
                absence = absence or Absence(interface.device, "unreadable", f"{path}: {data[:40]!r} is no number")
            else:
                values[position] = counter.convert(number)
        is_there = has_counter[position] = True
    if absence is None and not is_there:
        absence = Absence(interface.device, "not_found", f"{interface.name} went away")
    if absence is not None:
        batch.absences.append(absence)
    if is_there:
        if values[_CARRIER] == 0:  # some drivers go on giving the last speed
            values[_SPEED] = None
        known = [1] * (len(interface.series) - len(COUNTERS))
        batch.readings.append(DeviceReadings(interface.device, now, interface.series, [*values, *known]))

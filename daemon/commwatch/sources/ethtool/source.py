"""The ethtool source: names of an interface's statistics are read once, their numbers in one call each run."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from commwatch.config.settings import NetworkSection
from commwatch.readings import Absence, Batch, DeviceReadings, SourceUnavailable
from commwatch.sources import files, interfaces
from commwatch.sources.base import Origin, Report, Source
from commwatch.sources.ethtool.abi import Statistics, StatisticsCalls, parse_names
from commwatch.sources.ethtool.table import DRIVERS, CounterRow, Driver
from commwatch_exporters.snapshot import Series, Value

_RUNS_WITH_THE_SAME_NAMES = 4
"""The names are read again after this number of runs. A change of priority flow control moves them, mostly with their
count; where it is turned off for one priority and on for another, the count stays and only the names differ."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """The statistics of an interface that are read, and what they are."""

    positions: tuple[int, ...]
    """Among the driver's numbers."""
    divisors: tuple[int, ...]
    series: tuple[Series, ...]


_NOTHING = _Choice((), (), ())


@dataclass(slots=True)
class _Interface:
    name: str
    device: str
    """The name as a label."""
    links: interfaces.Links
    driver: Driver | None
    """None: not to be read."""
    count: int = 0
    names: bytes = b""
    """As the kernel gave them, to see at once that they have not changed."""
    everything: _Choice = _NOTHING
    shown: _Choice = _NOTHING
    """``everything``, or less of it while no pause of a priority was seen."""
    hidden: tuple[int, ...] = ()
    """Positions of ``everything`` that ``shown`` lacks."""
    found: frozenset[CounterRow] = frozenset()
    runs_left: int = 0
    """Until the names are read again."""


class EthtoolSource(Source):
    """Reads the statistics of network adapters that their drivers keep beside those of sysfs.

    The interfaces are those of the network source whose driver has a table. Where a driver names all eight priorities
    whether priority flow control is on or off, their pauses are left out until one of the interface's is not zero.

    Args:
        make_calls: reads the statistics, or stands in for what does.
        drivers: the tables, by the name of the driver.
    """

    collectors = ("ethtool",)

    def __init__(
        self,
        sysfs: Path,
        settings: NetworkSection,
        make_calls: Callable[[], Statistics] = StatisticsCalls,
        drivers: Mapping[str, Driver] = DRIVERS,
    ) -> None:
        super().__init__()
        self._root = interfaces.folder(sysfs)
        self._settings = settings
        self._make_calls = make_calls
        self._drivers = drivers
        self._calls: Statistics | None = None
        self._interfaces: Mapping[str, _Interface] = MappingProxyType({})

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Find the interfaces; see ``Source.open``."""
        super().open(report, leave_out, only)
        interfaces.names(self._root)
        self._open_calls()

    def collect(self, collector: str) -> Batch:
        """Read all interfaces that are here now; see ``Source.collect``."""
        calls = self._open_calls()
        batch = Batch()
        found: dict[str, _Interface] = {}
        for name in interfaces.names(self._root):
            device = files.label_of(name)
            if not self._may_touch(device):
                continue
            interface = found[name] = self._interface(name, device)
            if interface.driver is not None:
                self._report(device)
                self._read(calls, interface, interface.driver, batch)
        self._report("")
        self._interfaces = found
        if states := _states(found.values()):
            batch.readings.append(DeviceReadings("", time.monotonic(), tuple(states), tuple(states.values())))
        return batch

    def close(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        self._interfaces = MappingProxyType({})

    def _open_calls(self) -> Statistics:
        if self._calls is None:
            try:
                self._calls = self._make_calls()
            except OSError as error:
                raise SourceUnavailable(files.reason_of(error), f"socket for ethtool: {error.strerror}") from error
        return self._calls

    def _interface(self, name: str, device: str) -> _Interface:
        """The interface, with its names as long as it is bound to the same device and driver."""
        base = f"{self._root}/{name}"
        links = interfaces.links_of(base)._replace(master="")
        known = self._interfaces.get(name)
        if known is not None and known.links == links:
            return known
        driver = self._drivers.get(links.driver_name)
        wanted = driver is not None and interfaces.is_wanted(name, base, bool(links.device), self._settings)
        return _Interface(name, device, links, driver if wanted else None)

    def _read(self, calls: Statistics, interface: _Interface, driver: Driver, batch: Batch) -> None:
        now = time.monotonic()
        try:
            numbers = self._numbers(calls, interface, driver)
        except OSError as error:
            interface.runs_left = 0
            if error.errno == errno.EOPNOTSUPP:  # it keeps no statistics: nothing is missing
                self._choose(interface, driver, b"", 0)
                return
            detail = f"ethtool statistics of {interface.name}: {os.strerror(error.errno or 0)}"
            batch.absences.append(Absence(interface.device, files.reason_of(error), detail))
            return
        if numbers is None:
            detail = f"the driver of {interface.name} changes how many statistics it has"
            batch.absences.append(Absence(interface.device, "not_ready", detail))
        elif interface.everything.series:
            values = _values(numbers, interface)  # before the series: it decides which are shown
            batch.readings.append(DeviceReadings(interface.device, now, interface.shown.series, values))

    def _numbers(self, calls: Statistics, interface: _Interface, driver: Driver) -> memoryview | None:
        """The driver's numbers; empty where none is wanted, None where their count changes under our hands."""
        for _ in range(2):
            if interface.runs_left == 0:
                count = calls.count(interface.name)
                names = calls.names(interface.name, count) if count else b""
                if names is None:
                    continue
                self._choose(interface, driver, names, count)
                interface.runs_left = _RUNS_WITH_THE_SAME_NAMES
            interface.runs_left -= 1
            if not interface.everything.positions:
                return memoryview(b"")
            numbers = calls.numbers(interface.name, interface.count)
            if numbers is not None:
                return numbers
            interface.runs_left = 0
        return None

    def _choose(self, interface: _Interface, driver: Driver, names: bytes, count: int) -> None:
        """Find the driver's rows among the names."""
        if names == interface.names and count == interface.count:
            return
        interface.names, interface.count = names, count
        chosen: dict[Series, tuple[int, int]] = {}
        quiet: set[Series] = set()
        found = set()
        for position, name in enumerate(parse_names(names)):
            statistic = driver.statistics.get(name)
            if statistic is None:
                continue
            row = statistic.row
            found.add(row)
            series: Series = (f"commwatch_{row.metric}", (interface.device, *statistic.labels))
            chosen.setdefault(series, (position, row.divisor))
            if driver.names_every_priority and row.is_of_priority:
                quiet.add(series)
        interface.found = frozenset(found)
        interface.everything = interface.shown = _choice(chosen)
        interface.hidden = tuple(chosen[series][0] for series in quiet)
        if quiet:
            interface.shown = _choice({series: place for series, place in chosen.items() if series not in quiet})


def make_source(origin: Origin) -> EthtoolSource:
    """The interfaces of this node, by the choice of ``network``."""
    return EthtoolSource(origin.sysfs, origin.settings.network, origin.stand_in or StatisticsCalls)


def _states(read: Iterable[_Interface]) -> dict[Series, int]:
    """Which rows the drivers of this node have: 0 for one that any interface has."""
    found: dict[Series, int] = {}
    for interface in read:
        for row in interface.driver.rows if interface.driver is not None else ():
            series: Series = ("commwatch_counters_state", ("ethtool", row.name))
            found[series] = min(found.get(series, 1), int(row not in interface.found))
    return found


def _choice(chosen: Mapping[Series, tuple[int, int]]) -> _Choice:
    places = chosen.values()
    return _Choice(tuple(place for place, _ in places), tuple(divisor for _, divisor in places), tuple(chosen))


def _values(numbers: memoryview, interface: _Interface) -> list[Value]:
    """The numbers in our units; shows all priorities from the first pause on."""
    if interface.hidden and any(numbers[position] for position in interface.hidden):
        interface.shown, interface.hidden = interface.everything, ()
    shown = interface.shown
    return [
        numbers[position] if divisor == 1 else numbers[position] / divisor
        for position, divisor in zip(shown.positions, shown.divisors, strict=True)
    ]

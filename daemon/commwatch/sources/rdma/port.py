"""One RDMA port: what files it has, and one reading of them all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from commwatch.readings import Absence, DeviceReadings
from commwatch.sources import files
from commwatch.sources.rdma import attributes
from commwatch.sources.rdma.counters import COUNTERS, RdmaCounter
from commwatch.sources.rdma.gids import Gids, read_gids
from commwatch.sources.rdma.places import Place, names_in
from commwatch_exporters.snapshot import Series, Value

REFRESH_SECONDS: Final = 60.0
"""Between two readings of what rarely changes: identity, and which counters there are."""
GIDS_SECONDS: Final = 600.0
"""Between two readings of the GID table, which has hundreds of files; a change of state reads it as well."""
RETRY_UNSUPPORTED_SECONDS: Final = 600.0
"""Between two tries of a counter that the driver refused; each try is a question to the adapter's firmware."""
SLOW_SECONDS: Final = 1.0
"""A port whose reading takes longer is left alone for a while."""

_NO_COUNTER = files.NO_VALUE_NOW | {errno.ENOENT}
_NO_HARM = frozenset({errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE})
"""Errors that are not the port's: asking again costs it nothing."""


class PortFailed(Exception):
    """It cannot be read now and should be left alone for a while; the text gives the reason."""


class PortGone(Exception):
    """The port went away since it was listed."""


class PortReading(NamedTuple):
    readings: DeviceReadings
    absence: Absence | None
    """The first thing that went wrong, if any."""
    counters_failed: str
    """The reason why the counters should be left alone for a while; empty if there is none."""


class _PortCounter(NamedTuple):
    position: int
    counter: RdmaCounter
    path: str


_GAUGES: Final = (
    "commwatch_rdma_port_state",
    "commwatch_rdma_port_phys_state",
    "commwatch_rdma_port_speed_bytes_per_second",
    "commwatch_rdma_port_width_lanes",
    "commwatch_rdma_port_virtual_functions",
)


class Port:
    """Reads one port.

    Args:
        opt_in: requested metrics among those that are read only on request.
        hidden: metrics that are read only on request.
        clock: monotonic seconds.
    """

    def __init__(
        self, place: Place, opt_in: frozenset[str], hidden: frozenset[str], clock: Callable[[], float]
    ) -> None:
        self.place = place
        self.supported: frozenset[str] = frozenset()
        """Files that are there and were not refused."""
        self._left_out = hidden - opt_in
        self._clock = clock
        self._labels = (place.device, place.port)
        self._home = os.path.realpath(place.home)
        """Files are read here: the links of the class take the kernel half as long again."""
        self._rows: tuple[_PortCounter, ...] = ()
        self._series: tuple[Series, ...] = ()
        self._refused: set[str] = set()
        self._refused_until = 0.0
        self._refreshed_at = float("-inf")
        self._gids: Gids | None = None
        self._gids_read_at = float("-inf")
        self._state: int | None = None
        self._driver = ""
        self._functions = 0
        self._rate: tuple[bytes, attributes.Rate | None] = (b"", None)

    def identity(self, now: float) -> DeviceReadings:
        """That the port is here, and nothing of what it counts."""
        values: list[Value] = [None] * len(self._series)
        if values:
            values[-1] = 1
        return DeviceReadings(self.place.key, now, self._series, values)

    def read(self, with_counters: bool = True) -> PortReading:
        """Read everything once; counters only if they are requested.

        Raises:
            PortFailed: the driver cannot read the port's attributes, or takes too long for it.
            PortGone: it went away.
        """
        now = self._clock()
        is_first = self._refreshed_at == float("-inf")
        if is_first:  # before anything can fail, so that the port has its identity
            self._refresh(now)
        state = self._read_attribute("state", now)
        code = None if state is None else attributes.parse_code(state)
        if not is_first and code != self._state:
            self._refused.clear()  # in another state it may have counters that it refused before
            self._gids_read_at = float("-inf")
            self._refresh(now)
        elif now - self._refreshed_at >= REFRESH_SECONDS:
            self._refresh(now)
        self._state = code
        values: list[Value] = [None] * len(self._series)
        absence = None
        if state is not None and code is None:
            absence = self._senseless("state", state)
        physical = attributes.parse_code(self._read_attribute("phys_state", now) or b"")
        speed = self._speed(now, code, physical)
        values[0], values[1], values[4], values[-1] = code, physical, self._functions or None, 1
        if speed is not None:
            values[2], values[3] = speed.bytes_per_second, speed.lanes
        if self._gids is not None:
            numbers = (self._gids.filled, *self._gids.lowest.values())
            values[-1 - len(numbers) : -1] = numbers
        counters_failed = ""
        if with_counters:
            try:
                absence = self._read_counters(values, now) or absence
            except PortFailed as error:  # what the port does is known all the same
                counters_failed = str(error)
        return PortReading(DeviceReadings(self.place.key, now, self._series, values), absence, counters_failed)

    def _read_counters(self, values: list[Value], started: float) -> Absence | None:
        absence: Absence | None = None
        refused = False
        for position, counter, path in self._rows:
            if counter.file in self._refused:
                continue
            try:
                data = self._read(path, started)
            except OSError as error:
                self._check(error, path)
                if error.errno in _NO_COUNTER:
                    self._refused.add(counter.file)
                    refused = True
                else:
                    detail = f"{self.place.home}/{path}: {error.strerror}"
                    absence = absence or Absence(self.place.key, files.reason_of(error), detail)
                continue
            number = attributes.parse_count(data)
            if number is not None:
                if number != counter.stuck_at:
                    values[position] = number * counter.scale
            elif attributes.is_unsupported(data):
                self._refused.add(counter.file)
                refused = True
            else:
                absence = absence or self._senseless(counter.file, data)
        if refused:
            self._refused_until = started + RETRY_UNSUPPORTED_SECONDS
            self.supported -= self._refused
        return absence

    def _speed(self, now: float, state: int | None, physical: int | None) -> attributes.Rate | None:
        data = self._read_attribute("rate", now) or b""
        if data != self._rate[0]:
            self._rate = (data, attributes.parse_rate(data))
        rate = self._rate[1]
        if rate is None or not attributes.is_link_up(state, physical):
            return None
        return rate if attributes.is_believed(rate, self._driver) else None

    def _read_attribute(self, name: str, started: float) -> bytes | None:
        path = f"ports/{self.place.port}/{name}"
        try:
            return self._read(path, started)
        except OSError as error:
            self._check(error, path)
            return None

    def _read(self, path: str, started: float) -> bytes:
        """A file below the device.

        Raises:
            OSError: as the kernel gave it.
            PortFailed: the reading of the port has taken too long by now.
        """
        try:
            return files.read(f"{self._home}/{path}")
        finally:
            seconds = self._clock() - started
            if seconds > SLOW_SECONDS:
                raise PortFailed(f"{self.place.home}/{path}: read after {seconds:.1f} s")

    def _check(self, error: OSError, path: str) -> None:
        """Raise if an error means that the port, or its driver, is in trouble."""
        if error.errno in _NO_COUNTER or error.errno in _NO_HARM:
            if error.errno == errno.ENOENT and not os.path.isdir(self.place.path):
                raise PortGone(f"{self.place.path} went away") from error
            return
        raise PortFailed(f"{self.place.home}/{path}: {error.strerror}") from error

    def _senseless(self, name: str, data: bytes) -> Absence:
        return Absence(self.place.key, "unreadable", f"{self.place.path}/{name}: {data[:40]!r} makes no sense")

    # --- what rarely changes ---

    def _refresh(self, now: float) -> None:
        """Find out which counters there are and who the port is."""
        self._refreshed_at = now
        self._functions = files.functions_of(f"{self.place.home}/device")
        if now >= self._refused_until:
            self._refused.clear()
        counters = self._find_counters()
        rows: list[_PortCounter] = []
        series: list[Series] = [(name, self._labels) for name in _GAUGES]
        for path, counter in counters:
            rows.append(_PortCounter(len(series), counter, path))
            kind = (counter.kind,) if counter.kind else ()
            series.append((counter.metric, (*self._labels, *kind)))
        series += self._gid_series(now)
        series.append(("commwatch_rdma_port_info", self._info()))
        self._rows = tuple(rows)
        self._series = tuple(series)

    def _gid_series(self, now: float) -> list[Series]:
        """The series of the GID table, in the order of its numbers."""
        if now - self._gids_read_at >= GIDS_SECONDS:
            self._gids_read_at = now
            # iWARP connects by the addresses of the interface: its one GID has the MAC address, and no kind.
            node_type = files.read_if_there(f"{self.place.home}/node_type") or b""
            self._gids = read_gids(self.place.path, "" if b"RNIC" in node_type else self._label("link_layer"))
        if self._gids is None:
            return []
        kinds = (("commwatch_rdma_port_gid_index", (*self._labels, kind)) for kind in self._gids.lowest)
        return [("commwatch_rdma_port_gids", self._labels), *kinds]

    def _label(self, name: str) -> str:
        """An attribute of the port as a label."""
        return attributes.parse_label(files.read_if_there(f"{self.place.path}/{name}"))

    def _find_counters(self) -> list[tuple[str, RdmaCounter]]:
        """The counters to read with their files below the device; sets which are supported."""
        place = self.place
        paths = {folder: f"ports/{place.port}/{folder}" for folder in ("counters", "hw_counters")}
        folders = {folder: names_in(f"{self._home}/{path}") for folder, path in paths.items()}
        if place.is_only and not folders["hw_counters"]:
            paths["hw_counters"] = "hw_counters"
            folders["hw_counters"] = names_in(f"{self._home}/hw_counters")
        there = [counter for counter in COUNTERS if counter.file in folders[counter.folder]]
        self.supported = frozenset(counter.file for counter in there) - self._refused
        first: dict[tuple[str, str], tuple[str, RdmaCounter]] = {}
        for counter in there:
            if counter.metric not in self._left_out:
                path = f"{paths[counter.folder]}/{counter.file}"
                first.setdefault((counter.metric, counter.kind), (path, counter))
        return list(first.values())

    def _info(self) -> tuple[str, ...]:
        place = self.place
        device = f"{place.home}/device"
        self._driver = files.link_name(f"{device}/driver")
        if not self._driver and place.device.startswith("mlx5_"):
            self._driver = "mlx5_core"
        chain = files.device_chain(device)
        address = next((part for part in chain if files.is_pci_address(part)), "")

        def label_of_device(name: str) -> str:
            return attributes.parse_label(files.read_if_there(f"{place.home}/{name}"))

        return (
            *self._labels,
            self._label("link_layer"),
            self._label("lid"),
            self._label("sm_lid"),
            label_of_device("fw_ver"),
            label_of_device("hca_type"),
            address,
            self._label("gid_attrs/ndevs/0") or _only_name(f"{device}/net"),
        )


def _only_name(folder: str) -> str:
    """The one name in a directory; empty where there are none or several."""
    names = names_in(folder)
    return files.label_of(next(iter(names))) if len(names) == 1 else ""

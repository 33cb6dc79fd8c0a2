"""RDMA ports as the kernel counts them: ``/sys/class/infiniband``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from commwatch.readings import Absence, Batch, DeviceReadings, SourceUnavailable
from commwatch.sources import files
from commwatch.sources.base import Origin, Report, Source
from commwatch.sources.rdma.counters import COUNTERS
from commwatch.sources.rdma.places import bound_to, places
from commwatch.sources.rdma.port import Port, PortFailed, PortGone
from commwatch_exporters.catalogue import OPT_IN
from commwatch_exporters.snapshot import Series

BACKOFF_SECONDS: Final = (30.0, 600.0)
"""First and longest time for which what cannot be read is left alone: the driver writes a line to the kernel log for
each try."""
LIST_PORTS_SECONDS: Final = 60.0
"""Between two listings of the ports of unchanged devices."""


@dataclass(slots=True)
class _Backoff:
    """For how long something that failed is left alone."""

    wait: float = 0.0
    """Seconds; 0 after a reading that went well."""
    until: float = 0.0
    why: str = ""

    def fail(self, why: str, now: float) -> None:
        self.wait = min(2 * self.wait, BACKOFF_SECONDS[1]) if self.wait else BACKOFF_SECONDS[0]
        self.until, self.why = now + self.wait, why

    def succeed(self) -> None:
        self.wait = self.until = 0.0


@dataclass(slots=True)
class _Watched:
    """A port, and how its readings went."""

    port: Port
    whole: _Backoff = field(default_factory=_Backoff)
    counters: _Backoff = field(default_factory=_Backoff)
    """Of the counters alone: a port whose state can be read is read."""

    def absence(self, of: _Backoff, what: str) -> Absence:
        """Says the same throughout a waiting time, so that the log has one line of it."""
        return Absence(self.port.place.key, "unreadable", f"{of.why}; {what} left alone for {of.wait:.0f} s")


class RdmaSource(Source):
    """Reads state, speed and counters of every RDMA port, whatever driver is behind it.

    Only files in the tables of ``counters`` are read. Nothing is ever written: ``lifespan`` of the hardware counters
    stays as it is. A port that the driver cannot read, or that takes more than a second, is left alone for 30 s, then
    twice as long each time up to 10 min; meanwhile its identity alone is given. Where only its counters fail, they
    alone are left alone.

    Args:
        exclude: see ``RdmaSection``.
        opt_in: metrics to read of those that are left out otherwise.
        clock: monotonic seconds.
    """

    collectors = ("rdma",)

    def __init__(
        self,
        sysfs: Path,
        exclude: Sequence[str] = (),
        opt_in: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._exclude = exclude
        self._root = str(sysfs / "class" / "infiniband")
        self._opt_in = frozenset(opt_in)
        self._clock = clock
        self._ports: dict[str, _Watched] = {}
        self._bound: dict[str, str] | None = None
        self._listed_at = float("-inf")

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Find the ports; see ``Source.open``."""
        super().open(report, leave_out, only)
        self._find_ports()

    def collect(self, collector: str) -> Batch:
        """Read all ports that are here now; see ``Source.collect``."""
        self._find_ports()
        batch = Batch()
        for key, watched in self._ports.items():
            self._report(key)
            self._read(watched, batch)
        self._report("")
        # Without ports it is empty, which shows that they were searched for.
        states = _states([watched.port.supported for watched in self._ports.values()])
        batch.readings.append(DeviceReadings("", self._clock(), tuple(states), tuple(states.values())))
        return batch

    def close(self) -> None:
        """Nothing stays open between two runs."""
        self._ports, self._bound = {}, None

    def _read(self, watched: _Watched, batch: Batch) -> None:
        now = self._clock()
        if now >= watched.whole.until:
            try:
                self._read_now(watched, now, batch)
            except PortGone as error:
                self._listed_at = float("-inf")
                batch.absences.append(Absence(watched.port.place.key, "not_found", str(error)))
                return
            except PortFailed as error:
                watched.whole.fail(str(error), self._clock())
            else:
                watched.whole.succeed()
                return
        batch.absences.append(watched.absence(watched.whole, "it is"))
        identity = watched.port.identity(now)
        if identity.series:
            batch.readings.append(identity)

    def _read_now(self, watched: _Watched, now: float, batch: Batch) -> None:
        counters = watched.counters
        with_counters = now >= counters.until
        reading = watched.port.read(with_counters)
        batch.readings.append(reading.readings)
        if reading.counters_failed:
            counters.fail(reading.counters_failed, self._clock())
        elif with_counters:
            counters.succeed()
        absence = watched.absence(counters, "its counters are") if counters.wait else reading.absence
        if absence is not None:
            batch.absences.append(absence)

    def _find_ports(self) -> None:
        """Compare the devices with those known, and the ports with them.

        Raises:
            SourceUnavailable: there are no RDMA devices.
        """
        now = self._clock()
        try:
            bound = bound_to(self._root)
            if bound == self._bound and now - self._listed_at < LIST_PORTS_SECONDS:
                return
            found = places(self._root, self._exclude)
        except OSError as error:
            raise SourceUnavailable(files.reason_of(error), f"{self._root}: {error.strerror}") from error
        before, self._bound, self._listed_at = self._bound or {}, bound, now
        ports = {}
        for key, place in found.items():
            if not self._may_touch(key):
                continue
            known = self._ports.get(key)
            name = place.home.rpartition("/")[2]
            if known is not None and known.port.place == place and before.get(name) == bound.get(name):
                ports[key] = known
            else:
                ports[key] = _Watched(Port(place, self._opt_in, OPT_IN, self._clock))
        self._ports = ports


def _states(supported: Sequence[frozenset[str]]) -> dict[Series, int]:
    """Which counters the ports have together: 0 for one that any has."""
    together = frozenset[str]().union(*supported)
    shown = dict.fromkeys(row.file for row in COUNTERS if supported and (row.is_common or row.file in together))
    return {("commwatch_counters_state", ("rdma", name)): int(name not in together) for name in shown}


def make_source(origin: Origin) -> RdmaSource:
    return RdmaSource(origin.sysfs, origin.settings.rdma.exclude, origin.opt_in, origin.monotonic)

"""Keeps the totals of hardware events from run to run, and logs each new event with its meaning."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timezone
from typing import Final, Literal, TypeAlias

import msgspec
import structlog

from commwatch.node.inventory import Inventory
from commwatch.node.rises import Rises
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.node.xids import LINK_SXIDS, LINK_XIDS, meaning_of
from commwatch.readings import HardwareEvent
from commwatch.sources.kernel_log_lines import INIT_FAILED, details, init_failure, is_fatal, is_nonfatal
from commwatch.state.records import Count, Timestamp
from commwatch_exporters.snapshot import Series, Value

FABRIC_XIDS: Final = ("74", "79", "108", "121", "136", "137", "155", "167", "173", "176")
"""Xids that bear on the paths between GPUs; exposed with 0 before the first, so that an increase is seen."""
NVLINK5_XIDS: Final = ("144", "145", "146", "147", "148", "149", "150")
"""The same of NVLink 5: Blackwell and later."""
FABRIC_SXIDS: Final = ("12020", "20034", "22003", "22011", "22012")
"""SXids by which a link fails; exposed with 0 for every NVSwitch."""

PAIRING_SECONDS: Final = 60.0
"""An Xid from the driver and a line of the same Xid and GPU within this time are one event.

Both are read every 2 s; a GPU whose driver calls hang (6 or 45 s) reports its event late. The kernel log has every
Xid, so a long time pairs nothing that was two events, unless records were lost.
"""
MOST_CODES: Final = 64
"""Codes of one device that get their own series; further ones count as ``other``."""
MOST_STRANGERS: Final = 16
"""Devices that get series although they are neither a GPU nor an NVSwitch of this node; further ones have no
address."""
MOST_UNPAIRED: Final = 256
"""Xids that wait for their other half, of one GPU and code, and of how many of these; the oldest are given up."""
OTHER: Final = "other"
RECENT_SECONDS: Final = 300.0
"""As ``event_window_seconds`` of the thresholds."""
OLD_SECONDS: Final = 3600.0
"""An event that is older when it is read is counted and is no news: a kernel log that is read for the first time has
lines of long ago. Rules look back for as long."""

LINKS_WITHIN_SECONDS: Final = 5.0
"""An error of an NVLink is counted once the links were read after it, or after this time: an alert reads both from one
scrape, and a link that is down explains the error."""

Table: TypeAlias = Literal[
    "xids", "sxids", "messages", "driver_events", "nonfatal_xids", "nonfatal_sxids", "fatal_xids", "fatal_sxids",
    "adapters",
]  # fmt: skip


class HardwareEventsState(msgspec.Struct):
    """State that survives a restart of the daemon; the totals go on over a reboot of the node."""

    boot: str = ""
    """The boot that ``sequence`` belongs to."""
    sequence: int = -1
    """Number of the last record of the kernel log that was counted."""
    xids: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    """Totals by PCI address and code; so are the others."""
    sxids: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    messages: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    driver_events: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    nonfatal_xids: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    """The Xids whose line marks them as not fatal; likewise below."""
    nonfatal_sxids: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    adapters: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    """Of network adapters."""
    fatal_xids: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    """Of the Xids those whose line calls them fatal; so are the next."""
    fatal_sxids: dict[str, dict[str, Count]] = msgspec.field(default_factory=dict)
    init_failures: dict[str, str] = msgspec.field(default_factory=dict)
    """By PCI address: why the driver could not start a GPU, in the last such line of ``boot``."""
    last_xids: dict[str, Timestamp] = msgspec.field(default_factory=dict)
    """Time of the last Xid by PCI address, seconds since 1970."""
    unpaired: dict[str, list[Timestamp]] = msgspec.field(default_factory=dict)
    """Times of the Xids that only one origin has reported so far; by address, code and origin in one text."""


class HardwareEvents:
    """Totals of hardware events.

    A record of the kernel log counts once, however often the log is read from its beginning: its number is compared
    with the last one counted of the same boot. A log that has the same line twice reports two events. An Xid that
    came from the driver is paired with one line of the kernel log, and the pair counts once, in either order.

    Whether an event is recent is decided here, when it is read, by its own time: alerts read the recent events, and a
    total that rises by others opens no finding.

    Args:
        state: what was kept from earlier runs; it is changed in place.
    """

    def __init__(self, state: HardwareEventsState, recent_seconds: float = RECENT_SECONDS) -> None:
        self.state = state
        self.version = 0
        """Grows with each event that is new."""
        self._rises: Rises[tuple[Table, str, str]] = Rises(recent_seconds)
        """By table, address and code."""
        self._gpus: Mapping[str, str] = {}
        self._switches: frozenset[str] = frozenset()

    def forget_recent(self) -> None:
        """Count no event so far as recent; the totals are kept."""
        self._rises.forget()

    def know(self, gpus: Mapping[str, str], nvlink5: Collection[str], switches: Collection[str]) -> None:
        """Take which devices the node has.

        Args:
            gpus: index by PCI address of the GPUs that are or were here.
            nvlink5: addresses of those with NVLink 5; a GPU that does not answer may be missing here.
        """
        self._gpus, self._switches = dict(gpus), frozenset(switches)
        for device in gpus:
            _seed(self.state.xids, device, FABRIC_XIDS + (NVLINK5_XIDS if device in nvlink5 else ()))
        for device in switches:
            _seed(self.state.sxids, device, FABRIC_SXIDS)
        for table, known in ((self.state.xids, self._gpus.keys()), (self.state.sxids, self._switches)):
            for device in [device for device in table.keys() - known if not any(table[device].values())]:
                del table[device]

    def take(self, events: Iterable[HardwareEvent], now: float, time: float) -> list[HardwareEvent]:
        """Count events; returns those that were not known yet.

        Args:
            now: seconds since 1970.
            time: the same moment in monotonic seconds.
        """
        counted = []
        for event in events:
            if self._is_new(event):
                self.version += 1
                read_at = time if event.time > now - OLD_SECONDS else None
                if self._count(event, read_at):
                    counted.append(event)
                # After the other: of an Xid that the driver reported first, the line alone says how grave it was.
                if is_nonfatal(event.kind, event.text):
                    self._add("nonfatal_xids" if event.kind == "xid" else "nonfatal_sxids", event, read_at)
                elif is_fatal(event.kind, event.text):
                    self._add("fatal_xids" if event.kind == "xid" else "fatal_sxids", event, read_at)
        return counted

    def _is_new(self, event: HardwareEvent) -> bool:
        """Whether a record of the kernel log was not counted before; other origins report each event once."""
        if event.origin != "kernel_log":
            return True
        state = self.state
        if event.boot != state.boot:
            state.boot, state.sequence = event.boot, -1
            state.init_failures.clear()
        if event.sequence <= state.sequence:
            return False
        state.sequence = event.sequence
        return True

    def _count(self, event: HardwareEvent, read_at: float | None) -> bool:
        """Count an event; False where its other half was counted."""
        table = _TABLES.get((event.kind, event.origin))
        if table is None:
            return False
        if event.kind == "xid" and self._pair(event):
            return False
        device = self._add(table, event, read_at)
        if event.code == INIT_FAILED and event.device and device == event.device:
            self.state.init_failures[device] = init_failure(event.text)
        if event.kind == "xid":
            last = self.state.last_xids
            last[device] = max(last.get(device, event.time), event.time)
        return True

    def _add(self, table: Table, event: HardwareEvent, read_at: float | None) -> str:
        """Count one in a table; returns the address that it was counted under.

        Args:
            read_at: monotonic seconds; None for an old event.
        """
        totals, device = self._totals(table, event.device)
        code = event.code if event.code in totals or len(totals) < MOST_CODES else OTHER
        totals[code] = totals.get(code, 0) + 1
        if read_at is not None and table in _RECENT:
            self._rises.add((table, device, code), 1, read_at)
        return device

    def _pair(self, event: HardwareEvent) -> bool:
        """Whether the other origin reported this Xid; else it is kept until the other one does."""
        waiting = self.state.unpaired
        other = "nvml" if event.origin == "kernel_log" else "kernel_log"
        own_key, other_key = (f"{event.device} {event.code} {origin}" for origin in (event.origin, other))
        halves = waiting.get(other_key, [])
        for place, moment in enumerate(halves):
            if abs(event.time - moment) <= PAIRING_SECONDS:
                del halves[place]
                if not halves:
                    del waiting[other_key]
                return True
        times = [*waiting.pop(own_key, []), event.time]
        oldest = max([*times, *halves]) - PAIRING_SECONDS
        if kept := [time for time in times if time >= oldest][-MOST_UNPAIRED:]:
            waiting[own_key] = kept
        if len(waiting) > MOST_UNPAIRED:
            del waiting[next(iter(waiting))]
        return False

    def _totals(self, table: Table, device: str) -> tuple[dict[str, int], str]:
        """Where to count for a device, and under which address."""
        totals: dict[str, dict[str, int]] = getattr(self.state, table)
        if device not in totals and device not in self._gpus and device not in self._switches:
            strangers = totals.keys() - self._gpus.keys() - self._switches
            if len(strangers) >= MOST_STRANGERS:
                device = ""
        return totals.setdefault(device, {}), device

    def readings(self, time: float) -> dict[Series, Value]:
        """All totals and the recent events.

        Args:
            time: monotonic seconds.
        """
        gpus = self._gpus
        readings: dict[Series, Value] = {}
        for table, metric in METRICS.items():
            totals_by_device: dict[str, dict[str, int]] = getattr(self.state, table)
            for device, totals in totals_by_device.items():
                labels = (device,) if table in _OF_SWITCHES else (gpus.get(device, ""), device)
                for code, total in totals.items():
                    readings[metric, (*labels, code)] = total
        for (table, device, code), rise in self._rises.within(time).items():
            labels = (device,) if table in _OF_SWITCHES else (gpus.get(device, ""), device)
            readings[_RECENT[table], (*labels, code)] = rise
        for device, why in self.state.init_failures.items():
            readings["commwatch_gpu_init_failed", (gpus.get(device, ""), device, why)] = 1
        for device, last in self.state.last_xids.items():
            readings["commwatch_gpu_last_xid_timestamp_seconds", (gpus.get(device, ""), device)] = round(last, 3)
        return readings


METRICS: Final[Mapping[Table, str]] = {
    "xids": "commwatch_gpu_xid_events_total",
    "nonfatal_xids": "commwatch_gpu_xid_nonfatal_events_total",
    "fatal_xids": "commwatch_gpu_xid_fatal_events_total",
    "driver_events": "commwatch_gpu_driver_events_total",
    "sxids": "commwatch_nvswitch_sxid_events_total",
    "nonfatal_sxids": "commwatch_nvswitch_sxid_nonfatal_events_total",
    "fatal_sxids": "commwatch_nvswitch_sxid_fatal_events_total",
    "messages": "commwatch_kernel_log_gpu_messages_total",
    "adapters": "commwatch_adapter_events_total",
}
_RECENT: Final[Mapping[Table, str]] = {
    "xids": "commwatch_gpu_xid_events_recent",
    "nonfatal_xids": "commwatch_gpu_xid_nonfatal_events_recent",
    "fatal_xids": "commwatch_gpu_xid_fatal_events_recent",
    "sxids": "commwatch_nvswitch_sxid_events_recent",
    "nonfatal_sxids": "commwatch_nvswitch_sxid_nonfatal_events_recent",
    "fatal_sxids": "commwatch_nvswitch_sxid_fatal_events_recent",
    "messages": "commwatch_kernel_log_gpu_messages_recent",
    "adapters": "commwatch_adapter_events_recent",
}
"""Series that alerts read: most totals of a device are 0."""
RECENT_OF: Final[Mapping[str, str]] = {METRICS[table]: recent for table, recent in _RECENT.items()}
"""By metric of the totals: that of the recent events among them, with the same labels."""
_OF_SWITCHES: Final = ("sxids", "nonfatal_sxids", "fatal_sxids", "adapters")
"""Their devices are NVSwitches or network adapters, which have no index."""

_TABLES: Final[Mapping[tuple[str, str], Table]] = {
    ("xid", "nvml"): "xids",
    ("xid", "kernel_log"): "xids",
    ("sxid", "kernel_log"): "sxids",
    ("message", "kernel_log"): "messages",
    ("message", "nvml"): "driver_events",
    ("adapter", "kernel_log"): "adapters",
}


_NUMBERS_OF_LINKS: Final = {"xid": re.compile(LINK_XIDS), "sxid": re.compile(LINK_SXIDS)}


def _is_of_link(event: HardwareEvent) -> bool:
    """Whether an event is an error of an NVLink, by its number."""
    numbers = _NUMBERS_OF_LINKS.get(event.kind)
    return numbers is not None and numbers.fullmatch(event.code) is not None


def _seed(table: dict[str, dict[str, int]], device: str, codes: Iterable[str]) -> None:
    """Begin the totals of these codes with 0 where they are not there."""
    totals = table.setdefault(device, {})
    for code in codes:
        totals.setdefault(code, 0)


log = structlog.get_logger("commwatch.hardware")

GROUP = "hardware_events"
LOGGED_PER_RUN = 50
"""A log full of old events is read at once; lines beyond this number are summed up in one line."""
_IDENTITY, _DEVICES, _LINKS = "nvml_identity", "pci", "nvml_nvlink"
_NVLINK5_FROM = 10
"""NVML's number of the first architecture with NVLink 5, for those whose name is not known."""


class HardwareLog(Tracker):
    """The totals of Xids, SXids and messages of the kernel log, in the store.

    Args:
        state: of an earlier daemon; it is changed in place.
        recent_seconds: as for ``HardwareEvents``.
    """

    collectors = (_IDENTITY, _DEVICES, "nvml_events", "kernel_log", _LINKS)
    """Two report who is here, two what happened, and one what has become of the links."""

    def __init__(
        self, state: HardwareEventsState, store: Store, inventory: Inventory,
        recent_seconds: float = RECENT_SECONDS,
    ) -> None:  # fmt: skip
        super().__init__(store)
        store.declare(GROUP)
        self._inventory = inventory
        self._events = HardwareEvents(state, recent_seconds)
        self._waiting: list[HardwareEvent] = []
        """In the order in which they came: of the kernel log only later records count."""
        self._waits_since = math.inf
        """When the first of them that is an error of a link was read, monotonic seconds; infinite: none is."""
        self._links_read = math.inf
        """When the links were read last, so too; infinite where they are not read."""

    @property
    def state(self) -> HardwareEventsState:
        """To keep over a restart: the totals, and how far the kernel log was read."""
        return self._events.state

    def pause(self) -> None:
        """The links are not read."""
        self._links_read = math.inf
        self._count(time.monotonic())

    def resume(self) -> None:
        """Forget the recent events: those during maintenance were meant. The totals are kept."""
        self._events.forget_recent()
        self._show(time.monotonic())

    def on_batch(self, outcome: Outcome) -> None:
        """Process the events of one run of a collector, and update the list of devices."""
        events = outcome.collected.events
        if outcome.collector.name == _LINKS:
            if outcome.collected.has_reading:
                self._links_read = min(outcome.collected.began, outcome.time)
            if not self._waiting:
                return
        # An event is counted with what is known at its time.
        if outcome.collector.name in (_IDENTITY, _DEVICES):
            self._know()
        self._waiting += events
        if any(map(_is_of_link, events)):
            self._waits_since = min(self._waits_since, outcome.time)
        self._count(outcome.time)

    def _count(self, now: float) -> None:
        """Count the events, unless one of them waits for the links.

        Total and recent events rise together: a rise of the total alone would be an old event for the rules.
        """
        if not self._links_read < self._waits_since <= now < self._waits_since + LINKS_WITHIN_SECONDS:
            events, self._waiting, self._waits_since = self._waiting, [], math.inf
            if events:
                self._announce(self._events.take(events, time.time(), now))
                self.version = self._events.version
        self._show(now)

    def _show(self, now: float) -> None:
        self._store.show(GROUP, "", self._events.readings(now), now)

    def _know(self) -> None:
        gpus = {gpu.pci_bus_id: str(gpu.index) for gpu in self._inventory.state.gpus.values() if not gpu.is_replaced}
        infos = self._labels(_IDENTITY, "commwatch_gpu_info")
        nvlink5 = [labels[1] for labels in infos if _has_nvlink5(labels[5])]
        devices = self._labels(_DEVICES, "commwatch_pcie_device_info")
        switches = [labels[0] for labels in devices if labels[1] == "nvswitch"]
        self._events.know(gpus, nvlink5, switches)

    def _labels(self, group: str, family: str) -> Iterable[tuple[str, ...]]:
        """Label values of the series of an info family."""
        for block in self._store.group(group).values():
            yield from block.labels(family)

    def _announce(self, events: list[HardwareEvent]) -> None:
        for event in events[-LOGGED_PER_RUN:]:
            known = meaning_of(event)
            said = details(event.kind, event.text)
            # The meaning has the severity of the usual case; where the driver itself says fatal, that goes before it.
            is_harmless = known is not None and known.severity == "info" and said.get("fatal") != "Fatal"
            say = log.info if is_harmless else log.warning
            say("hardware event", kind=event.kind, code=event.code, device=event.device, origin=event.origin,
                happened=datetime.fromtimestamp(event.time, timezone.utc).isoformat(timespec="milliseconds"),
                text=event.text, **said,
                **({} if known is None else {"name": known.name, "component": known.component,
                   "severity": known.severity, "meaning": known.meaning, "advice": known.advice}))  # fmt: skip
        if len(events) > LOGGED_PER_RUN:
            log.warning("more hardware events came before these", count=len(events) - LOGGED_PER_RUN)


def _has_nvlink5(architecture: str) -> bool:
    """Whether an architecture, by its name in ``commwatch_gpu_info``, is Blackwell or later."""
    if architecture.isdigit():
        return int(architecture) >= _NVLINK5_FROM
    return architecture in ("Blackwell", "Rubin")

"""The source ``nvml``: opens the driver, and runs the collectors over the GPUs one after another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import pynvml

from commwatch.readings import LOST_REASONS, Absence, Batch, DeviceReadings, SourceUnavailable
from commwatch.sources import files
from commwatch.sources.base import Origin, Report, Source
from commwatch.sources.gpu_bus import bound_devices, gpus_to_list
from commwatch.sources.nvml import codes
from commwatch.sources.nvml.events import EventWatch
from commwatch.sources.nvml.gpu import Gpu, GpuGone, pci_bus_id
from commwatch.sources.nvml.groups import ProcessGroup
from commwatch.sources.nvml.identity import read_driver_identity, read_gpu_identity
from commwatch.sources.nvml.p2p import read_peers
from commwatch.sources.nvml.plan import Plan, link_states, make_plan

_TRY_AGAIN_AFTER: Final = 3600.0  # seconds between two trials of what a GPU does not support
_LIBRARY: Final = "/libnvidia-ml.so"
_REPLACED: Final = "the driver's library was replaced beneath us; what is there now is opened in a new process"
_NOT_LISTED: Final = "it is on the PCI bus and bound to the NVIDIA driver, which does not list it"
_MAPS_BYTES: Final = 8 * 2**20
_PULSE: Final = "gpu"
_OPENS_SECONDS: Final = 60.0


@dataclass
class _Opened:
    """A GPU as the source keeps it."""

    gpu: Gpu
    plan: Plan
    gone: Absence | None = None
    """Set once the driver said that this handle must not be used again."""


class NvmlSource(Source):
    """The NVIDIA driver of this node. One thread."""

    collectors: tuple[str, ...] = (
        "identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie", "gpm", "fabric", "events", "p2p",
    )  # fmt: skip

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        opt_in: frozenset[str] = frozenset(),
        own_maps: Path = Path("/proc/self/maps"),
        to_list: Callable[[], frozenset[str]] = frozenset,
        bound: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """Args:
        monotonic: the clock.
        opt_in: metrics that are read only because the configuration names them.
        own_maps: the files that this process has mapped.
        to_list: PCI addresses of the GPUs that the driver should list, as the bus shows them now.
        bound: those of all devices of the driver, which cost less to read.
        """
        super().__init__()
        self._own_maps = own_maps
        self._to_list = to_list
        self._bound: frozenset[str] = frozenset()
        """GPUs that the driver should list, as of just before it was opened."""
        self._devices_of = bound
        self._devices: frozenset[str] = frozenset()
        """The result of ``bound`` when the driver's list was last compared with the bus."""
        self._unlisted: Sequence[Absence] = ()
        """The GPUs that the driver's list lacked then."""
        self._opened_at = 0.0
        self._monotonic = monotonic
        self._opt_in = opt_in
        self._initialised = False
        self._count = 0
        """GPUs that the driver listed when it was opened."""
        self._events = EventWatch()
        self._opened: list[_Opened] = []
        self._aliases: dict[str, str] = {}
        self._not_opened: dict[int, Absence] = {}

    @property
    def aliases(self) -> Mapping[str, str]:
        """PCI addresses by ``index:N``."""
        return self._aliases

    def open(self, report: Report, leave_out: frozenset[str], only: frozenset[str] | None) -> None:
        """Start NVML, make a handle of every GPU that may be touched, and try which counters it has.

        A GPU has no PCI address that could be asked for before it has a handle. So to keep a GPU untouched,
        ``leave_out`` must name it as ``index:N``, and ``only`` must name as ``index:N`` what may be touched.

        Raises:
            SourceUnavailable: no library, no driver, library and driver differ, or no permission.
        """
        super().open(report, leave_out, only)
        self._opened_at = self._monotonic()
        self._devices, self._bound = self._devices_of(), self._to_list()
        call = "nvmlInitWithFlags"
        try:
            pynvml.nvmlInit()
            self._initialised = True
            call = "nvmlDeviceGetCount"
            self._count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.close()
            raise SourceUnavailable(codes.reason_of(error.value), codes.describe(call, error.value)) from error
        try:
            for index in range(self._count):
                key = f"index:{index}"
                if self._may_touch(key):
                    self._open_gpu(index)
        except SourceUnavailable:
            self.close()
            raise
        finally:
            report("")
        self._unlisted = self._not_listed(self._to_list())

    def _open_gpu(self, index: int) -> None:
        device, call = f"index:{index}", "nvmlDeviceGetHandleByIndex"
        self._report(device)
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            call = "nvmlDeviceGetPciInfo"
            address = pci_bus_id(pynvml.nvmlDeviceGetPciInfo(handle))
        except pynvml.NVMLError as error:
            if error.value in codes.NO_DRIVER:
                raise SourceUnavailable(codes.reason_of(error.value), codes.describe(call, error.value)) from error
            detail = codes.describe(call, error.value)
            self._not_opened[index] = Absence(device, codes.reason_of(error.value), detail)
            return
        if not address:
            self._not_opened[index] = Absence(device, "unreadable", f"{call}: no PCI address")
            return
        if address in self._leave_out or not self._is_meant(address):
            return
        gpu = Gpu(index, handle, address)
        try:
            plan = self._plan(gpu)
        except GpuGone as gone:
            self._not_opened[index] = gone.absence
            return
        self._opened.append(_Opened(gpu, plan))
        self._aliases[device] = address

    def _plan(self, gpu: Gpu) -> Plan:
        return make_plan(gpu, self._monotonic(), link_states(gpu), opt_in=self._opt_in)

    def _is_meant(self, address: str) -> bool:
        """Whether a GPU may be touched by its address: its index may have been another GPU's before."""
        addresses = {key for key in self._only or () if not key.startswith("index:")}
        return not addresses or address in addresses

    def collect(self, collector: str) -> Batch:
        """Read one group of counters of every GPU that was opened.

        Raises:
            SourceUnavailable: the driver was unloaded or replaced since.
        """
        batch = Batch(occupants={} if collector == "processes" else None)
        try:
            if collector == "identity":
                self._follow_driver()
            elif collector == _PULSE:
                self._check_devices()
            readable = [opened for opened in self._opened if opened.gone is None]
            if collector == "events":
                self._listen(readable, batch)
            elif collector == "p2p":
                self._ask_peers(readable, batch)
            else:
                for opened in readable:
                    self._report(opened.gpu.device)
                    self._read(opened, collector, batch)
            batch.absences += [opened.gone for opened in self._opened if opened.gone is not None]
            batch.absences += self._not_opened.values()
            if collector in ("identity", _PULSE):
                batch.absences += self._unlisted
            if collector == "identity":
                self._report("")
                batch.readings.append(self._driver_identity())
        finally:
            self._report("")
        return batch

    def _read(self, opened: _Opened, collector: str, batch: Batch) -> None:
        gpu, group = opened.gpu, opened.plan.groups[collector]
        if collector != "identity" and not group.series:
            return
        try:
            if collector == "identity":
                batch.readings.append(self._gpu_identity(opened))
            else:
                values, taken = group.read(gpu, self._monotonic)
                batch.readings.append(DeviceReadings(gpu.device, taken, group.series, values))
                if isinstance(group, ProcessGroup) and group.occupants is not None and batch.occupants is not None:
                    batch.occupants[gpu.device] = group.occupants
        except GpuGone as gone:
            opened.gone = gone.absence
        if gpu.has_failed:
            batch.absences += gpu.absences()

    def _gpu_identity(self, opened: _Opened) -> DeviceReadings:
        gpu, plan, now = opened.gpu, opened.plan, self._monotonic()
        gpu.check_handle()
        states = link_states(gpu)
        # Links that could not be tried while all were inactive are tried when one has come up.
        came_up = None in plan.support.values() and any(states or ()) and not any(plan.link_states or ())
        changed = states is not None and len(states) != len(plan.link_states or ())
        if changed or came_up or now - plan.time >= _TRY_AGAIN_AFTER:
            known = states if states is not None else plan.link_states
            opened.plan = plan = make_plan(gpu, now, known, plan, self._opt_in)
        return read_gpu_identity(gpu, plan, states, self._monotonic)

    def _driver_identity(self) -> DeviceReadings:
        return read_driver_identity([opened.plan.support for opened in self._opened], self._monotonic)

    def _listen(self, readable: list[_Opened], batch: Batch) -> None:
        events, failures, gone = self._events.collect([opened.gpu for opened in readable], self._report)
        batch.events += events
        batch.absences += failures
        for opened in readable:
            opened.gone = next((one.absence for one in gone if one.absence.device == opened.gpu.device), None)

    def _ask_peers(self, readable: list[_Opened], batch: Batch) -> None:
        gpus = [opened.gpu for opened in readable]
        try:
            batch.readings += read_peers(gpus, self._report, self._monotonic)
        except GpuGone as gone:
            next(opened for opened in readable if opened.gpu.device == gone.absence.device).gone = gone.absence
        for gpu in gpus:
            batch.absences += gpu.absences()

    def _library_replaced(self) -> bool:
        """Whether an upgrade has removed the library that we still use: programs that start now load another one."""
        mapped = (files.read_if_there(str(self._own_maps), _MAPS_BYTES) or b"").decode(errors="replace")
        return any(_LIBRARY in line and line.endswith(" (deleted)") for line in mapped.splitlines())

    def _not_listed(self, to_list: frozenset[str]) -> list[Absence]:
        """The GPUs that were bound to the driver before it was opened, and that it does not list.

        None where the driver lists no GPU at all, which is a fault of its own, or lists one that could not be opened:
        that one has no address, and may be any of them.

        Args:
            to_list: PCI addresses of the GPUs that it should list, as the bus shows them now.
        """
        is_whole = self._only is None and self._count > 0 and not self._not_opened
        left_out = {name for name in self._leave_out if not name.startswith("index:")}
        if not is_whole or 2 * len(left_out) < len(self._leave_out):
            return []
        missing = (self._bound & to_list) - left_out - {opened.gpu.device for opened in self._opened}
        return [Absence(address, "not_listed", _NOT_LISTED) for address in sorted(missing)]

    def _check_devices(self) -> None:
        """Changes that need not wait for the next identity: the driver was bound or unbound, or has just been opened.

        A GPU that cannot be opened is retried for a minute, so that one failure is not taken for a faulty GPU.
        """
        if self._devices_of() != self._devices:
            self._follow_devices()
        elif self._monotonic() - self._opened_at < _OPENS_SECONDS:
            self._open_the_rest()

    def _follow_driver(self) -> None:
        """Notice a driver that was replaced, and GPUs that came or went.

        Raises:
            SourceUnavailable: it was replaced, or unloaded.
        """
        if self._library_replaced():
            raise SourceUnavailable("library_mismatch", _REPLACED)
        self._follow_devices()

    def _follow_devices(self) -> None:
        """Notice GPUs that came or went while the driver was open.

        Indexes move when the number of GPUs changes, so then all is opened again. Whether a driver that is open reports
        of a GPU that was plugged in is not established: else it is found by the next process.
        """
        self._devices = self._devices_of()
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            if error.value in codes.NO_DRIVER:
                raise SourceUnavailable(*codes.failure("nvmlDeviceGetCount", error.value)) from error
            count = self._count
        to_list = self._to_list()
        if count != self._count or (self._only is None and to_list - self._bound):
            self.close()
            self.open(self._report, self._leave_out, self._only)
            return
        self._open_the_rest()
        for opened in self._opened:
            if opened.gone is not None and opened.gone.reason == "not_found":
                opened.gone = None  # tried again below
        self._unlisted = self._not_listed(to_list)

    def _open_the_rest(self) -> None:
        """Try again what could not be opened, but for a GPU of which the driver said not to call it again."""
        for index in [index for index, absence in self._not_opened.items() if absence.reason not in LOST_REASONS]:
            del self._not_opened[index]
            self._open_gpu(index)

    def close(self) -> None:
        """End NVML; no device file stays open."""
        self._events.free()
        for opened in self._opened:
            opened.plan.close()
        self._opened, self._aliases, self._not_opened, self._unlisted = [], {}, {}, ()
        if self._initialised:
            self._initialised = False
            # A driver that was unloaded meanwhile answers that it is not initialised: then nothing is open.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def make_source(origin: Origin) -> NvmlSource:
    return of_node(NvmlSource, origin)


_S = TypeVar("_S", bound=NvmlSource)


def of_node(kind: type[_S], origin: Origin) -> _S:
    """A source of this node's driver, of a class that takes the arguments of ``NvmlSource``."""
    where = (origin.sysfs, origin.procfs, None) if origin.is_simulated else (origin.sysfs, origin.procfs)
    return kind(
        origin.monotonic,
        opt_in=origin.opt_in,
        to_list=partial(gpus_to_list, *where),
        bound=partial(bound_devices, origin.sysfs),
    )

"""Events from the driver: Xids, and GPUs whose availability or needed recovery has changed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pynvml

from commwatch.readings import Absence, HardwareEvent, SourceUnavailable
from commwatch.sources.base import Report
from commwatch.sources.nvml import codes
from commwatch.sources.nvml.gpu import Gpu, GpuGone, handle_number, pci_bus_id

EVENTS_PER_RUN: Final = 256
_XID: Final = 0x8
_OTHERS: Final = {0x4000: "gpu_unavailable", 0x8000: "recovery_action"}
"""Event types that carry no number, by name; from R570 on."""
_WANTED: Final = _XID | 0x4000 | 0x8000
_NO_INSTANCE: Final = 0xFFFFFFFF


class EventWatch:
    """One event set over all GPUs, made again when the driver loses it.

    Only what happens after a GPU is registered is reported; the kernel log has what came before.

    Args:
        clock: seconds since 1970; the driver gives its events no time.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._set: Any = None  # a pointer of the binding, which has no types
        self._registered: dict[int, Gpu] = {}
        """By the number of the handle."""
        self._is_missing = False
        """The library has no events."""

    def collect(self, gpus: Sequence[Gpu], report: Report) -> tuple[list[HardwareEvent], list[Absence], list[GpuGone]]:
        """Events since the last run, failures, and the GPUs that are gone.

        Args:
            gpus: those that may be touched.
            report: see ``sources.base.Report``.

        Raises:
            SourceUnavailable: the driver itself is gone.
        """
        events: list[HardwareEvent] = []
        gone: list[GpuGone] = []
        for is_second_trial in (False, True):
            if self._is_missing or not gpus:
                break
            failures: list[Absence] = []
            try:
                self._let_go(gpus, events)
                self._register(gpus, report, failures, gone)
                self._take(events)
                return events, failures, gone
            except pynvml.NVMLError as error:
                self.free()
                if error.value in codes.NOT_THERE:
                    self._is_missing = True
                    break
                if error.value in codes.NO_DRIVER:
                    raise SourceUnavailable(*codes.failure("nvmlEventSetWait_v2", error.value)) from error
                # The driver does not say which GPU is lost: registering them again finds out.
                gpus = [gpu for gpu in gpus if all(one.absence.device != gpu.device for one in gone)]
                if is_second_trial:
                    return events, [*failures, Absence("", *codes.failure("nvmlEventSetWait_v2", error.value))], gone
        return events, [], gone

    def _let_go(self, gpus: Sequence[Gpu], events: list[HardwareEvent]) -> None:
        """Free a set that holds a GPU which must not be touched any more; what it has to report is taken first."""
        if self._registered.keys() - {gpu.number for gpu in gpus}:
            # Of a GPU that is lost, the set may have the Xid that says so, or nothing but another failure.
            with contextlib.suppress(pynvml.NVMLError):
                self._take(events)
            self.free()

    def _register(self, gpus: Sequence[Gpu], report: Report, failures: list[Absence], gone: list[GpuGone]) -> None:
        """Make the set where there is none, and take in the GPUs that are not in it."""
        if self._set is None:
            self._set = pynvml.nvmlEventSetCreate()
        for gpu in gpus:
            if gpu.number in self._registered:
                continue
            report(gpu.device)
            try:
                supported = gpu.call(pynvml.nvmlDeviceGetSupportedEventTypes) or 0
                if types := supported & _WANTED:
                    gpu.call(pynvml.nvmlDeviceRegisterEvents, types, self._set)
            except GpuGone as lost:
                gone.append(lost)
                continue
            failed = gpu.absences()
            failures += failed
            if not failed:
                self._registered[gpu.number] = gpu
        report("")

    def _take(self, events: list[HardwareEvent]) -> None:
        for _ in range(EVENTS_PER_RUN):
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    return
                raise
            event = self._event(data)
            if event is not None:
                events.append(event)

    def _event(self, data: Any) -> HardwareEvent | None:
        gpu = self._registered.get(handle_number(data.device))
        device = gpu.device if gpu is not None else _address_of(data.device)
        if data.eventType == _XID:
            return HardwareEvent("xid", device, str(data.eventData), "nvml", self._clock(), _instance(data))
        name = _OTHERS.get(data.eventType)
        return None if name is None else HardwareEvent("message", device, name, "nvml", self._clock())

    def free(self) -> None:
        """Give the set back; the next run makes another."""
        if self._set is not None:
            # A driver that was unloaded meanwhile has no set any more.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
        self._set, self._registered, self._is_missing = None, {}, False


def _address_of(handle: Any) -> str:
    """The address of a GPU by a handle of the driver's own; empty where it does not say."""
    try:
        return pci_bus_id(pynvml.nvmlDeviceGetPciInfo(handle))
    except pynvml.NVMLError:
        return ""


def _instance(data: Any) -> str:
    """The instances of a divided GPU, as the kernel log writes them; empty for a whole one."""
    named = (("GPU-I", data.gpuInstanceId), ("GPU-CI", data.computeInstanceId))
    return " ".join(f"{name}:{number:02d}" for name, number in named if number != _NO_INSTANCE)

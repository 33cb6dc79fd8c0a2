"""One GPU's handle: calls on it, and what their failures mean."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml

from commwatch.readings import Absence, Reason, SourceUnavailable
from commwatch.sources.nvml import codes
from commwatch.sources.nvml.field_values import FieldBatch
from commwatch_exporters.snapshot import Value

T = TypeVar("T")

_PCI_BUS_ID = re.compile(rb"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class GpuGone(Exception):
    """The GPU is lost or wants a reset: no further call may be made on its handle."""

    def __init__(self, absence: Absence) -> None:
        super().__init__(absence.detail)
        self.absence = absence


class Gpu:
    """A GPU that has a handle."""

    def __init__(self, index: int, handle: object, pci_bus_id: str) -> None:
        self.device = pci_bus_id
        """PCI address as sysfs spells it, the key of this GPU."""
        self.labels = (str(index), pci_bus_id)
        self._handle = handle
        self.uuid = ""
        """As it was read last; empty before."""
        self.link_labels: dict[int, tuple[int, tuple[str, ...]]] = {}
        """State of each link, and its description and far end as last read: the driver gives none for a link that is
        down."""
        self._failed: dict[Reason, Absence] = {}

    def ask(self, function: Callable[..., T], *arguments: object) -> tuple[T | None, int]:
        """The result of a function of the binding for this GPU, and its return code.

        An answer that the binding cannot take counts as an unknown error: a text that it cannot decode, as of a damaged
        board, or more entries than there was room for.
        """
        try:
            return function(self._handle, *arguments), codes.SUCCESS
        except pynvml.NVMLError as error:
            return None, error.value
        except (UnicodeDecodeError, IndexError):
            return None, pynvml.NVML_ERROR_UNKNOWN

    @property
    def number(self) -> int:
        """The number that identifies this handle, as ``handle_number`` gives it."""
        return handle_number(self._handle)

    def ask_peer(self, function: Callable[..., T], peer: Gpu, *arguments: int) -> tuple[T | None, int]:
        """As ``ask``, for a function of two GPUs."""
        return self.ask(function, peer._handle, *arguments)

    def call(self, function: Callable[..., T], *arguments: object) -> T | None:
        """The result of a function of the binding for this GPU; None if it failed, which is noted.

        Raises:
            GpuGone, SourceUnavailable: as for ``note``.
        """
        value, code = self.ask(function, *arguments)
        if code != codes.SUCCESS:
            self.note(function.__name__, code)
        return value

    def read(self, batch: FieldBatch) -> list[Value]:
        """The values of a batch of fields; failures are noted.

        Raises:
            GpuGone, SourceUnavailable: as for ``note``.
        """
        values = batch.read(self._handle)
        if any(batch.codes):
            for code, what in batch.failures().items():
                self.note(what, code)
        return values

    def try_fields(self, requests: Sequence[tuple[int, int]]) -> Sequence[int]:
        """The return codes of fields (id and scope) that this driver may not know."""
        batch = FieldBatch([(field, scope, 1) for field, scope in requests])
        batch.read(self._handle)
        return batch.codes

    def note(self, call: str, code: int) -> None:
        """Keep a failure for ``absences``, unless it only means that this GPU does not have the feature.

        Raises:
            GpuGone, SourceUnavailable: as for ``check``.
        """
        self.check(call, code)
        if code != codes.SUCCESS and code not in codes.NOT_THERE:
            reason = codes.reason_of(code)
            self._failed.setdefault(reason, Absence(self.device, reason, codes.describe(call, code)))

    def check(self, call: str, code: int) -> None:
        """Stop if a code means that nothing more can be read.

        Raises:
            GpuGone: the code forbids further calls on this GPU.
            SourceUnavailable: the driver itself is gone.
        """
        if code in codes.GONE:
            raise GpuGone(Absence(self.device, codes.reason_of(code), codes.describe(call, code)))
        if code in codes.NO_DRIVER:
            raise SourceUnavailable(codes.reason_of(code), codes.describe(call, code))

    def check_handle(self) -> None:
        """Stop where the handle is not the GPU's any more: it would refuse all counters as if there were none.

        Raises:
            GpuGone, SourceUnavailable: as for ``check``; GpuGone also for such a handle.
        """
        info, code = self.ask(pynvml.nvmlDeviceGetPciInfo)
        self.check(pynvml.nvmlDeviceGetPciInfo.__name__, code)
        if code in codes.HANDLE_DEAD:
            detail = codes.describe(pynvml.nvmlDeviceGetPciInfo.__name__, code)
            raise GpuGone(Absence(self.device, "not_found", detail))
        if code != codes.SUCCESS:  # whatever it is: the GPU had an address when it was opened
            detail = codes.describe(pynvml.nvmlDeviceGetPciInfo.__name__, code)
            self._failed.setdefault(codes.reason_of(code), Absence(self.device, codes.reason_of(code), detail))
        if info is not None and pci_bus_id(info) != self.device:
            raise GpuGone(Absence(self.device, "not_found", f"its handle is now that of {pci_bus_id(info)}"))

    @property
    def has_failed(self) -> bool:
        """Whether a call has failed since ``absences`` was last asked."""
        return bool(self._failed)

    def absences(self) -> list[Absence]:
        """The failures since the last call, the first of each reason."""
        failed = list(self._failed.values())
        self._failed.clear()
        return failed

    def mig_enabled(self) -> bool:
        """Whether the GPU is divided into instances (MIG); False where the driver does not know of it."""
        mode = self.call(pynvml.nvmlDeviceGetMigMode)
        return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def handle_number(handle: Any) -> int:  # a pointer of the binding, which has no types
    """The address that a handle holds: equal for handles of the same GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def pci_bus_id(info: Any) -> str:  # a structure of the binding, which has no types
    """The PCI address of NVML's nvmlPciInfo_t as sysfs spells it, with four digits of the domain and in lower case.

    Empty where NVML gave no address, as in a virtual machine or behind an NVSwitch.
    """
    # The field's own descriptor gives bytes; as an attribute the binding decodes it and fails on what is no text.
    raw: bytes = pynvml.nvmlPciInfo_t.busId.__get__(info)
    match = _PCI_BUS_ID.fullmatch(raw.lower())
    return f"{int(match[1], 16):04x}:{match[2].decode()}" if match else ""

"""One GPU's handle: calls on it, and what their failures mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml

from commwatch.sources.base import Absence, Reason, SourceUnavailable
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
        self._failed: dict[Reason, Absence] = {}

    def ask(self, function: Callable[..., T], *arguments: int) -> tuple[T | None, int]:
        """What a function of the binding gives for this GPU, and its return code.

        A text that the binding cannot decode, as of a damaged board, counts as an unknown error.
        """
        try:
            return function(self._handle, *arguments), codes.SUCCESS
        except pynvml.NVMLError as error:
            return None, error.value
        except UnicodeDecodeError:
            return None, pynvml.NVML_ERROR_UNKNOWN

    def call(self, function: Callable[..., T], *arguments: int) -> T | None:
        """What a function of the binding gives for this GPU; None where it failed, which is noted.

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
        """Keep a failure for ``absences``, unless it only says that there is no such thing on this GPU.

        Raises:
            GpuGone, SourceUnavailable: as for ``check``.
        """
        self.check(call, code)
        if code != codes.SUCCESS and code not in codes.NOT_THERE:
            reason = codes.reason_of(code)
            self._failed.setdefault(reason, Absence(self.device, reason, codes.describe(call, code)))

    def check(self, call: str, code: int) -> None:
        """Stop where a code says that nothing more can be read.

        Raises:
            GpuGone: the code forbids further calls on this GPU.
            SourceUnavailable: the driver itself is gone.
        """
        if code in codes.GONE:
            raise GpuGone(Absence(self.device, codes.reason_of(code), codes.describe(call, code)))
        if code in codes.NO_DRIVER:
            raise SourceUnavailable(codes.reason_of(code), codes.describe(call, code))

    def absences(self) -> list[Absence]:
        """What failed since this was last asked, the first failure of each reason."""
        failed = list(self._failed.values())
        self._failed.clear()
        return failed

    def mig_enabled(self) -> bool:
        """Whether the GPU is divided into instances (MIG); False where the driver does not know of it."""
        mode = self.call(pynvml.nvmlDeviceGetMigMode)
        return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def pci_bus_id(info: Any) -> str:  # a structure of the binding, which has no types
    """The PCI address of NVML's nvmlPciInfo_t as sysfs spells it, with four digits of the domain and in lower case.

    Empty where NVML gave no address, as in a virtual machine or behind an NVSwitch.
    """
    # The field's own descriptor gives bytes; as an attribute the binding decodes it and fails on what is no text.
    raw: bytes = pynvml.nvmlPciInfo_t.busId.__get__(info)
    match = _PCI_BUS_ID.fullmatch(raw.lower())
    return f"{int(match[1], 16):04x}:{match[2].decode()}" if match else ""

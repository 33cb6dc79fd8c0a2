"""PCIe errors that the devices of a simulated node report (AER), in the format of the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.simulation.aer_errors import SEVERITIES
from commwatch.simulation.faults.fault import Fault
from commwatch.simulation.hardware import Hardware
from commwatch.simulation.pace import happened

_TOTALS = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}
_ROOT_PORT_FILES = {"correctable": "cor", "nonfatal": "nonfatal", "fatal": "fatal"}


class AerCounters:
    """The counters of all devices under a fixed set of faults; they begin at 0 at each boot.

    A bad link is seen at both ends: the port above a device counts what the device counts. A root port moreover counts
    the messages of all that is below it, its own among them.
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        parents = {device.address: device.parent for device in hardware.preset.devices}
        self._roots = {device.address for device in hardware.preset.devices if device.role == "root_port"}
        self._own: dict[str, list[Fault]] = {}
        self._reported: dict[str, list[Fault]] = {}
        for fault in hardware.faults:
            if fault.kind == "pcie_aer":
                for end in (fault.device, parents[fault.device]):
                    if end in parents:  # a device on a host bridge has no port above it
                        self._own.setdefault(end, []).append(fault)
                        root = (end, *hardware.preset.ancestors(end))[-2]
                        self._reported.setdefault(root, []).append(fault)
        self.struck = (*self._own, *(root for root in self._reported if root not in self._own))
        """Addresses of the devices that count more than zeros at some time."""

    def files(self, address: str, time: float) -> Iterator[tuple[str, str]]:
        """Name and content of a device's error files at a time, seconds since the node started."""
        boot = self.hardware.last_boot(time)
        own = _counts(self._own.get(address, ()), boot, time)
        for severity, errors in SEVERITIES.items():
            lines = [f"{name} {own.get((severity, name), 0)}" for _, name in errors]
            total = sum(count for (kind, _), count in own.items() if kind == severity)
            yield f"aer_dev_{severity}", "\n".join((*lines, f"TOTAL_ERR_{_TOTALS[severity]} {total}"))
        if address in self._roots:
            reported = _counts(self._reported.get(address, ()), boot, time)
            for severity, file in _ROOT_PORT_FILES.items():
                total = sum(count for (kind, _), count in reported.items() if kind == severity)
                yield f"aer_rootport_total_err_{file}", str(total)


def _counts(faults: list[Fault] | tuple[Fault, ...], boot: float, time: float) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for fault in faults:
        key = (fault.words["severity"], fault.words["error"])
        counts[key] = counts.get(key, 0) + happened(fault, boot, time)
    return counts

"""Parses lines of the kernel log about network adapters: the phrases of the drivers, as far as they are public.

mlx5: drivers/net/ethernet/mellanox/mlx5/core/{health,events,cmd}.c; bnxt_en: drivers/net/ethernet/broadcom/bnxt/bnxt.c;
ena: drivers/net/ethernet/amazon/ena/ena_netdev.c; of all drivers net/sched/sch_generic.c and drivers/pci/pci.c. Of efa
and irdma no line of their own is established that means a fault of the adapter.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias

Gravity: TypeAlias = Literal["critical", "warning", "info"]


class AdapterEvent(NamedTuple):
    """A kind of event, by its bounded name."""

    gravity: Gravity
    meaning: str
    """In a few words: ``the firmware has failed``."""


ADAPTER_EVENTS: Final[dict[str, AdapterEvent]] = {
    "firmware_fatal": AdapterEvent("critical", "the firmware has failed"),
    "health_lost": AdapterEvent("critical", "the adapter does not answer its driver"),
    "recovery_failed": AdapterEvent("critical", "the driver could not recover the adapter"),
    "slot_unavailable": AdapterEvent("critical", "the adapter is gone from its PCIe slot"),
    "health_critical": AdapterEvent("critical", "the firmware reports a critical state"),
    "health_issue": AdapterEvent("warning", "the firmware reports an error"),
    "command_timeout": AdapterEvent("warning", "the firmware did not answer a command"),
    "firmware_reset": AdapterEvent("warning", "the firmware was reset after an error"),
    "adapter_hot": AdapterEvent("warning", "the adapter is too hot"),
    "module_hot": AdapterEvent("warning", "the cable module is too hot"),
    "module_fault": AdapterEvent("warning", "the cable module reports a fault"),
    "transmit_timeout": AdapterEvent("warning", "a transmit queue has hung"),
    "device_reset": AdapterEvent("info", "the driver resets the adapter"),
    "slot_power_low": AdapterEvent("info", "the PCIe slot advertises too little power"),
    "pcie_limited": AdapterEvent("info", "the PCIe link carries less than the adapter can"),
}
"""By the code of the event. A slot that advertises too little power is no fault by itself: healthy boards without the
capability log the same at each boot. Whether a PCIe link should carry more, other rules know."""

DRIVERS: Final = ("mlx5_core", "bnxt_en", "ena", "efa", "irdma", "ice", "i40e")

_HEAD: Final = re.compile(
    rf"(?P<driver>{'|'.join(DRIVERS)}) (?P<address>[0-9A-Fa-f]{{4,8}}:[0-9A-Fa-f]{{2}}:[0-9A-Fa-f]{{2}}\.[0-7])"
    # mlx5 puts its function, the line and the process first, others an interface or an RDMA device.
    r"(?: [^\s:]{1,64}(?: \([a-z ]{1,40}\))?)?: (?:\w{1,64}:\d{1,6}:\(pid -?\d{1,10}\): )?(?P<text>.*)",
    re.DOTALL,
)
_HEALTH: Final = re.compile(r"Health issue observed, .{1,80}?, severity\((\d)\)")
_GRAVEST: Final = 2
"""Severities of the firmware: 0 emergency, 1 alert, 2 critical, 3 error, 4 warning, 5 notice, 6 information."""
_MILD: Final = 4

_MLX5: Final = "mlx5_core"
_PHRASES: Final[tuple[tuple[str, re.Pattern[str], str], ...]] = tuple(
    (driver, re.compile(pattern), code)
    for driver, pattern, code in (
        (_MLX5, r"Fatal error \d{1,10} detected", "firmware_fatal"),
        (_MLX5, r"device's health compromised", "health_lost"),
        (_MLX5, r"health recovery flow aborted", "recovery_failed"),
        (_MLX5, r"PCI slot is unavailable", "slot_unavailable"),
        (_MLX5, r"Health issue observed, ", "health_issue"),
        (
            _MLX5,
            r"(?:cmd\[\d{1,6}\]: )?\w{1,64}\(0x[0-9a-f]{1,8}\) .{0,40}timeout\. Will cause a leak",
            "command_timeout",
        ),
        (_MLX5, r"High temperature on sensors", "adapter_hot"),
        (_MLX5, r"Port module event\[error\]: module \d{1,5}, Cable error, High Temperature", "module_hot"),
        (_MLX5, r"Port module event\[error\]: ", "module_fault"),
        (_MLX5, r"Detected insufficient power on the PCIe slot", "slot_power_low"),
        ("bnxt_en", r"(?:Firmware fatal|Fatal firmware) reset event", "firmware_fatal"),
        ("bnxt_en", r"(?:Firmware non-fatal|Non-fatal firmware) reset event", "firmware_reset"),
        ("ena", r"Keep alive watchdog timeout\.", "device_reset"),
        ("", r"NETDEV WATCHDOG: .{0,80}transmit queue \d{1,6} timed out", "transmit_timeout"),
        ("", r"[\d.]{1,12} Gb/s available PCIe bandwidth, limited by ", "pcie_limited"),
    )
)
"""Driver (empty: any), how the text begins, and the event; the first that fits counts."""

SIGNS: Final = tuple(f"{driver} ".encode() for driver in DRIVERS)
"""One of these is in each record that may be of an adapter."""


def parse_adapter(text: str) -> tuple[str, str, str] | None:
    """PCI address, code of the event and the driver's words, of a line about an adapter; None for all other lines."""
    head = _HEAD.match(text)
    if head is None:
        return None
    for driver, pattern, code in _PHRASES:
        if driver in ("", head["driver"]) and pattern.match(head["text"]):
            found = _by_severity(head["text"]) if code == "health_issue" else code
            return (head["address"].lower(), found, head["text"]) if found else None
    return None


def _by_severity(text: str) -> str:
    """The firmware's own word; an older kernel does not hand it on. Empty for what is no error."""
    severity = _HEALTH.match(text)
    if severity is None or _GRAVEST < int(severity[1]) <= _MILD:
        return "health_issue"
    return "health_critical" if int(severity[1]) <= _GRAVEST else ""

"""Kernel log of a simulated node for each fault: lines, and their times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from commwatch_rehearsal.simulation.aer_errors import SEVERITIES
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.faults.host_kinds import ADAPTER_LINES
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.job_processes import job_process
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.timeline import REBOOTS
from commwatch_rehearsal.simulation.tree.procfs import module_version
from commwatch_rehearsal.simulation.xids import causes

SHORTEST_PERIOD_SECONDS = 0.01
"""Faults with a higher rate log no more often, as the kernel limits the rate of its messages."""

_ERROR, _WARNING, _NOTICE, _INFORMATION = 3, 4, 5, 6
"""Levels of linux/kern_levels.h."""
_GSP_TIMEOUT_SECONDS = 6.0
_SWITCH_LINKS_PER_GPU = 5


@dataclass(frozen=True, slots=True)
class Line:
    level: int
    text: str
    pci_address: str = ""
    """Of the device that the kernel names in the properties of the record; empty: none."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Lines that come at a time, once or again and again. Times are seconds since the node started."""

    start: float
    lines: tuple[Line, ...]
    end: float = math.inf
    period: float = math.inf
    """Infinite: once."""

    def count(self, time: float) -> int:
        """How often they came up to a time, that time included."""
        if time < self.start:
            return 0
        if math.isinf(self.period):
            return 1
        count = math.floor((min(time, self.end) - self.start) / self.period) + 1
        return count if self.start + (count - 1) * self.period < self.end else count - 1

    def moment(self, number: int) -> float:
        """When they come for this time, from 0; infinite where they do not."""
        if number == 0:
            return self.start
        moment = self.start + number * self.period
        return moment if moment < self.end else math.inf


FIRST_BOOT = ("boot", 0.0)
"""Key of the lines of the first boot."""


def streams_of(hardware: Hardware) -> tuple[tuple[object, Stream], ...]:
    """All streams of the kernel log, each with a key that identifies it when the faults change."""
    preset = hardware.preset
    boots = [0.0, *sorted({moment for fault in hardware.faults for moment in _loads(fault) if math.isfinite(moment)})]
    banner = (
        Line(_INFORMATION, "nvidia-nvlink: Nvlink Core is being initialized, major device number 236"),
        Line(_NOTICE, f"NVRM: loading {module_version(preset.driver_version)}"),
    )
    streams: list[tuple[object, Stream]] = [(("boot", boot), Stream(boot, banner)) for boot in boots]
    for fault in hardware.faults:
        make = _STREAMS.get(fault.kind)
        if make is not None:
            found = make(fault, hardware)
            streams += [((number, fault), stream) for number, stream in enumerate(found) if stream.start < math.inf]
    return tuple(streams)


def _loads(fault: Fault) -> tuple[float, ...]:
    """When the driver is loaded because of a fault."""
    if fault.kind in REBOOTS:
        return (fault.start, fault.end)
    return (fault.end,) if fault.kind == "driver_reload" else ()


def _xids(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    """The Xids that a fault raises, as listeners of the driver get them too."""
    for gpu, xid, link in causes(hardware, fault):
        if gpu not in hardware.epoch(fault.start).enumerated:
            continue
        split = any(
            other.kind == "mig_enabled" and other.gpu == gpu and other.active(fault.start) for other in hardware.faults
        )
        address = hardware.preset.gpus[gpu].pci_address
        process = f"pid={job_process(hardware, gpu, fault.start)}, name=python3" if xid in _OF_PROGRAMS else _NO_PROCESS
        line = _xid_line(address, xid, _xid_text(xid, link or 0, fault), process, "01" if split else "")
        yield _at_rate(fault, (line,))


def _gpu_lost(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    yield from _xids(fault, hardware)
    address = hardware.preset.gpus[fault.gpu or 0].pci_address
    yield Stream(fault.start, (Line(_ERROR, f"NVRM: GPU {address}: GPU has fallen off the bus."),))


def _not_started(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    """The driver tries as each program opens the GPU; once is enough here."""
    address = hardware.preset.gpus[fault.gpu or 0].pci_address
    texts = (
        f"NVRM: GPU {address}: RmInitAdapter failed! (0x24:0x72:1568)",
        f"NVRM: GPU {address}: rm_init_adapter failed, device minor number {fault.gpu or 0}",
    )
    yield Stream(fault.start, tuple(Line(_ERROR, text) for text in texts))


def _driver_hang(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    if fault.end - fault.start > _GSP_TIMEOUT_SECONDS:
        address = hardware.preset.gpus[fault.gpu or 0].pci_address
        line = _xid_line(address, 119, _xid_text(119, 0, fault))
        yield Stream(fault.start + _GSP_TIMEOUT_SECONDS, (line,))


def _nvlink_down(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    """The GPU's end, and that of the NVSwitches where the node shows them."""
    yield from _xids(fault, hardware)
    preset, nvlink = hardware.preset, hardware.preset.model.nvlink
    if nvlink is None or not preset.nvswitches or fault.gpu is None:
        return
    for link in range(nvlink.links) if fault.link is None else (fault.link,):
        switch = preset.nvswitches[link % len(preset.nvswitches)]
        port = fault.gpu * _SWITCH_LINKS_PER_GPU + link // len(preset.nvswitches)
        yield Stream(fault.start, _sxid_lines(preset, switch, 20034, "Fatal", port))


def _sxid(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    number = int(fault.settings["sxid"])
    lines = _sxid_lines(hardware.preset, fault.device, number, fault.words["severity"], fault.link or 0)
    yield _at_rate(fault, lines)


def _pcie_aer(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    preset, address = hardware.preset, fault.device
    device = next(one for one in preset.devices if one.address == address)
    root = preset.root_port(address)
    severity, error = fault.words["severity"], fault.words["error"]
    word, level = _AER_SEVERITIES[severity]
    bit = next(bit for bit, name in SEVERITIES[severity] if name == error)
    layer = _AER_LAYERS.get(error, "Transaction Layer")
    name = f"{device.driver} {address}"
    yield _at_rate(
        fault,
        (
            Line(level, f"pcieport {root}: AER: {word} error message received from {address}", root),
            Line(level, f"{name}: PCIe Bus Error: severity={word}, type={layer}, (Receiver ID)", address),
            Line(
                level,
                f"{name}:   device [{device.vendor_id:04x}:{device.device_id:04x}] "
                f"error status/mask={1 << bit:08x}/00002000",
                address,
            ),
            Line(level, f"{name}:    [{bit:2d}] {error}", address),
        ),
    )


def _adapter_event(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    text = f"mlx5_core {fault.device}: {ADAPTER_LINES[fault.words['event']]}"
    yield _at_rate(fault, (Line(_ERROR, text, fault.device),))


def _port_down(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    preset = hardware.preset
    for port in preset.rdma_ports:
        if fault.device == port.device and fault.port in {None, port.port}:
            name = f"mlx5_core {port.pci_address}"
            down, up = (
                (f"{name} {port.interface}: Link down", f"{name} {port.interface}: Link up")
                if port.interface
                else (
                    f"{name}: Port module event: module {port.port - 1}, Cable unplugged",
                    f"{name}: Port module event: module {port.port - 1}, Cable plugged",
                )
            )
            yield from _down_and_up(fault, down, up, port.pci_address)


def _ethernet_down(fault: Fault, hardware: Hardware) -> Iterator[Stream]:
    preset = hardware.preset
    for interface in preset.interfaces:
        if interface.name == fault.interface:
            address = interface.pci_address
            driver = next(device.driver for device in preset.devices if device.address == address)
            name = f"{driver} {address} {interface.name}"
            yield from _down_and_up(fault, f"{name}: Link down", f"{name}: Link up", address)


def _down_and_up(fault: Fault, down: str, up: str, address: str) -> Iterator[Stream]:
    yield Stream(fault.start, (Line(_INFORMATION, down, address),))
    yield Stream(fault.end, (Line(_INFORMATION, up, address),))


_STREAMS: Mapping[str, Callable[[Fault, Hardware], Iterator[Stream]]] = {
    "gpu_lost": _gpu_lost,
    "gpu_not_started": _not_started,
    "driver_hang": _driver_hang,
    "nvlink_down": _nvlink_down,
    "nvlink_recovery_failed": _nvlink_down,
    "xid": _xids,
    "recovery_needed": _xids,
    "sxid": _sxid,
    "pcie_aer": _pcie_aer,
    "adapter_event": _adapter_event,
    "rdma_port_down": _port_down,
    "ethernet_down": _ethernet_down,
}


def _at_rate(fault: Fault, lines: tuple[Line, ...]) -> Stream:
    rate = fault.settings.get("rate", 0.0)
    if not rate:
        return Stream(fault.start, lines)
    return Stream(fault.start, lines, fault.end, max(1 / rate, SHORTEST_PERIOD_SECONDS))


def _xid_line(address: str, number: int, text: str, process: str = "", instance: str = "") -> Line:
    """The driver leaves the function out; a part of a GPU that is split by MIG is named."""
    where = f"PCI:{address.rpartition('.')[0]}" + (f" GPU-I:{instance} GPU-CI:00" if instance else "")
    return Line(_ERROR, f"NVRM: Xid ({where}): {number}, {process or _NO_PROCESS}, {text}")


def _xid_text(number: int, link: int, fault: Fault) -> str:
    if number == 119:
        return (
            f"Timeout after {_GSP_TIMEOUT_SECONDS:.0f}s of waiting for RPC response from GPU{fault.gpu or 0} GSP! "
            "Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x58c)."
        )
    if number == 154:
        return f"GPU recovery action changed from 0x0 (None) to {_ACTIONS[fault.words.get('action', 'gpu_reset')]}"
    if number == 74:
        return f"NVLink: fatal error detected on link {link}(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    if number in _NVLINK_5_UNITS or fault.words.get("severity") == "Fatal":
        words = " ".join(["0x004505c6", *["0x00000000"] * 5])
        return f"{_NVLINK_5_UNITS.get(number, 'NEW_UNIT')}  Fatal   XC0 i0 Link {link:02d} ({words})"
    return _XID_TEXTS.get(number, "simulated")


def _sxid_lines(preset: Preset, address: str, number: int, severity: str, link: int) -> tuple[Line, ...]:
    """The event itself, and the line after it by which the driver dumps its state."""
    head = f"nvidia-nvswitch{preset.nvswitches.index(address)}: SXid (PCI:{address}): {number}"
    fatal = int(severity == "Fatal")
    return (
        Line(_ERROR, f"{head}, {severity}, Link {link:02d} {_SXID_TEXTS.get(number, 'simulated')}"),
        Line(_ERROR, f"{head}, Severity {fatal} Engine instance {link:02d} Sub-engine instance 00"),
    )


_NO_PROCESS = "pid='<unknown>', name=<unknown>"
_OF_PROGRAMS = frozenset({13, 31, 43, 45, 94})
_XID_TEXTS = {
    13: "Graphics Exception: ESR 0x505730=0x1f0009 0x505734=0x20 0x505728=0x4c1eb72 0x50572c=0x174",
    31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_0 faulted @ 0x7f10_04000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "Ch 00000008",
    45: "Ch 00000010",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 3, "
    "subpartition 1.",
    63: "Row Remapper: New row (0x00000000deadbeef) marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Error recording row remapping.",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    120: "GSP Error: Task 1 raised error code 0xa for reason 0x0 at 0x63ab1c0 (0 more errors skipped)",
}
_NVLINK_5_UNITS = {
    144: "SAW_MVB",
    145: "RLW_CTRL",
    146: "TLW_CTRL",
    147: "TREX",
    148: "NVLPW_CTRL",
    149: "NETIR_LINK_EVT",
    150: "MSE_WATCHDOG",
}
_ACTIONS = {
    "gpu_reset": "0x1 (GPU Reset Required)",
    "node_reboot": "0x2 (Node Reboot Required)",
    "drain_p2p": "0x3 (Drain P2P)",
    "drain_and_reset": "0x4 (Drain and Reset)",
}
_SXID_TEXTS = {12028: "egress non-posted PRIV error", 20001: "TX Replay Error", 20034: "LTSSM Fault Up"}
_AER_SEVERITIES = {
    "correctable": ("Correctable", _WARNING),
    "nonfatal": ("Uncorrectable (Non-Fatal)", _ERROR),
    "fatal": ("Uncorrectable (Fatal)", _ERROR),
}
_AER_LAYERS = {
    "RxErr": "Physical Layer",
    **dict.fromkeys(("BadTLP", "BadDLLP", "Rollover", "Timeout", "DLP", "SDES"), "Data Link Layer"),
}

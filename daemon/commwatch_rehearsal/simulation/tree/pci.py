"""PCIe devices and NUMA nodes of a simulated node, as the kernel shows them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from commwatch_rehearsal.simulation.aer_errors import SEVERITIES
from commwatch_rehearsal.simulation.gpu_conditions import GpuCondition
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.pace import happened
from commwatch_rehearsal.simulation.presets.parts import PciDevice, Preset
from commwatch_rehearsal.simulation.tree.writer import Entry, Link, Tree

_TRANSFER_RATES = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""PCIe generation: GT/s as the kernel writes it."""
_OFF_THE_BUS_WIDTH = 63
"""The kernel's width for a link status register that reads as all ones."""
_CORES_PER_NUMA_NODE = 48
"""Two threads each; the second threads are numbered after all first ones, as firmware usually does."""

_Error: TypeAlias = tuple[str, str]
"""Severity and name."""
_SHORT = {"correctable": "cor", "nonfatal": "nonfatal", "fatal": "fatal"}
"""Each severity in the names of totals."""


def pci_tree(hardware: Hardware, time: float) -> Tree:
    """``/sys/bus/pci/devices``, the devices behind it and ``/sys/devices/system/node``."""
    return {**_devices(hardware, hardware.epoch(time).start), **_struck(hardware, time)}


@lru_cache(maxsize=4)
def _devices(hardware: Hardware, start: float) -> Tree:
    """What does not change in the epoch that begins at ``start``."""
    preset, epoch = hardware.preset, hardware.epoch(start)
    gpus = {gpu.pci_address: condition for gpu, condition in zip(preset.gpus, epoch.gpus, strict=True)}
    by_address = {device.address: device for device in preset.devices}
    below = {device.parent: device for device in preset.devices}
    processors = processors_by_node(preset)
    tree: dict[str, Entry] = {
        f"devices/system/node/node{node}/cpulist": f"{numbers}\n" for node, numbers in processors.items()
    }
    if processors:
        tree["devices/system/node/online"] = f"{_ranges(processors)}\n"
    for address, device in by_address.items():
        folder, driver = pci_folder(preset, address), f"bus/pci/drivers/{device.driver}"
        tree[driver] = None
        answer = gpus[address].answer if address in gpus else "ok"
        if answer != "missing":
            files = {
                "class": f"0x{device.pci_class:06x}",
                "vendor": f"0x{device.vendor_id:04x}",
                "device": f"0x{device.device_id:04x}",
                "numa_node": str(device.numa_node),
                "local_cpulist": processors.get(device.numa_node) or ",".join(processors.values()),
                **_link_files(device, below.get(address), gpus),
                **_error_files(device, {}, {}),
            }
            tree |= {folder: None, **{f"{folder}/{name}": f"{content}\n" for name, content in files.items()}}
            tree[f"bus/pci/devices/{address}"] = Link(folder)
            if answer != "unbound":
                tree |= {f"{folder}/driver": Link(driver), f"{driver}/{address}": Link(folder)}
    return tree


def _link_files(device: PciDevice, below: PciDevice | None, gpus: Mapping[str, GpuCondition]) -> dict[str, str]:
    speed, width = _link_now(device, below, gpus)
    return {
        "current_link_speed": speed,
        "current_link_width": str(width),
        "max_link_speed": _speed_text(device.generation),
        "max_link_width": str(device.width),
    }


def _link_now(device: PciDevice, below: PciDevice | None, gpus: Mapping[str, GpuCondition]) -> tuple[str, int]:
    """Speed and lanes now; the port above a device shows what the device shows: it is the same link."""
    is_port = device.role in {"root_port", "switch_downstream"}
    end = below if is_port and below is not None else device
    condition = gpus.get(end.address)
    if condition is None:
        return _speed_text(min(device.generation, end.generation)), min(device.width, end.width)
    if condition.answer in {"lost", "missing"}:
        if is_port:  # nothing answers at the other end: the port waits at the lowest speed, no lane is up
            return _speed_text(1), 0
        return "Unknown", _OFF_THE_BUS_WIDTH
    return _speed_text(condition.pcie_generation), condition.pcie_width


def pci_folder(preset: Preset, address: str) -> str:
    """Where a device's folder is: below all its bridges, from the host bridge down."""
    return "/".join(("devices", *reversed(preset.ancestors(address)), address))


def processors_by_node(preset: Preset) -> dict[int, str]:
    """The processors of each NUMA node, as ``cpulist`` writes them: ``0-47,96-143``."""
    nodes = sorted({device.numa_node for device in preset.devices if device.numa_node >= 0})
    threads = len(nodes) * _CORES_PER_NUMA_NODE
    lists = {}
    for place, node in enumerate(nodes):
        first = place * _CORES_PER_NUMA_NODE
        last = first + _CORES_PER_NUMA_NODE - 1
        lists[node] = f"{first}-{last},{first + threads}-{last + threads}"
    return lists


def _ranges(nodes: dict[int, str]) -> str:
    first, last = min(nodes), max(nodes)
    return str(first) if first == last else f"{first}-{last}"


def _speed_text(generation: int) -> str:
    return f"{_TRANSFER_RATES[generation]} GT/s PCIe"


def _struck(hardware: Hardware, time: float) -> Tree:
    """The error files of the devices that faults of this kind strike at some time; counters begin at 0 at each boot.

    A bad link is seen at both ends: the port above a device counts what the device counts. A root port moreover counts
    the messages of all that is below it, its own among them.
    """
    preset, boot = hardware.preset, hardware.last_boot(time)
    devices = {device.address: device for device in preset.devices}
    own: defaultdict[str, Counter[_Error]] = defaultdict(Counter)
    reported: defaultdict[str, Counter[_Error]] = defaultdict(Counter)
    for fault in hardware.faults:
        if fault.kind == "pcie_aer":
            error = fault.words["severity"], fault.words["error"]
            for end in (fault.device, devices[fault.device].parent):
                if end in devices:  # a device on a host bridge has no port above it
                    own[end][error] += happened(fault, boot, time)
                    reported[preset.root_port(end)][error] += happened(fault, boot, time)
    tree = {}
    for address in own.keys() | reported.keys():
        folder = pci_folder(preset, address)
        if folder in _devices(hardware, hardware.epoch(time).start):  # not of a card that is missing
            for name, content in _error_files(devices[address], own[address], reported[address]).items():
                tree[f"{folder}/{name}"] = f"{content}\n"
    return tree


def _error_files(device: PciDevice, own: Mapping[_Error, int], reported: Mapping[_Error, int]) -> dict[str, str]:
    """A device's error files, by what it has counted itself and what was reported to it."""
    files = {}
    for severity, errors in SEVERITIES.items():
        counts = [own.get((severity, name), 0) for _, name in errors]
        lines = [f"{name} {count}" for (_, name), count in zip(errors, counts, strict=True)]
        files[f"aer_dev_{severity}"] = "\n".join((*lines, f"TOTAL_ERR_{_SHORT[severity].upper()} {sum(counts)}"))
        if device.role == "root_port":
            total = sum(reported.get((severity, name), 0) for _, name in errors)
            files[f"aer_rootport_total_err_{_SHORT[severity]}"] = str(total)
    return files

"""PCIe devices and NUMA nodes of a simulated node, as the kernel shows them."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch_rehearsal.simulation.aer_errors import SEVERITIES
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.hardware import Epoch, Hardware
from commwatch_rehearsal.simulation.pace import happened
from commwatch_rehearsal.simulation.presets.parts import PciDevice, Preset
from commwatch_rehearsal.simulation.tree.writer import TreeWriter

_TRANSFER_RATES = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""PCIe generation: GT/s as the kernel writes it."""
_OFF_THE_BUS_WIDTH = 63
"""The kernel's width for a link status register that reads as all ones."""
_CORES_PER_NUMA_NODE = 48
"""Two threads each; the second threads are numbered after all first ones, as firmware usually does."""

_TOTALS = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}
_ROOT_PORT_FILES = {"correctable": "cor", "nonfatal": "nonfatal", "fatal": "fatal"}


class PciPart:
    """``/sys/bus/pci/devices``, the devices behind it and ``/sys/devices/system/node``."""

    def __init__(self, preset: Preset) -> None:
        self._preset = preset
        self._by_address = {device.address: device for device in preset.devices}
        self._gpu_places = {gpu.pci_address: place for place, gpu in enumerate(preset.gpus)}
        self._paths = {device.address: pci_folder(preset, device.address) for device in preset.devices}
        self._children = {device.parent: device.address for device in preset.devices}
        self._processors = processors_by_node(preset)
        self._epoch: Epoch | None = None
        self._aer: AerCounters | None = None

    def update(self, writer: TreeWriter, hardware: Hardware, time: float) -> None:
        """Bring the files up to date; links change only when a fault begins or ends, error counts while one holds."""
        epoch = hardware.epoch(time)
        if self._aer is None or self._aer.hardware is not hardware:
            self._aer = AerCounters(hardware)
        gone = {gpu.pci_address for place, gpu in enumerate(self._preset.gpus) if epoch.gpus[place].answer == "missing"}
        if epoch is not self._epoch:
            self._write_devices(writer, epoch, gone)
            self._epoch = epoch
            touched = [device.address for device in self._preset.devices]
        else:
            touched = list(self._aer.struck)
        for address in touched:
            if address not in gone:
                for name, content in self._aer.files(address, time):
                    writer.put(f"{self._paths[address]}/{name}", content)

    def _write_devices(self, writer: TreeWriter, epoch: Epoch, gone: set[str]) -> None:
        for node, processors in self._processors.items():
            writer.put(f"devices/system/node/node{node}/cpulist", processors)
        if self._processors:
            writer.put("devices/system/node/online", _ranges(self._processors))
        unbound = {
            self._preset.gpus[place].pci_address for place, gpu in enumerate(epoch.gpus) if gpu.answer == "unbound"
        }
        for address in gone:
            writer.remove(f"bus/pci/devices/{address}", self._paths[address])
        for device in self._preset.devices:
            folder, driver = self._paths[device.address], f"bus/pci/drivers/{device.driver}"
            if device.address not in gone:
                for name, content in self._files(device, epoch):
                    writer.put(f"{folder}/{name}", content)
                writer.link(f"bus/pci/devices/{device.address}", folder)
            if device.address in gone | unbound:
                writer.remove(f"{folder}/driver", f"{driver}/{device.address}")
            else:
                writer.link(f"{folder}/driver", driver)
                writer.link(f"{driver}/{device.address}", folder)

    def _files(self, device: PciDevice, epoch: Epoch) -> Iterator[tuple[str, str]]:
        speed, width = self._link_now(device, epoch)
        yield "class", f"0x{device.pci_class:06x}"
        yield "vendor", f"0x{device.vendor_id:04x}"
        yield "device", f"0x{device.device_id:04x}"
        yield "numa_node", str(device.numa_node)
        yield "local_cpulist", self._processors.get(device.numa_node) or ",".join(self._processors.values())
        yield "current_link_speed", speed
        yield "current_link_width", str(width)
        yield "max_link_speed", _speed_text(device.generation)
        yield "max_link_width", str(device.width)

    def _link_now(self, device: PciDevice, epoch: Epoch) -> tuple[str, int]:
        """Speed and lanes now; the port above a device shows what the device shows: it is the same link."""
        below = self._by_address.get(self._children.get(device.address, ""))
        is_port = device.role in {"root_port", "switch_downstream"}
        end = below if is_port and below is not None else device
        place = self._gpu_places.get(end.address)
        if place is None:
            return _speed_text(min(device.generation, end.generation)), min(device.width, end.width)
        condition = epoch.gpus[place]
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

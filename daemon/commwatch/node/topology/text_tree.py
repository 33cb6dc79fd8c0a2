"""The PCIe tree as text: host bridges, switches and what hangs below, with the link of each."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.node.topology.model import End, PciDevice, Topology
from commwatch.node.topology.paths import narrowed, uplink
from commwatch.sources.files import is_pci_address

_BAD = "bold red"


def tree(node: Topology) -> Iterator[tuple[str, str]]:
    """Text and style of each line. Ports are left out: a device stands below its switch or host bridge."""
    hosts: dict[str, None] = {}
    for device in node.devices.values():
        if not is_pci_address(device.parent):
            hosts.setdefault(device.parent)
    for host in sorted(hosts):
        numbers = {one.numa_node for one in node.devices.values() if one.parent == host}
        known = sorted(number for number in numbers if number is not None)
        numa = f"NUMA node {'/'.join(map(str, known))}" if known else "NUMA node not known"
        yield f"  {host or 'not in the PCI tree'} ({numa})", ""
        yield from _below(node, host, 2)


def _below(node: Topology, parent: str, depth: int) -> Iterator[tuple[str, str]]:
    for device in node.devices.values():
        if device.parent != parent:
            continue
        if device.role in ("root_port", "switch_downstream"):
            yield from _below(node, device.address, depth)
            continue
        yield _line(node, device, depth)
        yield from _below(node, device.address, depth + 1)


def _line(node: Topology, device: PciDevice, depth: int) -> tuple[str, str]:
    parts: tuple[End, ...] = (*node.gpus, *node.nics)
    names = {"switch_upstream": "PCIe switch", "nvswitch": "NVSwitch", "gpu": "GPU", "nic": "NIC"}
    label = next((part.label for part in parts if part.address == device.address), names.get(device.role, "bridge"))
    link = uplink(node, device)
    if link is None or link.generation_max is None or link.lanes_max is None:
        return f"{'  ' * depth}{label} {device.address}  link not known", ""
    text = f"{'  ' * depth}{label} {device.address}  gen {link.generation_max} x{link.lanes_max}"
    if not narrowed(device, link):
        return text, ""
    return f"{text}  DEGRADED: now gen {link.generation} x{link.lanes}", _BAD

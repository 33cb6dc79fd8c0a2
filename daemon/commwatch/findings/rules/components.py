"""Components of findings, made from parts of the node."""

from __future__ import annotations

from commwatch.findings.finding import Component
from commwatch_exporters.node.model import Adapter, Gpu, Interface, NvLink, NvSwitch, PcieDevice, Probe, RdmaPort


def gpu_of(gpu: Gpu) -> Component:
    """A GPU; the node where neither index nor address is known: one of its GPUs."""
    index, address = gpu.index, gpu.address
    if not address:
        return Component("gpu", f"index:{index}", f"GPU{index}") if index else Component("node", "")
    return Component("gpu", address, f"GPU{index}" if index else "", frozenset({address}))


def pair_of(first: Gpu, second: Gpu) -> Component:
    """Two GPUs, whichever of them is named first."""
    ends = sorted((first, second), key=lambda gpu: gpu.address)
    addresses = [gpu.address for gpu in ends]
    return Component("pair", "-".join(addresses), "-".join(f"GPU{gpu.index}" for gpu in ends), frozenset(addresses))


def nvlink_of(link: NvLink) -> Component:
    address, number = link.address, link.number
    return Component("nvlink", f"{address}/{number}", f"GPU{link.index} link {number}", frozenset({address}))


def pcie_link_of(gpu: Gpu) -> Component:
    return Component("pcie_link", gpu.address, f"PCIe link of GPU{gpu.index}", frozenset({gpu.address}))


def device_link_of(device: PcieDevice, below: frozenset[str] = frozenset()) -> Component:
    """The PCIe link above a device.

    Args:
        below: PCI addresses of what the link serves beside the device itself.
    """
    address, role = device.address, device.role.replace("_", " ")
    return Component("pcie_link", address, f"PCIe link of {role} {address}", below | {address})


def nvswitch_of(switch: NvSwitch) -> Component:
    """An NVSwitch; every GPU of the node uses it."""
    return Component("nvswitch", switch.address, f"NVSwitch {switch.address}")


def adapter_of(adapter: Adapter) -> Component:
    """A network adapter, by its PCI function: all its ports and interfaces lie in it."""
    address = adapter.address
    return Component("adapter", address, f"adapter {address}", frozenset({address}))


def service_of(name: str) -> Component:
    """A service, which the whole node uses."""
    return Component("service", name, name)


def port_of(port: RdmaPort) -> Component:
    """An RDMA port, with all its parts; the other ports of the adapter have other parts."""
    device, number, address = port.device, port.number, port.address
    parts = {f"{device}/{number}", port.interface, f"{address}/port/{number}" if address else ""} - {""}
    return Component("rdma_port", f"{device}/{number}", f"{device} port {number}", frozenset(parts))


def interface_of(interface: Interface) -> Component:
    name, address = interface.name, interface.address
    parts = {name, f"{address}/net/{name}" if address else ""} - {""}
    return Component("interface", name, name, frozenset(parts))


def of_daemon(what: str, words: str) -> Component:
    """A part of the daemon itself; nothing on the node depends on it.

    Args:
        what: its name as a label: of a collector, a worker or a rule.
        words: what people call it: ``collector nvml_gpu``.
    """
    return Component("daemon", what, words)


def probe_of(probe: Probe, parts: frozenset[str] = frozenset()) -> Component:
    """A probe; it uses all GPUs of the node unless its parts are known."""
    return Component("probe", probe.name, f"probe {probe.name}", parts)

"""Components of findings, made from parts of the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commwatch.findings.facts import Facts
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


ADAPTER_NAMES: Final = (RdmaPort.info, Interface.info)
"""Details of rules that name adapters."""


def adapter_names(facts: Facts) -> Mapping[str, str]:
    """RDMA devices, else network interfaces, by PCI address."""
    interfaces = {one.address: one.name for one, _ in facts.each(Interface.info)}
    return interfaces | {port.address: port.device for port, _ in facts.each(RdmaPort.info)}


def device_link_of(facts: Facts, device: PcieDevice, below: frozenset[str]) -> Component:
    """The PCIe link above a device.

    Args:
        facts: name an adapter.
        device: at the lower end of the link.
        below: PCI addresses of what the link serves beside the device itself.
    """
    address = device.address
    name = facts.derived(adapter_names).get(address) or f"{device.role.replace('_', ' ')} {address}"
    return Component("pcie_link", address, f"PCIe link of {name}", below | {address})


def nvswitch_of(switch: NvSwitch) -> Component:
    """An NVSwitch; every GPU of the node uses it."""
    return Component("nvswitch", switch.address, f"NVSwitch {switch.address}")


def adapter_of(facts: Facts, adapter: Adapter) -> Component:
    """A network adapter, by its PCI function: all its ports and interfaces lie in it."""
    address = adapter.address
    name = facts.derived(adapter_names).get(address, address)
    return Component("adapter", address, f"adapter {name}", frozenset({address}))


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

"""Components made from the labels of a series."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch.findings.finding import Component


def gpu_of(labels: Mapping[str, str]) -> Component:
    """The GPU of a series with ``gpu`` and ``pci_bus_id``; the node where both are empty: one of its GPUs."""
    index, address = labels["gpu"], labels["pci_bus_id"]
    if not address:
        return Component("gpu", f"index:{index}", f"GPU{index}") if index else Component("node", "")
    return Component("gpu", address, f"GPU{index}" if index else "", frozenset({address}))


def nvlink_of(labels: Mapping[str, str]) -> Component:
    """The NVLink of a series with ``gpu``, ``pci_bus_id`` and ``link``."""
    address, link = labels["pci_bus_id"], labels["link"]
    return Component("nvlink", f"{address}/{link}", f"GPU{labels['gpu']} link {link}", frozenset({address}))


def pcie_link_of(labels: Mapping[str, str]) -> Component:
    """The PCIe link above the GPU of a series with ``gpu`` and ``pci_bus_id``."""
    address = labels["pci_bus_id"]
    return Component("pcie_link", address, f"PCIe link of GPU{labels['gpu']}", frozenset({address}))


def device_link_of(labels: Mapping[str, str], below: frozenset[str] = frozenset()) -> Component:
    """The PCIe link above the device of a series with ``device`` (a PCI address) and ``role``.

    Args:
        labels: of the series.
        below: PCI addresses of what the link serves beside the device itself.
    """
    address, role = labels["device"], labels["role"].replace("_", " ")
    return Component("pcie_link", address, f"PCIe link of {role} {address}", below | {address})


def nvswitch_of(labels: Mapping[str, str]) -> Component:
    """The NVSwitch of a series with ``device`` (a PCI address); every GPU of the node uses it."""
    return Component("nvswitch", labels["device"], f"NVSwitch {labels['device']}")


def service_of(labels: Mapping[str, str]) -> Component:
    """The service of a series with ``service``, which the whole node uses."""
    return Component("service", labels["service"], labels["service"])


def port_of(labels: Mapping[str, str]) -> Component:
    """The RDMA port of a series with ``device`` and ``port``; with ``pci_bus_id`` and ``netdev`` where they are known.

    The other ports of the adapter have other parts.
    """
    device, port = labels["device"], labels["port"]
    address, interface = labels.get("pci_bus_id", ""), labels.get("netdev", "")
    parts = {f"{device}/{port}", interface, f"{address}/port/{port}" if address else ""} - {""}
    return Component("rdma_port", f"{device}/{port}", f"{device} port {port}", frozenset(parts))


def interface_of(labels: Mapping[str, str]) -> Component:
    """The network interface of a series with ``device``; with ``pci_bus_id`` where it is known."""
    device, address = labels["device"], labels.get("pci_bus_id", "")
    parts = {device, f"{address}/net/{device}" if address else ""} - {""}
    return Component("interface", device, device, frozenset(parts))


def of_daemon(what: str, words: str) -> Component:
    """A part of the daemon itself; nothing on the node stands on it.

    Args:
        what: its name as a label: of a collector, a worker or a rule.
        words: what people call it: ``collector nvml_gpu``.
    """
    return Component("daemon", what, words)


def probe_of(labels: Mapping[str, str], parts: frozenset[str] = frozenset()) -> Component:
    """The probe of a series with ``probe``; it uses all GPUs of the node unless its parts are known."""
    return Component("probe", labels["probe"], f"probe {labels['probe']}", parts)

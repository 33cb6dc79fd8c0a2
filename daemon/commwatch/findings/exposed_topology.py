"""The topology as the metrics tell it, so that a command need not ask driver and kernel itself; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from commwatch.findings.facts import Facts
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.model import NumaNode, PcieLink, Topology
from commwatch.node.topology.nvlink import DriverFacts, driver_facts
from commwatch.node.topology.sysfs import PciFacts, SysfsFacts, natural
from commwatch_exporters.node.model import Interface, RdmaPort

_Role = Literal["gpu", "nic", "nvswitch", "bridge"]
_ENDS: Mapping[str, _Role] = {"gpu": "gpu", "nic": "nic", "nvswitch": "nvswitch"}


def topology_of(facts: Facts) -> Topology:
    """GPUs, NICs and what lies between them; for ``Facts.derived``.

    Virtual functions, near processors and the processor itself are not among the metrics: they stay unknown.
    """
    driver = driver_facts(facts.node)
    if not driver.gpus:
        driver = DriverFacts(note="no GPU of the driver is among the metrics")
    devices = tuple(_devices(facts))
    nodes = sorted({one.numa_node for one in devices if one.numa_node is not None})
    return build_topology(SysfsFacts(devices, tuple(NumaNode(one, "") for one in nodes), None, ()), driver)


def _devices(facts: Facts) -> Iterator[PciFacts]:
    adapters = _by_address((port.address, port.device) for port, _ in facts.each(RdmaPort.info))
    interfaces = _by_address((one.address, one.name) for one, _ in facts.each(Interface.info))
    for device in sorted(facts.node.pcie_devices, key=lambda device: device.address):
        link = (device.generation, device.width_lanes, device.generation_max, device.width_max_lanes)
        yield PciFacts(
            address=device.address,
            role=_ENDS.get(device.role, "bridge"),
            ancestors=tuple(bridge.address for bridge in device.above),
            numa_node=int(device.numa_node) if device.numa_node.isdecimal() else None,
            cpus="",
            link=PcieLink(*(None if number is None else int(number) for number in link)),
            physical_function="",
            rdma_devices=adapters.get(device.address, ()),
            interfaces=interfaces.get(device.address, ()),
        )


def _by_address(named: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """What stands at a PCI address: the names of RDMA devices or interfaces."""
    found: dict[str, set[str]] = {}
    for address, name in named:
        if address:
            found.setdefault(address, set()).add(name)
    return {address: tuple(sorted(names, key=natural)) for address, names in found.items()}

"""The topology as the metrics tell it, so that a command need not ask driver and kernel itself; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from commwatch.findings.facts import Facts
from commwatch.node.topology.build import build_node
from commwatch.node.topology.model import NumaNode, PcieLink, Topology
from commwatch.node.topology.nvlink import METRICS, DriverFacts, driver_facts
from commwatch.node.topology.sysfs import PciFacts, SysfsFacts, natural
from commwatch_exporters.snapshot import Series, Value

_Role = Literal["gpu", "nic", "nvswitch", "bridge"]
_ENDS: Mapping[str, _Role] = {"gpu": "gpu", "nic": "nic", "nvswitch": "nvswitch"}
_LINK = "commwatch_pcie_device_link_"


def topology_of(facts: Facts) -> Topology:
    """GPUs, NICs and what lies between them; for ``Facts.derived``.

    Virtual functions, near processors and the processor itself are not among the metrics: they stay unknown.
    """
    driver = driver_facts(_samples(facts))
    if not driver.gpus:
        driver = DriverFacts(note="no GPU of the driver is among the metrics")
    devices = tuple(_devices(facts))
    nodes = sorted({one.numa_node for one in devices if one.numa_node is not None})
    return Topology((build_node(SysfsFacts(devices, tuple(NumaNode(one, "") for one in nodes), None, ()), driver),))


def _samples(facts: Facts) -> Iterator[tuple[Series, Value]]:
    for metric in sorted(METRICS):
        for labels, number in facts.series(metric):
            yield (metric, tuple(labels.values())), number


class _ElementRow(NamedTuple):
    role: str
    parent: str
    numa_node: str


def _devices(facts: Facts) -> Iterator[PciFacts]:
    rows = {
        labels["device"]: _ElementRow(labels["role"], labels["parent"], labels["numa_node"])
        for labels, _ in facts.series("commwatch_pcie_device_info")
    }
    links = {
        name: {labels["device"]: int(number) for labels, number in facts.series(f"{_LINK}{name}")}
        for name in ("generation", "width_lanes", "generation_max", "width_max_lanes")
    }
    adapters = _names_at(facts, "commwatch_rdma_port_info")
    interfaces = _names_at(facts, "commwatch_ethernet_info")
    for address, row in sorted(rows.items()):
        yield PciFacts(
            address=address,
            role=_ENDS.get(row.role, "bridge"),
            ancestors=_above(address, rows),
            numa_node=int(row.numa_node) if row.numa_node.isdecimal() else None,
            cpus="",
            link=PcieLink(*(values.get(address) for values in links.values())),
            physical_function="",
            rdma_devices=adapters.get(address, ()),
            interfaces=interfaces.get(address, ()),
        )


def _above(address: str, rows: Mapping[str, _ElementRow]) -> tuple[str, ...]:
    """The bridges above a device, nearest first, the host bridge last."""
    found: list[str] = []
    while address in rows and (address := rows[address].parent) and address not in found:
        found.append(address)
    return tuple(found)


def _names_at(facts: Facts, metric: str) -> dict[str, tuple[str, ...]]:
    """What stands at a PCI address: the names of RDMA devices or interfaces."""
    found: dict[str, set[str]] = {}
    for labels, _ in facts.series(metric):
        if labels["pci_bus_id"]:
            found.setdefault(labels["pci_bus_id"], set()).add(labels["device"])
    return {address: tuple(sorted(names, key=natural)) for address, names in found.items()}

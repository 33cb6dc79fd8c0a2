"""What sysfs and the kernel log alone say of a node, without a daemon that has learned what is usual there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from commwatch.findings.finding import Severity
from commwatch.findings.rules.kernel import FABRIC_FAILED, SWITCH_FAILED
from commwatch.node import pcie_tree
from commwatch.node.pcie import is_narrow
from commwatch.node.pcie_tree import port_above
from commwatch.readings import HardwareEvent
from commwatch.sources.kernel_log_lines import is_nonfatal
from commwatch_exporters.node.model import Node, PcieDevice

_ACTIVE = 4
_ERRORS = (
    (PcieDevice.aer_errors, "reported by"),
    (PcieDevice.aer_root_port_errors, "taken by root port"),
)
_SEVERITIES: Mapping[str, Severity] = {"fatal": "critical", "nonfatal": "warning"}


class PortState(NamedTuple):
    """What sysfs says of an RDMA port; None for what was not read."""

    name: str
    """``mlx5_0 port 1``."""
    state: int | None
    """4: active."""
    phys_state: int | None
    """5: link up."""


class KernelFact(msgspec.Struct, frozen=True):
    """Something that the kernel knows of the node."""

    code: str
    """Of the finding that a daemon would make of it, if it knew it to be new."""
    severity: Severity
    """info: without knowing what is usual here, it may be no fault."""
    text: str


def kernel_facts(node: Node, ports: Iterable[PortState], events: Iterable[HardwareEvent]) -> list[KernelFact]:
    """All that may be wrong, most severe first.

    Args:
        node: what the collectors ``pci`` and ``aer`` read.
        ports: all RDMA ports.
        events: reports of the kernel log since the boot.
    """
    facts = [*_reports(events), *_errors(node), *_narrow_links(node), *_idle_ports(ports)]
    return sorted(facts, key=lambda fact: ("critical", "warning", "info").index(fact.severity))


def _reports(events: Iterable[HardwareEvent]) -> Iterable[KernelFact]:
    """Xids after which a path has failed, SXids by which traffic stops, and GPUs that fell off the bus."""
    counts: dict[tuple[str, str], int] = {}
    for event in events:
        if is_nonfatal(event.kind, event.text):
            continue  # the driver itself says that traffic goes on
        if event.kind == "xid" and event.code in FABRIC_FAILED:
            key = ("xid_fabric", f"Xid {event.code} ({FABRIC_FAILED[event.code]}) of {event.device}")
        elif event.kind == "sxid" and event.code in SWITCH_FAILED:
            key = ("sxid_fatal", f"SXid {event.code} of NVSwitch {event.device}")
        elif event.kind == "message" and event.code == "fallen_off_bus":
            key = ("xid_fabric", f"GPU {event.device or 'without an address'} has fallen off the bus")
        else:
            continue
        counts[key] = counts.get(key, 0) + 1
    for (code, what), count in counts.items():
        times = f", {count} times" if count > 1 else ""
        yield KernelFact(code, "critical", f"{what}{times} since the boot")


def _errors(node: Node) -> Iterable[KernelFact]:
    """Errors that were not corrected, as devices and root ports count them since the boot."""
    counts = [(one[0].address, by, *one[1:]) for column, by in _ERRORS for one in node.each_keyed(column)]
    for address, by, severity, count in sorted(counts, key=lambda one: one[0]):
        if count and severity in _SEVERITIES:
            text = f"{count:g} {severity} PCIe errors {by} {address} since the boot"
            yield KernelFact(f"pcie_{severity}", _SEVERITIES[severity], text)


def _narrow_links(node: Node) -> Iterable[KernelFact]:
    """Links with fewer lanes than both ends can use; of a GPU the slot may never have had more."""
    tree = {device.address: pcie_tree.Node(device.role, device.parent) for device in node.pcie_devices}
    for device in sorted(node.pcie_devices, key=lambda device: device.address):
        port = node.part(PcieDevice, port_above(device.address, tree) or "")
        lanes = device.width_lanes
        known = [most for most in (device.width_max_lanes, port.width_max_lanes) if most is not None]
        if len(known) < 2 or not is_narrow(lanes, None, min(known)):
            continue
        is_gpu = device.role == "gpu"
        text = f"PCIe link of {device.role.replace('_', ' ')} {device.address} uses x{lanes:g} of x{min(known):g}"
        yield KernelFact(
            "pcie_below_maximum" if is_gpu else "pcie_device_narrow", "info" if is_gpu else "warning", text
        )


def _idle_ports(ports: Iterable[PortState]) -> Iterable[KernelFact]:
    """Ports that are not active; it may be that no cable was ever there."""
    for port in ports:
        if port.state is not None and port.state != _ACTIVE:
            phys = "" if port.phys_state is None else f", physical state {port.phys_state}"
            yield KernelFact("rdma_port_down", "info", f"{port.name} is not active (state {port.state}{phys})")

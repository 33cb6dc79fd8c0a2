"""The topology of a machine from what was read of it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from commwatch.node.topology.model import Gpu, Nic, PciDevice, PciRole, Topology, VirtualFunction
from commwatch.node.topology.nvlink import DriverFacts
from commwatch.node.topology.sysfs import PciFacts, SysfsFacts, natural
from commwatch.sources.files import is_pci_address


def build_topology(sysfs: SysfsFacts, driver: DriverFacts) -> Topology:
    """Join the tree of sysfs with the driver's GPUs and links.

    A virtual function counts as its physical function, where that one is here. GPUs that only one side knows are kept:
    one that the driver does not have has no index, one that sysfs does not show has no path.
    """
    by_address = {facts.address: facts for facts in sysfs.devices}
    roles = _bridge_roles(by_address.values())
    devices = {
        facts.address: _device(facts, by_address, roles) for facts in sysfs.devices if not _is_shadow(facts, by_address)
    }
    # The driver names a virtual GPU by its virtual function: that one then lies where the physical one lies.
    for gpu in driver.gpus:
        facts = by_address.get(gpu.address)
        if facts is not None and gpu.address not in devices:
            devices[gpu.address] = _device(by_address[facts.physical_function], by_address, roles, facts.address)
    return Topology(
        gpus=_gpus(devices, driver),
        nics=_nics(by_address, devices),
        nvswitches=tuple(sorted(address for address, device in devices.items() if device.role == "nvswitch")),
        devices=dict(sorted(devices.items())),
        numa_nodes=sysfs.numa_nodes,
        cpu=sysfs.cpu,
        driver_note=driver.note,
        nvlink_refused=driver.nvlink_refused,
        peers_refused=driver.peers_refused,
        virtual=sysfs.virtual,
    )


def _is_shadow(facts: PciFacts, by_address: Mapping[str, PciFacts]) -> bool:
    """Whether this is a virtual function whose physical function is here."""
    return facts.physical_function in by_address


def _bridge_roles(devices: Iterable[PciFacts]) -> dict[str, PciRole]:
    """The role of each bridge by its level: below the root port, upstream and downstream ports of switches alternate.

    The kernel shows what kind of port a bridge is only to root, in its configuration space. A bridge that breaks the
    order, as a PCI bridge of a legacy card, is taken for a port of a switch.
    """
    roles: dict[str, PciRole] = {}
    for facts in devices:
        bridges = [name for name in facts.ancestors if is_pci_address(name)]
        for level, name in enumerate(reversed(bridges)):
            if level == 0:
                roles[name] = "root_port"
            else:
                roles[name] = "switch_upstream" if level % 2 else "switch_downstream"
    return roles


def _device(
    facts: PciFacts, by_address: Mapping[str, PciFacts], roles: Mapping[str, PciRole], address: str = ""
) -> PciDevice:
    near = [facts, *(by_address[name] for name in facts.ancestors if name in by_address)]
    # The kernel hands the number down from the bus; where a device has none, a bridge above may.
    numa_node = next((one.numa_node for one in near if one.numa_node is not None), None)
    return PciDevice(
        address=address or facts.address,
        role=roles.get(facts.address, "switch_upstream") if facts.role == "bridge" else facts.role,
        parent=facts.ancestors[0] if facts.ancestors else "",
        numa_node=numa_node,
        cpus=facts.cpus,
        link=facts.link,
    )


def _gpus(devices: Mapping[str, PciDevice], driver: DriverFacts) -> tuple[Gpu, ...]:
    on_bus = sorted(address for address, device in devices.items() if device.role == "gpu")
    if driver.note:
        return tuple(Gpu(address, place) for place, address in enumerate(on_bus))
    known = {gpu.address for gpu in driver.gpus}
    return (*driver.gpus, *(Gpu(address, None) for address in on_bus if address not in known))


def _nics(by_address: Mapping[str, PciFacts], devices: Mapping[str, PciDevice]) -> tuple[Nic, ...]:
    virtual: dict[str, list[VirtualFunction]] = {}
    for facts in by_address.values():
        if facts.role == "nic" and _is_shadow(facts, by_address):
            function = VirtualFunction(facts.address, facts.rdma_devices, facts.interfaces)
            virtual.setdefault(facts.physical_function, []).append(function)
    found = [
        Nic(address, 0, facts.rdma_devices, facts.interfaces, tuple(virtual.get(address, ())))
        for address, facts in by_address.items()
        if facts.role == "nic" and address in devices
    ]
    found.sort(key=lambda nic: (not nic.rdma_devices, natural("".join(nic.rdma_devices[:1])), nic.address))
    return tuple(replace(nic, index=index) for index, nic in enumerate(found))

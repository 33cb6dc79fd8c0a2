"""The visible state of a node's parts at one moment, gathered from the blocks of the collectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from commwatch.node.boards import gpus_on_boards
from commwatch.node.capacity import nominal_nvlink_rate
from commwatch_exporters.snapshot import Block, Snapshot
from commwatch_exporters.state_words import FABRIC_JOINING, NVLINK_UP, RDMA_ACTIVE, RDMA_DISABLED, ROCE_ROUTED


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """A GPU that returned its identity."""

    uuid: str
    index: int
    """NVML index; it moves when a card is lost."""
    pci_bus_id: str
    name: str = ""
    links_up: Mapping[int, float | None] | None = None
    """The NVLinks that are up, with the nominal rate of each, bytes per second in one direction.

    None: not read. A link that was not read is neither here nor in ``links_down``.
    """
    links_down: frozenset[int] = frozenset()
    pcie_lanes: int | None = None
    pcie_generation: int | None = None
    """Highest of GPU and slot together, not the one of this moment."""
    serial: str = ""
    architecture: str = ""
    memory_bytes: int | None = None
    adapters: int | None = None
    """Network adapters behind the same PCIe switch; None where the way to the GPU was not read."""
    pcie_lanes_max: int | None = None
    """Most lanes that both ends of its PCIe link can use; None if neither reports them."""
    pcie_own_generation: int | None = None
    """Highest PCIe generation of the GPU alone."""
    is_split: bool = False
    """Its NVLinks are down by design: it is in MIG mode, or waits for a partition of the fabric (``_waiting``)."""
    link_ends: Mapping[int, tuple[str, str, str]] = field(default_factory=dict)
    """By NVLink, where it leads: ``switch`` or ``gpu``, its PCI address, and the number that the link has there."""


@dataclass(frozen=True, slots=True)
class SeenPort:
    """A network interface or RDMA port that is here."""

    is_up: bool | None
    """Whether it has a link or, for an RDMA port, is active. A part that is switched off has none. None: not read."""
    speed: float | None = None
    """Bytes per second in one direction."""
    equal_in: str = ""
    """Ports with the same words are made and wired for the same, as the members of a bond are; empty: it has no known
    equals."""
    is_sole: bool = True
    """Whether its card has no other RDMA port: of two on one card, one is often left without a cable."""
    address: str = ""
    """Of an RDMA port the PCI address of its adapter; empty where it is not known."""
    is_lent: bool = False
    """Whether it is a RoCE port that is active while a container has its interface."""
    is_unused: bool = False
    """Whether it is a RoCE port whose interface is on the host, switched off and without an IP address."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The parts of a node; None for a kind that was not read at all."""

    gpus: tuple[SeenGpu, ...] | None = None
    ports: Mapping[str, SeenPort] | None = None
    """Network interfaces by name."""
    rdma_ports: Mapping[str, SeenPort] | None = None
    """By device and port: ``mlx5_0:1``."""
    gpus_on_boards: int | None = None
    """GPUs that must be here by the boards of the node; None if that is not known."""
    is_virtual: bool | None = None
    """Whether the node is a virtual machine; None where that is not known."""
    is_handed_on: bool = False
    """GPUs that this boot has shown and that are not here may have been given to virtual machines."""

    def without(self, pci_bus_ids: Collection[str]) -> Observation:
        """The same without some GPUs: those that are in the list of the driver and do not work."""
        if self.gpus is None or all(gpu.pci_bus_id not in pci_bus_ids for gpu in self.gpus):
            return self
        return replace(self, gpus=tuple(gpu for gpu in self.gpus if gpu.pci_bus_id not in pci_bus_ids))


def observe_blocks(blocks: Collection[Block], answered: Collection[str], is_virtual: bool | None = None) -> Observation:
    """Gather what the present blocks say.

    Args:
        blocks: the blocks of the collectors ``identity``, ``gpu``, ``nvlink``, ``pcie``, ``network``, ``rdma`` and
            ``pci``; others do no harm.
        answered: names of the collectors whose last run gave a batch, even an empty one. Without ``identity`` nothing
            is known of GPUs, without ``network`` nothing of interfaces, and without ``rdma`` nothing of RDMA ports.
        is_virtual: whether the node is a virtual machine; None where that is not known.
    """
    node = Snapshot(blocks)
    gpus = _gpus(node) if "identity" in answered else None
    return Observation(
        gpus=gpus,
        is_virtual=is_virtual,
        ports=_ports(node) if "network" in answered else None,
        rdma_ports=_rdma_ports(node) if "rdma" in answered else None,
        gpus_on_boards=gpus_on_boards(_switches(node), {gpu.name for gpu in gpus or ()}, is_virtual),
    )


def _switches(node: Snapshot) -> int:
    return sum(labels[1] == "nvswitch" for labels, _ in _samples(node, "commwatch_pcie_device_info"))


def _adapters(node: Snapshot) -> dict[str, int]:
    """Network adapters behind the root port of each PCIe device, by its address."""
    devices = {labels[0]: labels for labels, _ in _samples(node, "commwatch_pcie_device_info")}

    def root_port(address: str) -> str:
        while (parent := devices[address][2]) in devices:
            address = parent
        return address

    roots = {address: root_port(address) for address in devices}
    # An adapter has a function for each of its ports.
    cards = {(roots[address], address.rpartition(".")[0]) for address, labels in devices.items() if labels[1] == "nic"}
    behind = Counter(root for root, _ in cards)
    return {address: behind[root] for address, root in roots.items()}


def _samples(node: Snapshot, metric: str) -> Iterator[tuple[tuple[str, ...], int | float]]:
    """Label values and number of each series of a metric that was read."""
    for block in node.family_blocks(metric):
        yield from block.samples(metric)


def _gpus(node: Snapshot) -> tuple[SeenGpu, ...]:
    up, down = _links(node)
    adapters = _adapters(node)
    lanes = {labels[1]: int(value) for labels, value in _samples(node, "commwatch_pcie_link_width_lanes")}
    generations = {labels[1]: int(value) for labels, value in _samples(node, "commwatch_pcie_link_generation_max")}
    own = {labels[1]: int(value) for labels, value in _samples(node, "commwatch_pcie_gpu_link_generation_max")}
    most = _lanes_max(node)
    memory = {labels[1]: int(value) for labels, value in _samples(node, "commwatch_gpu_memory_size_bytes")}
    ends: dict[str, dict[int, tuple[str, str, str]]] = {}
    for (_, pci_bus_id, link, _, kind, remote, remote_link), _ in _samples(node, "commwatch_nvlink_info"):
        if remote:
            ends.setdefault(pci_bus_id, {})[int(link)] = (kind, remote, remote_link)
    split = {labels[1] for labels, value in _samples(node, "commwatch_gpu_mig_mode") if value == 1} | _waiting(node)
    return tuple(
        SeenGpu(
            uuid=uuid or pci_bus_id,
            index=int(gpu),
            pci_bus_id=pci_bus_id,
            name=name,
            links_up=None if pci_bus_id in split else up.get(pci_bus_id),
            links_down=frozenset() if pci_bus_id in split else frozenset(down.get(pci_bus_id, ())),
            pcie_lanes=lanes.get(pci_bus_id),
            pcie_generation=generations.get(pci_bus_id),
            serial=serial,
            architecture=architecture,
            memory_bytes=memory.get(pci_bus_id),
            adapters=adapters.get(pci_bus_id),
            pcie_lanes_max=most.get(pci_bus_id),
            pcie_own_generation=own.get(pci_bus_id),
            is_split=pci_bus_id in split,
            link_ends=ends.get(pci_bus_id, {}),
        )
        for (gpu, pci_bus_id, uuid, serial, name, architecture), _ in _samples(node, "commwatch_gpu_info")
    )


def _waiting(node: Snapshot) -> set[str]:
    """PCI addresses of the GPUs that are in no partition of a fabric which virtual machines share: they have no link
    until one is activated."""
    if not any(mode for _, mode in _samples(node, "commwatch_service_fabric_mode")):
        return set()
    return {labels[1] for labels, state in _samples(node, "commwatch_fabric_state") if state in FABRIC_JOINING}


def _lanes_max(node: Snapshot) -> dict[str, int]:
    """The fewest lanes that the driver, the GPU and the port above it report for a link, by the GPU's address."""
    above = {labels[0]: labels[2] for labels, _ in _samples(node, "commwatch_pcie_device_info")}
    ends = {labels[0]: int(value) for labels, value in _samples(node, "commwatch_pcie_device_link_width_max_lanes")}
    driver = {labels[1]: int(value) for labels, value in _samples(node, "commwatch_pcie_link_width_max_lanes")}
    found = {}
    for address in {*driver, *ends}:
        reported = (driver.get(address), ends.get(address), ends.get(above.get(address, "")))
        found[address] = min(lanes for lanes in reported if lanes is not None)
    return found


def _links(node: Snapshot) -> tuple[dict[str, dict[int, float | None]], dict[str, set[int]]]:
    """The links that are up with their nominal rates, and those that are down, by the PCI address of the GPU."""
    speeds = {labels[1:]: speed for labels, speed in _samples(node, "commwatch_nvlink_link_speed_bytes_per_second")}
    versions = {labels[1:3]: labels[3] for labels, _ in _samples(node, "commwatch_nvlink_info")}
    up: dict[str, dict[int, float | None]] = {
        pci_bus_id: {} for (_gpu, pci_bus_id), count in _samples(node, "commwatch_nvlink_links") if count == 0
    }
    down: dict[str, set[int]] = {}
    for (_gpu, pci_bus_id, link), state in _samples(node, "commwatch_nvlink_link_state"):
        links_up = up.setdefault(pci_bus_id, {})
        if state in NVLINK_UP:
            key = (pci_bus_id, link)
            links_up[int(link)] = nominal_nvlink_rate(speeds.get(key), versions.get(key, ""))
        else:
            down.setdefault(pci_bus_id, set()).add(int(link))
    return up, down


def _ports(node: Snapshot) -> dict[str, SeenPort]:
    speeds = {labels[0]: speed for labels, speed in _samples(node, "commwatch_ethernet_speed_bytes_per_second")}
    carriers = {labels[0]: carrier for labels, carrier in _samples(node, "commwatch_ethernet_carrier")}
    # One that is switched off is not meant to be up, and a bridge or Open vSwitch may have ports without a cable.
    bonded = {labels[0] for labels, _ in _samples(node, "commwatch_ethernet_bonded")} & carriers.keys()
    return {
        labels[0]: SeenPort(
            is_up=carriers.get(labels[0]) == 1,
            speed=speeds.get(labels[0]),
            equal_in=labels[3] if labels[0] in bonded else "",
        )
        for labels, _ in _samples(node, "commwatch_ethernet_info")
        # Without a driver it is no port: ends of containers come and go, and none of them is missed.
        if labels[2]
    }


def _rdma_ports(node: Snapshot) -> dict[str, SeenPort]:
    speeds = dict(_samples(node, "commwatch_rdma_port_speed_bytes_per_second"))
    states = dict(_samples(node, "commwatch_rdma_port_state"))
    physical = dict(_samples(node, "commwatch_rdma_port_phys_state"))
    carriers = {labels[0] for labels, _ in _samples(node, "commwatch_ethernet_carrier")}
    masters = {labels[0]: labels[3] for labels, _ in _samples(node, "commwatch_ethernet_info")}
    on_host = {*masters, *filter(None, masters.values())}  # a bond has no series of its own
    kinds: dict[tuple[str, ...], set[str]] = {labels: set() for labels, _ in _samples(node, "commwatch_rdma_port_gids")}
    for labels, _ in _samples(node, "commwatch_rdma_port_gid_index"):
        kinds.setdefault(labels[:2], set()).add(labels[2])
    found = [labels for labels, _ in _samples(node, "commwatch_rdma_port_info")]
    # A card with two ports is not one with a single port, though the model is the same.
    on_card = Counter(labels[7].rpartition(".")[0] for labels in found)
    ports = {}
    for labels in found:
        state = states.get(labels[:2])
        is_up = None if state is None else state == RDMA_ACTIVE
        link_layer, model, address, interface = labels[2], labels[6], labels[7], labels[8]
        # The interface of a RoCE port that is switched off has no carrier to read.
        is_off = interface not in carriers if link_layer == "Ethernet" else physical.get(labels[:2]) == RDMA_DISABLED
        is_known = link_layer and model and address and (is_up or not is_off)
        beside = on_card[address.rpartition(".")[0]] if address else 1
        equal_in = f"{model} {link_layer} {beside}" if is_known else ""
        is_roce = link_layer == "Ethernet"
        is_addressed = any(kind in kinds.get(labels[:2], ROCE_ROUTED) for kind in ROCE_ROUTED)
        ports[":".join(labels[:2])] = SeenPort(
            is_up, speeds.get(labels[:2]), equal_in, beside == 1, address,
            is_lent=is_roce and is_up is True and bool(masters) and interface not in on_host,
            is_unused=is_roce and is_up is False and is_off and masters.get(interface) == "" and not is_addressed,
        )  # fmt: skip
    return ports

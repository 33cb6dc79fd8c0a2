"""What the picture shows: adapters, PCIe switches, GPUs, NVLinks and NVSwitches with state and use; values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from commwatch_exporters.node.model import Interface, Node, NvLink, PcieDevice, RdmaPort
from commwatch_exporters.node_page.marks import LEVELS, Marks, port_mark, worst_mark
from commwatch_exporters.node_page.markup import level_of
from commwatch_exporters.node_page.records import Mark
from commwatch_exporters.node_page.tables import pcie_words
from commwatch_exporters.state_words import GPU_STATES, RDMA_ACTIVE, RDMA_STATES, word_of

_MOST_ADAPTERS = 32
"""A host with virtual functions has hundreds."""


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink of a GPU."""

    number: str
    level: str
    """good: up; bad, warn, info: something is wrong; off: neither up nor expected; unknown: not read."""
    far: str
    """PCI address of what it leads to; empty where the driver does not say."""
    to_gpu: bool
    words: str
    """State, and what is wrong."""

    @property
    def is_up(self) -> bool:
        """Whether it carries traffic; its far end is known only then."""
        return self.level in ("good", "warn", "info")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU with its NVLinks."""

    name: str
    address: str
    level: str
    words: str
    send: float | None
    """Share of the capacity of its NVLinks, 0 to 1."""
    receive: float | None
    pcie: str
    """Generation and lanes of its PCIe link."""
    pcie_level: str
    links: tuple[Link, ...]

    @property
    def links_up(self) -> int:
        """How many links carry traffic."""
        return sum(one.is_up for one in self.links)

    @property
    def links_wanted(self) -> int:
        """How many of its links count: those that are neither up nor expected are left out."""
        return sum(one.level != "off" for one in self.links)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One port of a network adapter."""

    name: str
    address: str
    level: str
    words: str
    speed: float | None
    """Bytes per second."""
    send: float | None
    receive: float | None
    pcie_level: str


@dataclass(frozen=True, slots=True)
class Branch:
    """What hangs below one PCIe switch, or one device with a root port of its own."""

    numa: str
    """Number of the NUMA node; empty where not known."""
    switch: str
    """PCI address of the upstream port; empty where there is no switch."""
    level: str
    gpus: tuple[Gpu, ...]
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """An NVSwitch; its address is empty where the host does not see it."""

    address: str
    level: str
    words: str


@dataclass(frozen=True, slots=True)
class Fabric:
    """The whole picture."""

    branches: tuple[Branch, ...]
    """By PCI address."""
    switches: tuple[Switch, ...]
    left_out: int = 0
    """Adapter ports that are not shown."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, from top to bottom."""
        return tuple(gpu for branch in self.branches for gpu in branch.gpus)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """All adapters, from top to bottom."""
        return tuple(adapter for branch in self.branches for adapter in branch.adapters)


def fabric_of(node: Node, marks: Marks) -> Fabric:
    """The picture of a node."""
    gpus = _gpus(node, marks)
    all_adapters = _adapters(node, marks)
    adapters = _most_telling(all_adapters)
    by_branch: dict[str, tuple[list[Gpu], list[Adapter]]] = {}
    for gpu in gpus:
        by_branch.setdefault(_pcie_switch(node, gpu.address) or gpu.address, ([], []))[0].append(gpu)
    for adapter in adapters:
        by_branch.setdefault(_pcie_switch(node, adapter.address) or adapter.address, ([], []))[1].append(adapter)
    branches = []
    for top, (its_gpus, its_adapters) in sorted(by_branch.items()):
        device = node.part(PcieDevice, top)
        switch = top if device.role == "switch_port" else ""
        wrong = worst_mark(marks, f"pcie_link/{top}", f"part/pcie_switch/{top}") if switch else None
        level = level_of(wrong.severity) if wrong else "good"
        branches.append(Branch(device.numa_node, switch, level, tuple(its_gpus), tuple(its_adapters)))
    return Fabric(tuple(branches), _nvswitches(gpus, marks), len(all_adapters) - len(adapters))


# --- the parts ---


def _pcie_switch(node: Node, address: str) -> str:
    """The topmost switch port above a device; empty where there is none."""
    above = node.part(PcieDevice, address).above
    below_root = takewhile(lambda one: one.role != "root_port", above)
    return next((one.address for one in reversed(list(below_root)) if one.role == "switch_port"), "")


def _gpus(node: Node, marks: Marks) -> list[Gpu]:
    gpus = []
    for gpu in node.gpus:
        address, state = gpu.address, gpu.state
        wrong = worst_mark(marks, f"gpu/{address}", f"part/gpu/GPU{gpu.index}")
        words = "state unknown" if state is None else word_of(GPU_STATES, state)
        level = "unknown" if state is None else "bad" if state else level_of(wrong.severity) if wrong else "good"
        pcie, degraded = pcie_words(gpu)
        pcie_wrong = worst_mark(marks, f"pcie_link/{address}", f"part/pcie_link/{address}")
        gpus.append(
            Gpu(
                name=f"GPU{gpu.index}",
                address=address,
                level=level,
                words=_said(words, wrong, fine=not state),
                send=gpu.nvlink_transmit_utilization_ratio,
                receive=gpu.nvlink_receive_utilization_ratio,
                pcie=pcie,
                pcie_level=level_of(pcie_wrong.severity) if pcie_wrong else "bad" if degraded else "good",
                links=tuple([_link(link, marks) for link in gpu.links]),
            )
        )
    return gpus


def _link(link: NvLink, marks: Marks) -> Link:
    up, expected = link.is_up, bool(link.expected)
    wrong = worst_mark(marks, f"nvlink/{link.address}/{link.number}")
    words = "not read" if up is None else "up" if up else "down" if expected else "not in use"
    if up is None:
        level = "unknown"
    elif not up and (expected or wrong):
        level = "bad"
    elif not up:
        level = "off"
    else:
        level = level_of(wrong.severity) if wrong else "good"
        level = "warn" if level == "bad" else level  # it carries traffic; a broken line would say that it does not
    is_to_gpu = link.remote_type == "gpu"
    return Link(link.number, level, link.remote_address, is_to_gpu, _said(words, wrong, fine=bool(up)))


def _adapters(node: Node, marks: Marks) -> list[Adapter]:
    """The ports of the adapters with an RDMA device; where none has one, all interfaces on the PCI bus."""
    adapters = []
    for port, _ in node.each(RdmaPort.info):
        state = port.state
        words = "state unknown" if state is None else word_of(RDMA_STATES, state)
        up = None if state is None else state == RDMA_ACTIVE
        name = port.device if port.number == "1" else f"{port.device}/{port.number}"
        wrong = port_mark(marks, port.device, port.number, port.interface)
        adapters.append(_adapter(name, port, up, words, marks, wrong))
    if adapters:
        return adapters
    for interface, _ in node.each(Interface.info):
        if interface.address:
            carrier = interface.carrier
            up = None if carrier is None else bool(carrier)
            words = "state unknown" if up is None else "up" if up else "down"
            wrong = worst_mark(marks, f"interface/{interface.name}")
            adapters.append(_adapter(interface.name, interface, up, words, marks, wrong))
    return adapters


def _most_telling(adapters: list[Adapter]) -> list[Adapter]:
    """As many as are shown, those with the worst states among them, in their order."""
    places = sorted(range(len(adapters)), key=lambda place: LEVELS.index(adapters[place].level))
    return [adapters[place] for place in sorted(places[:_MOST_ADAPTERS])]


def _adapter(
    name: str, port: RdmaPort | Interface, up: bool | None, words: str, marks: Marks, wrong: Mark | None
) -> Adapter:
    pcie_wrong = worst_mark(marks, f"pcie_link/{port.address}")
    level = "unknown" if up is None else "good" if up else "off"
    return Adapter(
        name=name,
        address=port.address,
        level=level_of(wrong.severity) if wrong else level,
        words=_said(words, wrong, fine=bool(up)),
        speed=port.speed_bytes_per_second,
        send=port.transmit_utilization_ratio,
        receive=port.receive_utilization_ratio,
        pcie_level=level_of(pcie_wrong.severity) if pcie_wrong else "good",
    )


def _nvswitches(gpus: Iterable[Gpu], marks: Marks) -> tuple[Switch, ...]:
    """Those that a link leads to."""
    addresses = {one.far for gpu in gpus for one in gpu.links if one.is_up and not one.to_gpu}
    switches = []
    for address in sorted(addresses):
        wrong = worst_mark(marks, f"nvswitch/{address}")
        words = wrong.title if wrong else "no error is known" if address else "not seen by this host"
        switches.append(Switch(address, level_of(wrong.severity) if wrong else "good", words))
    return tuple(switches)


def _said(state: str, wrong: Mark | None, *, fine: bool) -> str:
    """The state, or where that is fine, what is wrong all the same."""
    return wrong.title if wrong is not None and fine else state

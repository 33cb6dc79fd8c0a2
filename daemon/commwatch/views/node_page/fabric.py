"""The content of the picture: adapters, PCIe switches, GPUs, NVLinks and NVSwitches with state and use; values only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from commwatch.views.node_page.marks import LEVELS, Marks, port_mark, worst_mark
from commwatch.views.node_page.markup import level_of
from commwatch.views.node_page.records import Mark
from commwatch.views.node_page.tables import pcie_words
from commwatch_exporters.node.model import Gpu, Interface, Node, NvLink, PcieDevice, RdmaPort
from commwatch_exporters.state_words import GPU_STATES, RDMA_ACTIVE, RDMA_STATES, word_of

_MOST_ADAPTERS = 32
"""A host with virtual functions has hundreds."""
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Link:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU with its NVLinks, or one port of a network adapter."""

    name: str
    address: str
    level: str
    words: str
    send: float | None
    """Share of what its NVLinks or its port can carry, 0 to 1."""
    receive: float | None
    pcie_level: str
    pcie_words: str
    """What is wrong with its PCIe link, if anything is."""
    pcie: str = ""
    """Generation and lanes of the PCIe link of a GPU."""
    links: tuple[Link, ...] = ()
    speed: float | None = None
    """Of a port, in bytes per second."""

    @property
    def links_up(self) -> int:
        """How many links carry traffic."""
        return sum(one.is_up for one in self.links)

    @property
    def links_wanted(self) -> int:
        """How many of its links count: those that are neither up nor expected are left out."""
        return sum(one.level != "off" for one in self.links)


@dataclass(frozen=True, slots=True)
class Branch:
    """The devices below one PCIe switch, or one device with a root port of its own."""

    numa: str
    """Number of the NUMA node; empty where not known."""
    switch: str
    """PCI address of the upstream port; empty where there is no switch."""
    level: str
    gpus: Sequence[Device]
    adapters: Sequence[Device]


@dataclass(frozen=True, slots=True)
class Switch:
    """An NVSwitch; its address is empty where the host does not see it."""

    address: str
    level: str
    words: str


@dataclass(frozen=True, slots=True)
class Fabric:
    branches: Sequence[Branch]
    """By PCI address."""
    switches: Sequence[Switch]
    left_out: int = 0
    """Adapter ports that are not shown."""

    @property
    def gpus(self) -> Sequence[Device]:
        """All GPUs, from top to bottom."""
        return [gpu for branch in self.branches for gpu in branch.gpus]

    @property
    def adapters(self) -> Sequence[Device]:
        """All adapters, from top to bottom."""
        return [adapter for branch in self.branches for adapter in branch.adapters]

    @property
    def words(self) -> str:
        """The picture in sentences."""
        gpus, adapters = self.gpus, self.adapters
        counts = [_count(len(gpus), "GPU"), _count(len(adapters), "adapter port")]
        if any(switch.address for switch in self.switches):
            counts.append(_count(len(self.switches), "NVSwitch", "es"))
        words = f"{', '.join(one for one in counts if one)}. "
        if self.left_out:
            words += f"{_count(self.left_out, 'adapter port')} more, in the table below. "
        wanted = sum(gpu.links_wanted for gpu in gpus)
        if wanted:
            unread = sum(link.level == "unknown" for gpu in gpus for link in gpu.links)
            not_read = f", {unread} are not read" if unread else ""
            words += f"{sum(gpu.links_up for gpu in gpus)} of {wanted} NVLinks are up{not_read}. "
        elif any(gpu.links for gpu in gpus):
            words += "No NVLink is in use. "
        devices = [*gpus, *adapters]
        wrong = [f"{one.name}: {one.words}" for one in devices if one.level in ("bad", "warn")]
        wrong += [link for gpu in gpus for link in _wrong_links(gpu)]
        wrong += [f"NVSwitch {one.address}: {one.words}" for one in self.switches if one.level in ("bad", "warn")]
        wrong += [f"PCIe of {one.name}: {one.pcie_words}" for one in devices if one.pcie_level in ("bad", "warn")]
        return f"{words}{'. '.join(wrong)}{'.' if wrong else ''}".strip()


def _wrong_links(gpu: Device) -> Iterator[str]:
    wrong = [link for link in gpu.links if link.level in ("bad", "warn")]
    for link in wrong[:_MOST_NAMED]:
        yield f"{gpu.name} link {link.number}: {link.words}"
    if len(wrong) > _MOST_NAMED:
        yield f"{gpu.name}: {len(wrong) - _MOST_NAMED} links more"


def _count(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{plural if number > 1 else ''}" if number else ""


def fabric_of(node: Node, marks: Marks) -> Fabric:
    """The picture of a node."""
    gpus = [_gpu(gpu, marks) for gpu in node.gpus]
    all_adapters = list(_rdma_ports(node, marks)) or list(_interfaces(node, marks))
    adapters = _most_telling(all_adapters)
    by_branch: dict[str, tuple[list[Device], list[Device]]] = {}
    for place, devices in enumerate((gpus, adapters)):
        for one in devices:
            by_branch.setdefault(_pcie_switch(node, one.address) or one.address, ([], []))[place].append(one)
    branches = []
    for top, (its_gpus, its_adapters) in sorted(by_branch.items()):
        device = node.part(PcieDevice, top)
        is_switch = device.role == "switch_port"
        wrong = worst_mark(marks, f"pcie_link/{top}", f"part/pcie_switch/{top}") if is_switch else None
        branches.append(Branch(device.numa_node, top * is_switch, _level(wrong, "good"), its_gpus, its_adapters))
    # The NVSwitches are those that a link leads to.
    addresses = {one.far for gpu in gpus for one in gpu.links if one.is_up and not one.to_gpu}
    switches = [_nvswitch(address, worst_mark(marks, f"nvswitch/{address}")) for address in sorted(addresses)]
    return Fabric(branches, switches, len(all_adapters) - len(adapters))


def _pcie_switch(node: Node, address: str) -> str:
    """The topmost switch port above a device; empty where there is none."""
    above = node.part(PcieDevice, address).above
    below_root = takewhile(lambda one: one.role != "root_port", above)
    return next((one.address for one in reversed(list(below_root)) if one.role == "switch_port"), "")


def _gpu(gpu: Gpu, marks: Marks) -> Device:
    address, state = gpu.address, gpu.state
    wrong = worst_mark(marks, f"gpu/{address}", f"part/gpu/GPU{gpu.index}")
    pcie, degraded = pcie_words(gpu)
    pcie_wrong = worst_mark(marks, f"pcie_link/{address}", f"part/pcie_link/{address}")
    return Device(
        name=f"GPU{gpu.index}",
        address=address,
        level="unknown" if state is None else "bad" if state else _level(wrong, "good"),
        words=_words("state unknown" if state is None else word_of(GPU_STATES, state), wrong, fine=not state),
        send=gpu.nvlink_transmit_utilization_ratio,
        receive=gpu.nvlink_receive_utilization_ratio,
        pcie=pcie,
        pcie_level=_level(pcie_wrong, "bad" if degraded else "good"),
        pcie_words=_words("below its best", pcie_wrong, fine=True),
        links=tuple([_link(link, marks) for link in gpu.links]),
    )


def _link(link: NvLink, marks: Marks) -> Link:
    up, expected = link.is_up, bool(link.expected)
    wrong = worst_mark(marks, f"nvlink/{link.address}/{link.number}")
    words = "not read" if up is None else "up" if up else "down" if expected else "not in use"
    if up is None:
        level = "unknown"
    elif not up:
        level = "bad" if expected or wrong else "off"
    else:
        level = _level(wrong, "good")
        level = "warn" if level == "bad" else level  # it carries traffic; a broken line would say that it does not
    is_to_gpu = link.remote_type == "gpu"
    return Link(link.number, level, link.remote_address, is_to_gpu, _words(words, wrong, fine=bool(up)))


def _rdma_ports(node: Node, marks: Marks) -> Iterator[Device]:
    """The ports of the adapters with an RDMA device."""
    for port, _ in node.each(RdmaPort.info):
        state = port.state
        words = "" if state is None else word_of(RDMA_STATES, state)
        name = port.device if port.number == "1" else f"{port.device}/{port.number}"
        wrong = port_mark(marks, port.device, port.number, port.interface)
        yield _adapter(name, port, state == RDMA_ACTIVE, words, marks, wrong)


def _interfaces(node: Node, marks: Marks) -> Iterator[Device]:
    """In place of the ports where there is none: all interfaces on the PCI bus."""
    for interface, _ in node.each(Interface.info):
        if interface.address:
            carrier = interface.carrier
            words = "" if carrier is None else "up" if carrier else "down"
            wrong = worst_mark(marks, f"interface/{interface.name}")
            yield _adapter(interface.name, interface, bool(carrier), words, marks, wrong)


def _adapter(
    name: str, port: RdmaPort | Interface, is_up: bool, state: str, marks: Marks, wrong: Mark | None
) -> Device:
    """Of a port whose state is empty where it is not read; its use is not known where virtual functions add to it."""
    is_split = isinstance(port, RdmaPort) and bool(port.virtual_functions)
    pcie_wrong = worst_mark(marks, f"pcie_link/{port.address}")
    return Device(
        name=name,
        address=port.address,
        level=_level(wrong, "unknown" if not state else "good" if is_up else "off"),
        words=_words(state or "state unknown", wrong, fine=is_up),
        speed=port.speed_bytes_per_second,
        send=None if is_split else port.transmit_utilization_ratio,
        receive=None if is_split else port.receive_utilization_ratio,
        pcie_level=_level(pcie_wrong, "good"),
        pcie_words=_words("", pcie_wrong, fine=True),
    )


def _most_telling(adapters: Sequence[Device]) -> list[Device]:
    """As many as are shown, those with the worst states among them, in their order."""
    places = sorted(range(len(adapters)), key=lambda place: LEVELS.index(adapters[place].level))
    return [adapters[place] for place in sorted(places[:_MOST_ADAPTERS])]


def _nvswitch(address: str, wrong: Mark | None) -> Switch:
    words = wrong.title if wrong else "no error is known" if address else "not seen by this host"
    return Switch(address, _level(wrong, "good"), words)


def _level(wrong: Mark | None, otherwise: str) -> str:
    return otherwise if wrong is None else level_of(wrong.severity)


def _words(state: str, wrong: Mark | None, *, fine: bool) -> str:
    """The state, or where that is fine, what is wrong all the same."""
    return wrong.title if wrong is not None and fine else state

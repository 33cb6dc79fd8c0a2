"""What the picture shows: adapters, PCIe switches, GPUs, NVLinks and NVSwitches with state and use; values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from commwatch_exporters.node_page.marks import LEVELS, Marks, port_mark, worst_mark
from commwatch_exporters.node_page.markup import level_of
from commwatch_exporters.node_page.records import Mark
from commwatch_exporters.node_page.tables import LINK_UP_STATES, by_gpu, gpu_keys, pcie_words
from commwatch_exporters.snapshot import Snapshot
from commwatch_exporters.state_words import GPU_STATES, RDMA_STATES, word_of

_RDMA_ACTIVE = 4
_DEEPEST = 64
"""Bridges between a device and its host bridge, at most: more is no tree."""
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


def fabric_of(snapshot: Snapshot, marks: Marks) -> Fabric:
    """The picture of a snapshot.

    Args:
        snapshot: all that is known.
        marks: what is wrong, by identity of the component.
    """
    tree = {
        found["device"]: (found["role"], found["parent"], found["numa_node"])
        for found, _ in snapshot.samples("commwatch_pcie_device_info")
    }
    gpus = _gpus(snapshot, marks)
    all_adapters = _adapters(snapshot, marks)
    adapters = _most_telling(all_adapters)
    by_branch: dict[str, tuple[list[Gpu], list[Adapter]]] = {}
    for gpu in gpus:
        by_branch.setdefault(_pcie_switch(gpu.address, tree) or gpu.address, ([], []))[0].append(gpu)
    for adapter in adapters:
        by_branch.setdefault(_pcie_switch(adapter.address, tree) or adapter.address, ([], []))[1].append(adapter)
    branches = []
    for top, (its_gpus, its_adapters) in sorted(by_branch.items()):
        switch = top if tree.get(top, ("",))[0] == "switch_port" else ""
        known = tree.get(top, ("", "", ""))
        wrong = worst_mark(marks, f"pcie_link/{top}", f"part/pcie_switch/{top}") if switch else None
        level = level_of(wrong.severity) if wrong else "good"
        branches.append(Branch(known[2], switch, level, tuple(its_gpus), tuple(its_adapters)))
    return Fabric(tuple(branches), _nvswitches(gpus, marks), len(all_adapters) - len(adapters))


# --- the parts ---


def _pcie_switch(address: str, tree: Mapping[str, tuple[str, str, str]]) -> str:
    """The topmost switch port above a device; empty where there is none."""
    found, here = "", address
    for _ in range(_DEEPEST):
        role, here, _ = tree.get(here, ("", "", ""))
        if not here or role == "root_port":
            break
        if tree.get(here, ("",))[0] == "switch_port":
            found = here
    return found


def _gpus(snapshot: Snapshot, marks: Marks) -> list[Gpu]:
    states = by_gpu(snapshot, "commwatch_nvlink_link_state")
    wanted = by_gpu(snapshot, "commwatch_nvlink_link_expected")
    far: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for found, _ in snapshot.samples("commwatch_nvlink_info"):
        ends = far.setdefault((found["gpu"], found["pci_bus_id"]), {})
        ends[found["link"]] = (found["remote_type"], found["remote_pci_bus_id"])
    gpus = []
    for key in gpu_keys(snapshot):
        index, address = key
        state = snapshot.value("commwatch_gpu_state", *key)
        wrong = worst_mark(marks, f"gpu/{address}", f"part/gpu/GPU{index}")
        words = "state unknown" if state is None else word_of(GPU_STATES, state)
        level = "unknown" if state is None else "bad" if state else level_of(wrong.severity) if wrong else "good"
        pcie, degraded = pcie_words(snapshot, *key)
        pcie_wrong = worst_mark(marks, f"pcie_link/{address}", f"part/pcie_link/{address}")
        numbers = {*states.get(key, {}), *wanted.get(key, {})}
        links = tuple(
            _link(address, number, states.get(key, {}).get(number), bool(wanted.get(key, {}).get(number)),
                  far.get(key, {}).get(number, ("", "")), marks)
            for number in sorted(numbers, key=lambda one: (len(one), one))
        )  # fmt: skip
        gpus.append(
            Gpu(
                name=f"GPU{index}",
                address=address,
                level=level,
                words=_said(words, wrong, fine=not state),
                send=snapshot.value("commwatch_nvlink_transmit_utilization_ratio", *key),
                receive=snapshot.value("commwatch_nvlink_receive_utilization_ratio", *key),
                pcie=pcie,
                pcie_level=level_of(pcie_wrong.severity) if pcie_wrong else "bad" if degraded else "good",
                links=links,
            )
        )
    return gpus


def _link(
    address: str, number: str, state: float | None, expected: bool, end: tuple[str, str], marks: Marks
) -> Link:  # fmt: skip
    kind, far = end
    wrong = worst_mark(marks, f"nvlink/{address}/{number}")
    up = state in LINK_UP_STATES
    words = "not read" if state is None else "up" if up else "down" if expected else "not in use"
    if state is None:
        level = "unknown"
    elif not up and (expected or wrong):
        level = "bad"
    elif not up:
        level = "off"
    else:
        level = level_of(wrong.severity) if wrong else "good"
        level = "warn" if level == "bad" else level  # it carries traffic; a broken line would say that it does not
    return Link(number, level, far, kind == "gpu", _said(words, wrong, fine=up))


def _adapters(snapshot: Snapshot, marks: Marks) -> list[Adapter]:
    """The ports of the adapters with an RDMA device; where none has one, all interfaces on the PCI bus."""
    adapters = []
    for found, _ in snapshot.samples("commwatch_rdma_port_info"):
        key = (found["device"], found["port"])
        state = snapshot.value("commwatch_rdma_port_state", *key)
        words = "state unknown" if state is None else word_of(RDMA_STATES, state)
        up = None if state is None else state == _RDMA_ACTIVE
        name = found["device"] if found["port"] == "1" else f"{found['device']}/{found['port']}"
        wrong = port_mark(marks, *key, found["netdev"])
        adapters.append(_adapter(name, found["pci_bus_id"], up, words, snapshot, marks, wrong, "rdma_port", key))
    if adapters:
        return adapters
    for found, _ in snapshot.samples("commwatch_ethernet_info"):
        device = found["device"]
        if found["pci_bus_id"]:
            carrier = snapshot.value("commwatch_ethernet_carrier", device)
            up = None if carrier is None else bool(carrier)
            words = "state unknown" if up is None else "up" if up else "down"
            wrong = worst_mark(marks, f"interface/{device}")
            adapters.append(
                _adapter(device, found["pci_bus_id"], up, words, snapshot, marks, wrong, "ethernet", (device,))
            )
    return adapters


def _most_telling(adapters: list[Adapter]) -> list[Adapter]:
    """As many as are shown, those with the worst states among them, in their order."""
    places = sorted(range(len(adapters)), key=lambda place: LEVELS.index(adapters[place].level))
    return [adapters[place] for place in sorted(places[:_MOST_ADAPTERS])]


def _adapter(
    name: str,
    address: str,
    up: bool | None,
    words: str,
    snapshot: Snapshot,
    marks: Marks,
    wrong: Mark | None,
    family: str,
    labels: tuple[str, ...],
) -> Adapter:
    pcie_wrong = worst_mark(marks, f"pcie_link/{address}")
    level = "unknown" if up is None else "good" if up else "off"
    return Adapter(
        name=name,
        address=address,
        level=level_of(wrong.severity) if wrong else level,
        words=_said(words, wrong, fine=bool(up)),
        speed=snapshot.value(f"commwatch_{family}_speed_bytes_per_second", *labels),
        send=snapshot.value(f"commwatch_{family}_transmit_utilization_ratio", *labels),
        receive=snapshot.value(f"commwatch_{family}_receive_utilization_ratio", *labels),
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

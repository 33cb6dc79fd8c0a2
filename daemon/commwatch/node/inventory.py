"""The inventory: what parts a node should have, learned from what was there for a while, and what is here now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from commwatch.node.boards import WHOLE_BOARD
from commwatch.node.capacity import pcie_rate
from commwatch.node.down_links import Link
from commwatch.node.equals import shortfalls
from commwatch.node.gpu_models import board_gpus_of, product_of
from commwatch.node.inventory_state import (
    LARGEST_MEMORY_BYTES,
    GpuRecord,
    InventoryState,
    Learned,
    accept_ports,
    expected_ports,
    expected_speed,
    follow_ports,
    observe_ports,
    ports_up,
    stable_ports,
)
from commwatch.node.observation import Observation, SeenGpu, SeenPort
from commwatch.units import format_rate
from commwatch_exporters.snapshot import Series, Value

IDENTITY: Final = "nvml_identity"
"""The collector whose devices are the GPUs that the driver lists."""
Kind: TypeAlias = Literal["gpu", "nvlink", "pcie_lane", "rdma_port", "ethernet_port"]
KINDS: tuple[Kind, ...] = ("gpu", "nvlink", "pcie_lane", "rdma_port", "ethernet_port")
Origin: TypeAlias = Literal["configured", "accepted", "board", "learned"]
"""Where an expectation comes from, the strongest first."""


class NvlinkExpectation(NamedTuple):
    links: frozenset[int]
    capacity_bytes_per_second: float | None
    """Nominal rate of the links together, one direction; None where it is not known."""


LinkEnd: TypeAlias = tuple[str, str, str]
"""``switch`` or ``gpu``, its PCI address, and the number that the link has there."""

_ASPECTS: Mapping[str, str] = {
    "nvlinks": "NVLinks",
    "lanes": "PCIe lanes",
    "generation": "PCIe generations",
    "adapters": "network adapters behind its PCIe switch",
}
"""Aspects in which GPUs of one model on one node are alike."""
_PRODUCT = "product "
"""Prefix of an aspect in which a GPU is compared with its product instead of its equals."""
_SPEED = "speed"
_BOND = "bond"
"""Aspects of a port: an RDMA rail is as fast as its equals, and the members of a bond are up."""
_MOST_ODD = 0.25
"""Share of the GPUs, or of the rails on cards of their own, that may have less before the node is taken to be so."""

LONGEST_STEP_SECONDS = 180.0
"""Observations further apart do not show the state in between: three times the interval of the slowest one."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """What is expected of each part, worked out once for each observation; of GPUs by UUID."""

    below_equals: Mapping[tuple[str, str], int]
    """By UUID and aspect, how much less a GPU has than its equals."""
    ports_below_equals: Mapping[tuple[str, str], int]
    """By name and aspect, how much less an RDMA port or interface has than its equals: 1 where it is down and they are
    up, or speed in bytes per second."""
    links: Mapping[str, Mapping[int, float]]
    """The NVLinks that a GPU should have, with their nominal rates in bytes per second, 0 where not known."""
    nvlinks: Mapping[str, NvlinkExpectation | None]
    lanes: Mapping[str, int | None]
    """The PCIe lanes that a GPU should have; None if their number is not known."""
    rdma_ports: Mapping[str, float | None]
    """By name of the RDMA ports that should be active, the speed that each should have, bytes per second."""
    bonded: Sequence[str]
    """Names of the interfaces that no reading has shown as up, and that should be since others of their bond are."""
    slots: Mapping[str, str]
    """UUID of the GPU in a slot, by PCI address."""


class Inventory:
    """Learns what the node should have, and compares it with what is here.

    A part that one reading of this boot has shown is expected until the node boots again; one that was there for
    ``learn_after_seconds`` also after that. Of a quantity the largest such value is expected. Network interfaces are
    moved into containers on healthy nodes: one that was not stable yet is expected only while it is here, at no speed
    and without being counted. Only ``accept`` lowers an expectation. GPUs are identified by UUID, so that a moved index
    means nothing.

    Args:
        state: what was kept from earlier runs; it is changed in place.
        configured: totals by kind that replace what was learned.
        learn_after_seconds: how long a part must be there without a break.
    """

    def __init__(self, state: InventoryState, configured: Mapping[Kind, int], learn_after_seconds: float) -> None:
        self.state = state
        self._configured = configured
        self._learn_after = learn_after_seconds
        self._seen = Observation()
        self._here: Mapping[str, SeenGpu] = {}
        """GPUs of the last observation by UUID."""
        self._time: float | None = None
        self.learned = 0
        """Grows whenever a part is known, watched or expected that was not before, or a larger value of it."""
        self._learned_links: Mapping[str, Mapping[int, float]] = {}
        """By UUID of the GPU, the links that were learned, with their nominal rates."""
        self._boards: Mapping[Kind, int]
        """See ``_on_boards``."""
        self._asked: Mapping[Kind, int]
        """Totals that are expected without learning: by the configuration, else by the boards."""
        self._expected: _Expected
        self._work_out_expected()

    def begin(self, boot: str) -> None:
        """See ``InventoryState.begin``; call before the first observation."""
        self.state.begin(boot)
        self._work_out_expected()

    def observe(self, seen: Observation, now: float) -> list[str]:
        """Take what is here now; returns what is expected from now on, in sentences.

        Args:
            seen: the parts that were read; those not read change nothing.
            now: monotonic seconds.
        """
        step = 0.0 if self._time is None else now - self._time
        self._time = now
        elapsed = step if 0.0 < step <= LONGEST_STEP_SECONDS else 0.0
        watched_before = self.state.watched()
        self._seen = seen
        self._here = {gpu.uuid: gpu for gpu in seen.gpus or ()}
        learned: list[str] = []
        if seen.gpus is not None:
            self._observe_gpus(elapsed, learned)
        if seen.ports is not None:
            learned += observe_ports(
                self.state.ports, seen.ports, "interface", elapsed, self._learn_after, is_missed=False
            )
        if seen.rdma_ports is not None:
            self.learned += follow_ports(self.state, seen.rdma_ports)
            lent = [name for name, port in seen.rdma_ports.items() if port.is_lent and name not in self.state.lent]
            self.state.lent += lent
            self.learned += bool(lent)
            learned += observe_ports(
                self.state.rdma_ports, seen.rdma_ports, "RDMA port", elapsed, self._learn_after, is_missed=True
            )
        self.learned += bool(learned or self.state.watched() != watched_before)
        self._work_out_expected()
        return learned

    def accept(self) -> list[str]:
        """Expect what is here now, also where that is less; what was not read stays. Returns what is given up, or odd.

        It goes by the last observation.
        """
        given_up = self.odd()
        self.learned += 1
        if self._seen.gpus is not None:
            for uuid in [uuid for uuid in self.state.gpus if uuid not in self._here]:
                record = self.state.gpus.pop(uuid)
                if record.is_expected:
                    given_up.append(f"{_describe(uuid, record)} is no longer expected")
            for uuid, gpu in self._here.items():
                _accept_gpu(gpu, self.state.gpus[uuid], given_up)
        if self._seen.ports is not None:
            given_up += accept_ports(self.state.ports, self._seen.ports, "interface")
        if self._seen.rdma_ports is not None:
            given_up += accept_ports(self.state.rdma_ports, self._seen.rdma_ports, "RDMA port")
        self.state.is_accepted = True
        self.state.accepted = {}
        self._work_out_expected()
        self._accept_odd(self._expected.below_equals)
        self._accept_odd(self._expected.ports_below_equals)
        self._work_out_expected()  # nothing is asked any more of what was accepted
        self._accept_odd(self._below_product())
        self._work_out_expected()
        return given_up

    def _accept_odd(self, odd: Mapping[tuple[str, str], int]) -> None:
        self.state.accepted |= {_accepted_as(part): less for part, less in odd.items() if less}

    def odd(self) -> list[str]:
        """The parts that have less than their equals or their product and were not accepted so, in sentences."""
        ports = self._expected.ports_below_equals.items()
        return [
            f"{_describe(uuid, self.state.gpus[uuid])}: {less} {_ASPECTS[aspect.removeprefix(_PRODUCT)]} less than its "
            f"{than}"
            for parts, than in ((self._expected.below_equals, "equals"), (self._below_product(), "product"))
            for (uuid, aspect), less in parts.items()
            if less
        ] + [_odd_port(*part, less) for part, less in ports if less]

    def _below_equals(self) -> dict[tuple[str, str], int]:
        """Shortfalls of the present GPUs against their equals, by UUID and aspect.

        A learned quantity that is gone has its own series, and counts as present.
        """
        has: dict[str, dict[tuple[str, str], tuple[str, int]]] = {aspect: {} for aspect in _ASPECTS}
        for uuid, gpu in self._here.items():
            record = self.state.gpus[uuid]
            if gpu.links_up is not None:
                links = self._learned_links[uuid].keys() | gpu.links_up.keys()
                has["nvlinks"][uuid, "nvlinks"] = gpu.name, len(links)
            for aspect, now, learned in (
                ("lanes", gpu.pcie_lanes, record.pcie_lanes),
                ("generation", gpu.pcie_generation, record.pcie_generation),
                ("adapters", gpu.adapters, record.adapters),
            ):
                if now is not None:
                    has[aspect][uuid, aspect] = gpu.name, max(now, int(learned.due or 0))
        return self._not_accepted({
            part: less
            for aspect, parts in has.items()
            for part, less in shortfalls(parts, _MOST_ODD, ends=2 if aspect == "nvlinks" else 1).items()
        })  # fmt: skip

    def _rails_below_equals(self) -> dict[tuple[str, str], int]:
        """Shortfalls of RDMA ports against their equals, by name and aspect; what was learned counts as above.

        One or several for each of several GPUs are rails; of others any may be left without a cable.
        """
        ports = {
            name: port
            for name, port in (self._seen.rdma_ports or {}).items()
            if port.equal_in and port.is_up is not None
        }
        size = Counter(port.equal_in for port in ports.values())
        number = sum(gpu.is_expected and not gpu.is_replaced for gpu in self.state.gpus.values())
        sole: dict[tuple[str, str], tuple[str, int]] = {}
        one_odd: dict[tuple[str, str], tuple[str, int]] = {}
        for name, port in ports.items():
            if number < 2 or size[port.equal_in] % number:
                continue
            learned = self.state.rdma_ports.get(name, Learned()).due
            up = sole if port.is_sole else one_odd
            up[name, "port"] = port.equal_in, int(port.is_up or learned is not None)
            if port.is_up and port.speed:
                # Several that are slower may lead to another network, such as that of the storage.
                one_odd[name, _SPEED] = f"speed {port.equal_in}", int(max(port.speed, learned or 0.0))
        return self._not_accepted({**shortfalls(sole, _MOST_ODD), **shortfalls(one_odd, 0.0)})

    def _given_back(self) -> set[str]:
        """RoCE ports that a container has given back: switched off and without an address, nothing misses them.

        A port that no container had in this boot may be so since the configuration of the host has failed.
        """
        ports = self._seen.rdma_ports or {}
        return {name for name in self.state.lent if name in ports and ports[name].is_unused}

    def _bonded_and_down(self) -> dict[tuple[str, str], int]:
        """1 for each interface that was never up while another member of its bond is, by name and aspect."""
        ports = self._seen.ports or {}
        bonds = {port.equal_in for port in ports.values() if port.is_up and port.equal_in}
        down = [name for name, port in ports.items() if port.equal_in in bonds and not port.is_up]
        return self._not_accepted(
            {(name, _BOND): 1 for name in down if self.state.ports.get(name, Learned()).due is None}
        )

    def _below_product(self) -> dict[tuple[str, str], int]:
        """Shortfalls of the present GPUs against their product, by UUID and aspect.

        Lanes count as far as both ends can use them, since a narrow slot has no more; NVLinks count in a virtual
        machine, and beside GPUs that were given to one, only if some are up and it has a whole board, but always on a
        whole tray of a rack. On a node with a single GPU they count only if some are up: its carrier may have none.
        """
        has: dict[tuple[str, str], int] = {}
        models = Counter(gpu.name for gpu in self._here.values())
        is_alone = sum(not record.is_replaced for record in self.state.gpus.values()) == 1
        for uuid, gpu in self._here.items():
            product = product_of(gpu.name)
            if product is None:
                continue
            if gpu.pcie_lanes is not None:
                lanes = max(gpu.pcie_lanes, self._expected.lanes[uuid] or 0)
                has[uuid, _PRODUCT + "lanes"] = min(product.lanes, gpu.pcie_lanes_max or product.lanes) - lanes
            if gpu.pcie_own_generation is not None:
                has[uuid, _PRODUCT + "generation"] = product.generation - gpu.pcie_own_generation
            is_tray = product.tray_gpus is not None and models[gpu.name] >= product.tray_gpus
            is_own = is_tray or (self._seen.is_virtual is False and not self._seen.is_handed_on)
            up = gpu.links_up or {}
            is_whole = is_own or models[gpu.name] >= WHOLE_BOARD
            if (up or (gpu.links_down and is_own and not is_alone)) and is_whole and "nvlink" not in self._asked:
                links = self._expected.links[uuid].keys() | up.keys()
                has[uuid, _PRODUCT + "nvlinks"] = product.nvlinks - len(links)
        return self._not_accepted({part: max(0, less) for part, less in has.items()})

    def _not_accepted(self, parts: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        accepted = self.state.accepted
        return {part: 0 if less <= accepted.get(_accepted_as(part), 0) else less for part, less in parts.items()}

    @property
    def is_on_board(self) -> bool:
        """Whether the GPUs are those of a board whose NVSwitches do not show on the bus, and none of them was handed to
        a virtual machine."""
        is_whole = self._seen.gpus_on_boards is not None
        return is_whole and any(board_gpus_of(gpu.name) for gpu in self._seen.gpus or ())

    def link_ends(self) -> Mapping[Link, LinkEnd]:
        """Where NVLinks lead, as the driver said while they were up."""
        return {
            (record.pci_bus_id, str(link)): end
            for record in self.state.gpus.values()
            if not record.is_replaced
            for link, end in record.link_ends.items()
        }

    def address_of(self, device: str, listed: Container[str]) -> str:
        """A device by its address where it goes by its index alone: the GPU that had it last and is not listed now.

        Args:
            device: a PCI address, ``index:N``, or the key of another device, which stays as it is.
            listed: PCI addresses of the GPUs that the driver lists.
        """
        known = {f"index:{gpu.index}": gpu.pci_bus_id for gpu in self.state.gpus.values()
                 if not gpu.is_replaced and gpu.pci_bus_id not in listed}  # fmt: skip
        return known.get(device, device)

    def expected(self) -> dict[Kind, int | None]:
        """Parts that this node should have, by kind; None where nothing was learned of the kind."""
        return {kind: self.due(kind) for kind in KINDS}

    def due(self, kind: Kind) -> int | None:
        """The same of one kind."""
        if (asked := self._asked.get(kind)) is not None:
            return asked
        if kind == "rdma_port":
            return len(self._expected.rdma_ports) or None
        if kind == "ethernet_port":
            return len(stable_ports(self.state.ports)) or None
        gpus = [uuid for uuid, record in self.state.gpus.items() if record.is_expected]
        if kind == "gpu":
            return len(gpus) or None
        if kind == "nvlink":
            return sum(len(self._expected.links[uuid]) for uuid in gpus) or None
        return sum(self._expected.lanes[uuid] or 0 for uuid in gpus) or None

    def _on_boards(self) -> dict[Kind, int]:
        """The parts on the recognised boards; empty once an operator has accepted the present parts."""
        if self._seen.gpus_on_boards is None or self.state.is_accepted:
            return {}
        gpus = min(self._configured.get("gpu", self._seen.gpus_on_boards), self._seen.gpus_on_boards)
        products = {product_of(gpu.name) for gpu in self._here.values()}
        if len(products) != 1 or (product := products.pop()) is None:
            return {"gpu": gpus}
        return {"gpu": gpus, "nvlink": gpus * product.nvlinks}

    def _work_out_expected(self) -> None:
        """Work out what is expected of each part that was learned, or is here.

        A total of the configuration or the board is asked of single parts where no more of them are here than it names:
        of each link of a GPU of which some link has come up, or of whose equals, since before that its fabric may not
        have been set up, of each GPU its share of the lanes, and of each RDMA port. Of GPUs that are soldered to a
        board, and of RDMA ports that are rails, the equals ask the same: cards may be built with fewer bridges or in a
        narrow slot. Where one of them has all links of the product, or at least half of them have each, that is asked
        of the others as well, however few they are: a GPU that is gone does not hide what another lacks. Where GPUs are
        joined directly, one without a link takes a link of each other along, and all are asked.
        """
        records = self.state.gpus
        self._boards = self._on_boards()
        self._asked = {**self._boards, **self._configured}
        self._learned_links = {uuid: record.expected_links() for uuid, record in records.items()}
        less, rails, bonded = self._below_equals(), self._rails_below_equals(), self._bonded_and_down()
        links: dict[str, Mapping[int, float]] = {}
        nvlinks = {}
        for uuid, asked in self._asked_links(less).items():
            links[uuid] = {**dict.fromkeys(asked, max(self._learned_links[uuid].values(), default=0.0)),
                           **self._learned_links[uuid]}  # fmt: skip
        for uuid in records:
            here = self._here.get(uuid)
            if here is not None and here.is_split:
                links[uuid] = {}  # in MIG mode it has none
            rates: Mapping[int, float | None] = links.setdefault(uuid, self._learned_links[uuid])
            rates = rates or (here.links_up if here is not None else None) or {}
            known = [rate for rate in rates.values() if rate]
            capacity = sum(known) if len(known) == len(rates) else None
            nvlinks[uuid] = NvlinkExpectation(frozenset(rates), capacity) if rates else None
        seen = self._seen.rdma_ports or {}
        names = {*expected_ports(self.state.rdma_ports), *(name for (name, _), number in rails.items() if number)}
        names |= seen.keys() if len(seen) <= self._asked.get("rdma_port", 0) else set()
        names -= self._given_back()
        # Of several GPUs in one slot the first: it is written last.
        slots = {one.pci_bus_id: uuid for uuid, one in reversed(records.items()) if not one.is_replaced}
        learned = {name: self.state.rdma_ports.get(name, Learned()).due for name in sorted(names)}
        speeds = {name: speed and speed + rails.get((name, _SPEED), 0) for name, speed in learned.items()}
        self._expected = _Expected(
            less, {**rails, **bonded}, links, nvlinks, self._lanes(less), speeds,
            [name for (name, _), number in bonded.items() if number], slots,
        )  # fmt: skip

    def _asked_links(self, less: Mapping[tuple[str, str], int]) -> dict[str, Collection[int]]:
        """NVLinks that are down and asked of a GPU, by UUID, whether or not they were learned.

        Args:
            less: what GPUs have less than their equals, by UUID and aspect.
        """
        listed = sum(len(gpu.links_down) + len(gpu.links_up or ()) for gpu in self._here.values())
        dark = {
            gpu.name for uuid, gpu in self._here.items()
            if gpu.links_down and not self._links_shown(uuid)
            and (less.get((uuid, "nvlinks")) or (self._seen.is_virtual is False and not self.state.is_accepted))
        }  # fmt: skip
        links: dict[str, Collection[int]] = {}
        for uuid, gpu in self._here.items():
            is_soldered = product_of(gpu.name) is not None
            usual = self._usual_links(gpu.name) if gpu.links_down and is_soldered else frozenset[int]()
            if listed <= self._asked.get("nvlink", 0):
                if gpu.links_down and (self._links_shown(uuid) or less.get((uuid, "nvlinks")) or usual):
                    links[uuid] = gpu.links_down
            elif usual and gpu.name in dark and self._is_joined_directly(gpu):
                links[uuid] = gpu.links_down
            elif usual and (less.get((uuid, "nvlinks")) or self._lacks_links_of_product(gpu, usual)):
                links[uuid] = gpu.links_down & usual
        return links

    def _lanes(self, less: Mapping[tuple[str, str], int]) -> dict[str, int | None]:
        """The PCIe lanes that each GPU should have, by UUID; ``less`` as above."""
        asked = self._asked
        each, rest = divmod(asked.get("pcie_lane", 0), asked.get("gpu", len(self._here)) or 1)
        lanes: dict[str, int | None] = {}
        for uuid, record in self.state.gpus.items():
            here, learned = self._here.get(uuid), record.pcie_lanes.due
            found = [] if learned is None else [int(learned)]
            if here is not None and each and not rest:
                found.append(each)
            elif here is not None and product_of(here.name) is not None and (lacking := less.get((uuid, "lanes"))):
                found.append(int(max(here.pcie_lanes or 0, learned or 0)) + lacking)
            lanes[uuid] = max(found, default=None)
        return lanes

    def _lacks_links_of_product(self, gpu: SeenGpu, usual: Sized) -> bool:
        """Whether a GPU of which some links are up has fewer than its product, and its equals have all; False once an
        operator has accepted what is here."""
        product = product_of(gpu.name)
        if self.state.is_accepted or product is None:
            return False
        return bool(gpu.links_up) and len(usual) >= product.nvlinks

    def _links_shown(self, uuid: str) -> bool:
        """Whether a link of a GPU that is here is up, or was."""
        return bool(self._here[uuid].links_up or self._learned_links[uuid])

    def _is_joined_directly(self, gpu: SeenGpu) -> bool:
        """Whether the links of GPUs of a product lead from one to the other, and this one lists all that it has."""
        ends = [end for uuid, one in self._here.items() if one.name == gpu.name
                for end in self.state.gpus[uuid].link_ends.values()]  # fmt: skip
        listed = len(gpu.links_down) + len(gpu.links_up or ())
        product = product_of(gpu.name)
        return product is not None and listed == product.nvlinks and {kind for kind, *_ in ends} == {"gpu"}

    def _usual_links(self, name: str) -> frozenset[int]:
        """Numbers of the NVLinks that at least half of the GPUs of a model have, or one that has all of its product.

        Of the GPUs that are here; their links that are down with a GPU that is gone are among them.
        """
        here = [uuid for uuid, gpu in self._here.items() if gpu.name == name]
        links = [{*(self._here[uuid].links_up or ()), *self._learned_links[uuid]} for uuid in here]
        numbers = Counter(link for own in links for link in own)
        product = product_of(name)
        whole = {link for own in links if product is not None and len(own) >= product.nvlinks for link in own}
        return frozenset(link for link, number in numbers.items() if 2 * number >= len(here) or link in whole)

    def origins(self) -> dict[Kind, Origin]:
        """Where the expectation of each kind comes from; without those of which nothing is expected yet."""
        learned: Origin = "accepted" if self.state.is_accepted else "learned"
        return {
            kind: "configured" if kind in self._configured else "board" if kind in self._boards else learned
            for kind in KINDS
            if self.due(kind) is not None
        }

    def learning_seconds(self) -> dict[Kind, float]:
        """How long what is here must still hold to be expected, by kind; 0 where nothing is being watched."""
        state = self.state
        watched: dict[Kind, Iterable[Learned]] = {
            "gpu": [gpu.presence for gpu in state.gpus.values()],
            "nvlink": [link for gpu in state.gpus.values() for link in gpu.links.values()],
            "pcie_lane": [gpu.pcie_lanes for gpu in state.gpus.values()],
            "rdma_port": state.rdma_ports.values(),
            "ethernet_port": state.ports.values(),
        }
        return {
            kind: max((self._learn_after - one.held_seconds for one in parts if one.candidate is not None), default=0.0)
            for kind, parts in watched.items()
        }

    def present(self) -> dict[Kind, int | None]:
        """Parts that are here and up, by kind; None where one that is expected was not read: it would be a part only.

        A GPU that does not answer has no parts. A GPU that answers and whose links or lanes were not read leaves their
        number unknown.
        """
        gpus, ports, rdma_ports = self._seen.gpus, self._seen.ports, self._seen.rdma_ports
        return {
            "gpu": None if gpus is None else len(gpus),
            "nvlink": None if gpus is None else _total(self._links_up(gpu) for gpu in gpus),
            "pcie_lane": None if gpus is None else _total(gpu.pcie_lanes for gpu in gpus),
            "rdma_port": None if rdma_ports is None else ports_up(self._expected.rdma_ports, rdma_ports),
            "ethernet_port": None if ports is None else ports_up(stable_ports(self.state.ports), ports),
        }

    def unread(self) -> set[tuple[str, str]]:
        """Devices that are here and have an expected NVLink or RDMA port whose state, or PCIe lanes whose number was
        not read, each with the collector that reads it."""
        expected, gpus, ports = self._expected, self._seen.gpus or (), self._seen.rdma_ports or {}
        return {
            *(
                ("nvml_nvlink", one.pci_bus_id)
                for one in gpus
                if expected.links[one.uuid] and self._links_up(one) is None
            ),
            *(("nvml_pcie", one.pci_bus_id) for one in gpus if expected.lanes[one.uuid] and one.pcie_lanes is None),
            *(("rdma", name) for name in expected.rdma_ports if name in ports and ports[name].is_up is None),
        }

    def never_seen(self, faulty_strangers: int) -> dict[Kind, int | None]:
        """Parts that configuration or boards ask for and that no reading of this boot has shown, by kind.

        Parts that were seen or learned, and parts that can be named as missing, have their own series.

        Args:
            faulty_strangers: GPUs that were never read whole and whose state is known: something else names them.
        """
        present, asked = self.present(), self._asked
        rdma_ports = (*self._expected.rdma_ports, *self._given_back())
        ports = (*stable_ports(self.state.ports), *self._expected.bonded)
        known = {
            **self._known_of_gpus(),
            "rdma_port": _known_ports(rdma_ports, self._seen.rdma_ports),
            "ethernet_port": _known_ports(ports, self._seen.ports),
        }
        if gpus := asked.get("gpu", 0):
            # The links and lanes of GPUs that were never seen are not missing besides.
            absent_gpus = max(0, gpus - known["gpu"])
            known["nvlink"] += self._share("nvlink") * absent_gpus
            known["pcie_lane"] += self._share("pcie_lane") * absent_gpus
            known["gpu"] += faulty_strangers
        return {kind: None if present[kind] is None else max(0, number - known[kind]) for kind, number in asked.items()}

    def _share(self, kind: Kind) -> int:
        """The NVLinks or PCIe lanes that are asked for, by GPU; 0 where the number of GPUs is not known."""
        gpus = self._asked.get("gpu", 0)
        return self._asked.get(kind, 0) // gpus if gpus else 0

    def _links_known(self, uuid: str) -> set[int]:
        """The NVLinks of a GPU that are up or have a series that names them."""
        here = self._here.get(uuid)
        return {*self._expected.links[uuid], *((here.links_up if here is not None else None) or ())}

    def _dark_gpus(self) -> dict[str, int]:
        """NVLinks that each GPU lacks of its share of the expected ones, by UUID; empty if shares differ."""
        asked = self._asked
        each, rest = divmod(asked.get("nvlink", 0), asked.get("gpu", len(self._here)) or 1)
        lacking = {
            uuid: each - len(self._links_known(uuid)) for uuid, gpu in self._here.items() if gpu.links_up is not None
        }
        return {} if rest else {uuid: number for uuid, number in lacking.items() if number > 0}

    def _known_of_gpus(self) -> dict[str, int]:
        """GPUs, NVLinks and PCIe lanes that were learned or are here, or belong to a learned GPU that is gone."""
        gpus = links = lanes = 0
        for uuid, record in self.state.gpus.items():
            here = self._here.get(uuid)
            if record.is_replaced or (here is None and record.presence.due is None):
                continue
            gpus += 1
            links += max(len(self._links_known(uuid)), self._share("nvlink") if here is None else 0)
            lanes_here = self._share("pcie_lane") if here is None else here.pcie_lanes
            lanes += max(self._expected.lanes[uuid] or 0, lanes_here or 0)
        return {"gpu": gpus, "nvlink": links, "pcie_lane": lanes}

    def nvlink_expectation(self, pci_bus_id: str) -> NvlinkExpectation | None:
        """The NVLinks that the GPU in a slot should have, while none was learned those that are up; None for none."""
        return self._expected.nvlinks.get(self._expected.slots.get(pci_bus_id, ""))

    def pcie_expected_lanes(self, pci_bus_id: str) -> int | None:
        """The PCIe lanes that the GPU in a slot should have; None while none were learned."""
        return self._expected.lanes.get(self._expected.slots.get(pci_bus_id, ""))

    def pcie_capacity(self, pci_bus_id: str) -> float | None:
        """Rate of the PCIe link that the GPU in a slot should have, bytes per second in one direction.

        While none was learned it is that of the present link at its highest generation.
        """
        uuid = self._expected.slots.get(pci_bus_id)
        if uuid is None:
            return None
        return pcie_rate(int(self.state.gpus[uuid].pcie_generation.due or 0), self._expected.lanes[uuid] or 0)

    def ethernet_capacity(self, device: str) -> float | None:
        """Expected speed of an interface, bytes per second; while none was learned the present one."""
        return expected_speed(self.state.ports, device)

    def rdma_capacity(self, port: str) -> float | None:
        """The same of an RDMA port, named as ``mlx5_0:1``."""
        return self._expected.rdma_ports.get(port) or expected_speed(self.state.rdma_ports, port)

    def readings(self, faulty_strangers: int = 0) -> dict[Series, Value]:
        """The expected and present parts as the metrics of the inventory; arguments as for ``never_seen``."""
        expected, present = self.expected(), self.present()
        readings: dict[Series, Value] = {("commwatch_expected", (kind,)): expected[kind] for kind in KINDS}
        readings.update({("commwatch_present", (kind,)): present[kind] for kind in KINDS})
        # Where the configuration asks for more than the board has, it is the configuration that asks.
        boards = [kind for kind, number in self._boards.items() if self._configured.get(kind, 0) <= number]
        origins: set[tuple[Kind, Origin]] = {*self.origins().items(), *((kind, "board") for kind in boards)}
        readings.update({("commwatch_inventory_info", one): 1 for one in sorted(origins)})
        never_seen = self.never_seen(faulty_strangers)
        readings.update({("commwatch_never_seen", (kind,)): number for kind, number in never_seen.items()})
        for uuid, record in self.state.gpus.items():
            is_known = uuid in self._here or record.is_expected
            if is_known and not record.is_replaced:
                readings.update(self._gpu_readings(uuid, record))
        for name, speed in self._expected.rdma_ports.items():
            device, _, port = name.rpartition(":")
            readings |= _port_readings("rdma_port", (device, port), speed)
        for name in (*expected_ports(self.state.ports), *self._expected.bonded):
            speed = self.state.ports.get(name, Learned()).expected
            readings |= _port_readings("ethernet", (name,), speed)
        for (uuid, aspect), less in self._expected.below_equals.items():
            lacking = max(0, less - self._named(uuid, aspect))
            readings["commwatch_gpu_below_equals", (*self._labels(uuid), aspect)] = lacking
        for (uuid, aspect), less in self._below_product().items():
            readings["commwatch_gpu_below_product", (*self._labels(uuid), aspect.removeprefix(_PRODUCT))] = less
        if never_seen.get("nvlink"):
            readings.update(
                {
                    ("commwatch_gpu_never_seen", (*self._labels(uuid), "nvlink")): number
                    for uuid, number in self._dark_gpus().items()
                }
            )
        return readings

    def _named(self, uuid: str, aspect: str) -> int:
        """How much of what a GPU lacks has a series that names it, although no reading has shown it."""
        record, here = self.state.gpus[uuid], self._here[uuid]
        if aspect == "nvlinks":
            return len(self._expected.links[uuid].keys() - self._learned_links[uuid].keys())
        if aspect == "lanes":
            return (self._expected.lanes[uuid] or 0) - int(max(record.pcie_lanes.due or 0, here.pcie_lanes or 0))
        return 0

    def _labels(self, uuid: str) -> tuple[str, str]:
        record = self.state.gpus[uuid]
        return str(record.index), record.pci_bus_id

    def _observe_gpus(self, elapsed: float, learned: list[str]) -> None:
        records = self.state.gpus
        for uuid, gpu in self._here.items():
            record = records.setdefault(uuid, GpuRecord(gpu.index, gpu.pci_bus_id, gpu.name))
            if gpu.pci_bus_id != record.pci_bus_id:
                record.link_ends = {}  # those of its last slot
            record.index, record.pci_bus_id, record.name = gpu.index, gpu.pci_bus_id, gpu.name
            record.serial, record.architecture = gpu.serial, gpu.architecture
            if 0 < (gpu.memory_bytes or 0) <= LARGEST_MEMORY_BYTES and gpu.memory_bytes != record.memory_bytes:
                record.memory_bytes = gpu.memory_bytes
                self.learned += 1  # so that it is saved
            record.is_replaced = False
            learned += _observe_gpu(gpu, record, elapsed, self._learn_after)
        slots = {gpu.pci_bus_id for gpu in self._here.values()}
        for uuid, record in records.items():
            if uuid not in self._here:
                record.is_replaced = record.is_replaced or record.pci_bus_id in slots
                for quantity in record.quantities():
                    quantity.see(None, elapsed, self._learn_after)
                if record.is_replaced or self._seen.is_handed_on:
                    record.forget_seen()  # of a GPU whose UUID was not read at first, or that another driver has taken

    def _links_up(self, gpu: SeenGpu) -> int | None:
        """How many NVLinks of a GPU are up; None where one that is expected was not read."""
        if gpu.links_up is None:
            return None
        expected = self._expected.links[gpu.uuid]
        return len(gpu.links_up) if expected.keys() <= gpu.links_up.keys() | gpu.links_down else None

    def _gpu_readings(self, uuid: str, record: GpuRecord) -> dict[Series, Value]:
        labels, nvlink = self._labels(uuid), self._expected.nvlinks[uuid]
        readings: dict[Series, Value] = {
            ("commwatch_nvlink_link_expected", (*labels, str(link))): 1 for link in sorted(self._expected.links[uuid])
        }
        readings["commwatch_nvlink_capacity_bytes_per_second", labels] = (
            None if nvlink is None else nvlink.capacity_bytes_per_second
        )
        readings["commwatch_pcie_link_width_expected_lanes", labels] = self._expected.lanes[uuid]
        readings["commwatch_pcie_capacity_bytes_per_second", labels] = self.pcie_capacity(record.pci_bus_id)
        return readings


def _port_readings(family: str, labels: tuple[str, ...], speed: float | None) -> dict[Series, Value]:
    """The expected values of an expected port; its speed where one is known, in bytes per second."""
    return {
        (f"commwatch_{family}_expected", labels): 1,
        (f"commwatch_{family}_speed_expected_bytes_per_second", labels): speed or None,
    }


def _odd_port(name: str, aspect: str, less: int) -> str:
    """``RDMA port mlx5_3:1 is down, and its equals are up``."""
    if aspect == _BOND:
        return f"interface {name} has no link, and another member of its bond has one"
    if aspect == _SPEED:
        return f"RDMA port {name} is {format_rate(less)} slower than its equals"
    return f"RDMA port {name} is down, and its equals are up"


def _known_ports(expected: Iterable[str], seen: Mapping[str, SeenPort] | None) -> int:
    """Ports that have a series that names them, or are up."""
    return len({*expected, *(name for name, port in (seen or {}).items() if port.is_up)})


def _observe_gpu(gpu: SeenGpu, record: GpuRecord, elapsed: float, learn_after: float) -> list[str]:
    """Take what is here of one GPU; returns what is expected from now on."""
    learned = []
    record.link_ends |= gpu.link_ends
    if record.presence.see(1.0, elapsed, learn_after):
        learned.append("it is expected")
    links = []
    for number, rate in (gpu.links_up or {}).items():
        link = record.links.setdefault(number, Learned())
        if link.see(rate or link.best_known(), elapsed, learn_after):
            links.append(str(number))
    if links:
        learned.append(f"NVLinks {', '.join(links)} are expected")
    for number in gpu.links_down & record.links.keys():
        record.links[number].see(None, elapsed, learn_after)
    if gpu.pcie_lanes is not None and record.pcie_lanes.see(gpu.pcie_lanes, elapsed, learn_after):
        learned.append(f"{gpu.pcie_lanes} PCIe lanes are expected")
    if gpu.pcie_generation is not None and record.pcie_generation.see(gpu.pcie_generation, elapsed, learn_after):
        learned.append(f"PCIe generation {gpu.pcie_generation} is expected")
    if gpu.adapters is not None:
        record.adapters.see(gpu.adapters, elapsed, learn_after)
    return [f"{_describe(gpu.uuid, record)}: {text}" for text in learned]


def _accept_gpu(gpu: SeenGpu, record: GpuRecord, given_up: list[str]) -> None:
    who = _describe(gpu.uuid, record)
    record.presence.accept(1.0)
    for number, rate in (gpu.links_up or {}).items():
        link = record.links[number]
        link.accept(rate or link.best_known())
    dropped = {number: record.links.pop(number) for number in sorted(gpu.links_down & record.links.keys())}
    given_up += [
        f"{who}: NVLink {number} is no longer expected" for number, link in dropped.items() if link.due is not None
    ]
    for what, quantity, value in (
        ("PCIe lanes", record.pcie_lanes, gpu.pcie_lanes),
        ("PCIe generation", record.pcie_generation, gpu.pcie_generation),
        ("network adapters", record.adapters, gpu.adapters),
    ):
        if value is not None:
            if quantity.due is not None and value < quantity.due:
                given_up.append(f"{who}: {what} {value} expected in place of {quantity.due:.0f}")
            quantity.accept(value)


def _describe(uuid: str, record: GpuRecord) -> str:
    return f"GPU {record.index} ({record.name}, {uuid}, {record.pci_bus_id})"


def _accepted_as(part: tuple[str, str]) -> str:
    return " ".join(part)


def _total(numbers: Iterable[int | None]) -> int | None:
    """The sum; None where one of the numbers is not known."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)

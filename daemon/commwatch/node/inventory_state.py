"""The inventory's memory of each part, as it is kept in the state directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from commwatch.node.observation import SeenPort
from commwatch.state.records import Count, Rate, Seconds, check_labels, check_unique
from commwatch.units import format_rate, format_seconds

MOST_LINKS: Final = 64
"""NVLinks of a GPU, several times what any has."""


class Learned(msgspec.Struct):
    """A quantity of which the largest value that was stable, or that this boot of the node has shown, is expected."""

    expected: Rate | None = None
    """The largest value that was stable, in any boot, or the one that an operator has accepted."""
    candidate: Rate | None = None
    """A larger value that is being watched."""
    held_seconds: Seconds = 0.0
    """Time for which the candidate has been stable; a duration, so that a step of the clock or a restart does not
    matter."""
    seen: Rate | None = None
    """The largest value that one reading of this boot has shown."""

    def __post_init__(self) -> None:
        if self.candidate is None and self.held_seconds:
            raise ValueError("a value that is not there is being watched")
        if self.candidate is not None and self.expected is not None and self.candidate <= self.expected:
            raise ValueError("a value that is not larger than the expected one is being watched")

    def check(self, most: int) -> None:
        """Of what is counted: that it is a whole number.

        Raises:
            ValueError: it is not, or is larger than there may be.
        """
        for value in (self.expected, self.candidate, self.seen):
            if value is not None and (value != int(value) or value > most):
                raise ValueError(f"{value} where a number up to {most} is counted")

    def see(self, value: float | None, elapsed: float, learn_after: float) -> bool:
        """Take what was read, None for a part that is down or gone; True where a larger value has become stable."""
        if value is not None:
            self.seen = max(value, self.seen or 0.0)
        if value is None or (self.expected is not None and value <= self.expected):
            self.candidate, self.held_seconds = None, 0.0
            return False
        if value == self.candidate:
            self.held_seconds += elapsed
        else:
            self.candidate, self.held_seconds = value, 0.0
        if self.held_seconds < learn_after:
            return False
        self.expected, self.candidate, self.held_seconds = value, None, 0.0
        return True

    def accept(self, value: float) -> None:
        """Expect this value from now on, be it larger or smaller."""
        self.expected, self.seen, self.candidate, self.held_seconds = value, None, None, 0.0

    @property
    def due(self) -> float | None:
        """The value expected now; None if neither a reading of this boot nor a stable value exists."""
        return self.expected if self.seen is None else max(self.seen, self.expected or 0.0)

    def best_known(self) -> float:
        """The candidate, else the expectation, else 0."""
        return self.candidate or self.due or 0.0


LARGEST_MEMORY_BYTES = 2**50
"""No GPU has more: a driver that does not know writes the largest number that there is."""


class GpuRecord(msgspec.Struct):
    """The learned state of one GPU; the UUID is its key."""

    index: Annotated[int, msgspec.Meta(ge=0, le=4095)]
    pci_bus_id: str
    name: str
    serial: str = ""
    architecture: str = ""
    memory_bytes: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_MEMORY_BYTES)] | None = None
    """As the driver gave it last; None where it was never read."""
    is_replaced: bool = False
    """Another GPU was seen in its slot since."""
    presence: Learned = msgspec.field(default_factory=Learned)
    links: dict[Annotated[int, msgspec.Meta(ge=0, lt=MOST_LINKS)], Learned] = msgspec.field(default_factory=dict)
    """NVLinks by number; the value is the nominal rate in bytes per second, 0 where it was never read."""
    link_ends: dict[Annotated[int, msgspec.Meta(ge=0, lt=MOST_LINKS)], tuple[str, str, str]] = msgspec.field(
        default_factory=dict
    )
    """As of ``SeenGpu``: the driver does not say it of a link that is down."""
    pcie_lanes: Learned = msgspec.field(default_factory=Learned)
    pcie_generation: Learned = msgspec.field(default_factory=Learned)
    adapters: Learned = msgspec.field(default_factory=Learned)
    """Network adapters behind the same PCIe switch."""

    def __post_init__(self) -> None:
        ends = (text for end in self.link_ends.values() for text in end)
        check_labels((self.pci_bus_id, self.name, self.serial, self.architecture, *ends))
        counted = ((self.presence, 1), (self.pcie_lanes, 32), (self.pcie_generation, 16), (self.adapters, 1024))
        for quantity, most in counted:
            quantity.check(most)

    @property
    def is_expected(self) -> bool:
        return self.presence.due is not None

    def quantities(self) -> tuple[Learned, ...]:
        return (self.presence, self.pcie_lanes, self.pcie_generation, self.adapters, *self.links.values())

    def expected_links(self) -> dict[int, float]:
        """The links that are expected, with their nominal rates."""
        return {number: rate for number, link in self.links.items() if (rate := link.due) is not None}

    def forget_seen(self) -> None:
        """Expect only what was stable."""
        for quantity in self.quantities():
            quantity.seen = None


class InventoryState(msgspec.Struct):
    """State that survives a restart of the daemon."""

    gpus: dict[str, GpuRecord] = msgspec.field(default_factory=dict)
    """By UUID."""
    ports: dict[str, Learned] = msgspec.field(default_factory=dict)
    """Speeds of network interfaces by name, bytes per second, 0 where it was never read."""
    rdma_ports: dict[str, Learned] = msgspec.field(default_factory=dict)
    """Speeds of RDMA ports by device and port (``mlx5_0:1``), likewise. The device of one whose name another adapter
    has now is its PCI address."""
    rdma_addresses: dict[str, str] = msgspec.field(default_factory=dict)
    """PCI address of the adapter of each RDMA port."""
    lent: list[str] = msgspec.field(default_factory=list)
    """RDMA ports that this boot has shown active while a container had their interface."""
    is_accepted: bool = False
    """Whether an operator has checked and accepted the present parts."""
    accepted: dict[str, Count] = msgspec.field(default_factory=dict)
    """Shortfalls against equals that the operator has accepted: by part and aspect."""
    boot: str = ""
    """Identity of the boot that has shown what was seen; empty where it is not known, as in a file of 0.1.0."""

    def __post_init__(self) -> None:
        check_labels((self.boot, *self.gpus, *self.ports, *self.rdma_ports))
        check_labels((*self.rdma_addresses, *self.rdma_addresses.values(), *self.lent))
        here = (gpu.pci_bus_id for gpu in self.gpus.values() if not gpu.is_replaced)
        check_unique(filter(None, here), "the slot of a GPU")

    def begin(self, boot: str) -> None:
        """Forget what another boot of the node has shown, and keep what was stable.

        Args:
            boot: identity of this boot; empty where it cannot be read, and then it counts as another one.
        """
        if not boot or boot != self.boot:
            self.lent = []
            for gpu in self.gpus.values():
                gpu.forget_seen()
            for ports in (self.ports, self.rdma_ports):
                for name in list(ports):
                    ports[name].seen = None
                    if ports[name] == Learned():
                        del ports[name]
        self.boot = boot

    def watched(self) -> int:
        """Of how many quantities a larger value is being watched."""
        of_gpus = (one for gpu in self.gpus.values() for one in gpu.quantities())
        return sum(one.candidate is not None for one in (*of_gpus, *self.ports.values(), *self.rdma_ports.values()))


class PartCounts(msgspec.Struct, frozen=True):
    """The expected and present number of one kind of part, as in the daemon's answer."""

    expected: int | None
    """None while it is not known."""
    present: int | None
    """None where it was not read."""
    source: str | None = None
    learning_seconds: float | None = None


class InventoryAnswer(msgspec.Struct, frozen=True):
    """The daemon's answer about its inventory; what a daemon of another version adds is left out."""

    kinds: dict[str, PartCounts]
    missing: tuple[str, ...]
    """In sentences."""
    given_up: tuple[str, ...] = ()
    """In sentences, once the operator has accepted what is here."""


def origin_words(counts: Mapping[str, Any]) -> str:
    """Where the expectation of a kind comes from, and how long what is here is still learned.

    Args:
        counts: of ``InventoryTracker.describe``; those of a daemon of an earlier version say neither.
    """
    source, left = counts.get("source"), counts.get("learning_seconds")
    learning = f"learning, {format_seconds(left)} left" if left and source in (None, "learned") else ""
    return "; ".join(filter(None, (source, learning)))


def observe_ports(
    records: dict[str, Learned],
    seen: Mapping[str, SeenPort],
    what: str,
    elapsed: float,
    learn_after: float,
    *,
    is_missed: bool,
) -> list[str]:
    """Take the ports that are here; returns which have become stable, in sentences.

    Args:
        records: what was learned; changed in place.
        seen: the ports by name. One that is not among them is gone; one whose state was not read changes nothing.
        what: how a port is called: ``interface``.
        elapsed: seconds since the last observation.
        learn_after: seconds for which a port must be up to be stable.
        is_missed: whether a port that one reading of this boot has shown as up is expected also once it is gone.
    """
    learned = []
    for name in records.keys() - seen.keys():
        records[name].see(None, elapsed, learn_after)
    for name, port in seen.items():
        if port.is_up is None:
            continue
        record = records.setdefault(name, Learned())
        speed = port.speed or record.best_known()
        if record.see(speed if port.is_up else None, elapsed, learn_after):
            learned.append(f"{what} {name} is expected" + (f" at {format_rate(speed)}" if speed else ""))
    for name, record in list(records.items()):
        if not is_missed and name not in seen:
            record.seen = None
        if record == Learned():
            del records[name]
    return learned


def follow_ports(state: InventoryState, seen: Mapping[str, SeenPort]) -> bool:
    """Name what is known of RDMA ports as their adapters are named now; returns whether a name or address has changed.

    The kernel gives each device that comes the lowest free number, so that names move at a boot where an adapter is
    gone. A port at an address that is new here keeps its name: the firmware may number the buses otherwise.
    """
    before = state.rdma_addresses
    now = {name: port.address for name, port in seen.items() if port.address}
    name_at = {_place(name, address): name for name, address in now.items()}
    if len(name_at) < len(now):
        return False  # several devices on one function, which their addresses do not tell apart
    places = {name: _place(name, address) for name, address in before.items()}
    known = set(places.values())
    of_another = {name for name, address in now.items() if _place(name, address) in known}
    unplaced = state.rdma_ports.keys() - before.keys()
    if unplaced - seen.keys() or unplaced & of_another:
        # Gone since before addresses were kept, as with a file of 0.2.0: it cannot be told from one that moves.
        state.rdma_addresses = now
        return now != before

    def named(name: str) -> str:
        place = places.get(name)
        return name if place is None else name_at.get(place, place if name in of_another else name)

    state.rdma_ports = {named(name): record for name, record in state.rdma_ports.items()}
    state.lent = [named(name) for name in state.lent]
    state.rdma_addresses = {named(name): address for name, address in before.items()} | now
    state.accepted = {
        f"{named(name)} {aspect}": less
        for (name, _, aspect), less in ((part.rpartition(" "), less) for part, less in state.accepted.items())
    }
    return state.rdma_addresses != before


def _place(name: str, address: str) -> str:
    """The key of a port by the address of its adapter: ``0000:18:00.0:1``."""
    return f"{address}:{name.rpartition(':')[2]}"


def accept_ports(records: dict[str, Learned], seen: Mapping[str, SeenPort], what: str) -> list[str]:
    """Expect the ports that are up, and no others; returns what is given up. Arguments as for ``observe_ports``."""
    given_up = []
    for name in list(records):
        port = seen.get(name)
        if port is not None and port.is_up is None:
            continue
        if port is not None and port.is_up:
            records[name].accept(port.speed or records[name].best_known())
        elif records.pop(name).due is not None:
            given_up.append(f"{what} {name} is no longer expected")
    return given_up


def expected_ports(records: Mapping[str, Learned]) -> list[str]:
    return [name for name, record in records.items() if record.due is not None]


def stable_ports(records: Mapping[str, Learned]) -> list[str]:
    """Names of those that were up for the learning time, or accepted."""
    return [name for name, record in records.items() if record.expected is not None]


def ports_up(expected: Iterable[str], seen: Mapping[str, SeenPort]) -> int | None:
    """How many ports are up; None where the state of one that is expected was not read."""
    if any(name in seen and seen[name].is_up is None for name in expected):
        return None
    return sum(port.is_up is True for port in seen.values())


def expected_speed(records: Mapping[str, Learned], name: str) -> float | None:
    """Expected speed of a port, bytes per second; while none was learned the present one; None for none."""
    record = records.get(name)
    return None if record is None else (record.due or record.candidate or None)

"""Network interfaces of a simulated node, as the kernel shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.presets.parts import EthernetInterface
from commwatch_rehearsal.simulation.tree.pci import pci_folder
from commwatch_rehearsal.simulation.tree.writer import Entry, Link, Tree

_MEAN_PACKET_BYTES = 900
_RESTING = (
    "collisions", "multicast", "rx_compressed", "rx_crc_errors", "rx_dropped", "rx_errors", "rx_fifo_errors",
    "rx_frame_errors", "rx_length_errors", "rx_missed_errors", "rx_nohandler", "rx_over_errors", "tx_aborted_errors",
    "tx_carrier_errors", "tx_compressed", "tx_dropped", "tx_errors", "tx_fifo_errors", "tx_heartbeat_errors",
    "tx_window_errors",
)  # fmt: skip
"""Statistics of the kernel that no fault moves."""
_ETHERNET, _LOOPBACK = 1, 772
"""ARPHRD_ETHER and ARPHRD_LOOPBACK of linux/if_arp.h."""


def network_tree(hardware: Hardware, time: float) -> Tree:
    """``/sys/class/net``: the interfaces of the preset, their bonds and the loopback."""
    tree: dict[str, Entry] = {}
    bonds: dict[str, list[EthernetInterface]] = {}
    for interface in hardware.preset.interfaces:
        device = pci_folder(hardware.preset, interface.pci_address)
        home = f"{device}/net/{interface.name}"
        tree |= _interface(interface.name, home, _interface_files(interface, hardware, time))
        tree[f"{home}/device"] = Link(device)
        if interface.bond:
            tree[f"{home}/master"] = Link(f"devices/virtual/net/{interface.bond}")
            bonds.setdefault(interface.bond, []).append(interface)
    for bond, members in bonds.items():
        tree |= _interface(bond, f"devices/virtual/net/{bond}", _bond_files(members, hardware, time))
    return {**tree, **_interface("lo", "devices/virtual/net/lo", _LOOPBACK_FILES.items())}


def _interface(name: str, home: str, files: Iterable[tuple[str, str]]) -> Tree:
    return {
        **{f"{home}/{file}": f"{content}\n" for file, content in files},
        f"class/net/{name}": Link(home),
    }


def _interface_files(interface: EthernetInterface, hardware: Hardware, time: float) -> Iterator[tuple[str, str]]:
    condition = hardware.epoch(time).interfaces[interface.name]
    up = condition.up
    yield "type", str(_ETHERNET)
    yield "carrier", str(int(up))
    changes = hardware.carrier_changes(interface.name, time)
    yield "carrier_changes", str(changes)
    yield "carrier_down_count", str(changes // 2)
    yield "operstate", "up" if up else "down"
    yield "speed", str(interface.speed_megabits_per_second if up else -1)
    yield "mtu", str(interface.mtu)
    yield from _statistics(rx=int(condition.received.bytes_at(time)), tx=int(condition.sent.bytes_at(time)))


def _bond_files(members: Sequence[EthernetInterface], hardware: Hardware, time: float) -> Iterator[tuple[str, str]]:
    """A bond has the traffic and the speed of its members that are up, and a carrier while one of them is."""
    conditions = [hardware.epoch(time).interfaces[member.name] for member in members]
    up = [member for member, condition in zip(members, conditions, strict=True) if condition.up]
    yield "type", str(_ETHERNET)
    yield "bonding/mode", "802.3ad 4"
    yield "bonding/slaves", " ".join(member.name for member in members)
    yield "carrier", str(int(bool(up)))
    yield "carrier_changes", "1"
    yield "carrier_down_count", "0"
    yield "operstate", "up" if up else "down"
    yield "speed", str(sum(member.speed_megabits_per_second for member in up) or -1)
    yield "mtu", str(min(member.mtu for member in members))
    yield from _statistics(
        rx=sum(int(one.received.bytes_at(time)) for one in conditions),
        tx=sum(int(one.sent.bytes_at(time)) for one in conditions),
    )


def _statistics(*, rx: int, tx: int) -> Iterator[tuple[str, str]]:
    for way, count in (("rx", rx), ("tx", tx)):
        yield f"statistics/{way}_bytes", str(count)
        yield f"statistics/{way}_packets", str(count // _MEAN_PACKET_BYTES)
    for name in _RESTING:
        yield f"statistics/{name}", "0"


_LOOPBACK_FILES = {
    "type": str(_LOOPBACK),
    "carrier": "1",
    "carrier_changes": "0",
    "carrier_down_count": "0",
    "operstate": "unknown",
    "mtu": "65536",
    **dict(_statistics(rx=0, tx=0)),
}

"""Network interfaces of a simulated node, as the kernel shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.presets.parts import EthernetInterface, Preset
from commwatch_rehearsal.simulation.tree.pci import pci_folder
from commwatch_rehearsal.simulation.tree.writer import TreeWriter

_MEAN_PACKET_BYTES = 900
_RESTING = (
    "collisions", "multicast", "rx_compressed", "rx_crc_errors", "rx_dropped", "rx_errors", "rx_fifo_errors",
    "rx_frame_errors", "rx_length_errors", "rx_missed_errors", "rx_nohandler", "rx_over_errors", "tx_aborted_errors",
    "tx_carrier_errors", "tx_compressed", "tx_dropped", "tx_errors", "tx_fifo_errors", "tx_heartbeat_errors",
    "tx_window_errors",
)  # fmt: skip
"""Statistics of the kernel that no fault moves."""
_Way: TypeAlias = Literal["rx", "tx"]
_WAYS: Final[tuple[_Way, ...]] = ("rx", "tx")
_ETHERNET, _LOOPBACK = 1, 772
"""ARPHRD_ETHER and ARPHRD_LOOPBACK of linux/if_arp.h."""


class NetworkPart:
    """``/sys/class/net``: the interfaces of the preset, their bonds and the loopback."""

    def __init__(self, preset: Preset) -> None:
        self._homes = []
        for interface in preset.interfaces:
            device = pci_folder(preset, interface.pci_address)
            self._homes.append((interface, device, f"{device}/net/{interface.name}"))
        self._bonds: dict[str, list[EthernetInterface]] = {}
        for interface in preset.interfaces:
            if interface.bond:
                self._bonds.setdefault(interface.bond, []).append(interface)

    def update(self, writer: TreeWriter, hardware: Hardware, time: float) -> None:
        """Bring the files up to date."""
        for interface, device, home in self._homes:
            for name, content in _interface_files(interface, hardware, time):
                writer.put(f"{home}/{name}", content)
            writer.link(f"class/net/{interface.name}", home)
            writer.link(f"{home}/device", device)
            if interface.bond:
                writer.link(f"{home}/master", f"devices/virtual/net/{interface.bond}")
        for bond, members in self._bonds.items():
            home = f"devices/virtual/net/{bond}"
            for name, content in _bond_files(members, hardware, time):
                writer.put(f"{home}/{name}", content)
            writer.link(f"class/net/{bond}", home)
        for name, content in _LOOPBACK_FILES.items():
            writer.put(f"devices/virtual/net/lo/{name}", content)
        writer.link("class/net/lo", "devices/virtual/net/lo")


def _interface_files(interface: EthernetInterface, hardware: Hardware, time: float) -> Iterator[tuple[str, str]]:
    up = hardware.ethernet_up(interface.name, time)
    yield "type", str(_ETHERNET)
    yield "carrier", str(int(up))
    changes = hardware.carrier_changes(interface.name, time)
    yield "carrier_changes", str(changes)
    yield "carrier_down_count", str(changes // 2)
    yield "operstate", "up" if up else "down"
    yield "speed", str(interface.speed_megabits_per_second if up else -1)
    yield "mtu", str(interface.mtu)
    yield from _statistics({way: hardware.ethernet_bytes(interface.name, way, time) for way in _WAYS})


def _bond_files(members: Sequence[EthernetInterface], hardware: Hardware, time: float) -> Iterator[tuple[str, str]]:
    """A bond has the traffic and the speed of its members that are up, and a carrier while one of them is."""
    up = [member for member in members if hardware.ethernet_up(member.name, time)]
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
        {way: sum(hardware.ethernet_bytes(member.name, way, time) for member in members) for way in _WAYS}
    )


def _statistics(moved: Mapping[_Way, int]) -> Iterator[tuple[str, str]]:
    for way, count in moved.items():
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
    **dict(_statistics({"rx": 0, "tx": 0})),
}

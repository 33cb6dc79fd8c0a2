"""The statistics that the mlx5 driver of a simulated node keeps of its network interfaces."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Mapping

from commwatch.sources.ethtool.abi import NAME_BYTES
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.pace import happened
from commwatch_rehearsal.simulation.presets.parts import EthernetInterface

PAUSE_MICROSECONDS = 50
"""How long one pause packet keeps the lossless priority from sending."""
LOSSLESS_PRIORITY = 3
"""The priority for which flow control is on; the driver names the pauses of no other."""

_DRIVER = "mlx5_core"
_LANES = 4
_HOST_PACKET_BYTES = 900
_RDMA_PACKET_BYTES = 4096
_HEALTHY_BIT_ERROR_RATIO = 1e-9
"""Before error correction; a healthy link of four lanes has bits to correct all the time."""
_SYMBOL_ERROR_LANE = 1
"""The lane that the fault ``ethernet_symbol_errors`` strikes."""


class SimulatedEthtool:
    """Stands in for ``StatisticsCalls``.

    Every method but ``close`` raises OSError: ENODEV: no such interface; EOPNOTSUPP: its driver has no statistics.
    """

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def count(self, interface: str) -> int:
        """How many statistics the driver has."""
        return len(self._statistics(interface))

    def names(self, interface: str, count: int) -> bytes | None:
        """Their names, as the kernel pads them."""
        del count  # it never changes
        return b"".join(name.encode().ljust(NAME_BYTES, b"\0") for name in self._statistics(interface))

    def numbers(self, interface: str, count: int) -> memoryview | None:
        """Their values now."""
        del count
        return memoryview(array("Q", (value % 2**64 for value in self._statistics(interface).values())))

    def close(self) -> None:
        """Nothing is held."""

    def _statistics(self, name: str) -> Mapping[str, int]:
        """By the driver's names, in its order."""
        interface = next((one for one in self._node.preset.interfaces if one.name == name), None)
        if interface is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        drivers = {device.address: device.driver for device in self._node.preset.devices}
        if drivers[interface.pci_address] != _DRIVER:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        hardware, now = self._node.now()
        return statistics_of(hardware, interface, now)


def statistics_of(hardware: Hardware, interface: EthernetInterface, time: float) -> dict[str, int]:
    """The driver's statistics at a time, by its names, in its order."""
    epoch = hardware.epoch(time)
    own = epoch.interfaces[interface.name]
    ports = [one for one in epoch.rdma_ports if one.port.interface == interface.name]
    host = {"rx": int(own.received.bytes_at(time)), "tx": int(own.sent.bytes_at(time))}
    rdma = {
        "rx": sum(int(port.received.bytes_at(time)) for port in ports),
        "tx": sum(int(port.sent.bytes_at(time)) for port in ports),
    }
    bits = interface.speed_megabits_per_second * 1_000_000 * int(_seconds_up(hardware, interface.name, time))
    symbol_errors = _events(hardware, "ethernet_symbol_errors", interface.name, time)
    discards = _events(hardware, "ethernet_discards", interface.name, time)
    pauses = _events(hardware, "ethernet_congestion", interface.name, time)
    corrected = int(bits * _HEALTHY_BIT_ERROR_RATIO)
    priority = f"prio{LOSSLESS_PRIORITY}"
    return {
        "rx_packets": host["rx"] // _HOST_PACKET_BYTES,
        "rx_bytes": host["rx"],
        "tx_packets": host["tx"] // _HOST_PACKET_BYTES,
        "tx_bytes": host["tx"],
        "rx_out_of_buffer": 0,
        "rx_vport_rdma_unicast_bytes": rdma["rx"],
        "tx_vport_rdma_unicast_bytes": rdma["tx"],
        "tx_packets_phy": host["tx"] // _HOST_PACKET_BYTES + rdma["tx"] // _RDMA_PACKET_BYTES,
        "rx_packets_phy": host["rx"] // _HOST_PACKET_BYTES + rdma["rx"] // _RDMA_PACKET_BYTES,
        "rx_crc_errors_phy": 0,
        "tx_bytes_phy": host["tx"] + rdma["tx"],
        "rx_bytes_phy": host["rx"] + rdma["rx"],
        "rx_symbol_err_phy": symbol_errors,
        "rx_discards_phy": discards,
        "tx_discards_phy": 0,
        "link_down_events_phy": hardware.carrier_changes(interface.name, time) // 2,
        "rx_bits_phy": bits,
        "rx_pcs_symbol_err_phy": symbol_errors,
        "rx_corrected_bits_phy": corrected,
        **{
            f"rx_err_lane_{lane}_phy": corrected // _LANES + (symbol_errors if lane == _SYMBOL_ERROR_LANE else 0)
            for lane in range(_LANES)
        },
        "rx_pci_signal_integrity": 0,
        "tx_pci_signal_integrity": 0,
        f"rx_{priority}_pause": pauses,
        f"rx_{priority}_pause_duration": pauses * PAUSE_MICROSECONDS,
        f"tx_{priority}_pause": 0,
        f"tx_{priority}_pause_duration": 0,
        f"rx_{priority}_pause_transition": pauses,
        "tx_pause_storm_warning_events": 0,
        "tx_pause_storm_error_events": 0,
        "module_unplug": 0,
        "module_bus_stuck": 0,
        "module_high_temp": 0,
        "module_bad_shorted": 0,
    }


def _seconds_up(hardware: Hardware, interface: str, time: float) -> float:
    """How long the link has been up since the last boot."""
    stretches, downs = hardware.timeline.stretches(hardware.last_boot(time), time), hardware.downs(interface)
    return sum(end - start for start, end in stretches if not any(fault.active(start) for fault in downs))


def _events(hardware: Hardware, kind: str, interface: str, time: float) -> int:
    """Events that the faults of a kind have caused on an interface since the last boot."""
    boot = hardware.last_boot(time)
    return sum(
        happened(fault, boot, time) for fault in hardware.faults if fault.kind == kind and fault.interface == interface
    )

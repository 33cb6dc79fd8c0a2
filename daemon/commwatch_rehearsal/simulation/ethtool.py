"""The SIOCETHTOOL calls of a simulated node: what its mlx5 driver answers about its network interfaces."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping

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

_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SIOCETHTOOL = 0x8946
_ETH_SS_STATS = 1
_NAME_BYTES = 32


class _Request(ctypes.Structure):
    """``struct ifreq`` with a pointer in its union."""

    _fields_ = (("name", ctypes.c_char * 16), ("data", ctypes.c_void_p), ("rest", ctypes.c_char * 16))


class _SetInfo(ctypes.Structure):
    """``struct ethtool_sset_info`` for one set."""

    _fields_ = (
        ("cmd", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("mask", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
    )


class _Strings(ctypes.Structure):
    """Head of ``struct ethtool_gstrings``."""

    _fields_ = (("cmd", ctypes.c_uint32), ("string_set", ctypes.c_uint32), ("count", ctypes.c_uint32))


class _Stats(ctypes.Structure):
    """Head of ``struct ethtool_stats``."""

    _fields_ = (("cmd", ctypes.c_uint32), ("count", ctypes.c_uint32))


class SimulatedEthtool:
    """Stands in for ``fcntl.ioctl``: answers in the caller's memory, as the kernel does."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def __call__(self, descriptor: int, request: int, argument: bytearray) -> int:
        """Answer one call.

        Raises:
            OSError: ENODEV: no such interface; EOPNOTSUPP: its driver has no statistics, or this is another call.
        """
        if request != _SIOCETHTOOL:
            raise _error(errno.ENOTTY)
        asked = _Request.from_buffer(argument)
        interface = next((one for one in self._node.preset.interfaces if one.name.encode() == asked.name), None)
        if interface is None:
            raise _error(errno.ENODEV)
        drivers = {device.address: device.driver for device in self._node.preset.devices}
        if drivers[interface.pci_address] != _DRIVER:
            raise _error(errno.EOPNOTSUPP)
        self._answer(asked.data, self.statistics(interface))
        return 0

    def statistics(self, interface: EthernetInterface) -> Mapping[str, int]:
        """The driver's current statistics, by its names, in its order."""
        hardware, now = self._node.now()
        return statistics_of(hardware, interface, now)

    def _answer(self, address: int, statistics: Mapping[str, int]) -> None:
        command = ctypes.c_uint32.from_address(address).value
        if command == _GSSET_INFO:
            info = _SetInfo.from_address(address)
            info.mask &= 1 << _ETH_SS_STATS
            if info.mask:
                info.count = len(statistics)
        elif command == _GSTRINGS:
            strings = _Strings.from_address(address)
            if strings.string_set != _ETH_SS_STATS:
                raise _error(errno.EOPNOTSUPP)
            strings.count = len(statistics)
            names = b"".join(name.encode().ljust(_NAME_BYTES, b"\0") for name in statistics)
            ctypes.memmove(address + ctypes.sizeof(_Strings), names, len(names))
        elif command == _GSTATS:
            _Stats.from_address(address).count = len(statistics)
            numbers = (ctypes.c_uint64 * len(statistics))(*statistics.values())
            ctypes.memmove(address + ctypes.sizeof(_Stats), numbers, ctypes.sizeof(numbers))
        else:
            raise _error(errno.EOPNOTSUPP)


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


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))

"""Which statistics of which driver are read, and what they are as metrics; a new counter is a row here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_MICROSECONDS = 1_000_000
_BITS = 8
_PRIORITIES = 8
_LANES = 8


@dataclass(frozen=True, slots=True)
class CounterRow:
    name: str
    """As the driver spells it; ``N`` stands for a number from 0, which becomes the last label."""
    metric: str
    """Without the namespace."""
    label: str = ""
    """A label beside the interface."""
    numbers: int = 0
    """How many numbers ``N`` can be; 0: the name has no ``N``."""
    divisor: int = 1
    """The driver's units in one of ours."""

    @property
    def is_of_priority(self) -> bool:
        """Whether it counts pauses of one priority."""
        return self.metric.startswith("ethernet_pfc_")


@dataclass(frozen=True, slots=True)
class Statistic:
    """One series of an interface."""

    row: CounterRow
    labels: tuple[str, ...]
    """After the interface."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The counters that are read from the interfaces of one driver."""

    rows: tuple[CounterRow, ...]
    statistics: Mapping[str, Statistic]
    """By the driver's name for it."""
    names_every_priority: bool
    """It lists all eight priorities whether priority flow control is on or not."""


def driver(rows: Iterable[CounterRow], names_every_priority: bool = False) -> Driver:
    """A driver by its rows; where one series has several names, the first of them that the driver knows is read."""
    rows = tuple(rows)
    statistics: dict[str, Statistic] = {}
    for row in rows:
        own = (row.label,) if row.label else ()
        if row.numbers:
            for number in range(row.numbers):
                statistics[row.name.replace("N", str(number))] = Statistic(row, (*own, str(number)))
        else:
            statistics[row.name] = Statistic(row, own)
    return Driver(rows, MappingProxyType(statistics), names_every_priority)


def _priority(name: str, metric: str, divisor: int = 1) -> CounterRow:
    return CounterRow(name, f"ethernet_pfc_{metric}", numbers=_PRIORITIES, divisor=divisor)


# Names as in the kernel: Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst.
# A priority's pauses are named only while priority flow control is on for it, the global ones only while those are on.
_MLX5 = driver((
    CounterRow("rx_bytes_phy", "ethernet_phy_receive_bytes_total"),
    CounterRow("tx_bytes_phy", "ethernet_phy_transmit_bytes_total"),
    CounterRow("rx_packets_phy", "ethernet_phy_receive_packets_total"),
    CounterRow("tx_packets_phy", "ethernet_phy_transmit_packets_total"),
    CounterRow("rx_vport_rdma_unicast_bytes", "ethernet_rdma_receive_bytes_total"),
    CounterRow("tx_vport_rdma_unicast_bytes", "ethernet_rdma_transmit_bytes_total"),
    CounterRow("rx_symbol_err_phy", "ethernet_phy_symbol_errors_total"),
    CounterRow("rx_pcs_symbol_err_phy", "ethernet_phy_pcs_symbol_errors_total"),
    CounterRow("rx_crc_errors_phy", "ethernet_phy_crc_errors_total"),
    CounterRow("rx_err_lane_N_phy", "ethernet_phy_lane_errors_total", numbers=_LANES),
    CounterRow("rx_corrected_bits_phy", "ethernet_phy_corrected_bit_errors_total"),
    CounterRow("rx_bits_phy", "ethernet_phy_line_bytes_total", divisor=_BITS),
    CounterRow("link_down_events_phy", "ethernet_phy_link_down_total"),
    CounterRow("module_unplug", "ethernet_module_events_total", "unplugged"),
    CounterRow("module_bus_stuck", "ethernet_module_events_total", "bus_stuck"),
    CounterRow("module_high_temp", "ethernet_module_events_total", "high_temperature"),
    CounterRow("module_bad_shorted", "ethernet_module_events_total", "shorted"),
    _priority("rx_prioN_pause", "receive_pauses_total"),
    _priority("tx_prioN_pause", "transmit_pauses_total"),
    _priority("rx_prioN_pause_duration", "receive_pause_seconds_total", _MICROSECONDS),
    _priority("tx_prioN_pause_duration", "transmit_pause_seconds_total", _MICROSECONDS),
    CounterRow("rx_global_pause", "ethernet_global_receive_pauses_total"),
    CounterRow("tx_global_pause", "ethernet_global_transmit_pauses_total"),
    CounterRow("rx_global_pause_duration", "ethernet_global_receive_pause_seconds_total", divisor=_MICROSECONDS),
    CounterRow("tx_global_pause_duration", "ethernet_global_transmit_pause_seconds_total", divisor=_MICROSECONDS),
    CounterRow("tx_pause_storm_warning_events", "ethernet_pause_storms_total", "warning"),
    CounterRow("tx_pause_storm_error_events", "ethernet_pause_storms_total", "error"),
    CounterRow("rx_discards_phy", "ethernet_phy_discards_total"),
    CounterRow("tx_discards_phy", "ethernet_phy_transmit_discards_total"),
    CounterRow("rx_out_of_buffer", "ethernet_out_of_buffer_total"),
    CounterRow("rx_pci_signal_integrity", "ethernet_pci_receive_recoveries_total"),
    CounterRow("tx_pci_signal_integrity", "ethernet_pci_transmit_recoveries_total"),
))  # fmt: skip

# Port statistics of drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c. Not read, because their meaning is not written
# down there: continuous_pause_events, rx_stat_discard, and the discards by class of service.
_BNXT = driver(
    (
        CounterRow("rx_bytes", "ethernet_phy_receive_bytes_total"),
        CounterRow("tx_bytes", "ethernet_phy_transmit_bytes_total"),
        CounterRow("rx_good_frames", "ethernet_phy_receive_packets_total"),
        CounterRow("tx_good_frames", "ethernet_phy_transmit_packets_total"),
        CounterRow("rx_pcs_symbol_err", "ethernet_phy_pcs_symbol_errors_total"),
        CounterRow("rx_fcs_err_frames", "ethernet_phy_crc_errors_total"),
        CounterRow("rx_corrected_bits", "ethernet_phy_corrected_bit_errors_total"),
        CounterRow("rx_bits", "ethernet_phy_line_bytes_total", divisor=_BITS),
        CounterRow("link_down_events", "ethernet_phy_link_down_total"),
        _priority("rx_pfc_ena_frames_priN", "receive_pauses_total"),
        _priority("tx_pfc_ena_frames_priN", "transmit_pauses_total"),
        _priority("pfc_priN_rx_duration_us", "receive_pause_seconds_total", _MICROSECONDS),
        _priority("pfc_priN_tx_duration_us", "transmit_pause_seconds_total", _MICROSECONDS),
        CounterRow("rx_pause_frames", "ethernet_global_receive_pauses_total"),
        CounterRow("tx_pause_frames", "ethernet_global_transmit_pauses_total"),
    ),
    names_every_priority=True,
)

# Port statistics of drivers/net/ethernet/intel/{ice,i40e}: only the packets that stop a queue (XOFF) count as pauses.
_ICE = driver(
    (
        CounterRow("rx_bytes.nic", "ethernet_phy_receive_bytes_total"),
        CounterRow("tx_bytes.nic", "ethernet_phy_transmit_bytes_total"),
        CounterRow("rx_crc_errors.nic", "ethernet_phy_crc_errors_total"),
        _priority("rx_priority_N_xoff.nic", "receive_pauses_total"),
        _priority("tx_priority_N_xoff.nic", "transmit_pauses_total"),
        CounterRow("link_xoff_rx.nic", "ethernet_global_receive_pauses_total"),
        CounterRow("link_xoff_tx.nic", "ethernet_global_transmit_pauses_total"),
        CounterRow("rx_dropped.nic", "ethernet_phy_discards_total"),
    ),
    names_every_priority=True,
)
_I40E = driver(
    (
        CounterRow("port.rx_bytes", "ethernet_phy_receive_bytes_total"),
        CounterRow("port.tx_bytes", "ethernet_phy_transmit_bytes_total"),
        CounterRow("port.rx_crc_errors", "ethernet_phy_crc_errors_total"),
        # The kernel has renamed these: the first spelling is the newer one.
        _priority("port.rx_priority_N_xoff_rx", "receive_pauses_total"),
        _priority("port.rx_priority_N_xoff", "receive_pauses_total"),
        _priority("port.tx_priority_N_xoff_tx", "transmit_pauses_total"),
        _priority("port.tx_priority_N_xoff", "transmit_pauses_total"),
        CounterRow("port.link_xoff_rx", "ethernet_global_receive_pauses_total"),
        CounterRow("port.link_xoff_tx", "ethernet_global_transmit_pauses_total"),
        CounterRow("port.rx_discards", "ethernet_phy_discards_total"),
        CounterRow("port.rx_dropped", "ethernet_phy_discards_total"),
    ),
    names_every_priority=True,
)

# struct ena_admin_eni_stats of drivers/net/ethernet/amazon/ena: packets held back or dropped because the instance went
# over what it may use.
_ENA = driver((
    CounterRow("bw_in_allowance_exceeded", "ethernet_allowance_exceeded_total", "receive_bandwidth"),
    CounterRow("bw_out_allowance_exceeded", "ethernet_allowance_exceeded_total", "transmit_bandwidth"),
    CounterRow("pps_allowance_exceeded", "ethernet_allowance_exceeded_total", "packet_rate"),
    CounterRow("conntrack_allowance_exceeded", "ethernet_allowance_exceeded_total", "tracked_connections"),
    CounterRow("linklocal_allowance_exceeded", "ethernet_allowance_exceeded_total", "local_services"),
))  # fmt: skip

DRIVERS: Final[Mapping[str, Driver]] = MappingProxyType(
    {"mlx5_core": _MLX5, "bnxt_en": _BNXT, "ice": _ICE, "i40e": _I40E, "ena": _ENA}
)
"""By the name of the kernel's driver."""

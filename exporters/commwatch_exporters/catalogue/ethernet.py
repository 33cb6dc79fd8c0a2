"""Metrics of network interfaces."""

from __future__ import annotations

from commwatch_exporters.catalogue.metric import Metric, counter, gauge, info

# The rows are a table to be read: one look tells name, labels, help and origin.
# fmt: off

_STATISTICS = "sysfs /sys/class/net/*/statistics"

ROWS: tuple[Metric, ...] = (
    info("ethernet_info", "device pci_bus_id driver", "Identity of a network interface; the value is always 1.",
         "sysfs /sys/class/net/*/device"),
    counter("ethernet_transmit_bytes_total", "device", "Bytes sent by the host; RDMA traffic is not among them.",
            f"{_STATISTICS}/tx_bytes", "bytes"),
    counter("ethernet_receive_bytes_total", "device", "Bytes received by the host; RDMA traffic is not among them.",
            f"{_STATISTICS}/rx_bytes", "bytes"),
    counter("ethernet_transmit_errors_total", "device", "Packets that could not be sent.", f"{_STATISTICS}/tx_errors"),
    counter("ethernet_receive_errors_total", "device", "Packets received with errors.", f"{_STATISTICS}/rx_errors"),
    counter("ethernet_transmit_drops_total", "device", "Packets dropped before sending.", f"{_STATISTICS}/tx_dropped"),
    counter("ethernet_receive_drops_total", "device", "Packets received and dropped.", f"{_STATISTICS}/rx_dropped"),
    counter("ethernet_carrier_changes_total", "device", "Times the link went up or down.",
            "sysfs /sys/class/net/*/carrier_changes"),
    gauge("ethernet_carrier", "device", "1 while the interface has a link, 0 while it has none.",
          "sysfs /sys/class/net/*/carrier"),
    gauge("ethernet_speed_bytes_per_second", "device", "Speed of the link, one direction; absent while it is down.",
          "sysfs /sys/class/net/*/speed, Mbit/s times 125000", "bytes_per_second"),
)

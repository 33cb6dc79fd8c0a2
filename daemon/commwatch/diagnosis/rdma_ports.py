"""The RDMA ports of a node as the InfiniBand branch looks at them; pure."""

from __future__ import annotations

from typing import Final

from commwatch.node.topology.sysfs import natural
from commwatch_exporters.node.model import RdmaPort
from commwatch_exporters.node.parts import Parts

_ROCE_HEADERS: Final = 40 + 8 + 12 + 4 + 28 + 4
"""Bytes of a RoCE packet that the kernel sets aside: GRH, UDP, BTH, XRC, atomics, check sum (``iboe_get_mtu`` in
``include/rdma/ib_addr.h``)."""
_MTUS: Final = (4096, 2048, 1024, 512, 256)
"""Of the InfiniBand transport, in bytes."""
BEST_MTU: Final = _MTUS[0]


def roce_mtu(interface_mtu: float) -> int | None:
    """Bytes of data in a RoCE packet for what the interface can send; None where not even the smallest fits."""
    return next((mtu for mtu in _MTUS if interface_mtu - _ROCE_HEADERS >= mtu), None)


def ports_of(node: Parts) -> list[RdmaPort]:
    """All ports that are here or should be, by name."""
    columns = (RdmaPort.info, RdmaPort.state, RdmaPort.expected)
    found = {port for column in columns for port, _ in node.each(column)}
    return sorted(found, key=lambda port: (natural(port.device), natural(port.number)))


def name_of(port: RdmaPort) -> str:
    """``mlx5_0``, or ``mlx5_0 port 2`` where the adapter has several."""
    alone = sum(one.device == port.device for one in ports_of(port.node)) == 1
    return port.device if alone else f"{port.device} port {port.number}"


def model_of(port: RdmaPort) -> tuple[str, str]:
    """What ports that should be alike have in common."""
    return port.hca_type, port.link_layer


def peak_use(port: RdmaPort) -> float | None:
    """Highest sample of the last minute in either direction, as a share of the speed; None where it was not read."""
    both = (port.transmit_utilization_peak_ratio, port.receive_utilization_peak_ratio)
    return max((one for one in both if one is not None), default=None)

"""What is exposed of each RDMA port, put together for the InfiniBand branch; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from commwatch.findings.facts import Facts
from commwatch.node.topology.sysfs import natural

ACTIVE: Final = 4
LINK_UP: Final = 5
"""Physical state."""

_ROCE_HEADERS: Final = 40 + 8 + 12 + 4 + 28 + 4
"""Bytes of a RoCE packet that the kernel sets aside: GRH, UDP, BTH, XRC, atomics, check sum (``iboe_get_mtu`` in
``include/rdma/ib_addr.h``)."""
_MTUS: Final = (4096, 2048, 1024, 512, 256)
"""Of the InfiniBand transport, in bytes."""
BEST_MTU: Final = _MTUS[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """One port; None for what was not read."""

    device: str
    port: str
    link_layer: str = ""
    """``InfiniBand``, ``Ethernet`` or another; empty where it is not known."""
    sm_lid: str = ""
    hca_type: str = ""
    interface: str = ""
    """The network interface of a RoCE port; empty where there is none."""
    name: str
    """``mlx5_0``, or ``mlx5_0 port 2`` where the adapter has several."""
    state: int | None = None
    physical_state: int | None = None
    speed: float | None = None
    """Bytes per second."""
    speed_learned: float | None = None
    is_expected: bool = False
    """Whether it was active for the learning time."""
    gids: int | None = None
    gid_index: Mapping[str, int]
    """Lowest index by kind of address."""
    interface_mtu: int | None = None
    """Bytes."""
    has_master: bool = False
    """Whether the interface belongs to a bond or a bridge, which has its addresses."""
    use: tuple[float, ...] = ()
    """Highest sample of the last minute, as a share of the speed: sending, receiving."""

    @property
    def is_active(self) -> bool:
        """Whether it can carry traffic."""
        return self.state == ACTIVE

    @property
    def is_roce(self) -> bool:
        """Whether it speaks RDMA over Ethernet."""
        return self.link_layer == "Ethernet"

    @property
    def model(self) -> tuple[str, str]:
        """What ports that should be alike have in common."""
        return self.hca_type, self.link_layer


def roce_mtu(interface_mtu: int) -> int | None:
    """Bytes of data in a RoCE packet for what the interface can send; None where not even the smallest fits."""
    return next((mtu for mtu in _MTUS if interface_mtu - _ROCE_HEADERS >= mtu), None)


def ports_of(facts: Facts) -> tuple[PortFacts, ...]:
    """All ports that are here or should be, by name; for ``Facts.derived``."""
    infos = {(labels["device"], labels["port"]): labels for labels, _ in facts.series("commwatch_rdma_port_info")}
    numbers = {name: _by_port(facts, f"commwatch_rdma_port_{name}") for name in (
        "state", "phys_state", "speed_bytes_per_second", "expected", "speed_expected_bytes_per_second", "gids",
        "transmit_utilization_peak_ratio", "receive_utilization_peak_ratio",
    )}  # fmt: skip
    keys = sorted({*infos, *numbers["state"], *numbers["expected"]}, key=lambda key: (natural(key[0]), natural(key[1])))
    devices = [device for device, _ in keys]
    indexes: dict[tuple[str, str], dict[str, int]] = {}
    for labels, index in facts.series("commwatch_rdma_port_gid_index"):
        indexes.setdefault((labels["device"], labels["port"]), {})[labels["kind"]] = int(index)
    mtus = {labels["device"]: int(number) for labels, number in facts.series("commwatch_ethernet_mtu_bytes")}
    enslaved = {labels["device"] for labels, _ in facts.series("commwatch_ethernet_info") if labels["master"]}

    def made(key: tuple[str, str]) -> PortFacts:
        info = infos.get(key, {})
        interface = info.get("netdev", "")
        uses = (numbers[f"{way}_utilization_peak_ratio"].get(key) for way in ("transmit", "receive"))
        return PortFacts(
            device=key[0],
            port=key[1],
            link_layer=info.get("link_layer", ""),
            sm_lid=info.get("sm_lid", ""),
            hca_type=info.get("hca_type", ""),
            interface=interface,
            name=key[0] if devices.count(key[0]) == 1 else f"{key[0]} port {key[1]}",
            state=_whole(numbers["state"].get(key)),
            physical_state=_whole(numbers["phys_state"].get(key)),
            speed=numbers["speed_bytes_per_second"].get(key),
            speed_learned=numbers["speed_expected_bytes_per_second"].get(key),
            is_expected=numbers["expected"].get(key) == 1,
            gids=_whole(numbers["gids"].get(key)),
            gid_index=indexes.get(key, {}),
            interface_mtu=mtus.get(interface),
            has_master=interface in enslaved,
            use=tuple(one for one in uses if one is not None),
        )

    return tuple(map(made, keys))


def _by_port(facts: Facts, metric: str) -> Mapping[tuple[str, str], float]:
    return {(labels["device"], labels["port"]): number for labels, number in facts.series(metric)}


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)

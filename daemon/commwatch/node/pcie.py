"""Which PCIe links are narrower than they should be, or slower: pure functions, and the tree of the devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from commwatch_exporters.node.model import PCIE_PORTS, PcieDevice, node_at
from commwatch_exporters.snapshot import Block, Layout, Series, Snapshot, Value

ASPECTS: Final = ("width", "generation")

LOAD_UTILISATION: Final = 0.5
"""A GPU on which kernels run for half of the driver's sample period or more is under load.

A GPU that is woken now and then for a moment may stay in a low performance state, with its link slow.
"""
LOAD_BYTES_PER_SECOND: Final = 500e6
"""PCIe traffic in one direction from which a GPU is under load.

Far above what an idle GPU moves (kilobytes), and half of what four lanes carry at generation 1, so that a link which
is stuck there cannot hide its own fault.
"""
HIGHEST_PERFORMANCE_STATE: Final = 0
"""P0, the only state in which a GPU keeps its link at full speed whatever the board: in P2 some run at generation 3."""
_LINK: Final = "commwatch_pcie_device_link"
_MANAGEMENT: Final = frozenset({"nvswitch"})
"""Roles behind a link that carries no payload."""


def of_both_ends(*maxima: Value) -> int | None:
    """The least of the maxima that are known; None where none is."""
    return min((int(maximum) for maximum in maxima if maximum is not None), default=None)


def is_narrow(width: Value, expected: Value, maximum: Value) -> bool | None:
    """Whether a link has fewer lanes than it should; None where that is not known.

    The learned width takes precedence over the maximum: a slot that was never wired wider, or that the operator has
    accepted, is no fault, and a slot whose maximum has fallen is one.
    """
    limit = maximum if expected is None else expected
    return None if width is None or limit is None else width < limit


def is_slow(generation: Value, maximum: Value) -> bool | None:
    """Whether a link runs below its highest generation; None where that is not known."""
    return None if generation is None or maximum is None else generation < maximum


def is_loaded(utilisation: Value, *rates: Value, performance_state: Value = None) -> bool:
    """Whether a GPU is under load, so that its link should run at full speed.

    Args:
        utilisation: share of time in which a kernel ran.
        rates: PCIe traffic in each direction, bytes per second.
        performance_state: 0 to 15; None where the driver does not say, and then the load alone decides.
    """
    if performance_state not in (None, HIGHEST_PERFORMANCE_STATE):
        return False
    busy = utilisation is not None and utilisation >= LOAD_UTILISATION
    return busy or any(rate is not None and rate >= LOAD_BYTES_PER_SECOND for rate in rates)


class DeviceLink(NamedTuple):
    device: str
    """The lower end."""
    role: str
    port: str
    """The upper end."""
    below: frozenset[str]
    """Roles of the adapters, GPUs and NVSwitches that it serves; not of NVSwitches alone."""
    gpus: frozenset[str]
    """Addresses of the GPUs that it serves."""


def device_links(devices: Iterable[PcieDevice]) -> tuple[DeviceLink, ...]:
    """The links whose lower end is an adapter or a switch, each once; those of GPUs have other metrics.

    Links that serve NVSwitches alone are left out: they carry management, and boards use fewer lanes of them than both
    ends have (a baseboard of H100 runs its switch above them at generation 3 x2 of 4 x16).

    Args:
        devices: of a node, all of them.
    """
    served: dict[str, list[PcieDevice]] = {}
    links = []
    by_address = sorted(devices, key=lambda device: device.address)
    for device in by_address:
        if device.role not in PCIE_PORTS:
            for one in (device, *device.above):
                served.setdefault(one.address, []).append(device)
    for device in by_address:
        if device.role != "gpu" and (port := device.port) is not None:
            below = served.get(device.address, [])
            gpus = frozenset(one.address for one in below if one.role == "gpu")
            roles = frozenset(one.role for one in below)
            if roles == _MANAGEMENT:
                continue
            links.append(DeviceLink(device.address, device.role, port.address, roles, gpus))
    return tuple(links)


class DeviceTree:
    """The links above adapters and switches; worked out again when a device comes or goes."""

    def __init__(self) -> None:
        self._layouts: list[Layout] = []
        self._links: tuple[DeviceLink, ...] = ()
        self.ports: Mapping[str, str] = {}
        """By address of a device: the port at the upper end of its link, where it has one."""

    def degraded(self, blocks: Mapping[str, Block], loaded: Collection[str]) -> dict[Series, Value]:
        """Judge the links.

        A link that a network adapter uses keeps its generation when idle. One that serves GPUs alone is judged while
        one of them is under load. Without the maximum of both ends nothing is judged.

        Args:
            blocks: the present blocks of ``pci`` by device.
            loaded: addresses of the GPUs under load.
        """
        layouts = [block.layout for block in blocks.values()]
        if layouts != self._layouts:
            self._layouts = layouts
            with node_at(Snapshot(blocks.values())) as node:
                devices = node.pcie_devices
                self.ports = {one.address: port.address for one in devices if (port := one.port) is not None}
                self._links = device_links(devices)
        shown: dict[Series, Value] = {}
        for link in self._links:
            is_judged = "nic" in link.below or not link.gpus.isdisjoint(loaded)
            width, width_max = _of_link(blocks, link, "width_lanes", "width_max_lanes")
            generation, generation_max = _of_link(blocks, link, "generation", "generation_max")
            verdicts = is_narrow(width, None, width_max), is_slow(generation, generation_max) if is_judged else None
            for aspect, verdict in zip(ASPECTS, verdicts, strict=True):
                shown[f"{_LINK}_degraded", (link.device, link.role, aspect)] = None if verdict is None else int(verdict)
        return shown


def _of_link(blocks: Mapping[str, Block], link: DeviceLink, now: str, most: str) -> tuple[Value, Value]:
    """A value of a link now, and the lesser maximum of both ends; None where one is not known."""
    lower, upper = blocks.get(link.device), blocks.get(link.port)
    if lower is None:
        return None, None
    maxima = (
        lower.get(f"{_LINK}_{most}", link.device),
        None if upper is None else upper.get(f"{_LINK}_{most}", link.port),
    )
    return lower.get(f"{_LINK}_{now}", link.device), None if None in maxima else of_both_ends(*maxima)

"""How data get from GPU to GPU and to the host on a simulated node: which way they take, and what it gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.hardware import Epoch
from commwatch_rehearsal.simulation.pace import lot
from commwatch_rehearsal.simulation.presets.parts import Preset

Medium: TypeAlias = Literal["nvlink", "switch", "host", "sockets"]
"""NVLinks; a PCIe switch; the memory of the host, by one processor or from one to the other."""

_NVLINK_BYTES_PER_SECOND = {4: 20.0e9, 5: 12.0e9, 6: 20.6e9, 7: 40.1e9}
"""Usable rate of one NVLink, one direction, by NVML's code of its version; NCCL plans with these."""
_PCIE_LANE_BYTES_PER_SECOND = {1: 0.1875e9, 2: 0.375e9, 3: 0.75e9, 4: 1.5e9, 5: 3.0e9, 6: 6.0e9}
"""Usable rate of one lane, one direction, by generation; NCCL plans with these."""
_PCIE_SHARE: dict[Medium, float] = {"nvlink": 1.0, "switch": 1.0, "host": 0.54, "sockets": 0.5}
"""Assumed. By the host data are written to its memory and read from there, which a GPU does more slowly than copies."""
_BOTH_WAYS_SHARE: dict[Medium, float] = {"nvlink": 1.0, "switch": 0.92, "host": 0.92, "sockets": 0.92}
"""Assumed. Share of a direction's rate while as much flows back: acknowledgements cost PCIe a little."""
_UNEVENNESS = 0.015
"""Largest permanent difference between one path and another of its kind."""

_LEAST_LINK_SHARE = 0.001
"""Of a link that is up and carries nothing: what waits for it comes to an end, late."""


@dataclass(frozen=True, slots=True)
class Way:
    """How data get from one end to another, in one direction."""

    medium: Medium
    bytes_per_second: float
    """While nothing flows back. NCCL knows of what is narrowed or down, and plans with it."""
    both_ways_share: float = 1.0
    """Share of the bandwidth while as much flows back."""
    bandwidth_factor: float = 1.0
    """Share of the bandwidth that slow parts leave; unknown until it is measured."""
    latency_factor: float = 1.0
    shared: tuple[tuple[str, float], ...] = ()
    """The parts that other ways of the same call may cross too, and the bytes per second of each."""


class Ways:
    """The ways of a node in one epoch. GPUs are named by their places in the preset."""

    def __init__(
        self,
        preset: Preset,
        epoch: Epoch,
        faults: Sequence[Fault],
        nccl_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.epoch = epoch
        self._peers = nccl_settings.get("NCCL_P2P_DISABLE") != "1"
        """Whether a GPU may reach the memory of another, over NVLink or PCIe."""
        self._sums = self._peers and not {("NCCL_NVLS_ENABLE", "0"), ("NCCL_CUMEM_ENABLE", "0")} & nccl_settings.items()
        self._sums &= "NVLS" in nccl_settings.get("NCCL_ALGO", "NVLS").upper()
        self._preset = preset
        self._faults = [fault for fault in faults if fault.active(epoch.start)]
        self._devices = {device.address: device for device in preset.devices}
        self._between: dict[tuple[int, int], Way] = {}

    def between(self, source: int, destination: int) -> Way:
        """From one GPU to another: over NVLink where active links join them, else over PCIe."""
        way = self._between.get((source, destination))
        if way is None:
            way = self._over_nvlink(source, destination) or self._over_pcie(source, destination)
            self._between[source, destination] = way
        return way

    def host(self, gpu: int) -> Way:
        """Between a GPU and the memory of its host, in either direction."""
        address = self._preset.gpus[gpu].pci_address
        above = self._preset.ancestors(address)
        rate = min(self._link_rate(one) for one in (address, *above[:-1]))
        return self._with_faults(Way("host", rate), (gpu,), {one for one in above if self._is_switch(one)})

    def joined(self, gpus: Sequence[int]) -> float | None:
        """The rate from one GPU to all others of a group together, bytes per second; the least over the group.

        None unless all pairs of them are connected by NVLinks without a switch.
        """
        pairs = [(one, other) for one in gpus for other in gpus if one != other]
        if self._switched or not pairs or any(self.between(*pair).medium != "nvlink" for pair in pairs):
            return None
        return self._nvlink_rate * min(sum(len(self._links(one, other)) for other in gpus) for one in gpus)

    def summing_links(self, gpus: Sequence[int]) -> tuple[int, int]:
        """Version of NVLink and the fewest links of a GPU where the switches sum for these GPUs (NVLink SHARP), else 0.

        NCCL lets them where many GPUs take part; here where all of the node do.
        """
        if not self._sums or not self._switched or len(gpus) < max(len(self._preset.gpus), 8):
            return 0, 0
        lost = any(fault.kind == "nvls_lost" for fault in self._faults)
        if lost or any(self.between(one, other).medium != "nvlink" for one in gpus for other in gpus if one != other):
            return 0, 0
        nvlink = self._preset.model.nvlink
        return (nvlink.version if nvlink is not None else 0), min(
            sum(self.epoch.gpus[gpu].links_active) for gpu in gpus
        )

    @property
    def _nvlink_rate(self) -> float:
        """Of one NVLink, one direction, bytes per second; 0 without any."""
        nvlink = self._preset.model.nvlink
        return _NVLINK_BYTES_PER_SECOND[nvlink.version] if nvlink is not None else 0.0

    @property
    def _switched(self) -> bool:
        """Whether the NVLinks lead to switches."""
        return self._preset.model.nvlink is not None and self._preset.model.nvlink.remote == "switch"

    def _links(self, source: int, destination: int) -> list[int]:
        """The active links of a GPU that lead to another one, directly or by switches."""
        ends = self.epoch.gpus[source], self.epoch.gpus[destination]
        if not self._peers or any(end.p2p_broken or "registration" in end.fabric_checks for end in ends):
            return []
        active = [link for link, up in enumerate(ends[0].links_active) if up]
        if self._switched:
            return active if any(ends[1].links_active) else []
        peers = {link: self._preset.peer(source, link) for link in active}
        return [link for link, peer in peers.items() if peer is not None and peer[0] == destination]

    def _over_nvlink(self, source: int, destination: int) -> Way | None:
        there, back = self._links(source, destination), self._links(destination, source)
        count = min(len(there), len(back))
        if count == 0:
            return None
        ends = [(source, link) for link in there] + [(destination, link) for link in back]
        one, switches = self._nvlink_rate, self._preset.nvswitches
        shared = ((f"{source} out", len(there) * one), (f"{destination} in", len(back) * one)) if self._switched else ()
        rate = count * one * _evenness(source, destination)
        # Data are spread over the links evenly, so that all wait for the slowest.
        share = min(self._link_share(*end) for end in ends)
        way = Way("nvlink", rate, _BOTH_WAYS_SHARE["nvlink"], share, shared=shared)
        crossed = {switches[link % len(switches)] for _, link in ends} if self._switched and switches else set()
        return self._with_faults(way, (source, destination), crossed, turns_in=crossed)

    def _over_pcie(self, source: int, destination: int) -> Way:
        here, there = (self._preset.gpus[gpu].pci_address for gpu in (source, destination))
        above, above_there = (self._preset.ancestors(address) for address in (here, there))
        common = next((bridge for bridge in above if bridge in above_there), "")
        turns_in = {common} if self._is_switch(common) else set()
        if turns_in and self._peers and self._preset.model.pcie_peer_access:
            medium: Medium = "switch"
            up, down = above[: above.index(common)], above_there[: above_there.index(common)]
        else:
            same_node = self._devices[here].numa_node == self._devices[there].numa_node
            medium = "host" if same_node else "sockets"
            up, down = above[:-1], above_there[:-1]
        rate = min(self._link_rate(one) for one in (here, *up, there, *down))
        # A port and what is plugged into it are the two ends of one link.
        # The GPUs' own links are what the memory of the host slows down; what lies above carries several of them.
        ends = [
            (f"{end} {way}", self._link_rate(end) * _PCIE_SHARE[medium]) for end, way in ((here, "up"), (there, "down"))
        ]
        shared = [(f"{one} up", self._link_rate(one)) for one in up if not self._is_port(one)]
        shared += [(f"{one} down", self._link_rate(one)) for one in down if not self._is_port(one)]
        way = Way(
            medium,
            rate * _PCIE_SHARE[medium] * _evenness(source, destination),
            _BOTH_WAYS_SHARE[medium],
            shared=(*ends, *shared),
        )
        crossed = turns_in | {one for one in (*up, *down) if self._is_switch(one)}
        return self._with_faults(way, (source, destination), crossed, turns_in)

    def _with_faults(
        self, way: Way, gpus: tuple[int, ...], crossed: Collection[str], turns_in: Collection[str] = ()
    ) -> Way:
        bandwidth, latency = way.bandwidth_factor, way.latency_factor
        for fault in self._faults:
            if _slows(fault, gpus, crossed, turns_in):
                bandwidth *= fault.settings["bandwidth"]
                latency *= fault.settings["latency"]
        return Way(way.medium, way.bytes_per_second, way.both_ways_share, bandwidth, latency, way.shared)

    def _link_share(self, gpu: int, link: int) -> float:
        factors = [
            fault.settings["factor"]
            for fault in self._faults
            if fault.kind == "nvlink_slow" and fault.strikes(gpu, link)
        ]
        return max(min(factors, default=1.0), _LEAST_LINK_SHARE)

    def _link_rate(self, address: str) -> float:
        """Of the PCIe link above a device, or below a port, one direction, bytes per second."""
        device = self._devices[address]
        generation, width = device.generation, device.width
        if device.role == "gpu":
            place = next(place for place, gpu in enumerate(self._preset.gpus) if gpu.pci_address == address)
            # A probe is work: the link leaves the generation of idle GPUs.
            generation = self.epoch.gpus[place].pcie_generation_under_load
            width = self.epoch.gpus[place].pcie_width
        return width * _PCIE_LANE_BYTES_PER_SECOND[generation]

    def _is_switch(self, address: str) -> bool:
        return address in self._devices and self._devices[address].role == "switch_upstream"

    def _is_port(self, address: str) -> bool:
        return self._devices[address].role in {"root_port", "switch_downstream"}


def _evenness(source: int, destination: int) -> float:
    return 1 - _UNEVENNESS * lot(source, destination)


def _slows(fault: Fault, gpus: tuple[int, ...], crossed: Collection[str], turns_in: Collection[str]) -> bool:
    """Whether a fault makes a way slow.

    Args:
        gpus: the ends of the way, the source first; one of a way to the host.
        crossed: switches on it.
        turns_in: those of them that have both ends below them.
    """
    if fault.kind == "slow_gpu":
        return fault.gpu in gpus and (len(gpus) > 1 or fault.words["traffic"] == "all")
    if fault.kind == "slow_switch":
        return fault.device in (turns_in if fault.words["traffic"] == "peer" else crossed)
    if fault.kind == "slow_pair":
        forth, back = (fault.gpu, fault.peer), (fault.peer, fault.gpu)
        return gpus in {"both": (forth, back), "to_peer": (forth,), "from_peer": (back,)}[fault.words["direction"]]
    return False

"""What a collective takes on a simulated node: latency plus size over bandwidth of the slowest hop of a ring."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from commwatch.simulation.faults.model import SimulatedProbeFailure
from commwatch.simulation.hardware import Epoch, Hardware
from commwatch.simulation.presets import Preset

_NVLINK_BYTES_PER_SECOND = {4: 20.0e9, 5: 12.0e9, 6: 20.6e9, 7: 40.1e9}
"""Usable rate of one NVLink, one direction, by NVML's code of its version; NCCL plans with these."""
_PCIE_LANE_BYTES_PER_SECOND = {1: 0.1875e9, 2: 0.375e9, 3: 0.75e9, 4: 1.5e9, 5: 3.0e9, 6: 6.0e9}
"""Usable rate of one lane, one direction, by generation; NCCL plans with these."""
_HOST_BRIDGE_SHARE = 0.55
"""Through the processor data go by host memory: written once, read once."""
_NUMA_SHARE = 0.5
_BASE_SECONDS = 6.6e-6
_NVLINK_STEP_SECONDS = 0.6e-6
_SWITCH_STEP_SECONDS = 1.0e-6
_HOST_STEP_SECONDS = 1.9e-6
"""Start of a collective and one step of its ring for a small message; NCCL plans with such times."""
_NOISE_SHARE = 0.03


@dataclass(frozen=True, slots=True)
class _Path:
    """How two neighbours of the ring reach each other."""

    bytes_per_second: float
    step_seconds: float
    """Time of one step of a ring for a small message."""


def collective_seconds(
    hardware: Hardware, time: float, collective: str, size_bytes: int, ranks: int, rank: int, call: int
) -> float:
    """Seconds of one call on one rank.

    Rank *r* is on the GPU of NVML index *r*. An all_reduce over *n* ranks takes
    ``base + 2(n - 1) × step + 2(n - 1)/n × size / bandwidth``, within a few percent.

    Args:
        hardware: the node's parts.
        time: when the call begins, seconds since the node started.
        collective: ``all_reduce``.
        size_bytes: size of the buffer of one rank.
        ranks: how many take part.
        rank: the one that asks.
        call: number of the call in its series; each has its own noise.

    Raises:
        SimulatedProbeFailure: a fault makes it fail, or a GPU that it needs does not answer.
        ValueError: this collective is not simulated, or there are too few ranks.
    """
    if collective != "all_reduce" or ranks < 1 or not 0 <= rank < ranks:
        raise ValueError(f"no simulated {collective} for rank {rank} of {ranks}")
    epoch = hardware.epoch(time)
    places = epoch.enumerated[:ranks]
    _check(hardware, epoch, places, ranks, time)
    hops = [_path(hardware.preset, epoch, here, there, places) for here, there in _ring(places)]
    latency_factor, bandwidth_factor = 1.0, 1.0
    for fault in hardware.faults:
        if fault.kind == "slow_probe" and fault.active(time) and any(fault.strikes(place) for place in places):
            latency_factor *= fault.settings["latency"]
            bandwidth_factor *= fault.settings["bandwidth"]
    steps = 2 * (ranks - 1)
    latency = _BASE_SECONDS + steps * max([hop.step_seconds for hop in hops], default=0.0)
    slowest = min([hop.bytes_per_second for hop in hops], default=float("inf"))
    seconds = latency * latency_factor + steps / ranks * size_bytes / (slowest * bandwidth_factor)
    return seconds * (1 + _NOISE_SHARE * _unrest(int(time), call, size_bytes) + _NOISE_SHARE / 10 * _unrest(rank, call))


def _check(hardware: Hardware, epoch: Epoch, places: Sequence[int], ranks: int, time: float) -> None:
    if len(places) < ranks:
        raise SimulatedProbeFailure(f"{ranks} ranks on {len(places)} GPUs")
    for place in places:
        answer = epoch.gpus[place].answer
        if answer != "ok":
            raise SimulatedProbeFailure(f"GPU {hardware.preset.gpus[place].pci_address}: {answer.replace('_', ' ')}")
    for fault in hardware.faults:
        if fault.kind == "failing_probe" and fault.active(time) and any(fault.strikes(place) for place in places):
            raise SimulatedProbeFailure(fault.reason)


def _ring(places: Sequence[int]) -> list[tuple[int, int]]:
    return [(here, places[(position + 1) % len(places)]) for position, here in enumerate(places) if len(places) > 1]


def _path(preset: Preset, epoch: Epoch, here: int, there: int, places: Sequence[int]) -> _Path:
    links = min(_links_within(preset, epoch, end, places) for end in (here, there))
    nvlink = preset.model.nvlink
    if nvlink is None or links == 0:
        return _pcie_path(preset, epoch, here, there)
    share = min(epoch.gpus[end].slowest_link_share for end in (here, there))
    return _Path(links * share * _NVLINK_BYTES_PER_SECOND[nvlink.version], _NVLINK_STEP_SECONDS)


def _links_within(preset: Preset, epoch: Epoch, gpu: int, places: Sequence[int]) -> int:
    """Active links of a GPU that serve a group: to a switch, or to its members; rings use all of them at once."""
    peers = [preset.peer(gpu, link) for link, active in enumerate(epoch.gpus[gpu].links_active) if active]
    return sum(peer is None or peer[0] in places for peer in peers)


def _pcie_path(preset: Preset, epoch: Epoch, here: int, there: int) -> _Path:
    # A probe is work: the links leave the generation of idle GPUs.
    generation = min(epoch.gpus[place].pcie_generation_under_load for place in (here, there))
    width = min(epoch.gpus[place].pcie_width for place in (here, there))
    rate = width * _PCIE_LANE_BYTES_PER_SECOND[generation]
    above, above_there = (preset.ancestors(preset.gpus[place].pci_address) for place in (here, there))
    shared = next((bridge for bridge in above if bridge in above_there), None)
    if shared is not None and not shared.startswith("pci"):
        return _Path(rate, _SWITCH_STEP_SECONDS)
    numa = {device.address: device.numa_node for device in preset.devices}
    same_node = numa[preset.gpus[here].pci_address] == numa[preset.gpus[there].pci_address]
    return _Path(rate * (_HOST_BRIDGE_SHARE if same_node else _NUMA_SHARE), _HOST_STEP_SECONDS)


def _unrest(*seed: int) -> float:
    """A number from -1 to 1, the same for the same seed in every process."""
    digest = hashlib.blake2b(repr(seed).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / (2**31 - 0.5) - 1

"""Behaviour of a simulated node under a probe: the times of calls, and the ranks that fail, hang or crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from commwatch_rehearsal.simulation.collective import (
    COLLECTIVES,
    COPIES,
    PRODUCTS,
    Cost,
    collective_cost,
    copy_cost,
    product_cost,
    send_recv_cost,
)
from commwatch_rehearsal.simulation.faults.fault import Fault, SimulatedProbeFailure
from commwatch_rehearsal.simulation.hardware import Epoch, Hardware
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.pace import happened, lot, unrest
from commwatch_rehearsal.simulation.transfer import Ways

RankAct: TypeAlias = Literal["", "hang", "block", "crash"]
"""The behaviour of a rank in a phase: goes on; waits and hears its parent; blocks in a foreign call; ends by a
signal."""

_OPERATIONS = (*COLLECTIVES, "send_recv", *COPIES, *PRODUCTS)
_LATE_SHARE = 0.01
"""Delay of the ranks at a slow path behind the others, as a share."""


class SimulatedProbes:
    """The probes on a simulated node, under its faults of now."""

    def __init__(self, node: SimulatedNode, nccl_settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._node = node
        self._settings = nccl_settings
        self._places = {gpu.uuid: place for place, gpu in enumerate(node.preset.gpus)}
        self._ways: Ways | None = None
        self._costs: dict[tuple[object, ...], Cost] = {}

    def operation_seconds(
        self,
        operation: str,
        size_bytes: int,
        members: Sequence[int],
        rank: int,
        call: int,
        *,
        both_ways: bool = False,
        devices: Sequence[str] = (),
    ) -> float:
        """Seconds of one call on one rank.

        A rank on a GPU whose driver hangs does not return before the fault ends.

        Args:
            operation: a collective, ``send_recv``, ``host_to_device`` or ``device_to_host``.
            size_bytes: as nccl-tests counts it: all_gather, reduce_scatter and all_to_all the bytes of all ranks.
            members: ranks that take part; of send_recv the source and the destination, of copies it does not matter.
            rank: the one that asks.
            call: its number since the ranks began to work; the clocks of the GPUs rise in the first ones.
            both_ways: of send_recv: as much goes the other way at the same time.
            devices: UUID of each rank's GPU; empty: rank *r* is on the GPU of NVML index *r*.

        Raises:
            SimulatedProbeFailure: a fault makes it fail, or a GPU that it needs does not answer.
            ValueError: this operation is not simulated, or the rank is not among the members.
        """
        if operation not in _OPERATIONS:
            raise ValueError(f"no simulated {operation}")
        members = (rank,) if operation in COPIES else members
        if rank not in members:
            raise ValueError(f"rank {rank} is not in {tuple(members)}")
        hardware, time = self._node.now()
        (place,) = self._gpus_of(hardware, time, (rank,), devices)
        hardware, time = self._node.reach(place)
        gpus, epoch = self._gpus_of(hardware, time, members, devices), hardware.epoch(time)
        if self._ways is None or self._ways.epoch is not epoch:
            self._ways = Ways(hardware.preset, epoch, hardware.faults, self._settings)
            self._costs.clear()
        key = (operation, size_bytes, gpus, both_ways)
        cost = self._costs.get(key)
        if cost is None:
            _check(hardware, epoch, gpus)
            cost = self._costs[key] = _cost(hardware.faults, self._ways, operation, size_bytes, gpus, both_ways)
        kind = hash((_OPERATIONS.index(operation), size_bytes, gpus))
        seconds = cost.latency_seconds * _spike(hardware.faults, gpus, time) + cost.transfer_seconds
        position = members.index(rank)
        if gpus[position] in cost.late:
            seconds *= 1 + _LATE_SHARE
        return seconds * unrest(time, kind, call, position)

    def slowdown_under_load(self, ranks: Sequence[int], devices: Sequence[str], busy_seconds: float) -> float:
        """The factor by which a call takes longer once the ranks have worked for this many seconds; 1 without fault."""
        hardware, time = self._node.now()
        gpus = self._gpus_of(hardware, time, ranks, devices)
        factor = 1.0
        for fault in hardware.faults:
            holds = fault.kind == "sustained_slowdown" and fault.active(time) and _strikes(fault, gpus)
            if holds and busy_seconds >= fault.settings["after"]:
                factor /= fault.settings["bandwidth"]
        return factor

    def error_of_cycle(self, ranks: int, devices: Sequence[str] = ()) -> str:
        """Why a cycle over some ranks that is set up now fails; empty: it does not."""
        hardware, time = self._node.now()
        gpus = self._gpus_of(hardware, time, range(ranks), devices)
        # Counted among its own kind, so that a fault has the same lots whatever else strikes the node.
        failing = [fault for fault in hardware.faults if fault.kind == "probe_errors"]
        for position, fault in enumerate(failing):
            strikes = fault.active(time) and _strikes(fault, gpus)
            if strikes and lot(int(time), position) < fault.settings["share"]:
                return fault.reason
        return ""

    def rank_act(self, phase: str, rank: int) -> RankAct:
        """The effect of a fault on a rank in a phase: ``start``, ``rendezvous``, ``setup`` or ``measure``."""
        hardware, time = self._node.now()
        for fault in hardware.faults:
            if fault.kind not in {"probe_hang", "rank_crash"} or not fault.active(time):
                continue
            if fault.words["phase"] == phase and int(fault.settings["rank"]) == rank:
                if fault.kind == "rank_crash":
                    return "crash"
                return "block" if fault.words["how"] == "blocked" else "hang"
        return ""

    def _gpus_of(
        self, hardware: Hardware, time: float, ranks: Sequence[int], devices: Sequence[str]
    ) -> tuple[int, ...]:
        """The GPU of each rank, as its place in the preset.

        Raises:
            SimulatedProbeFailure: there is no such GPU, or none for a rank.
        """
        present = hardware.epoch(time).enumerated
        places = [self._places.get(device) for device in devices] if devices else [*present]
        if max(ranks) >= len(places):
            raise SimulatedProbeFailure(f"{max(ranks) + 1} ranks on {len(places)} GPUs")
        chosen = []
        for rank in ranks:
            place = places[rank]
            if place is None or place not in present:
                raise SimulatedProbeFailure(f"there is no GPU {devices[rank]}")
            chosen.append(place)
        return tuple(chosen)


def _cost(
    faults: Sequence[Fault], ways: Ways, operation: str, size_bytes: int, gpus: tuple[int, ...], both_ways: bool
) -> Cost:
    if operation == "send_recv":
        source, destination = gpus
        cost = send_recv_cost(ways, size_bytes, source, destination, both_ways)
    elif operation in PRODUCTS:
        cost = product_cost(ways, operation, size_bytes, gpus)
    elif operation in COPIES:
        cost = copy_cost(ways, size_bytes, *gpus)
    else:
        cost = collective_cost(ways, operation, size_bytes, gpus)
    latency, bandwidth = 1.0, 1.0
    for fault in faults:
        if fault.kind == "slow_probe" and fault.active(ways.epoch.start) and _strikes(fault, gpus):
            latency *= fault.settings["latency"]
            bandwidth *= fault.settings["bandwidth"]
    return Cost(cost.latency_seconds * latency, cost.transfer_seconds / bandwidth, cost.late)


def _check(hardware: Hardware, epoch: Epoch, gpus: Sequence[int]) -> None:
    for place in gpus:
        answer = epoch.gpus[place].answer
        if answer != "ok":
            address = hardware.preset.gpus[place].pci_address
            raise SimulatedProbeFailure(f"GPU {address}: {answer.replace('_', ' ')}")
    for fault in hardware.faults:
        if fault.kind == "failing_probe" and fault.active(epoch.start) and _strikes(fault, gpus):
            raise SimulatedProbeFailure(fault.reason)


def _spike(faults: Sequence[Fault], gpus: Sequence[int], time: float) -> float:
    factor = 1.0
    for fault in faults:
        if fault.kind == "latency_spikes" and fault.active(time) and _strikes(fault, gpus):
            rate, last = fault.settings["rate"], fault.settings["last"]
            if rate == 0 or happened(fault, max(0.0, time - last), time) > 0:
                factor *= fault.settings["latency"]
    return factor


def _strikes(fault: Fault, gpus: Sequence[int]) -> bool:
    return any(fault.strikes(place) for place in gpus)

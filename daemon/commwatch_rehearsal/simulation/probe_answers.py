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
from commwatch_rehearsal.simulation.pace import happened, lot, unrest
from commwatch_rehearsal.simulation.transfer import Ways

RankAct: TypeAlias = Literal["", "hang", "block", "crash"]
"""The behaviour of a rank in a phase: goes on; waits and hears its parent; blocks in a foreign call; ends by a
signal."""

_OPERATIONS = (*COLLECTIVES, "send_recv", *COPIES, *PRODUCTS)
_LATE_SHARE = 0.01
"""Delay of the ranks at a slow path behind the others, as a share."""


class ProbeAnswers:
    """The probes of one node under a fixed set of faults. All times are seconds since the node started."""

    def __init__(self, hardware: Hardware, nccl_settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self.hardware = hardware
        self._settings = nccl_settings
        self._places = {gpu.uuid: place for place, gpu in enumerate(hardware.preset.gpus)}
        self._ways: Ways | None = None
        self._costs: dict[tuple[object, ...], Cost] = {}
        self._spikes = [fault for fault in hardware.faults if fault.kind == "latency_spikes"]

    def gpus_of(self, ranks: Sequence[int], devices: Sequence[str], time: float) -> tuple[int, ...]:
        """The GPU of each rank, as its place in the preset.

        Args:
            ranks: numbers of ranks.
            devices: UUID of each rank's GPU; empty: rank *r* is on the GPU of NVML index *r*.

        Raises:
            SimulatedProbeFailure: there is no such GPU, or none for a rank.
        """
        present = self.hardware.epoch(time).enumerated
        known = {place: index for index, place in enumerate(present)}
        places = [self._places.get(device) for device in devices] if devices else [*present]
        if max(ranks) >= len(places):
            raise SimulatedProbeFailure(f"{max(ranks) + 1} ranks on {len(places)} GPUs")
        chosen = [places[rank] for rank in ranks]
        for rank, place in zip(ranks, chosen, strict=True):
            if place is None or place not in known:
                raise SimulatedProbeFailure(f"there is no GPU {devices[rank]}")
        return tuple(place for place in chosen if place is not None)

    def seconds(
        self,
        time: float,
        operation: str,
        size_bytes: int,
        gpus: tuple[int, ...],
        call: int,
        *,
        rank: int,
        both_ways: bool,
    ) -> float:
        """Seconds of one call on one rank.

        Args:
            operation: a collective, ``send_recv``, ``host_to_device`` or ``device_to_host``.
            size_bytes: of the call, as nccl-tests counts.
            gpus: who takes part, by places in the preset; of send_recv the source and the destination.
            call: its number since the ranks began to work.
            rank: position among the GPUs of the one that asks.
            both_ways: of send_recv: as much comes back at the same time.

        Raises:
            SimulatedProbeFailure: a fault makes it fail, or a GPU that it needs does not answer.
            ValueError: there is no such operation.
        """
        if operation not in _OPERATIONS:
            raise ValueError(f"no simulated {operation}")
        epoch = self.hardware.epoch(time)
        if self._ways is None or self._ways.epoch is not epoch:
            self._ways = Ways(self.hardware.preset, epoch, self.hardware.faults, self._settings)
            self._costs.clear()
        key = (operation, size_bytes, gpus, both_ways)
        cost = self._costs.get(key)
        if cost is None:
            self._check(epoch, gpus)
            cost = self._costs[key] = self._cost(self._ways, operation, size_bytes, gpus, both_ways)
        kind = hash((_OPERATIONS.index(operation), size_bytes, gpus))
        seconds = cost.latency_seconds * self._spike(gpus, time) + cost.transfer_seconds
        if gpus[rank] in cost.late:
            seconds *= 1 + _LATE_SHARE
        return seconds * unrest(time, kind, call, rank)

    def slowdown_under_load(self, gpus: Sequence[int], time: float, busy_seconds: float) -> float:
        """The factor by which a call over these GPUs takes longer after ``seconds`` of work without a pause."""
        factor = 1.0
        for fault in self.hardware.faults:
            holds = fault.kind == "sustained_slowdown" and fault.active(time) and _strikes(fault, gpus)
            if holds and busy_seconds >= fault.settings["after"]:
                factor /= fault.settings["bandwidth"]
        return factor

    def error_of_cycle(self, gpus: Sequence[int], time: float) -> str:
        """Why a cycle that is set up at a time fails; empty: it does not."""
        # Counted among its own kind, so that a fault has the same lots whatever else strikes the node.
        failing = [fault for fault in self.hardware.faults if fault.kind == "probe_errors"]
        for position, fault in enumerate(failing):
            strikes = fault.active(time) and _strikes(fault, gpus)
            if strikes and lot(int(time), position) < fault.settings["share"]:
                return fault.reason
        return ""

    def rank_act(self, phase: str, rank: int, time: float) -> RankAct:
        """The effect of a fault on a rank in a phase."""
        for fault in self.hardware.faults:
            if fault.kind not in {"probe_hang", "rank_crash"} or not fault.active(time):
                continue
            if fault.words["phase"] == phase and int(fault.settings["rank"]) == rank:
                if fault.kind == "rank_crash":
                    return "crash"
                return "block" if fault.words["how"] == "blocked" else "hang"
        return ""

    def _cost(self, ways: Ways, operation: str, size_bytes: int, gpus: tuple[int, ...], both_ways: bool) -> Cost:
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
        for fault in self.hardware.faults:
            if fault.kind == "slow_probe" and fault.active(ways.epoch.start) and _strikes(fault, gpus):
                latency *= fault.settings["latency"]
                bandwidth *= fault.settings["bandwidth"]
        return Cost(cost.latency_seconds * latency, cost.transfer_seconds / bandwidth, cost.late)

    def _check(self, epoch: Epoch, gpus: Sequence[int]) -> None:
        for place in gpus:
            answer = epoch.gpus[place].answer
            if answer != "ok":
                address = self.hardware.preset.gpus[place].pci_address
                raise SimulatedProbeFailure(f"GPU {address}: {answer.replace('_', ' ')}")
        for fault in self.hardware.faults:
            if fault.kind == "failing_probe" and fault.active(epoch.start) and _strikes(fault, gpus):
                raise SimulatedProbeFailure(fault.reason)

    def _spike(self, gpus: Sequence[int], time: float) -> float:
        factor = 1.0
        for fault in self._spikes:
            if fault.active(time) and _strikes(fault, gpus):
                rate, last = fault.settings["rate"], fault.settings["last"]
                if rate == 0 or happened(fault, max(0.0, time - last), time) > 0:
                    factor *= fault.settings["latency"]
        return factor


def _strikes(fault: Fault, gpus: Sequence[int]) -> bool:
    return any(fault.strikes(place) for place in gpus)

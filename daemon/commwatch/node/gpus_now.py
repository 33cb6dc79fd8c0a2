"""The store's facts about the GPUs that a probe would use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from operator import attrgetter

from commwatch.node.gpu_state import GROUP as STATES
from commwatch.node.inventory import IDENTITY
from commwatch.node.store import Store
from commwatch_exporters.node.model import Gpu, Source, node_at
from commwatch_exporters.snapshot import Snapshot

_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
"""NVML's nvmlComputeMode_t."""

PROCESS_COLLECTOR = "nvml_processes"
"""The collector of the processes on the GPUs, which is read during a cycle."""
GPU_COLLECTORS = ("nvml_gpu", PROCESS_COLLECTOR)
"""The collectors of the GPU facts for a probe's gate, which are read just before its decision."""
BUSY_SAMPLES_APART_SECONDS = 1.0
"""Utilisation is a sample of the past: two of them must be zero."""


@dataclass(frozen=True, slots=True)
class ProbeGpu:
    """One GPU that a probe may use."""

    index: int
    """NVML's."""
    uuid: str
    pci_bus_id: str
    name: str
    """Its model."""


class GpusNow:
    """Identities and current use of the GPUs, as the collectors read them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def gpus(self) -> list[ProbeGpu]:
        """Those that answer, and those whose identity is known though they do not, by index."""
        gpus = [
            ProbeGpu(int(index), uuid, pci_bus_id, name)
            for group in (IDENTITY, STATES)
            for block in self._store.group(group).values()
            for index, pci_bus_id, uuid, _, name, _ in block.labels("commwatch_gpu_info")
        ]
        return sorted(gpus, key=attrgetter("index"))

    def facts(self, fresh_from: float) -> tuple[GpuFacts, ...]:
        """The readings of each GPU since a monotonic time; older ones do not show that it is free now."""
        with node_at(self._store.snapshot()) as node:
            can_split = node.part(Source, "nvml").counter_states.get("mig_mode") != 1
        occupants = self.occupants(fresh_from)
        blocks = [self._store.get(collector, device) for device in occupants for collector in GPU_COLLECTORS]
        fresh = Snapshot(block for block in blocks if block is not None and block.time >= fresh_from)
        with node_at(fresh) as node:
            return tuple(
                replace(_facts_of(node.part(Gpu, device), can_split=can_split), processes=processes)
                for device, processes in occupants.items()
            )

    def occupants(self, fresh_from: float) -> dict[str, tuple[int, ...] | None]:
        """Ids of the compute processes on each GPU, by PCI address; None where not read since a monotonic time."""
        found: dict[str, tuple[int, ...] | None] = {}
        for gpu in self.gpus():
            block = self._store.get(PROCESS_COLLECTOR, gpu.pci_bus_id)
            fresh = block is not None and block.time >= fresh_from
            found[gpu.pci_bus_id] = self._store.occupants.get(gpu.pci_bus_id) if fresh else None
        return found

    async def look_twice(
        self,
        read: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> tuple[GpuFacts, ...]:
        """The busy test: each GPU is read twice, a second apart; a GPU that was busy in either reading is busy.

        A GPU that could not be read in either is unknown.

        Args:
            read: reads ``GPU_COLLECTORS`` into the store now.
            monotonic: the clock of the blocks.
        """
        started = monotonic()
        await read()
        first = {facts.device: facts for facts in self.facts(started)}
        await sleep(BUSY_SAMPLES_APART_SECONDS)
        again = monotonic()
        await read()
        return tuple(replace(facts, busy=_either(facts, first.get(facts.device))) for facts in self.facts(again))


def _either(later: GpuFacts, earlier: GpuFacts | None) -> bool | None:
    """Whether a GPU was busy in one of two readings; None if one had no value and the other was "no"."""
    readings = (later.busy, earlier.busy if earlier is not None else None)
    return True if True in readings else None if None in readings else False


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The facts about one GPU; None for a value that was not read, which never counts as free."""

    device: str
    """PCI address, for the message."""
    busy: bool | None = None
    compute_processes: int | None = None
    memory_used_bytes: int | None = None
    """Without the driver's own reserve."""
    compute_mode: str | None = None
    """``default``, ``exclusive_process``, ``exclusive_thread`` or ``prohibited``."""
    mig: bool | None = None
    memory_size_bytes: int | None = None
    processes: tuple[int, ...] | None = None
    """Ids of the compute processes."""


def _facts_of(gpu: Gpu, *, can_split: bool) -> GpuFacts:
    busy, processes, used, size = gpu.busy, gpu.compute_processes, gpu.memory_used_bytes, gpu.memory_size_bytes
    mode, mig = gpu.compute_mode, gpu.mig_mode if can_split else 0
    return GpuFacts(
        device=gpu.address,
        busy=None if busy is None else bool(busy),
        compute_processes=None if processes is None else int(processes),
        memory_used_bytes=None if used is None else int(used),
        memory_size_bytes=None if size is None else int(size),
        compute_mode=None if mode is None else _COMPUTE_MODES.get(int(mode), "unknown"),
        mig=None if mig is None else bool(mig),
    )

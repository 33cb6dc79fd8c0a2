"""What the store knows of the GPUs that a probe would use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block
from commwatch_exporters.state_words import NVLINK_UP

_COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
"""NVML's nvmlComputeMode_t."""

PROCESS_COLLECTOR = "nvml_processes"
"""What says which processes are on the GPUs, and so what is read while a cycle is under way."""
GPU_COLLECTORS = ("nvml_gpu", PROCESS_COLLECTOR)
"""What a probe's gate wants to know of the GPUs, and so what is read just before it is asked."""
BUSY_SAMPLES_APART_SECONDS = 1.0
"""Utilisation is a sample of the past: two of them must be zero (nccl.md 2.3)."""

_METRICS = tuple(
    f"commwatch_gpu_{name}"
    for name in ("busy", "compute_processes", "memory_used_bytes", "memory_size_bytes", "compute_mode", "mig_mode")
)


class GpusNow:
    """Identities, links and current use of the GPUs, as the collectors read them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def identities(self) -> list[dict[str, str]]:
        """Labels of ``commwatch_gpu_info`` of each GPU, by index."""
        found = [labels for labels, _ in self._store.snapshot().samples("commwatch_gpu_info")]
        return sorted(found, key=lambda labels: int(labels["gpu"]))

    def common_name(self) -> str | None:
        """The model of the GPUs; None where they differ or there are none."""
        names = {labels["name"] for labels in self.identities()}
        return names.pop() if len(names) == 1 else None

    def nvlinks_per_gpu(self) -> int | None:
        """NVLinks that each GPU should have; None where the GPUs differ or nothing is known."""
        counts: dict[str, int] = {}
        snapshot = self._store.snapshot()
        for labels, _ in snapshot.samples("commwatch_nvlink_link_expected"):
            counts[labels["pci_bus_id"]] = counts.get(labels["pci_bus_id"], 0) + 1
        if not counts:
            for labels, state in snapshot.samples("commwatch_nvlink_link_state"):
                counts[labels["pci_bus_id"]] = counts.get(labels["pci_bus_id"], 0) + (state in NVLINK_UP)
        different = set(counts.values())
        return different.pop() if len(different) == 1 else None

    def facts(self, fresh_from: float) -> tuple[GpuFacts, ...]:
        """What was read of each GPU since a monotonic time; what is older does not say that it is free now."""
        facts = []
        occupants = self.occupants(fresh_from)
        for labels in self.identities():
            device = labels["pci_bus_id"]
            blocks = [self._store.get(collector, device) for collector in GPU_COLLECTORS]
            fresh = [block for block in blocks if block is not None and block.time >= fresh_from]
            found = self._facts_of(device, (labels["gpu"], device), fresh)
            facts.append(replace(found, processes=occupants[device]))
        return tuple(facts)

    def occupants(self, fresh_from: float) -> dict[str, tuple[int, ...] | None]:
        """Ids of the compute processes on each GPU, by PCI address; None where not read since a monotonic time."""
        found: dict[str, tuple[int, ...] | None] = {}
        for labels in self.identities():
            device = labels["pci_bus_id"]
            block = self._store.get(PROCESS_COLLECTOR, device)
            fresh = block is not None and block.time >= fresh_from
            found[device] = self._store.occupants.get(device) if fresh else None
        return found

    def _facts_of(self, device: str, key: tuple[str, str], blocks: list[Block]) -> GpuFacts:
        busy, processes, used, size, mode, mig = (
            next((found for block in blocks if (found := block.get(metric, *key)) is not None), None)
            for metric in _METRICS
        )
        driver = self._store.get("nvml_identity", "")
        if driver is not None and driver.get("commwatch_counter_state", "nvml", "mig_mode") == 1:
            mig = 0  # no GPU here can be split
        return GpuFacts(
            device=device,
            busy=None if busy is None else bool(busy),
            compute_processes=None if processes is None else int(processes),
            memory_used_bytes=None if used is None else int(used),
            memory_size_bytes=None if size is None else int(size),
            compute_mode=None if mode is None else _COMPUTE_MODES.get(int(mode), "unknown"),
            mig=None if mig is None else bool(mig),
        )

    async def look_twice(
        self,
        read: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> tuple[GpuFacts, ...]:
        """The busy test: what was read of each GPU, twice and a second apart; busy is what was so at either look.

        What could not be read at either look is not known.

        Args:
            read: reads ``GPU_COLLECTORS`` into the store now.
            monotonic: the clock of the blocks.
            sleep: waits.
        """
        started = monotonic()
        await read()
        first = {facts.device: facts for facts in self.facts(started)}
        await sleep(BUSY_SAMPLES_APART_SECONDS)
        again = monotonic()
        await read()
        return tuple(replace(facts, busy=_either(facts, first.get(facts.device))) for facts in self.facts(again))


def _either(later: GpuFacts, earlier: GpuFacts | None) -> bool | None:
    """Whether a GPU was busy at one of two looks; None where one of them said nothing and the other "no"."""
    looks = (later.busy, earlier.busy if earlier is not None else None)
    return True if True in looks else None if None in looks else False


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of one GPU; None for what was not read, which never counts as free."""

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

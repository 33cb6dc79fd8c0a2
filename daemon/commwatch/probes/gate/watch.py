"""The node while a cycle runs: strangers on the GPUs, jobs of Slurm, a hold; the cycle ends for whoever comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import structlog

from commwatch.node.gpus_now import GpusNow
from commwatch.probes.gate.hold import HoldFile
from commwatch.probes.gate.slurm import job_cgroups
from commwatch.probes.plan import YieldReason

log = structlog.get_logger("commwatch.probes.watch")

CHECK_INTERVAL_SECONDS = 0.3
"""From the start of one check to the start of the next: we yield to a new process within one second."""
CHECK_REUSE_SECONDS = 0.2
"""Before a gate, a check that began no longer ago than this is not repeated."""
CHECK_DEADLINE_SECONDS = 1.0
"""Ranks that wait at a gate wait no longer than this for a check."""
_SHORTEST_PAUSE_SECONDS = 0.05
"""Between two checks, however long the first one took."""


class Halt(NamedTuple):
    """The reason why a cycle must yield."""

    reason: YieldReason
    detail: str


Watch: TypeAlias = Callable[[frozenset[int]], Awaitable[Halt | None]]
"""Looks at the node, given the process ids of the ranks, which are allowed there; None: the cycle may go on."""


class NodeChecks:
    """Checks the node through a ``Watch``, one check at a time."""

    def __init__(self, watch: Watch, pids: Callable[[], frozenset[int]]) -> None:
        self._watch = watch
        self._pids = pids
        self._one_at_a_time = asyncio.Lock()
        self._began = float("-inf")
        self._halt: Halt | None = None

    async def until_halt(self) -> Halt:
        """Check repeatedly; returns once the cycle must yield."""
        while self._halt is None:
            await asyncio.sleep(max(_SHORTEST_PAUSE_SECONDS, self._began + CHECK_INTERVAL_SECONDS - time.monotonic()))
            await self._check_unless_fresh()
        return self._halt

    async def before_gate(self) -> Halt | None:
        """The result of a check that began a moment ago at most; a check that takes too long counts as failed."""
        try:
            await asyncio.wait_for(self._check_unless_fresh(), CHECK_DEADLINE_SECONDS)
        except asyncio.TimeoutError:
            return Halt("gpu_unknown", f"the node could not be looked at within {CHECK_DEADLINE_SECONDS:g} s")
        return self._halt

    async def _check_unless_fresh(self) -> None:
        async with self._one_at_a_time:
            if self._halt is None and time.monotonic() - self._began > CHECK_REUSE_SECONDS:
                began = time.monotonic()
                halt = await self._check()
                # Only now: a check that was cancelled has no result.
                self._began, self._halt = began, halt

    async def _check(self) -> Halt | None:
        """The watch's result; a check that raises counts as one that could not read the node."""
        try:
            return await self._watch(self._pids())
        except Exception as error:
            log.error("the look at the node failed", error=repr(error), exc_info=error)
            return Halt("gpu_unknown", f"the node could not be looked at: {type(error).__name__}: {error}")


@dataclass(eq=False)
class NodeWatch:
    """Looks at the node for one cycle, as the launcher asks; implements ``Watch``.

    Every GPU of the node counts, also one that the cycle leaves out: a job on it shares links with the probe. The
    kubelet is not asked: its pods are seen by their processes.
    """

    hold: HoldFile
    """A request for a hold from now on makes the cycle yield."""
    gpus: GpusNow | None
    """The GPUs of the node; None for a cycle that touches none."""
    read_processes: Callable[[], Awaitable[None]]
    """Reads ``PROCESS_COLLECTOR`` into the store of that view now."""
    cgroups: Path | None
    """Where Slurm's jobs appear, usually ``/sys/fs/cgroup``; None if Slurm is not asked."""
    procfs: Path
    now: Callable[[], float]
    """Wall clock seconds since 1970."""
    monotonic: Callable[[], float]
    """The clock of the readings."""
    own_hold: float | None = None
    """Time of the request by the prolog of the job that the cycle is part of: it holds the node for the cycle."""

    def __post_init__(self) -> None:
        self._devices = () if self.gpus is None else tuple(gpu.pci_bus_id for gpu in self.gpus.gpus())
        self._ours: set[int] = set()
        """Every rank ever named: a process that has ended may stay on the driver's list for a moment."""
        known = self.hold.read()
        self._asked_before = known.since if known is not None else None

    async def __call__(self, ours: frozenset[int]) -> Halt | None:
        """Look once.

        Args:
            ours: ids of the rank processes of the cycle.
        """
        self._ours |= ours
        if halt := self._held():
            return halt
        if self.cgroups is not None and (jobs := await asyncio.to_thread(job_cgroups, self.cgroups)):
            return Halt("scheduler_busy", f"Slurm {min(jobs).replace('_', ' ')} came to this node")
        return None if self.gpus is None else await self._strangers(self.gpus)

    def _held(self) -> Halt | None:
        hold = self.hold.read()
        if hold is None or hold.since == self.own_hold:
            return None
        if hold.left(self.now()) > 0:
            return Halt("requested", f"the node is held for a job for another {hold.left(self.now()):.0f} s")
        if hold.since != self._asked_before:
            return Halt("requested", "commwatch yield asked for the GPUs")
        return None

    async def _strangers(self, gpus: GpusNow) -> Halt | None:
        started = self.monotonic()
        await self.read_processes()
        occupants = gpus.occupants(started)
        for device in self._devices:
            for pid in occupants.get(device) or ():
                if not self._is_ours(pid):
                    return Halt("process_appeared", f"process {pid} came to GPU {device}")
        unread = next((device for device in self._devices if occupants.get(device) is None), None)
        return Halt("gpu_unknown", f"the processes of GPU {unread} could not be read") if unread else None

    def _is_ours(self, pid: int) -> bool:
        if pid in self._ours:
            return True
        if session_of(self.procfs, pid) in self._ours:
            self._ours.add(pid)
            return True
        return False


def session_of(procfs: Path, pid: int) -> int | None:
    """The session of a process; None where there is no such process. Each rank leads a session of its own.

    Source: the sixth field of ``/proc/PID/stat``.
    """
    try:
        # The command name may hold spaces and parentheses: fields count from the last closing one.
        fields = (procfs / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[3])
    except (OSError, IndexError, ValueError):
        return None

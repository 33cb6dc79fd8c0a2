"""Probe cycles, one at a time: ranks are started, held to deadlines, let through gates and ended; stuck ones are
kept."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from commwatch.node.starvation import Sample, Starvation
from commwatch.probes.cycle.environment import given_nccl_settings, rank_command, rank_environment
from commwatch.probes.cycle.folder import PrivateFolder
from commwatch.probes.cycle.lock import ProbeLock
from commwatch.probes.cycle.outcome import (
    Problem,
    Timeout,
    device_of,
    failed,
    failure_of,
    measured,
    on_starved_node,
    stuck_problem,
)
from commwatch.probes.cycle.process import ASK_SECONDS, RankProcess
from commwatch.probes.gate.watch import Halt, NodeChecks, Watch
from commwatch.probes.plan import CyclePlan, CycleResult, NcclNotes, Skipped, Yielded, YieldReason
from commwatch.probes.rank_plan import PHASES, Phase

_GRACE_SECONDS = 0.3
"""Time that the other ranks have to report their own errors after the first one failed."""

_EXCUSES: tuple[YieldReason, ...] = ("process_appeared", "scheduler_busy")
"""Reasons that can explain a failure: a job has started. An unreadable GPU is not among them: it may be lost, which is
a failure."""

Progress: TypeAlias = Callable[[Phase, int, float], None]
"""Called with the phase that all ranks have reached, the step that begins (from 1; 0 before the first), and the seconds
since the start."""


class Cycle:
    """One cycle, from the start of its ranks to the end of the last one."""

    def __init__(self, plan: CyclePlan, watch: Watch, progress: Progress | None, launcher: Launcher) -> None:
        self.stuck: list[RankProcess] = []
        self.over = asyncio.Event()
        self._plan = plan
        self._progress = progress
        self._launcher = launcher
        self._starvation = launcher.starvation
        self._folder: PrivateFolder | None = None
        ranks = self._ranks = list[RankProcess]()
        # It knows the ranks, not the cycle, so that nothing of a cycle waits for the garbage collector.
        self._checks = NodeChecks(watch, lambda: frozenset(rank.pid for rank in ranks))
        self._tasks: list[asyncio.Task[None]] = []
        self._task_error: BaseException | None = None
        self._start_problem: Problem | None = None
        self._changed = asyncio.Event()
        self._halt: Halt | None = None
        self._failing = False
        self._settled = False
        self._gate = 0
        self._started = time.monotonic()
        self._phase_began = 0.0
        """By the clock of ``starvation``."""
        self._occupied_since: float | None = None
        self._occupied_seconds = 0.0
        self._setup_seconds: float | None = None
        self._phases_told = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks."""
        return tuple(rank.pid for rank in self._ranks)

    def give_way(self, reason: YieldReason, detail: str) -> None:
        """End the ranks soon; a result that all of them have given already is kept."""
        if not self._settled and self._halt is None:
            self._halt = Halt(reason, detail)
        self._changed.set()
        for rank in self._ranks:
            rank.exit_seconds = ASK_SECONDS

    async def run(self) -> CycleResult:
        """Go through the cycle; raises what ``progress`` raises, once the ranks have ended."""
        lock = self._launcher.lock
        try:
            if lock is not None and not lock.acquire():
                words = "a cycle of another process runs, or a rank of one is still there"
                return Skipped(finished_at=time.time(), reason="probe_running", detail=words)
        except OSError as error:
            problem = Problem("start", f"the probe lock cannot be taken: {error}")
            return failed(problem, self._plan, NcclNotes(), finished_at=time.time(), occupied_seconds=0.0)
        try:
            timeout = await self._start_attend_and_end()
            return await asyncio.to_thread(self._judge, timeout)
        finally:
            await self._tidy_up()

    async def _start_attend_and_end(self) -> Timeout | None:
        try:
            # Who asked for the node before we had the lock got the answer that no probe is here, and none may come now.
            if await self._may_go_on():
                await self._start_ranks()
            if self._start_problem is not None:
                return None
            return await self._attend()
        finally:
            self._settled = True
            await self._end_all()
            if self._task_error is not None:
                raise self._task_error

    # --- the start ---

    async def _start_ranks(self) -> None:
        self._started = time.monotonic()
        self._begin_phase()
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
        finally:
            # A thread cannot be cancelled: whatever happens here, its processes must be known afterwards.
            await asyncio.wait([starting])
        if self._start_problem is not None:
            return
        meeting = "" if self._folder is None else str(self._folder.path / "rendezvous")
        for rank in self._ranks:
            plan = self._plan.rank_plan(rank.rank, meeting)
            self._spawn(rank.listen(plan, self._changed.set))
        self._spawn(self._halt_when_taken())

    def _start(self) -> None:
        rank = None
        try:
            folder = self._folder = PrivateFolder(self._launcher.temporary)
            lock = self._launcher.lock
            meeting = self._plan.meeting
            inherited = [] if lock is None else [lock.fileno()]
            inherited += [meeting.descriptor] if meeting is not None and meeting.descriptor >= 0 else []
            procfs: Path = self._launcher.procfs
            command = self._launcher.rank_command or rank_command(self._plan.backend, self._launcher.python)
            for rank in range(self._plan.ranks):
                environment = rank_environment(self._plan, rank, folder.path, os.environ)
                self._ranks.append(RankProcess.start(command, rank, environment, procfs, inherited))
            rank = None
            # Only now: from here on there is who removes it, should we be killed.
            folder.make()
        except OSError as error:
            self._start_problem = Problem("start", f"the ranks could not be started: {error}", rank, "start")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_end)
        self._tasks.append(task)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._task_error = error
            self._changed.set()

    # --- while they run ---

    async def _attend(self) -> Timeout | None:
        """Wait until all ranks have finished, one has failed, the cycle must yield, or a deadline passes."""
        deadline = 0.0
        since: dict[int, Sample] = {}
        while self._halt is None and self._task_error is None:
            if self._note_phase():
                self._begin_phase()
                deadline = time.monotonic() + self._seconds_for(self._phase)
                since = self._samples()
            if any(rank.error or (rank.said_all and rank.result is None) for rank in self._ranks):
                await self._hear_the_others()
                return None
            if self._phase == "done":
                return None
            if all(rank.waiting and rank.gate == self._gate for rank in self._ranks):
                self._gate += 1
                self._spawn(self._open_gate())
            if not await self._wait_until(deadline, lambda: True):
                slowest = min(self._ranks, key=lambda rank: (PHASES.index(rank.phase), rank.gate))
                seconds = self._seconds_for(slowest.phase)
                if self._starvation is not None and slowest.pid in since:
                    self._starvation.excuses(slowest.pid, since[slowest.pid], seconds)
                return Timeout(slowest.rank, slowest.phase, slowest.gate, seconds)
        return None

    def _begin_phase(self) -> None:
        if self._starvation is not None:
            self._phase_began = self._starvation.now()

    def _samples(self) -> dict[int, Sample]:
        return {} if self._starvation is None else {rank.pid: self._starvation.sample(rank.pid) for rank in self._ranks}

    async def _hear_the_others(self) -> None:
        """Wait a moment for the other ranks' words on a failure, and see whether a job that came is the cause of it."""
        self._failing = True
        if any(rank.error and rank.error.reason == "wrong_result" for rank in self._ranks):
            self._settled = True
        await self._wait_until(time.monotonic() + _GRACE_SECONDS, lambda: all(rank.said_all for rank in self._ranks))
        await self._may_go_on()

    @property
    def _phase(self) -> Phase:
        return min((rank.phase for rank in self._ranks), key=PHASES.index)

    def _seconds_for(self, phase: Phase) -> float:
        limits = self._plan.deadlines
        of_phases = {"rendezvous": limits.rendezvous, "setup": limits.setup, "measure": limits.measure}
        return of_phases.get(phase, limits.start)

    def _note_phase(self) -> bool:
        """Keep the times at which phases were reached; True when all ranks have reached another one."""
        now = time.monotonic()
        if self._occupied_since is None and any(rank.phase != "start" for rank in self._ranks):
            self._occupied_since = now
        # All of them are reported, also when the ranks went through several since the last check.
        passed = PHASES[self._phases_told : PHASES.index(self._phase) + 1]
        self._phases_told += len(passed)
        for phase in passed:
            if phase == "measure":
                self._setup_seconds = now - self._started
            if self._progress is not None:
                self._progress(phase, 0, now - self._started)
        return bool(passed)

    async def _wait_until(self, deadline: float, enough: Callable[[], bool]) -> bool:
        """Wait for changes until there is enough of them; False when the deadline passes first."""
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                return False
            self._changed.clear()
            if enough() or self._halt is not None or self._task_error is not None:
                return True

    def _heed(self, halt: Halt) -> None:
        if not self._failing or halt.reason in _EXCUSES:
            self.give_way(*halt)

    async def _halt_when_taken(self) -> None:
        self._heed(await self._checks.until_halt())

    async def _may_go_on(self) -> bool:
        """Check the node; False if it is in use, or if a request to yield had come before."""
        halt = await self._checks.before_gate()
        if halt is not None:
            self._heed(halt)
        return halt is None and self._halt is None

    async def _open_gate(self) -> None:
        if await self._may_go_on():
            # Gate 0 is before the set-up, gate 1 before the first step.
            if self._progress is not None and self._gate > 1:
                self._progress(self._phase, self._gate - 1, time.monotonic() - self._started)
            for rank in self._ranks:
                rank.open_gate()

    # --- the end ---

    async def _end_all(self) -> None:
        if any(rank.result is None for rank in self._ranks):
            for rank in self._ranks:  # without the others, a rank may never be able to close its group
                rank.exit_seconds = ASK_SECONDS
        self.stuck = list(self._ranks)  # for all that is known, should this be cancelled
        ended = await asyncio.gather(*(rank.end() for rank in self._ranks))
        self.stuck = [rank for rank, gone in zip(self._ranks, ended, strict=True) if not gone]
        if self._occupied_since is not None:
            now = time.monotonic()
            self._occupied_seconds = max(rank.ended_at or now for rank in self._ranks) - self._occupied_since
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()  # their errors know the frames of this cycle

    async def _tidy_up(self) -> None:
        ended = [rank for rank in self._ranks if rank not in self.stuck]
        try:
            # While the guards live: should we be killed before it is done, they do it.
            if self._folder is not None:
                await asyncio.to_thread(self._folder.remove)
        finally:
            for rank in ended:
                rank.reap()
            if self._launcher.lock is not None:
                self._launcher.lock.release()
        await asyncio.gather(*(rank.leftovers_gone() for rank in ended))

    def _judge(self, timeout: Timeout | None) -> CycleResult:
        now, occupied = time.time(), self._occupied_seconds
        if not self.stuck and self._halt is not None:
            return Yielded(
                finished_at=now, occupied_seconds=occupied, reason=self._halt.reason, detail=self._halt.detail
            )
        notes = self._read_notes()
        problem = stuck_problem(self._plan, self.stuck) or self._start_problem
        problem = problem or failure_of(self._plan, self._ranks, timeout)
        if problem is not None:
            if self._starvation is not None:
                problem = on_starved_node(problem, self._starvation.words_since(self._phase_began))
            return failed(problem, self._plan, notes, finished_at=now, occupied_seconds=occupied)
        return measured(
            self._plan,
            [rank.result for rank in self._ranks if rank.result is not None],
            notes,
            finished_at=now,
            occupied_seconds=occupied,
            setup_seconds=self._setup_seconds or time.monotonic() - self._started,
        )

    def _read_notes(self) -> NcclNotes:
        if self._plan.backend != "nccl" or self._folder is None:
            return NcclNotes()
        from commwatch.probes.cycle.nccl_notes import read_notes  # only where there is NCCL

        with suppress(OSError):
            return read_notes(self._folder.path, given_nccl_settings(self._plan))
        return NcclNotes()


_GIVE_WAY_SECONDS = 2.0


@dataclass(kw_only=True, eq=False)
class Launcher:
    """Runs probe cycles, one at a time, and keeps an eye on ranks that could not be ended."""

    procfs: Path = Path("/proc")
    python: str = ""
    """Another interpreter for ranks that need torch (``probes.python``)."""
    rank_command: Sequence[str] = ()
    """Command line of a rank process; empty: the usual one."""
    temporary: Path | None = None
    """Folder for the private folders of the cycles; the system's by default."""
    lock: ProbeLock | None = None
    """Held while any rank lives, so that no other process of commwatch runs a cycle."""
    starvation: Starvation | None = None
    """Ranks that were late for lack of CPU or memory have not failed; by default not checked."""
    _cycle: Cycle | None = field(default=None, init=False)
    _stuck: list[tuple[RankProcess, str]] = field(default_factory=list, init=False)
    """Each with its GPU."""

    @property
    def stuck(self) -> Mapping[int, str]:
        """Process ids of the ranks of earlier cycles that sit in the kernel, with their GPUs as the plan names them;
        those that came back are ended and reaped."""
        self._stuck = [(rank, device) for rank, device in self._stuck if not rank.end_if_back()]
        return {rank.pid: device for rank, device in self._stuck}

    def take_over(self, earlier: Launcher) -> None:
        """Count the stuck ranks of another launcher, which launches nothing any more, among ours."""
        self._stuck = earlier._stuck

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks of the cycle under way; empty between cycles."""
        return self._cycle.pids if self._cycle is not None else ()

    @property
    def running(self) -> bool:
        """Whether a cycle is under way."""
        return self._cycle is not None

    async def run(self, plan: CyclePlan, watch: Watch, progress: Progress | None = None) -> CycleResult:
        """Run one cycle to its end; no process, file or port is left, but for ranks that are stuck in the kernel.

        Args:
            watch: checks the node before the ranks start, before each gate, and periodically; receives the process ids
                of our ranks. If it raises, the node is not known to be free, and the cycle yields.
            progress: called with each phase that all ranks have reached, in order, and with each step.

        Raises:
            ValueError: the plan has no ranks, no steps, or no GPUs for NCCL.
            RuntimeError: another cycle is under way.
            Exception: what ``progress`` raises; the ranks have ended then.
        """
        if not plan.ranks or not plan.steps or (plan.backend == "nccl" and not plan.devices):
            counts = f"{plan.ranks} ranks, {len(plan.steps)} steps, {len(plan.devices)} GPUs"
            raise ValueError(f"probe {plan.probe} has nothing to run over {plan.backend}: {counts}")
        if self._cycle is not None:
            raise RuntimeError("a probe cycle is under way")
        cycle = self._cycle = Cycle(plan, watch, progress, self)
        try:
            return await cycle.run()
        finally:
            self._stuck += [(rank, device_of(plan, rank.rank)) for rank in cycle.stuck]
            self._cycle = None
            cycle.over.set()

    async def cancel(self, reason: YieldReason, detail: str) -> bool:
        """Make the running cycle yield; False if a rank is still there after two seconds."""
        if (cycle := self._cycle) is not None:
            cycle.give_way(reason, detail)
            try:
                await asyncio.wait_for(cycle.over.wait(), _GIVE_WAY_SECONDS)
            except asyncio.TimeoutError:
                return False
        return not self.stuck

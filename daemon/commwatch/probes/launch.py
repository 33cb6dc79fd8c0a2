"""One probe cycle: start the ranks, hold them to their deadlines, end them, and say what came of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from commwatch.probes.environment import rank_environment
from commwatch.probes.plan import PHASES, CyclePlan, CycleResult, Measured, Phase, SkipReason
from commwatch.probes.process import ASK_SECONDS, RankProcess
from commwatch.probes.verdict import Problem, Timeout, failure_of, measured

RANK_COMMAND = (sys.executable, "-m", "commwatch.probes.rank")

_GRACE_SECONDS = 0.3
"""Time that the other ranks have to say what happened to them after the first one failed."""

Progress = Callable[[str, float], None]
"""Called with the phase that all ranks have reached, and the seconds since the start."""


class Launcher:
    """Runs probe cycles, one at a time, and keeps an eye on ranks that could not be ended."""

    def __init__(
        self,
        *,
        procfs: Path = Path("/proc"),
        rank_command: Sequence[str] = RANK_COMMAND,
        temporary: Path | None = None,
    ) -> None:
        """Nothing is started.

        Args:
            procfs: where processes show their state.
            rank_command: command line of a rank process.
            temporary: folder for the private folders of the cycles; the system's by default.
        """
        self._procfs = procfs
        self._command = tuple(rank_command)
        self._temporary = temporary
        self._cycle: _Cycle | None = None
        self._stuck: list[RankProcess] = []

    @property
    def stuck(self) -> tuple[int, ...]:
        """Process ids of ranks of earlier cycles that sit in the kernel; those that came back are reaped."""
        self._stuck = [rank for rank in self._stuck if not rank.ended()]
        return tuple(rank.pid for rank in self._stuck)

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

    async def run(self, plan: CyclePlan, progress: Progress | None = None) -> CycleResult:
        """Run one cycle to its end; no process, file or port is left, but for ranks that are stuck in the kernel.

        Raises:
            RuntimeError: another cycle is under way.
        """
        if self._cycle is not None:
            raise RuntimeError("a probe cycle is under way")
        cycle = self._cycle = _Cycle(plan, self._temporary, self._procfs, self._command, progress)
        try:
            return await cycle.run()
        finally:
            self._stuck += cycle.stuck
            self._cycle = None
            cycle.over.set()

    async def cancel(self, reason: SkipReason, detail: str, within: float = 2.0) -> bool:
        """Make the cycle under way give way; False if a rank is still there after ``within`` seconds."""
        if (cycle := self._cycle) is not None:
            cycle.cancel(reason, detail)
            try:
                await asyncio.wait_for(cycle.over.wait(), within)
            except asyncio.TimeoutError:
                return False
        return not self.stuck


class _Cycle:
    """The ranks of one cycle."""

    def __init__(
        self,
        plan: CyclePlan,
        temporary: Path | None,
        procfs: Path,
        command: Sequence[str],
        progress: Progress | None,
    ) -> None:
        self.stuck: list[RankProcess] = []
        self.over = asyncio.Event()
        self._plan = plan
        self._temporary = temporary
        self._folder: Path | None = None
        self._procfs = procfs
        self._command = command
        self._progress = progress
        self._ranks: list[RankProcess] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._start_error: OSError | None = None
        self._changed = asyncio.Event()
        self._cancelled: Problem | None = None
        self._started = time.monotonic()
        self._setup_seconds: float | None = None
        self._occupied_seconds = 0.0
        self._reached: Phase | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(rank.pid for rank in self._ranks)

    def cancel(self, reason: SkipReason, detail: str) -> None:
        if self._cancelled is None:
            self._cancelled = Problem(reason, detail)
            self._changed.set()
            for rank in self._ranks:
                rank.exit_seconds = ASK_SECONDS

    async def run(self) -> CycleResult:
        try:
            try:
                timeout = await self._start_and_watch()
            finally:
                await self._end_all()
            return await asyncio.to_thread(self._judge, timeout)
        finally:
            if self._folder is not None:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _start_and_watch(self) -> Timeout | None:
        starting = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
        except OSError as error:
            self._start_error = error
            return None
        finally:
            # A thread cannot be cancelled: whatever happens here, its processes must be known afterwards.
            await asyncio.wait([starting])
        self._listeners = [asyncio.create_task(rank.listen(self._changed.set)) for rank in self._ranks]
        return await self._watch()

    def _start(self) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="commwatch-probe-", dir=self._temporary))
        for rank in range(self._plan.ranks):
            environment = rank_environment(self._plan, rank, folder, os.environ)
            plan = self._plan.rank_plan(rank, str(folder / "rendezvous"))
            self._ranks.append(RankProcess.start(self._command, plan, environment, folder, self._procfs))

    async def _watch(self) -> Timeout | None:
        """Wait until all ranks are through, one has failed, or the cycle is cancelled; or a deadline passes."""
        deadline = self._started + self._plan.setup_deadline
        while self._cancelled is None:
            phase = self._note_phase()
            if any(rank.error or (rank.said_all and rank.result is None) for rank in self._ranks):
                await self._wait_until(time.monotonic() + _GRACE_SECONDS, lambda: all(r.said_all for r in self._ranks))
                return None
            if phase == "done":
                return None
            if self._setup_seconds is None and PHASES.index(phase) >= PHASES.index("measure"):
                self._setup_seconds = time.monotonic() - self._started
                deadline = time.monotonic() + self._plan.measure_deadline
            if not await self._wait_until(deadline, lambda: True):
                slowest = min(self._ranks, key=lambda rank: PHASES.index(rank.phase))
                return Timeout(slowest.rank, slowest.phase, time.monotonic() - self._started)
        return None

    def _note_phase(self) -> Phase:
        phase = min((rank.phase for rank in self._ranks), key=PHASES.index)
        if phase != self._reached:
            self._reached = phase
            if self._progress is not None:
                self._progress(phase, time.monotonic() - self._started)
        return phase

    async def _wait_until(self, deadline: float, enough: Callable[[], bool]) -> bool:
        """Wait for changes until there is enough of them; False when the deadline passes first."""
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                return False
            self._changed.clear()
            if enough() or self._cancelled is not None:
                return True

    async def _end_all(self) -> None:
        ended = await asyncio.gather(*(rank.end() for rank in self._ranks))
        self.stuck = [rank for rank, gone in zip(self._ranks, ended, strict=True) if not gone]
        self._occupied_seconds = time.monotonic() - self._started
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)

    def _judge(self, timeout: Timeout | None) -> CycleResult:
        now, occupied = time.time(), self._occupied_seconds
        if self.stuck:
            pids = ", ".join(str(rank.pid) for rank in self.stuck)
            problem = Problem("stuck", f"process {pids} sits in the kernel and was left alone")
        elif self._cancelled is not None:
            problem = self._cancelled
        elif self._start_error is not None:
            problem = Problem("start", f"a rank process could not be started: {self._start_error}")
        elif failure := failure_of(self._ranks, timeout):
            problem = failure
        else:
            return self._measured(now)
        return problem.result(now, occupied)

    def _measured(self, now: float) -> Measured:
        return measured(
            [rank.result for rank in self._ranks if rank.result is not None],
            finished_at=now,
            occupied_seconds=self._occupied_seconds,
            setup_seconds=self._setup_seconds or self._occupied_seconds,
        )

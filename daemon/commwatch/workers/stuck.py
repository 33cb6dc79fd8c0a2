"""Processes that missed their deadline: left alone, watched, and ended only when nothing else is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from commwatch.workers.process_state import uninterruptible
from commwatch.workers.worker import Worker

log = structlog.get_logger("commwatch.workers")

SIGNAL_AFTER_SECONDS = 150.0
"""A stuck process gets no signal earlier: the driver may need three times 45 s to give up."""
KILL_AFTER_SECONDS = 10.0
"""From TERM to KILL."""


@dataclass
class _Stuck:
    worker: Worker
    device: str
    since: float
    terminated_at: float | None = None
    killed: bool = False


class StuckProcesses:
    """The stuck processes of one reader."""

    def __init__(self, name: str, procfs: Path, changed: Callable[[str, int], None]) -> None:
        """Args:
        name: of the reader, for the log and its metric.
        changed: called with the name and the new number whenever it changes.
        """
        self._name = name
        self._procfs = procfs
        self.changed = changed
        self._stuck: list[_Stuck] = []

    def __len__(self) -> int:
        return len(self._stuck)

    @property
    def devices(self) -> frozenset[str]:
        """The devices that stuck processes were touching; empty text for a process that touched none in particular."""
        return frozenset(stuck.device for stuck in self._stuck)

    @property
    def workers(self) -> list[Worker]:
        """The processes themselves."""
        return [stuck.worker for stuck in self._stuck]

    def add(self, worker: Worker, device: str, now: float) -> None:
        """Leave a process alone from now on; one that is known already is counted once."""
        worker.give_up()
        if worker in self.workers:
            return
        self._stuck.append(_Stuck(worker, device, now))
        log.error("a worker does not answer and is left alone", worker=self._name, device=device,
                  pid=worker.process.pid, stuck=len(self))  # fmt: skip
        self.changed(self._name, len(self))

    def tend(self, now: float) -> None:
        """Forget those that ended; end those that have been stuck for too long and can be reached by a signal."""
        left = [stuck for stuck in self._stuck if not self._ended(stuck, now)]
        if len(left) != len(self._stuck):
            self._stuck = left
            self.changed(self._name, len(self))

    def _ended(self, stuck: _Stuck, now: float) -> bool:
        process = stuck.worker.process
        if process.poll() is not None:
            log.info("a stuck worker has ended", worker=self._name, device=stuck.device,
                     after_seconds=round(now - stuck.since, 1))  # fmt: skip
            return True
        if now - stuck.since < SIGNAL_AFTER_SECONDS or uninterruptible(self._procfs, process.pid):
            return False
        if stuck.terminated_at is None:
            stuck.terminated_at = now
            process.send_signal(signal.SIGTERM)
        elif now - stuck.terminated_at >= KILL_AFTER_SECONDS and not stuck.killed:
            stuck.killed = True
            process.send_signal(signal.SIGKILL)
        return False

"""One rank process, ``commwatch.probes.cycle.rank``: plan on standard input, events on standard output."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import BinaryIO, NoReturn

from commwatch.probes.cycle.guard import start_guard
from commwatch.probes.cycle.measure import Group, RankError, measure
from commwatch.probes.rank_plan import (
    INSTALL_TORCH,
    ErrorEvent,
    GateEvent,
    Phase,
    PhaseEvent,
    RankEvent,
    RankPlan,
    ResultEvent,
    event_line,
    read_plan,
)

ABORT_SECONDS = 0.25
"""How long a rank that was asked to end may take to abort its communicator."""

EXIT_SECONDS = 10.0
"""How long a rank may take to close its group after its result: NCCL gives its memory back meanwhile."""

EXIT_ENDED = 3
"""Exit status of a rank that ended because its parent gave up, or is gone."""

GroupFactory = Callable[[RankPlan], Group]


class Rank:
    """The process: its pipes to the parent, and the group that it is in."""

    def __init__(self, plan_in: BinaryIO, events_out: BinaryIO) -> None:
        self._plan_in = plan_in
        self._events_out = events_out
        self._group: Group | None = None
        self._measured = False
        self._aborter: threading.Thread | None = None
        self._aborting = threading.Lock()
        self._opened_gates = threading.Semaphore(0)
        self._may_leave = threading.Event()

    def emit(self, event: RankEvent) -> None:
        """Report to the parent; without one, the end of its pipe ends this process."""
        with suppress(BrokenPipeError):
            self._events_out.write(event_line(event))
            self._events_out.flush()

    def run(self, make_group: GroupFactory) -> int:
        """Read the plan, measure, report; the exit status."""
        plan = read_plan(self._plan_in.readline())
        threading.Thread(target=self._heed_parent, daemon=True).start()
        try:
            # Made by the parent before it sent the plan; for files that libraries write into the working directory.
            os.chdir(os.environ["HOME"])
            self._enter("start")
            self._group = make_group(plan)
            result = measure(plan, self._group, self._enter, self._wait_at_gate)
            self._measured = True
            self.emit(ResultEvent(result))
            # Leaving while another rank still waits for our data would look like a crash to it.
            self._may_leave.wait()
            self._group.close()
        except RankError as error:
            return self._give_up(ErrorEvent(error.reason, error.detail))
        except Exception as error:  # what a library raises is a result of the probe: the parent judges it
            return self._give_up(ErrorEvent("crashed", f"{type(error).__name__}: {error}"))
        return 0

    def _give_up(self, error: ErrorEvent) -> int:
        self.emit(error)
        self._abort()
        return 1

    def _abort(self) -> None:
        """Abort the group, once, whichever thread asks first; does not wait for a group that cannot be aborted."""
        with self._aborting:
            if self._aborter is None and self._group is not None:
                self._aborter = threading.Thread(target=self._group.abort, daemon=True)
                self._aborter.start()
        if self._aborter is not None:
            self._aborter.join(ABORT_SECONDS)

    def _enter(self, phase: Phase) -> None:
        self.emit(PhaseEvent(phase))

    def _wait_at_gate(self, number: int) -> None:
        self.emit(GateEvent(number))
        self._opened_gates.acquire()

    def _heed_parent(self) -> None:
        """Open a gate for each byte; end with the input: all have measured, or the parent gives up or has died."""
        while self._plan_in.read(1):
            self._opened_gates.release()
        if self._measured:
            self._may_leave.set()
            time.sleep(EXIT_SECONDS)
        else:
            self._abort()
        os._exit(EXIT_ENDED)


def make_group(plan: RankPlan) -> Group:
    """The group of a plan's backend; the import of torch, seconds long, is part of the phase ``start``.

    Raises:
        RankError: torch is not installed, or has no NCCL.
    """
    if plan.backend == "simulated":
        from commwatch.rehearsal import rehearsal

        group: Group = rehearsal().make_group(plan)
        return group
    if plan.backend == "tcp":
        from commwatch.probes.cycle.rank_sockets import SocketGroup

        return SocketGroup(plan)
    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        raise RankError("no_torch", f"{sys.executable}: {error}; {INSTALL_TORCH}") from error  # noqa: TID251 - says where torch was looked for
    from commwatch.probes.cycle.rank_torch import TorchGroup

    return TorchGroup(plan)


def main(group_factory: GroupFactory = make_group) -> NoReturn:
    """Run one rank on this process's own pipes; does not return to the interpreter's end.

    NCCL and other libraries write to descriptor 1: what they say goes to standard error.
    """
    start_guard(os.environ)
    events_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    status = Rank(sys.stdin.buffer, events_out).run(group_factory)
    sys.stderr.flush()
    # At once: libraries' clean-up at exit can hang or crash after a good result.
    os._exit(status)


if __name__ == "__main__":
    main()

"""One rank process: ``python -m commwatch.probes.rank``; plan in on standard input, events out on standard output."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import BinaryIO

import msgspec

from commwatch.probes.measure import Group, RankError, measure
from commwatch.probes.plan import ErrorEvent, Phase, PhaseEvent, RankEvent, RankPlan, ResultEvent

ABORT_SECONDS = 0.3
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
        self._may_leave = threading.Event()

    def emit(self, event: RankEvent) -> None:
        """Tell the parent."""
        self._events_out.write(msgspec.json.encode(event) + b"\n")
        self._events_out.flush()

    def run(self, make_group: GroupFactory) -> int:
        """Read the plan, measure, report; the exit status."""
        plan = msgspec.json.decode(self._plan_in.readline(), type=RankPlan)
        threading.Thread(target=self._end_with_parent, daemon=True).start()
        try:
            self._enter("start")
            self._group = make_group(plan)
            result = measure(plan, self._group, self._enter)
            self._measured = True
            self.emit(ResultEvent(result))
            # Leaving while another rank still waits for our data would look like a crash to it.
            self._may_leave.wait()
            self._group.close()
        except RankError as error:
            self.emit(ErrorEvent(error.reason, error.detail))
            return 1
        except Exception as error:  # what a library raises is a result of the probe: the parent judges it
            self.emit(ErrorEvent("crashed", f"{type(error).__name__}: {error}"))
            return 1
        return 0

    def _enter(self, phase: Phase) -> None:
        self.emit(PhaseEvent(phase))

    def _end_with_parent(self) -> None:
        """End when standard input closes: all ranks have measured, or the parent gives up, or it has died."""
        while self._plan_in.read(1):
            pass
        if self._measured:
            self._may_leave.set()
            time.sleep(EXIT_SECONDS)
        elif self._group is not None:
            aborter = threading.Thread(target=self._group.abort, daemon=True)
            aborter.start()
            aborter.join(ABORT_SECONDS)
        os._exit(EXIT_ENDED)


def make_group(plan: RankPlan) -> Group:
    """The group of a plan's backend; the import of torch, seconds long, is part of the phase ``start``.

    Raises:
        RankError: torch is not installed, or has no NCCL.
    """
    if plan.backend == "simulated":
        from commwatch.probes.rank_simulated import SimulatedGroup

        return SimulatedGroup(plan)
    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        raise RankError("no_torch", f"{error}; install commwatch[probe]") from error
    from commwatch.probes.rank_torch import TorchGroup

    return TorchGroup(plan)


def main(group_factory: GroupFactory = make_group) -> int:
    """Run one rank on this process's own pipes; does not return to the interpreter's end.

    NCCL and other libraries write to descriptor 1: what they say goes to standard error.
    """
    with os.fdopen(os.dup(1), "wb") as events_out:
        os.dup2(2, 1)
        status = Rank(sys.stdin.buffer, events_out).run(group_factory)
    sys.stderr.flush()
    # Libraries' clean-up at exit can hang or crash after a good result; the group has been closed in order.
    os._exit(status)


if __name__ == "__main__":
    main()

"""A rank of a simulated node: the times come from the simulation, all else is as with real calls."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn, cast, get_args

from commwatch.probes.cycle.measure import SYNC_CALLS, RankError
from commwatch.probes.cycle.rank_sockets import SocketGroup
from commwatch.probes.rank_plan import FailureReason, Phase, RankPlan, Step
from commwatch_rehearsal.simulation.faults.fault import SimulatedProbeFailure
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.probe_answers import SimulatedProbes

_FIRST_CALL_BYTES = 8
_POLL_SECONDS = 0.05
_SHORTEST_SLEEP_SECONDS = 0.001
"""Less is put off: the kernel would make more of it."""


class SimulatedGroup:
    """The ranks of one cycle on a node that does not exist."""

    torch_version = ""
    nccl_version = "simulated"

    def __init__(self, plan: RankPlan) -> None:
        if plan.simulation is None:
            raise ValueError("a simulated rank needs a simulated node")
        faults = plan.simulation.faults_file
        node = SimulatedNode(plan.simulation.preset, Path(faults) if faults else None, plan.simulation.started_at)
        self._probes = SimulatedProbes(node, dict(plan.settings))
        self._plan = plan
        self._parent = os.getppid()
        self._call = 0
        self._spent_seconds = 0.0
        self._owed_seconds = 0.0
        self._exact = True
        self._misbehave("start")

    def rendezvous(self) -> None:
        """Nothing to find: simulated ranks do not talk to each other."""
        self._misbehave("rendezvous")

    def first_call(self) -> None:
        """Make one small call over all ranks.

        Raises:
            RankError: a failure is injected.
        """
        self._misbehave("setup")
        try:
            # One rank speaks for all, so that a cycle draws its lot once.
            reason = self._probes.error_of_cycle(self._plan.ranks, self._plan.devices) if self._plan.rank == 0 else ""
            self._fail(reason)
            step = Step(
                operation="all_reduce",
                purpose="latency",
                size_bytes=_FIRST_CALL_BYTES,
                members=tuple(range(self._plan.ranks)),
            )
            seconds = self._seconds(step)
        except SimulatedProbeFailure as failure:
            self._fail(failure.reason)
            seconds = 0.0
        self._spend(seconds)

    def time_calls(self, step: Step, calls: int) -> float:
        """Seconds of one call by the simulation; takes that time, so that deadlines and occupancy are real.

        Raises:
            RankError: a failure is injected.
        """
        self._misbehave("measure")
        seconds = 0.0
        try:
            for _ in range(calls):
                seconds += self._seconds(step)
            seconds *= self._probes.slowdown_under_load(step.members, self._plan.devices, self._spent_seconds)
        except SimulatedProbeFailure as failure:
            self._fail(failure.reason)
        # Real calls have one before them that is not timed; it takes its time all the same.
        self._spend(seconds * (calls + SYNC_CALLS) / calls)
        return seconds / calls

    def clock(self) -> float:
        """The time of the calls so far; the process sleeps for many of them at once, so no wall clock shows it."""
        return self._spent_seconds

    def slowest(self, step: Step, seconds: float) -> float:
        """This rank's own number: the calls of simulated ranks need not match."""
        return seconds

    def exact(self, step: Step) -> bool:
        """False once a wrong result was injected."""
        self.time_calls(step, 1)
        return self._exact

    def close(self) -> None:
        """Nothing to close."""

    def abort(self) -> None:
        """Nothing to abort."""

    def _seconds(self, step: Step) -> float:
        """Of one call; half a round trip of send_recv for latency."""
        call, self._call = self._call, self._call + 1
        plan = self._plan
        ways = [step.members]
        if step.pairs:
            partner, sends = _part(step, plan.rank)
            there, back = (plan.rank, partner), (partner, plan.rank)
            ways = [there, back] if step.purpose == "latency" else [there if sends else back]
        seconds = [
            self._probes.operation_seconds(
                step.operation,
                step.size_bytes,
                way,
                plan.rank,
                call,
                both_ways=step.both_ways,
                devices=plan.devices,
            )
            for way in ways
        ]
        return sum(seconds) / len(seconds)

    def _spend(self, seconds: float) -> None:
        self._spent_seconds += seconds
        self._owed_seconds += seconds
        if self._owed_seconds >= _SHORTEST_SLEEP_SECONDS:
            time.sleep(self._owed_seconds)
            self._owed_seconds = 0.0

    def _fail(self, reason: str) -> None:
        """End with the reason of a failure; a wrong result is found later, in order."""
        if reason == "wrong_result":
            self._exact = False
        elif reason:
            known = reason in get_args(FailureReason)
            raise RankError(cast("FailureReason", reason) if known else "nccl_error", f"simulated: {reason}")

    def _misbehave(self, phase: Phase) -> None:
        """Hang or crash if a fault requires it; a hang that is waited for ends with its fault."""
        rank = self._plan.rank if self._plan.meeting is None else 0
        while act := self._probes.rank_act(phase, rank):
            if act == "hang":
                time.sleep(_POLL_SECONDS)
                continue
            sys.stderr.write(f"simulated: rank {rank} {'blocks' if act == 'block' else 'crashes'} in {phase}\n")
            sys.stderr.flush()
            if act == "block":
                block(self._parent)
            _crash()


class SimulatedRail(SimulatedGroup):
    """A rank that meets the one of another simulated node: the slower of both GPUs' ways to the host is the rail."""

    def __init__(self, plan: RankPlan) -> None:
        super().__init__(plan)
        self._way = SocketGroup(plan)

    def rendezvous(self) -> None:
        """As between real nodes.

        Raises:
            RankError: there is no way.
        """
        super().rendezvous()
        self._way.rendezvous()

    def first_call(self) -> None:
        """Exchange numbers once.

        Raises:
            RankError: a failure is injected.
        """
        self._misbehave("setup")
        try:
            self._fail(self._probes.error_of_cycle(1, self._plan.devices))
        except SimulatedProbeFailure as failure:
            self._fail(failure.reason)
        self._way.first_call()

    def time_calls(self, step: Step, calls: int) -> float:
        """Seconds of one call by the simulations of both ends.

        Raises:
            RankError: a failure is injected.
        """
        self._misbehave("measure")
        operation = "device_to_host" if step.pairs[0][0] == self._plan.rank else "host_to_device"
        seconds = 0.0
        try:
            seconds = self._probes.operation_seconds(
                operation, step.size_bytes, (0,), 0, self._call, devices=self._plan.devices
            )
        except SimulatedProbeFailure as failure:
            self._fail(failure.reason)
        self._call += calls
        seconds = self._way.larger(seconds)
        self._spend(seconds * (calls + SYNC_CALLS))
        return seconds

    def slowest(self, step: Step, seconds: float) -> float:
        """The larger of the numbers of both ends."""
        return self._way.larger(seconds)

    def close(self) -> None:
        self._way.close()

    def abort(self) -> None:
        """Wake whatever waits for the other end."""
        self._way.abort()


def _part(step: Step, rank: int) -> tuple[int, bool]:
    """The partner of a rank, and whether the rank sends; of two ways at once it is the receiving that counts."""
    for source, destination in step.pairs:
        if destination == rank:
            return source, False
    return next((destination, True) for source, destination in step.pairs if source == rank)


def block(parent: int) -> NoReturn:
    """Sit in a foreign call that keeps the interpreter's lock, until a signal comes or the parent is gone; then end.

    A rehearsal leaves nothing behind: unlike a call into a broken driver, this one ends with its parent.
    """
    import ctypes  # in few processes, here and below
    import select

    descriptor = os.pidfd_open(parent)
    if os.getppid() == parent:
        # struct pollfd {int fd; short events; short revents;}
        waited_for = (ctypes.c_int * 2)(descriptor, select.POLLIN)
        ctypes.PyDLL(None).poll(waited_for, ctypes.c_ulong(1), ctypes.c_int(-1))
    os._exit(1)


def _crash() -> None:
    """As a broken driver library does it, without a file of this process's memory."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)

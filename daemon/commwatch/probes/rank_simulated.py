"""A rank of a simulated node: the times come from the simulation, all else is as with real collectives."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast, get_args

from commwatch.probes.measure import RankError
from commwatch.probes.plan import FailureReason, RankPlan
from commwatch.simulation.faults.model import SimulatedProbeFailure
from commwatch.simulation.node import SimulatedNode


class SimulatedGroup:
    """The ranks of one cycle on a node that does not exist."""

    torch_version = ""
    nccl_version = "simulated"

    def __init__(self, plan: RankPlan) -> None:
        if plan.simulation is None:
            raise ValueError("a simulated rank needs a simulated node")
        faults = plan.simulation.faults_file
        self._node = SimulatedNode(plan.simulation.preset, Path(faults) if faults else None, plan.simulation.started_at)
        self._plan = plan
        self._call = 0
        self._exact = True

    def rendezvous(self) -> None:
        """Nothing to find: simulated ranks do not talk to each other."""

    def first_call(self) -> float:
        """Seconds of one small call."""
        return self.time_calls(self._plan.latency_bytes, 1)

    def time_calls(self, size_bytes: int, calls: int) -> float:
        """Seconds of one call by the simulation; takes that time, so that deadlines and occupancy are real.

        Raises:
            RankError: a failure is injected.
        """
        seconds = 0.0
        try:
            for _ in range(calls):
                seconds += self._node.collective_seconds(
                    self._plan.collective, size_bytes, self._plan.ranks, self._plan.rank, self._call
                )
                self._call += 1
        except SimulatedProbeFailure as failure:
            if failure.reason != "wrong_result":
                raise RankError(_known(failure.reason), f"simulated: {failure.reason}") from failure
            self._exact = False
        time.sleep(seconds)
        return seconds / calls

    def slowest(self, seconds: float) -> float:
        """This rank's own number: the calls of simulated ranks need not match."""
        return seconds

    def exact(self, size_bytes: int) -> bool:
        """False once a wrong result was injected."""
        self.time_calls(size_bytes, 1)
        return self._exact

    def close(self) -> None:
        """Nothing is held."""

    def abort(self) -> None:
        """Nothing is held."""


def _known(reason: str) -> FailureReason:
    return cast("FailureReason", reason) if reason in get_args(FailureReason) else "nccl_error"

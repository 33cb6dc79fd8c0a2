"""The simulated node that the daemon watches; imported only where one is configured."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from commwatch.config.settings import Simulation
from commwatch.config.simulated import SimulationPlan
from commwatch.errors import StateError
from commwatch.rehearsal import rehearsal
from commwatch.state.directory import StateDirectory
from commwatch.state.simulation_start import STATE_NAME, SimulationStart


def remove_earlier(state: StateDirectory, *, with_start: bool) -> None:
    """Remove the files of a daemon before this one: an earlier version may have written another node.

    Without its start the node begins at its beginning.
    """
    for name in ("sysfs", "procfs"):
        shutil.rmtree(state.path / name, ignore_errors=True)
    if with_start:
        (state.path / f"{STATE_NAME}.json").unlink(missing_ok=True)


def _begun(start: SimulationStart | None) -> SimulationStart | None:
    if start is not None and start.started_at > time.time():
        raise ValueError("the node has not booted yet")
    return start


def simulation_plan(settings: Simulation, state: StateDirectory) -> SimulationPlan:
    """The node for the workers, with its files written; it goes on from where it was.

    Raises:
        CommwatchError: preset or faults cannot be used, or when it booted cannot be kept.
    """
    start = state.restore(STATE_NAME, SimulationStart, _begun)
    if start is None:
        start = SimulationStart(time.time())
        try:
            state.save(STATE_NAME, start)
        except OSError as error:
            raise StateError(f"state directory {state.path}: {error.strerror}") from error
    plan = SimulationPlan.of(settings, start.started_at, state.path)
    node = rehearsal().make_node(plan)  # it says now what is wrong with preset or faults
    # The parts of the node are looked up before a worker keeps its part of the trees up to date.
    node.write_sysfs(Path(plan.sysfs), ())
    node.write_procfs(Path(plan.procfs))
    return plan

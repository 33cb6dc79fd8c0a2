"""The node of a command where no daemon runs: read for a short time as a daemon reads it, judged, and let go."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from commwatch.caller import temporary_folder
from commwatch.config.settings import Config
from commwatch.config.simulated import SimulationPlan
from commwatch.config.thresholds import Thresholds
from commwatch.diagnosis.known import Known, read_host_limits
from commwatch.errors import CommwatchError, ExitCode
from commwatch.node.starvation import Starvation
from commwatch.service.api import Answers
from commwatch.service.engine import Engine
from commwatch.service.instruments import Instruments
from commwatch.service.scheduling import Scheduler
from commwatch.service.simulated import simulation_plan
from commwatch.sources.presence import nvidia_driver_present
from commwatch.state.directory import StateDirectory, state_path
from commwatch.state.maintenance import MaintenanceFile

LOOKS = 3
"""A state that lasts is a finding after 15 s."""
LOOK_SECONDS = 10.0


def read_without_daemon(config: Config, thresholds: Thresholds) -> Known:
    """Read the node for 20 s, and judge it; nothing of it is kept.

    Raises:
        CommwatchError: this machine has no NVIDIA driver, nobody may hold its driver now, or there is no such simulated
            node.
    """
    procfs = config.paths.procfs
    if not config.simulation.preset and not nvidia_driver_present(Path(procfs)):
        raise CommwatchError(
            f"there is no GPU to measure: no NVIDIA driver is loaded here ({procfs}/driver/nvidia is missing)",
            ExitCode.NOT_KNOWN,
        )
    if (pause := MaintenanceFile(state_path(config)).read(time.time())) is not None:
        raise CommwatchError(f"the node is paused ({pause.reason}); commwatch resume ends that", ExitCode.NOT_KNOWN)
    print("No daemon runs here: the node is read for 20 s, then measured.", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="commwatch-scan-", dir=temporary_folder()) as folder:
        own = msgspec.structs.replace(config, paths=msgspec.structs.replace(config.paths, state=folder))
        state = StateDirectory(state_path(own))
        state.open()
        try:
            plan = simulation_plan(own.simulation, state) if own.simulation.preset else None
            return asyncio.run(_read(_engine(own, thresholds, state, plan), thresholds))
        finally:
            state.close()


def _engine(config: Config, thresholds: Thresholds, state: StateDirectory, plan: SimulationPlan | None) -> Engine:
    """Its scheduler is never started, so that it neither probes nor saves."""
    instruments = Instruments()
    instruments.begin(thresholds.digest, is_simulated=plan is not None)
    scheduler, starvation = Scheduler(instruments.run_missed), Starvation(Path(config.paths.procfs))
    return Engine(config, thresholds, state, plan, instruments, scheduler, starvation)


async def _read(engine: Engine, thresholds: Thresholds) -> Known:
    answers = Answers(engine)
    try:
        await engine.start()
        for _ in range(LOOKS - 1):
            await asyncio.sleep(LOOK_SECONDS)
            engine.collection.tend()
            engine.expire()
            engine.look()
        snapshot = answers.snapshot()
        return Known(
            answers.findings(), answers.score(), snapshot, thresholds, settings=answers.settings(),
            host=read_host_limits() if snapshot.simulated is None else None,
        )  # fmt: skip
    finally:
        await engine.stop()

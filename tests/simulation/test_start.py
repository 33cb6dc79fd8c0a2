"""Commands by hand meet the simulated node that a daemon watches."""

from __future__ import annotations

import time
from pathlib import Path

from commwatch.config.settings import Config, Paths, Simulation
from commwatch.state.directory import StateDirectory, state_path
from commwatch.state.simulation_start import STATE_NAME, SimulationStart
from commwatch.workers.by_hand import simulated_files
from commwatch_rehearsal.simulation.node import SimulatedNode

HOUR = 3600.0


def config_of(folder: Path) -> Config:
    """A node whose second GPU loses lanes half an hour after its boot."""
    faults = folder / "faults.yaml"
    faults.write_text("- {fault: pcie_width, gpu: 1, lanes: 8, at: 30m}\n")
    return Config(paths=Paths(state=str(folder)), simulation=Simulation(preset="a10x2", faults=str(faults)))


def lanes(config: Config) -> int:
    """Of the second GPU on the node that a command finds."""
    with simulated_files(config) as plan:
        assert plan is not None
        hardware, now = SimulatedNode(plan.preset, Path(plan.faults_file), plan.started_at).now()
        return hardware.epoch(now).gpus[1].pcie_width


def test_a_command_meets_the_node_of_the_daemon(tmp_path: Path) -> None:
    """What has gone wrong since the daemon's node booted has gone wrong on the one that the command looks at."""
    config = config_of(tmp_path)
    state = state_path(config)
    state.mkdir()
    StateDirectory(state).save(STATE_NAME, SimulationStart(time.time() - HOUR))

    assert lanes(config) == 8


def test_without_a_daemon_the_node_boots_now(tmp_path: Path) -> None:
    """Also where what was kept cannot be read, and that is left to the daemon to set aside."""
    config = config_of(tmp_path)
    assert lanes(config) == 16

    state = state_path(config)
    state.mkdir()
    damaged = state / f"{STATE_NAME}.json"
    damaged.write_text("{")
    assert lanes(config) == 16
    assert damaged.exists()

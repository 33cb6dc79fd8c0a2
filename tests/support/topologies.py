"""The topologies of the simulated nodes, each read once: hundreds of files are written for it."""

from __future__ import annotations

from functools import cache

import pytest

from commwatch.config.settings import Config, Simulation
from commwatch.node.topology.model import Topology
from commwatch.workers.by_hand import read_topology
from support.quick_ranks import read_driver_here, read_sysfs_here


@cache
def simulated_topology(preset: str) -> tuple[Topology, tuple[str, ...]]:
    """As the daemon finds it: the simulated driver and files, read by the code that reads real ones.

    Args:
        preset: name of the simulated node; it has no faults.

    Returns:
        The topology, and what could not be read.
    """
    with pytest.MonkeyPatch.context() as patched:
        read_driver_here(patched)
        read_sysfs_here(patched)
        return read_topology(Config(simulation=Simulation(preset=preset)))

"""The interface of simulated nodes for commwatch: ``commwatch.rehearsal.Rehearsal``.

Functions import what they need: most processes of a simulated node need one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commwatch_rehearsal.simulation.node import SimulatedNode

if TYPE_CHECKING:
    from commwatch.probes.cycle.measure import Group
    from commwatch.probes.rank_plan import RankPlan


def check_preset(preset: str) -> None:
    """Refuse what ``--simulate`` names if there is no such node.

    Raises:
        ConfigError: there is none, or its file cannot be used.
    """
    from commwatch_rehearsal.simulation.presets import find_preset

    find_preset(preset)


def make_node(preset: str, faults_file: Path | None, started_at: float) -> SimulatedNode:
    """A node, as the class says."""
    return SimulatedNode(preset, faults_file, started_at)


def install_driver(node: SimulatedNode) -> None:
    """Put the driver library of a node beneath this process."""
    from commwatch_rehearsal.simulation.library import install

    install(node)


def make_group(plan: RankPlan) -> Group:
    """The group of one rank of a probe on a node."""
    from commwatch_rehearsal.simulation.rank import SimulatedGroup, SimulatedRail

    return SimulatedGroup(plan) if plan.meeting is None else SimulatedRail(plan)


def stand_in(source: str, node: SimulatedNode) -> Callable[..., Any] | None:
    """Makes what answers a source in place of the kernel; None where its files are enough."""
    if source == "ethtool":
        from commwatch_rehearsal.simulation.ethtool import SimulatedEthtool

        return partial(SimulatedEthtool, node)
    if source == "kernel_log":
        from commwatch_rehearsal.simulation.kernel_log import SimulatedKernelLog

        return partial(SimulatedKernelLog, node)
    return None

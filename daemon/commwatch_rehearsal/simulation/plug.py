"""The interface of simulated nodes for commwatch: ``commwatch.rehearsal.Rehearsal``.

Functions import what they need: most processes of a simulated node need one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from commwatch.config.simulated import SimulationPlan, is_recording

if TYPE_CHECKING:
    from commwatch.probes.cycle.measure import Group
    from commwatch.probes.rank_plan import RankPlan
    from commwatch_rehearsal.simulation.node import SimulatedNode
    from commwatch_rehearsal.simulation.presets.parts import Preset
    from commwatch_rehearsal.simulation.recording.node import RecordedNode

    Node: TypeAlias = SimulatedNode | RecordedNode


def check_preset(preset: str) -> float | None:
    """Refuse what ``--simulate`` names if there is no such node; seconds that a recording lasts, else None.

    Raises:
        ConfigError: there is none, or its file cannot be used.
    """
    if is_recording(preset):
        from commwatch_rehearsal.simulation.recording.node import RecordedNode

        return RecordedNode(Path(preset), None, 0.0).recording.seconds
    from commwatch_rehearsal.simulation.presets import find_preset

    find_preset(preset)
    return None


def check_faults(text: str, node: str, parts: Preset) -> None:
    """Refuse faults that a node cannot play.

    Args:
        node: what ``--simulate`` names.

    Raises:
        ConfigError: it cannot play one of them.
    """
    from commwatch_rehearsal.simulation.faults.parse import parse_faults

    faults = parse_faults(text, "faults", parts, 0.0, 0.0)
    if is_recording(node):
        from commwatch_rehearsal.simulation.recording.faulty_parts import check_playable
        from commwatch_rehearsal.simulation.recording.node import load

        check_playable(faults, "faults", parts, load(Path(node)))


def make_node(plan: SimulationPlan) -> Node:
    """A node, as its class says."""
    faults_file = Path(plan.faults_file) if plan.faults_file else None
    if is_recording(plan.preset):
        from commwatch_rehearsal.simulation.recording.node import RecordedNode

        return RecordedNode(Path(plan.preset), faults_file, plan.started_at, loops=plan.playback == "loop")
    from commwatch_rehearsal.simulation.node import SimulatedNode

    return SimulatedNode(plan.preset, faults_file, plan.started_at)


def install_driver(node: Node) -> None:
    """Put the driver library of a node beneath this process."""
    from commwatch_rehearsal.simulation.node import SimulatedNode

    if isinstance(node, SimulatedNode):
        from commwatch_rehearsal.simulation.library import install

        install(node)
        return
    from commwatch_rehearsal.simulation.recording import answers

    answers.install(node)


def make_group(plan: RankPlan) -> Group:
    """The group of one rank of a probe on a node."""
    from commwatch_rehearsal.simulation.rank import SimulatedGroup, SimulatedRail

    return SimulatedGroup(plan) if plan.meeting is None else SimulatedRail(plan)


def stand_in(source: str, node: Node) -> Callable[..., Any] | None:
    """Makes what answers a source in place of the kernel; None where its files are enough."""
    if source not in ("ethtool", "kernel_log"):
        return None
    from commwatch_rehearsal.simulation.node import SimulatedNode

    if not isinstance(node, SimulatedNode):
        from commwatch_rehearsal.simulation.recording.answers import RecordedEthtool, RecordedKernelLog

        if node.faults is not None:
            from commwatch_rehearsal.simulation.recording.faulty_parts import FaultyEthtool, FaultyKernelLog

            return partial(FaultyEthtool if source == "ethtool" else FaultyKernelLog, node, node.faults)
        return partial(RecordedEthtool if source == "ethtool" else RecordedKernelLog, node)
    if source == "ethtool":
        from commwatch_rehearsal.simulation.ethtool import SimulatedEthtool

        return partial(SimulatedEthtool, node)
    from commwatch_rehearsal.simulation.kernel_log import SimulatedKernelLog

    return partial(SimulatedKernelLog, node)

"""Which drills go side by side, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commwatch_rehearsal.drill.course import PATIENCE_SECONDS
from commwatch_rehearsal.drill.drill import Drill
from commwatch_rehearsal.drill.pace import Pace

_SAME_AT_ONCE = 2
"""Nodes with one alert at a time: from three on the same fault is one of the fleet, which silences the others."""
_STARTING_AT_ONCE = 4
"""Drills whose daemons start at a time: each keeps a core busy for more than a second."""


@dataclass(frozen=True, slots=True)
class Running:
    """A drill that is being played."""

    drill: Drill
    starting: bool


def alerts_of_drill(drill: Drill) -> frozenset[str]:
    return frozenset({*drill.alerts, *drill.also})


def ordered(drills: Sequence[Drill], held: Mapping[str, float], pace: Pace) -> list[Drill]:
    """Drills in order: first those that must wait for each other, and those that last longest and would delay the end.

    Args:
        drills: to be played; those of the fleet come first, before others have raised their alerts.
        held: seconds for which each alert keeps firing after its fault.
    """

    def seconds(drill: Drill) -> float:
        lasts = max((held.get(name, 0.0) for name in drill.alerts), default=0.0) + pace.seconds(drill.lasts)
        return pace.seconds(drill.limit) + (lasts if lasts <= PATIENCE_SECONDS[pace.name] else 0.0)

    def crowd(drill: Drill) -> float:
        """Seconds that all drills take together which share an alert with this one."""
        sums = [sum(seconds(one) for one in drills if name in alerts_of_drill(one)) for name in alerts_of_drill(drill)]
        return max(sums, default=0.0)

    return sorted(drills, key=lambda drill: (drill.nodes == 1, -crowd(drill), -seconds(drill)))


def may_start(drill: Drill, running: Sequence[Running], past: Mapping[str, int], nodes: int) -> bool:
    """Whether a drill can be started now.

    Args:
        past: nodes of drills that are over on which an alert still fires, by alert.
        nodes: that may run side by side; drills of the fleet are let pass, but not beside others of the same alerts.
    """
    if drill.nodes > 1:
        shared = alerts_of_drill(drill)
        return not any(shared & alerts_of_drill(one.drill) for one in running) and not shared & past.keys()
    if any(one.drill.nodes > 1 and alerts_of_drill(one.drill) & alerts_of_drill(drill) for one in running):
        return False
    if len(running) >= nodes or sum(one.starting for one in running) >= _STARTING_AT_ONCE:
        return False
    return all(
        sum(name in alerts_of_drill(one.drill) for one in running) + past.get(name, 0) < _SAME_AT_ONCE
        for name in alerts_of_drill(drill)
    )

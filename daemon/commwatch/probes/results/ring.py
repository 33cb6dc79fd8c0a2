"""How fast a ring over some ranks can be, from what lies between every two of them; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

_MOST_MEMBERS = 16
"""Of a search for the best order: the work doubles with each member, and no PCIe node has more GPUs."""
_MOST_SPLIT = 12
"""Members of which all splits are tried; beyond, only NVSwitches join GPUs, and the narrowest split is a single one."""


def slowest_hop(members: Sequence[int], rate: Callable[[int, int], float | None]) -> float | None:
    """Rate of the slowest hop of the best ring over all members.

    Args:
        members: two or more.
        rate: what lies between two members, the same in both directions; None where not known: no ring goes there.

    Returns:
        None where no ring is known, and above 16 members.
    """
    if not 2 <= len(members) <= _MOST_MEMBERS:
        return None
    rates = {
        (first, second): found
        for first, second in combinations(range(len(members)), 2)
        if (found := rate(members[first], members[second])) is not None
    }
    for least in sorted(set(rates.values()), reverse=True):
        if _has_ring(len(members), [ends for ends, found in rates.items() if found >= least]):
            return least
    return None


def _has_ring(count: int, edges: Sequence[tuple[int, int]]) -> bool:
    """Whether a ring over all places uses only these edges; two places make a ring of one edge."""
    near = [0] * count
    for first, second in edges:
        near[first] |= 1 << second
        near[second] |= 1 << first
    ends = {1: 1}
    # Sets of places that a way from place 0 visits, each with the places at which such a way can end.
    for _ in range(count - 1):
        longer: dict[int, int] = {}
        for visited, last in ends.items():
            for place in range(count):
                if not visited >> place & 1 and near[place] & last:
                    longer[visited | 1 << place] = longer.get(visited | 1 << place, 0) | 1 << place
        ends = longer
    return bool(ends.get((1 << count) - 1, 0) & near[0])


def narrowest_split(
    members: Sequence[int], direct: Callable[[int, int], float], to_switches: Callable[[int], float]
) -> float:
    """The least rate that joins two halves of the members, over all ways to split them; 0 where they are not joined.

    Several rings at once use all links, and what passes between two halves bounds them together.

    Args:
        members: two or more.
        direct: rate of the links between two members that go through no switch.
        to_switches: rate of the links of a member to switches that join all members which have such links.
    """
    first, *others = members
    largest = len(others) if len(members) <= _MOST_SPLIT else 1
    halves = [[*part] for size in range(1, largest + 1) for part in combinations(others, size)]
    if len(members) > _MOST_SPLIT:
        halves.append([first])
    return min(_between(half, [one for one in members if one not in half], direct, to_switches) for half in halves)


def _between(
    here: Sequence[int], there: Sequence[int], direct: Callable[[int, int], float], to_switches: Callable[[int], float]
) -> float:
    links = sum(direct(one, other) for one in here for other in there)
    return links + min(sum(map(to_switches, here)), sum(map(to_switches, there)))

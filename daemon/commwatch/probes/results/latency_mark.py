"""Above which a small collective is slow on its path, before the node has results of its own; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commwatch.probes.results.ring import narrowest_split

if TYPE_CHECKING:
    from commwatch.node.topology.reach import GpuPaths
    from commwatch.probes.rank_plan import Step

_START_SECONDS = 8.4e-6
_STEP_SECONDS = {"nvlink": 3.4e-6, "pcie": 5.7e-6}
"""Start and one step of a ring with protocol Simple (NCCL src/graph/tuning.cc). A call of a few bytes takes LL,
which is faster: published are 12 to 35 us for 8 GPUs over NVLink, where this gives 56 us."""


def latency_mark(step: Step, paths: GpuPaths | None, *, factor: float, most: float) -> float:
    """Seconds above which the call of a latency step is slow.

    Args:
        step: of a cycle whose ranks have a GPU each.
        paths: what lies between these GPUs; None where not known: then ``most``.
        factor: times the start and the steps of a ring on this path.
        most: seconds, whatever the path.
    """
    ranks = len(step.members)
    if paths is None or not set(step.members) <= set(range(len(paths.addresses))):
        return most
    over_nvlink = narrowest_split(step.members, paths.direct_rate, paths.switch_rates.__getitem__) > 0
    steps = 2 * (ranks - 1) if step.operation == "all_reduce" else ranks - 1
    return min(most, factor * (_START_SECONDS + steps * _STEP_SECONDS["nvlink" if over_nvlink else "pcie"]))

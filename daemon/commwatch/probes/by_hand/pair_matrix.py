"""The pair matrix of a cycle by hand, with what is suspected at first sight."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from commwatch.config.settings import Config, Probe
from commwatch.node.gpus_now import ProbeGpu
from commwatch.node.topology.elements import ways_of
from commwatch.node.topology.model import Topology
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.node.topology.reach import GpuPaths
from commwatch.probes.plan import CyclePlan, Measured
from commwatch.probes.results.culprit import Parts, find_suspects
from commwatch.probes.results.expected import Expected, expected_of_pair
from commwatch.probes.results.pair_record import (
    PairSurroundings,
    endpoints_of_gpus,
    endpoints_of_ranks,
    labels_of,
    matrix_of,
    parts_of,
)

FIRST_SIGHT = "Measure again before you act."


def surroundings_of(
    plan: CyclePlan,
    gpus: Sequence[ProbeGpu],
    topology: Topology,
    paths: GpuPaths | None,
    *,
    configured: float | None,
    simulated_node: str,
) -> PairSurroundings:
    """The ends of the pairs of a plan, and what lies between them.

    Args:
        plan: of the cycle.
        gpus: by rank; empty where the ranks have none.
        topology: of the node.
        paths: between these GPUs; None where not known.
        configured: bytes per second that every pair should give, by the operator.
        simulated_node: its name; empty for a real one.
    """
    ends = endpoints_of_gpus(gpus) or endpoints_of_ranks(plan.ranks)
    pairs = {pair for step in plan.steps for pair in step.pairs}
    expected: dict[tuple[int, int], Expected] = {}
    for pair in pairs:
        one = expected_of_pair(pair, plan.bandwidth_bytes, paths, configured=configured, backend=plan.backend)
        if one is not None:
            expected[pair] = one
    names = tuple(f"GPU{one.label}" for one in ends)
    return PairSurroundings(
        endpoints=ends,
        labels=labels_of(paths),
        expected=expected,
        parts=None if paths is None else Parts(ways_of(topology, paths), names),
        simulated_node=simulated_node,
    )


def first_sight(result: Measured, plan: CyclePlan, around: PairSurroundings) -> PairMatrix:
    """The matrix of a single cycle, with suspects whose words say that it is the only one."""
    matrix = matrix_of(result, plan, around)
    if not all(end.device for end in matrix.endpoints):
        return matrix  # ranks of one host tell nothing of a fabric
    firm = bool(around.expected) and all(one.is_firm for one in around.expected.values())
    found = find_suspects([matrix], parts_of(around), firm_expected=firm, fewest=1)
    suspects = tuple(msgspec.structs.replace(one, words=f"{one.words.rstrip('.')}. {FIRST_SIGHT}") for one in found)
    return msgspec.structs.replace(matrix, suspects=suspects)


def pair_probes(config: Config) -> dict[str, Probe]:
    """The probes over pairs that are configured; without one, one with the default settings."""
    return _of_measure(config, Probe(measure="pairs"))


def _of_measure(config: Config, otherwise: Probe) -> dict[str, Probe]:
    found = {name: probe for name, probe in config.probes.definitions.items() if probe.measure == otherwise.measure}
    return found or {otherwise.measure: otherwise}

"""A healthy simulated node gives what is expected of it: simulation and expectation know nothing of each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache

from commwatch.config import settings
from commwatch.config.thresholds import load_thresholds
from commwatch.node.topology.reach import GpuPaths, gpu_paths
from commwatch.probes.by_hand.answer import Answer, answer_of
from commwatch.probes.plan import CyclePlan, Measured, StepOutcome
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import SimulatedNodePlan
from commwatch.probes.results.expected import expected_of_pair
from commwatch.probes.workload import plan_cycle
from commwatch_rehearsal.simulation.presets import PRESETS
from support.passes import in_one_pass
from support.quick_ranks import outcomes_of
from support.topologies import simulated_topology

PROBE = settings.Probe()
LEAST, MOST = 0.85, 1.10
"""Of what is expected. Latency of pairs and small calls have no expectation."""


@cache
def paths_of(preset: str) -> GpuPaths:
    """As the daemon finds them."""
    topology, problems = simulated_topology(preset)
    assert problems == ()
    paths = gpu_paths(topology, [gpu.pci_address for gpu in PRESETS[preset].gpus])
    assert paths is not None
    return paths


def cycle_of(preset: str, name: str, probe: settings.Probe) -> CyclePlan:
    """Of the default schedule; the node started a minute ago."""
    return plan_cycle(
        name,
        probe,
        settings.Probes(),
        backend="simulated",
        devices=tuple(gpu.uuid for gpu in PRESETS[preset].gpus),
        simulation=SimulatedNodePlan(preset=preset, faults_file=None, started_at=time.time() - 60),
        shared_links=paths_of(preset).shared_links,
    )


def answered(plan: CyclePlan, outcomes: tuple[StepOutcome, ...], paths: GpuPaths) -> Answer:
    """The output of the command for them."""
    result = Measured(finished_at=0, occupied_seconds=0, setup_seconds=0, outcomes=outcomes)
    return answer_of(Prospect(plan, paths=paths), PROBE, result, load_thresholds(None))


def shares(answer: Answer, outcomes: tuple[StepOutcome, ...], paths: GpuPaths) -> Iterator[tuple[str, float]]:
    """What was measured, and its share of what is expected."""
    for row in answer.rows:
        if row.purpose == "bandwidth":
            assert row.utilization_ratio is not None
            yield f"{row.operation} over {row.members}", row.utilization_ratio
    for outcome in outcomes:
        step = outcome.step
        for pair in step.pairs if step.purpose == "bandwidth" else ():
            expected = expected_of_pair(pair, step.size_bytes, paths)
            seconds = outcome.seconds[pair[1]]
            assert expected is not None
            assert seconds is not None
            yield f"{pair}, both ways: {step.both_ways}", step.size_bytes / seconds / expected.bytes_per_second


def assert_as_expected(preset: str) -> None:
    """Each measure of the default schedule, each step and each pair; and no rank is behind the others."""
    paths, amiss, steps = paths_of(preset), [], 0
    for name, probe in settings.DEFAULT_PROBES.items():
        plan = cycle_of(preset, name, probe)
        outcomes = outcomes_of(plan)
        answer = answered(plan, outcomes, paths)
        found = dict(shares(answer, outcomes, paths))
        steps += len(found)
        amiss += [(name, what, round(share, 2)) for what, share in found.items() if not LEAST <= share <= MOST]
        assert all(row.balance_ratio is None or row.balance_ratio > 0.9 for row in answer.rows)

    assert amiss == []
    count = len(paths.addresses)
    assert steps >= 2 * count + (5 + 2 * count * (count - 1) if count > 1 else 0)


@in_one_pass("preset", ["h100x8", "rtx3090x4", "h200x1"])
def test_every_probe_of_a_healthy_node_gives_what_is_expected(preset: str) -> None:
    """Behind NVSwitches, behind PCIe switches, and alone."""
    assert_as_expected(preset)

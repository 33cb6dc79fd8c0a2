"""Every pair has its turn beside a frequent collective, within two hours and at no more than a step or two a cycle."""

from __future__ import annotations

import pytest

from commwatch.config.settings import Probe, Probes
from commwatch.probes.plan import CyclePlan
from commwatch.probes.schedule import Rotation, rounds_of
from commwatch.probes.workload import SharedLinks, plan_cycle

CONFIRMED_AFTER = 300.0
"""Seconds from the slow pair beside a collective to its name: three matrices, 30 s apart."""


def matrix_of(gpus: int, shared_links: SharedLinks | None = None) -> CyclePlan:
    devices = tuple(f"GPU-{number}" for number in range(gpus))
    return plan_cycle(
        "pairs", Probe(measure="pairs"), Probes(), backend="nccl", devices=devices, shared_links=shared_links
    )


@pytest.mark.parametrize("gpus", [3, 4, 7, 8, 16])
@pytest.mark.parametrize("one_by_one", [False, True], ids=["at switches", "over one link"])
@pytest.mark.parametrize("interval", [300.0, 900.0, 1800.0])
def test_each_pair_has_its_turn_within_two_hours(gpus: int, one_by_one: bool, interval: float) -> None:
    """At any place of the rotation; at 15 min eight GPUs at switches take one step more in each cycle."""
    rounds = rounds_of(matrix_of(gpus, (lambda one, other: frozenset({"uplink"})) if one_by_one else None))
    rotation, now, last_at = Rotation(), 0.0, dict[tuple[int, int], float]()
    longest, most = 0.0, 0
    for _ in range(200):
        steps = rotation.due(rounds, now, interval)
        most = max(most, len(steps))
        for pair in (pair for step in steps for pair in step.pairs):
            longest = max(longest, now - last_at.get(pair, 0.0))
            last_at[pair] = now
        rotation.measured(len(steps), now)
        now += interval

    assert len(last_at) == gpus * (gpus - 1)
    assert longest + CONFIRMED_AFTER <= 7200.0
    if (gpus, one_by_one, interval) == (8, False, 900.0):
        assert most == 1


def test_what_a_job_kept_from_its_turn_is_made_up_for() -> None:
    """After hours without a cycle all rounds are due, each once; a cycle that failed is no turn."""
    rounds, rotation = rounds_of(matrix_of(8)), Rotation()
    first = rotation.due(rounds, 0.0, 900.0)
    again = rotation.due(rounds, 0.0, 900.0)
    rotation.measured(len(first), 0.0)
    second, late = rotation.due(rounds, 900.0, 900.0), rotation.due(rounds, 20_000.0, 900.0)

    assert first == again == rounds[:1]
    assert second == rounds[1:2]
    assert sorted(late, key=rounds.index) == list(rounds)


def test_without_pairs_there_are_no_turns() -> None:
    """One GPU has none."""
    assert Rotation().due(rounds_of(matrix_of(1)), 0.0, 900.0) == ()

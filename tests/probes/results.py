"""Plans and results of every measure, made by hand; knows nothing of the code that judges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commwatch.probes.plan import CyclePlan, Deadlines, Measure, Measured, NcclNotes, StepOutcome
from commwatch.probes.rank_plan import Operation, Purpose, Step

MIB = 2**20
COLLECTIVES: tuple[Operation, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")


def step(operation: Operation, purpose: Purpose, size: int, *members: int) -> Step:
    """One step over these ranks."""
    return Step(operation=operation, purpose=purpose, size_bytes=size, members=members)


def steps_of(measure: Measure, ranks: int, latency_bytes: int = 8, bandwidth_bytes: int = MIB) -> tuple[Step, ...]:
    """What a cycle over two or more ranks does; of pairs only one direction of the first two."""
    everyone = range(ranks)
    if measure == "scaling":
        counts = [count for count in (2, 4, 8) if count <= ranks]
        return tuple(step("all_reduce", "bandwidth", bandwidth_bytes, *range(count)) for count in counts)
    if measure == "host_copies":
        copies: tuple[Operation, ...] = ("host_to_device", "device_to_host")
        return tuple(step(copy, "bandwidth", bandwidth_bytes, rank) for rank in everyone for copy in copies)
    if measure == "pairs":
        pair = Step(
            operation="send_recv", purpose="bandwidth", size_bytes=bandwidth_bytes, members=(0, 1), pairs=((0, 1),)
        )
        return (pair,)
    if measure == "training":
        return (
            step("all_reduce", "bandwidth", bandwidth_bytes, *everyone),
            step("matrix_product", "work", bandwidth_bytes, *everyone),
            step("overlapped", "work", bandwidth_bytes, *everyone),
        )
    return (
        step(measure, "latency", latency_bytes, *everyone),
        step(measure, "bandwidth", bandwidth_bytes, *everyone),
    )


def plan_of(
    measure: Measure = "all_reduce",
    ranks: int = 2,
    *,
    latency_bytes: int = 8,
    bandwidth_bytes: int = MIB,
    **changes: Any,
) -> CyclePlan:
    """A plan of simulated ranks, one on each GPU."""
    values: dict[str, Any] = {
        "probe": "ring",
        "backend": "simulated",
        "measure": measure,
        "ranks": ranks,
        "devices": tuple(f"GPU-{rank}" for rank in range(ranks)),
        "steps": steps_of(measure, ranks, latency_bytes, bandwidth_bytes) if ranks > 1 else (),
        "timed_seconds": 0.1,
        "deadlines": Deadlines(start=30.0, rendezvous=30.0, setup=30.0, measure=30.0),
    }
    return CyclePlan(**(values | changes))


def outcome(one: Step, ranks: int, seconds: float | Sequence[float]) -> StepOutcome:
    """What a step gave: the same on all its ranks, or a time for each of its clocks."""
    each = [seconds] * len(one.clocks) if isinstance(seconds, float) else seconds
    by_rank = dict(zip(one.clocks, each, strict=True))
    return StepOutcome(step=one, seconds=tuple(by_rank.get(rank) for rank in range(ranks)))


def measured(
    plan: CyclePlan,
    finished_at: float,
    seconds: Sequence[float | Sequence[float]],
    *,
    nccl_version: str = "2.27.5",
    torch_version: str = "2.9.1",
    settings: dict[str, str] | None = None,
) -> Measured:
    """A result of a plan: for each step a time, or one for each rank that takes part."""
    return Measured(
        finished_at=finished_at,
        occupied_seconds=5.0,
        setup_seconds=3.0,
        outcomes=tuple(outcome(one, plan.ranks, each) for one, each in zip(plan.steps, seconds, strict=True)),
        torch_version=torch_version,
        nccl_version=nccl_version,
        nccl=NcclNotes(settings=settings or {}),
    )

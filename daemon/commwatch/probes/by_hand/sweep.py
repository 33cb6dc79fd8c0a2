"""A sweep: one collective at rising sizes, as nccl-tests does it with -b, -e and -f."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec

from commwatch.config.settings import Probe
from commwatch.errors import UsageError
from commwatch.probes.by_hand.answer import Answer, StepRow
from commwatch.probes.plan import CyclePlan
from commwatch.probes.rank_plan import Collective
from commwatch.probes.workload import step_of
from commwatch.units import format_bytes, format_rate, parse_size

LARGEST_BYTES = 4 * 2**30
"""The check of a call counts its elements in 31 bits, with room for those of all ranks."""
_STEPS_OF_A_CYCLE = 2
_MEASURE_DEADLINES = 4
"""The largest calls take as long as all others together."""


def sweep_sizes(text: str) -> tuple[int, ...]:
    """The sizes of ``8B:1GiB:2``: from the first one, each a fixed multiple of the one before, up to the second.

    Raises:
        UsageError: it is no such text, or too many sizes.
    """
    try:
        first, last, factor = text.split(":")
        low, high = parse_size(first), parse_size(last)
    except ValueError as error:
        why = str(error) if text.count(":") == 2 else "expected FIRST:LAST:FACTOR"
        raise UsageError(f"--sweep {text}: {why}, such as 8B:1GiB:2") from None
    if not (factor.isascii() and factor.isdigit() and len(factor) < 10 and int(factor) > 1):
        raise UsageError(f"--sweep {text}: the factor is {factor!r}; expected a whole number from 2 on")
    if not 1 <= low <= high <= LARGEST_BYTES:
        raise UsageError(f"--sweep {text}: expected sizes that rise, from 1B to {format_bytes(LARGEST_BYTES)}")
    sizes = [low]
    while sizes[-1] * int(factor) <= high:
        sizes.append(sizes[-1] * int(factor))
    return tuple(sizes)


def sweep_probes(probes: Mapping[str, Probe]) -> dict[str, Probe]:
    """The same without what is configured for their own sizes.

    Raises:
        UsageError: one is of no collective.
    """
    for name, probe in probes.items():
        if probe.measure not in get_args(Collective):
            raise UsageError(f"--sweep: {name} measures {probe.measure}, which has no such curve; name a collective")
    return {
        name: msgspec.structs.replace(probe, expected_bandwidth=None, latency_limit=None)
        for name, probe in probes.items()
    }


def swept(plan: CyclePlan, *, sizes: Sequence[int]) -> CyclePlan:
    """A collective's plan with a step for each size; each has the time that it would have in a cycle of its own.

    Args:
        plan: of a collective; without steps if the node has no peer to communicate with.
        sizes: bytes, rising; sizes that are equal in whole elements count once.
    """
    if not plan.steps:
        return plan
    members = tuple(range(plan.ranks))
    steps = dict.fromkeys(step_of(plan.steps[0].operation, "bandwidth", size, members) for size in sizes)
    longer = max(1.0, len(steps) / _STEPS_OF_A_CYCLE)
    deadlines = msgspec.structs.replace(plan.deadlines, measure=_MEASURE_DEADLINES * plan.deadlines.measure)
    return msgspec.structs.replace(
        plan, steps=tuple(steps), timed_seconds=longer * plan.timed_seconds, deadlines=deadlines
    )


def sweep_words(answer: Answer) -> str:
    """The most that a curve reaches, and from which size on half of it; empty without any."""
    rates = [(bus_of(row), row.size_bytes) for row in answer.rows]
    if not rates:
        return ""
    best, at = max(rates)
    half = next(size for rate, size in rates if rate >= best / 2)
    return (
        f"at most {format_rate(best)} bus bandwidth, at {format_bytes(at)}; half of it from {format_bytes(half)} on: "
        "smaller messages are worth putting together"
    )


def bus_of(row: StepRow) -> float:
    """Bytes per second; steps of a sweep all have it."""
    return row.bus_bandwidth_bytes_per_second or 0.0

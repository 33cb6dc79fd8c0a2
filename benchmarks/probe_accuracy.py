"""How near a gloo probe of two ranks comes to a plain loop over the same call.

Run ``python benchmarks/probe_accuracy.py``; needs torch. Two figures for each call, both against the median of a plain
loop that shares no code with the probe:

- ``same ranks``: probe and loop take turns in the same two processes, and differ by how they measure only: the median
  over the turns of the one over the other;
- ``whole cycle``: a probe as the daemon starts it, in processes of its own. How two processes meet on a machine changes
  the time of a gloo call, for the loop as for the probe: ``loops`` is the largest over the smallest median of loops in
  different processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1] / root) for root in ("daemon", "exporters")]

from commwatch.config import settings  # noqa: E402 - the checkout need not be installed
from commwatch.probes.cycle.launch import Launcher  # noqa: E402 - as above
from commwatch.probes.cycle.measure import measure  # noqa: E402 - as above
from commwatch.probes.gate.watch import Halt  # noqa: E402 - as above
from commwatch.probes.plan import CyclePlan, Measure, Measured  # noqa: E402 - as above
from commwatch.probes.rank_plan import Collective, RankPlan, Step  # noqa: E402 - as above
from commwatch.probes.workload import plan_cycle  # noqa: E402 - as above

MEASURES: tuple[Measure, ...] = (*get_args(Collective), "pairs")
RANKS = 2
WARM_UP_CALLS = 20
LOOP_CALLS = {"latency": 200, "bandwidth": 50}


def plain_loop(step: Step, rank: int) -> float:
    """Median seconds of one call on this rank, each call timed by itself; of a small send half of there and back."""
    import torch
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    count, back = step.size_bytes // 4, step.purpose == "latency"
    # Written once: fresh memory is one page of zeros, many times, and reads faster than any other.
    whole, other, part = (torch.empty(size).zero_() for size in (count, count, max(1, count // RANKS)))
    call: Callable[[], object] = {
        "all_reduce": partial(dist.all_reduce, whole),
        "broadcast": partial(dist.broadcast, whole, 0),
        "all_gather": partial(gather, whole, part),
        "reduce_scatter": partial(scatter, part, whole),
        "all_to_all": partial(dist.all_to_all_single, other, whole),
        "send_recv": partial(transfer, dist, whole, rank, back=back),
    }[step.operation]
    times = []
    for number in range(WARM_UP_CALLS + LOOP_CALLS[step.purpose]):
        started = time.perf_counter()
        call()
        if number >= WARM_UP_CALLS:
            times.append(time.perf_counter() - started)
    return median(times) / (2 if step.operation == "send_recv" and back else 1)


def transfer(dist: Any, buffer: Any, rank: int, *, back: bool) -> None:
    """From rank 0 to rank 1, and back where that is timed."""
    first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
    first(buffer, 1 - rank)
    if back:
        second(buffer, 1 - rank)


class Reused:
    """A group that is connected once, for many measurements."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def rendezvous(self) -> None:
        """Done."""

    def first_call(self) -> None:
        """Done."""


def take_turns(plan: RankPlan, rounds: int) -> list[dict[str, list[float]]]:
    """For each step the medians of probe and loop on this rank, round by round."""
    from commwatch.probes.cycle.rank_torch import TorchGroup

    group = TorchGroup(plan)
    group.rendezvous()
    group.first_call()
    turns: list[dict[str, list[float]]] = [{"probe": [], "loop": []} for _ in plan.steps]
    for _ in range(rounds):
        result = measure(plan, Reused(group), lambda _: None, lambda _: None)
        for step, timings, turn in zip(plan.steps, result.timings, turns, strict=True):
            turn["probe"].append(median(timings))
            turn["loop"].append(plain_loop(step, plan.rank))
    group.close()
    return turns


def run_ranks(plan: CyclePlan, rounds: int) -> list[list[dict[str, list[float]]]]:
    """What both ranks say of their turns."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(RANKS):
            file = Path(folder, f"plan-{rank}")
            file.write_bytes(msgspec.json.encode(plan.rank_plan(rank, f"{folder}/store")))
            command = [sys.executable, __file__, "--rank-plan", str(file), "--rounds", str(rounds)]
            ranks.append(
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # torch warns of a missing NumPy
                    env=environment,
                    # As the probe's ranks: where the kernel schedules sessions as groups, their wake-ups take longer.
                    start_new_session=True,
                )
            )
        return [json.loads(rank.communicate(timeout=600)[0]) for rank in ranks]


async def no_job(pids: frozenset[int]) -> Halt | None:
    """Nothing else wants the node."""
    del pids
    return None


def run_cycle(plan: CyclePlan) -> tuple[list[float], float]:
    """A whole cycle: seconds of each step on the slowest of its clocks, and from the start to the result."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(Launcher(procfs=Path("/proc"), temporary=Path(folder)).run(plan, no_job))
    seconds = time.perf_counter() - started
    if not isinstance(result, Measured):
        raise SystemExit(f"the probe gave no result: {result.reason}: {result.detail}")
    return [outcome.slowest_seconds for outcome in result.outcomes], seconds


def accuracy_plan(measure: Measure, bandwidth_bytes: int) -> CyclePlan:
    """One small and one large step of a measure, with the time that they have in a whole cycle."""
    probe = settings.Probe(measure=measure, ranks=RANKS, bandwidth_bytes=settings.Size(bandwidth_bytes))
    plan = plan_cycle("accuracy", probe, settings.Probes(), backend="gloo", devices=())
    steps = [next(step for step in plan.steps if step.purpose == purpose) for purpose in LOOP_CALLS]
    return msgspec.structs.replace(plan, steps=tuple(steps))


def compare(measure: Measure, processes: int, rounds: int, bandwidth_bytes: int) -> list[dict[str, Any]]:
    """The figures of each step, from some pairs of processes of either kind."""
    plan = accuracy_plan(measure, bandwidth_bytes)
    probed: list[list[float]] = [[] for _ in plan.steps]
    looped: list[list[float]] = [[] for _ in plan.steps]
    ratios: list[list[float]] = [[] for _ in plan.steps]
    cycles: list[list[float]] = [[] for _ in plan.steps]
    cycle_seconds = []
    for _ in range(processes):
        answers = run_ranks(plan, rounds)
        outcomes, seconds = run_cycle(plan)
        cycle_seconds.append(seconds)
        for number, step in enumerate(plan.steps):
            turns = {
                kind: [
                    max(values) for values in zip(*(answers[rank][number][kind] for rank in step.clocks), strict=True)
                ]
                for kind in ("probe", "loop")
            }
            probed[number].append(median(turns["probe"]))
            looped[number].append(median(turns["loop"]))
            ratios[number] += [one / other for one, other in zip(turns["probe"], turns["loop"], strict=True)]
            cycles[number].append(outcomes[number])
    return [
        {
            "measure": measure,
            "purpose": step.purpose,
            "bytes": step.size_bytes,
            "probe_seconds": median(probed[number]),
            "loop_seconds": median(looped[number]),
            "same_ranks": median(ratios[number]),
            "whole_cycle": median(cycles[number]) / median(looped[number]),
            "loops": max(looped[number]) / min(looped[number]),
            "cycle_seconds": median(cycle_seconds),
        }
        for number, step in enumerate(plan.steps)
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("measures", nargs="*", help=f"of {', '.join(MEASURES)}; all without any")
    parser.add_argument("--processes", type=int, default=3, help="pairs of processes of each kind")
    parser.add_argument("--rounds", type=int, default=15, help="turns of probe and loop in each of them")
    parser.add_argument("--bandwidth-bytes", type=int, default=4 * 2**20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank-plan", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_plan:
        print(json.dumps(take_turns(msgspec.json.decode(args.rank_plan.read_bytes(), type=RankPlan), args.rounds)))
        return
    if unknown := set(args.measures) - set(MEASURES):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    figures = []
    for one in [one for one in MEASURES if not args.measures or one in args.measures]:
        made = compare(one, args.processes, args.rounds, args.bandwidth_bytes)
        figures += made
        for line in made if not args.json else ():
            print(
                f"{line['measure']:<14} {line['bytes']:>8} B: probe {line['probe_seconds'] * 1e6:7.1f} µs, "
                f"loop {line['loop_seconds'] * 1e6:7.1f} µs; probe / loop: same ranks {line['same_ranks']:.3f}, "
                f"whole cycle {line['whole_cycle']:.2f} (loops {line['loops']:.2f}; {line['cycle_seconds']:.2f} s)"
            )
    if args.json:
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

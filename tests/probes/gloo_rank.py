"""One rank of a real gloo group, without a parent: ``gloo_rank.py measured|tampered RANK PLAN``; prints JSON."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from commwatch.probes.cycle.measure import RankError, measure
from commwatch.probes.cycle.rank_calls import Call
from commwatch.probes.cycle.rank_torch import TorchGroup
from commwatch.probes.rank_plan import RankPlan, Step

SLOW_SECONDS = 0.1
"""Well above what a busy machine adds to a call, or takes from one whose clock it starts late."""
MOST_TIMINGS = 20


def tampered(group: TorchGroup, plan: RankPlan) -> object:
    """What becomes of calls that are slow, and of such as deliver a wrong bit."""
    group.rendezvous()
    group.first_call()
    wrong = flipped(group, plan)  # before the calls are slow
    times = slowed(group, plan)
    return {"flipped": wrong, "held": SLOW_SECONDS, "slowed": times, "reasons": reasons(group, plan)}


def flipped(group: TorchGroup, plan: RankPlan) -> list[tuple[bool, bool, bool]]:
    """For each step whether it is exact: as it is, with a bit flipped in the timed calls, and in the checked one."""
    return [
        (group.exact(step), flipped_while_timed(group, step), flipped_while_checked(group, step)) for step in plan.steps
    ]


def flipped_while_timed(group: TorchGroup, step: Step) -> bool:
    call = group._calls[step]
    group.time_calls(step, 1)
    call.received.view(torch.int32)[-1] |= 1
    return group.exact(step)


def flipped_while_checked(group: TorchGroup, step: Step) -> bool:
    call = group._calls[step]
    whole = call.run

    def run() -> None:
        whole()
        call.received.view(torch.int32)[-1] ^= 1

    call.run = run
    exact = group.exact(step)
    call.run = whole
    return exact


def slowed(group: TorchGroup, plan: RankPlan) -> list[float]:
    """Seconds of each step while the last rank is slow to begin a call."""
    for call in group._calls.values() if plan.rank == plan.ranks - 1 else ():
        slow_down(call)
    return [least_seconds(group, step) for step in plan.steps]


def least_seconds(group: TorchGroup, step: Step) -> float:
    """Of a timing, and of more while one of the ranks finds its least too long: other work only makes calls longer."""
    one_way = 0.5 if step.operation == "send_recv" and step.purpose == "latency" else 1.0
    least = float("inf")
    for _ in range(MOST_TIMINGS):
        least = min(least, group.time_calls(step, 3))
        too_long = torch.tensor(int(least > 1.3 * SLOW_SECONDS * one_way))
        dist.all_reduce(too_long, op=dist.ReduceOp.MAX)
        if not too_long:
            break
    return least


def slow_down(call: Call) -> None:
    whole = call.run

    def run() -> None:
        time.sleep(SLOW_SECONDS)
        whole()

    call.run = run


def reasons(group: TorchGroup, plan: RankPlan) -> list[str]:
    """What a rank calls the errors of its calls: of gloo, of NCCL, of a call that is missing, and any other."""
    call = group._calls[plan.steps[0]]
    named = []
    for on_gpu, error in (
        (False, dist.DistBackendError("gloo said no")),
        (True, dist.DistBackendError("NCCL said no")),
        (False, RuntimeError("ProcessGroupGloo does not support reduce_scatter")),
        (False, RuntimeError("Connection closed by peer")),
    ):
        group._on_gpu = on_gpu
        call.run = partial(raise_it, error)
        try:
            group.exact(plan.steps[0])
        except RankError as known:
            named.append(f"{known.reason}: {known.detail}")
        except RuntimeError as unknown:
            named.append(str(unknown))
    group._on_gpu = False
    return named


def raise_it(error: Exception) -> None:
    raise error


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[3]).read_bytes(), type=RankPlan)
    plan = replace(plan, rank=int(sys.argv[2]))
    group = TorchGroup(plan)
    if sys.argv[1] == "tampered":
        answer = tampered(group, plan)
    else:
        answer = measure(plan, group, lambda _: None, lambda _: None)
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.flush()
    group.close()


if __name__ == "__main__":
    main()

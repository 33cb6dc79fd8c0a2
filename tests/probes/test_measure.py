"""What a rank does between its phases, with a group that only keeps the books."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config import settings
from commwatch.probes.cycle.measure import RankError, in_short, measure
from commwatch.probes.plan import Measure
from commwatch.probes.rank_plan import Purpose, RankPlan, RankResult, Step
from commwatch.probes.workload import plan_cycle
from support.passes import in_one_pass

EVERYONE = (0, 1, 2, 3)


def step(purpose: Purpose, *members: int, **changes: object) -> Step:
    values = {"operation": "all_reduce", "size_bytes": 8 if purpose == "latency" else 2**20}
    return Step(purpose=purpose, members=members or EVERYONE, **(values | changes))  # type: ignore[arg-type]


LATENCY, BANDWIDTH = step("latency"), step("bandwidth")


class Books:
    """A group whose calls take a time by step, and which writes down what was asked of it."""

    torch_version = ""
    nccl_version = "2.27.5"

    def __init__(self, seconds: Callable[[Step], float], wrong: Step | None = None, others: float = 0.0) -> None:
        """``others``: what another rank says where the largest number is asked for."""
        self.log: list[object] = []
        self.calls: dict[Step, int] = {}
        self.asked: dict[Step, list[int]] = {}
        """How many calls were asked for, time after time."""
        self.now = 0.0
        self._seconds = seconds
        self._wrong = wrong
        self._others = others
        self.cost: float | None = None
        """The cost of a call that the ranks agree on; None: this rank's, unless another rank has a higher one."""

    def rendezvous(self) -> None:
        self.log.append("met")

    def first_call(self) -> None:
        self.log.append("first call")

    def time_calls(self, step: Step, calls: int) -> float:
        if self.log[-1] != step:
            self.log.append(step)
        self.calls[step] = self.calls.get(step, 0) + 1 + calls
        self.asked.setdefault(step, []).append(calls)
        seconds = self._seconds(step)
        self.now += seconds * (1 + calls)
        return seconds

    def clock(self) -> float:
        return self.now

    def slowest(self, step: Step, seconds: float) -> float:
        if self.cost is not None and len(self.asked[step]) == 2:
            return self.cost
        return max(seconds, self._others)

    def exact(self, step: Step) -> bool:
        self.log.append("checked")
        return step != self._wrong

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def run(self, *steps: Step, rank: int = 0, timed_seconds: float = 0.1) -> RankResult:
        plan = RankPlan(
            backend="nccl",
            rank=rank,
            ranks=4,
            device=0,
            rendezvous_file="",
            steps=steps,
            timed_seconds=timed_seconds,
            collective_timeout=30.0,
        )
        return measure(plan, self, self.log.append, lambda gate: self.log.append(f"gate {gate}"))


def constant(seconds: float) -> Callable[[Step], float]:
    return lambda _: seconds


def test_phases_and_gates_come_in_order() -> None:
    """No GPU is touched before the first gate, no step is timed before its own, and each step is checked."""
    group = Books(constant(1e-4))

    result = group.run(LATENCY, BANDWIDTH)

    assert group.log == [
        *("rendezvous", "met", "gate 0", "setup", "first call", "measure"),
        *("gate 1", LATENCY, "checked", "gate 2", BANDWIDTH, "checked"),
    ]
    assert result.nccl_version == "2.27.5"
    assert [set(timings) for timings in result.timings] == [{1e-4}, {1e-4}]


def test_a_rank_that_takes_no_part_waits_for_the_next_step() -> None:
    """It comes to every gate, calls nothing, and has no time for the step."""
    group = Books(constant(1e-4))

    result = group.run(step("bandwidth", 0, 1), BANDWIDTH, rank=3)

    assert group.log[-4:] == ["gate 1", "gate 2", BANDWIDTH, "checked"]
    assert result.timings[0] == ()
    assert result.timings[1]


def test_steady_timings_are_enough() -> None:
    """The least number of timings is made where they agree, and as many as wanted where they scatter by a third."""
    scatter = iter([1e-4, 2e-4] * 50)

    steady = Books(constant(1e-4)).run(LATENCY)
    scattered = Books(lambda _: next(scatter)).run(LATENCY)

    assert len(steady.timings[0]) == 3
    assert len(scattered.timings[0]) == 10


@pytest.mark.parametrize(("spread", "least", "most"), [(0.06, 4, 4), (0.10, 5, 12)])
def test_timings_stop_below_two_percent_of_standard_error(spread: float, least: int, most: int) -> None:
    """Four timings whose standard error is 1.7 % are enough; with 2.9 % more are made."""

    def alternating() -> Iterator[float]:
        while True:
            yield 1e-4 * (1 - spread / 2)
            yield 1e-4 * (1 + spread / 2)

    values = alternating()

    assert least <= len(Books(lambda _: next(values)).run(BANDWIDTH).timings[0]) <= most


def test_another_rank_that_is_not_steady_keeps_all_going() -> None:
    """The ranks agree on when to stop: a collective needs all of them."""
    result = Books(constant(1e-5), others=0.021).run(BANDWIDTH, timed_seconds=10.0)

    assert len(result.timings[0]) == 12


def test_a_call_that_takes_all_the_time_still_has_a_result() -> None:
    """The estimate stands for the step: without it a slow path would have no result at all."""
    group = Books(constant(1.0))

    assert group.run(BANDWIDTH).timings == ((1.0,),)
    assert group.calls[BANDWIDTH] == 4


def test_the_slowest_rank_sets_the_number_of_calls() -> None:
    """A fast rank makes as many calls as the slowest one can afford."""
    fast = Books(constant(1e-6), others=1e-2)
    slow = Books(constant(1e-2), others=1e-2)

    fast.run(BANDWIDTH)
    slow.run(BANDWIDTH)

    assert fast.calls == slow.calls


NEVER_STEADY = 0.05


@in_one_pass(
    "purpose, seconds, budget, warmup, timings",
    [
        ("latency", 60e-6, 0.025, [5], [20] * 10),
        ("bandwidth", 600e-6, 0.075, [5], [5] * 12),
        # Timings above the least go first, then warm-up, then calls of a timing, then timings.
        ("bandwidth", 1.0, 78.0, [5], [5] * 12),
        ("bandwidth", 1.0, 36.0, [5], [5] * 5),
        ("bandwidth", 1.0, 28.0, [3], [5] * 4),
        ("bandwidth", 1.0, 24.0, [], [5] * 4),
        ("bandwidth", 1.0, 12.0, [], [2] * 4),
        ("bandwidth", 1.0, 5.0, [], [1] * 2),
        ("bandwidth", 1.0, 1.5, [], []),
        # A clock that shows nothing is no reason to measure less.
        ("bandwidth", 0.0, 0.1, [5], [5] * 12),
        # A path that crawls is measured all the same.
        ("sustained", 5.0, 2.0, [], [1]),
        ("sustained", 0.0, 2.0, [], [20]),
    ],
)
def test_what_a_tight_budget_leaves_out_first(
    purpose: Purpose, seconds: float, budget: float, warmup: list[int], timings: list[int]
) -> None:
    """After the two calls of the estimate; on NVLink all calls of a cycle take a small part of the time they may."""
    group, one = Books(constant(seconds), others=NEVER_STEADY), step(purpose)
    group.cost = seconds

    result = group.run(one, timed_seconds=budget)

    assert group.asked[one] == [1, 1, *warmup, *timings]
    assert len(result.timings[0]) == max(1, len(timings))


def test_steps_of_different_ranks_do_not_share_their_time() -> None:
    """GPUs that copy one after another have the whole time each; a step waits for its busiest member."""
    steps = [step("bandwidth", 0), step("bandwidth", 1), step("bandwidth", 1, 2), step("bandwidth", 1, 2, size_bytes=8)]
    alone, busy = Books(constant(4e-3), others=NEVER_STEADY), Books(constant(4e-3), others=NEVER_STEADY)
    for group, rank in ((alone, 0), (busy, 1)):
        group.cost = 4e-3
        group.run(*steps, rank=rank, timed_seconds=0.12)

    assert alone.asked == {steps[0]: [1, 1, 5, *[5] * 4]}
    assert busy.asked == {one: [1, 1, 1, *[1] * 4] for one in steps[1:]}


@given(
    st.sampled_from(["all_reduce", "pairs", "host_copies", "scaling"]),
    st.integers(min_value=2, max_value=9),
    st.sampled_from([None, lambda one, two: frozenset({"socket"})]),
    st.floats(min_value=1e-5, max_value=0.05),
)
def test_no_rank_is_busy_for_longer_than_the_cycle_may(
    measure: Measure, ranks: int, shared_links: Any, seconds: float
) -> None:
    """Whatever is measured: but for the four calls that make the estimate of each step."""
    plan = plan_cycle(
        "x", settings.Probe(measure=measure), settings.Probes(), backend="nccl",
        devices=tuple(str(gpu) for gpu in range(ranks)), shared_links=shared_links,
    )  # fmt: skip
    for rank in (0, ranks - 1):
        group = Books(constant(seconds), others=NEVER_STEADY)
        group.cost = seconds
        group.run(*plan.steps, rank=rank, timed_seconds=0.1)
        assert sum(calls - 4 for calls in group.calls.values()) * seconds <= 0.1 * (1 + 1e-9)


@given(st.floats(min_value=1e-5, max_value=0.3), st.floats(min_value=2.0, max_value=10.0))
def test_a_sustained_step_fills_its_time_and_no_more(seconds: float, budget: float) -> None:
    """However many calls fit: with the estimate and the check at most the budget, and no more than a timing less."""
    group, one = Books(constant(seconds)), step("sustained", size_bytes=2**20)
    group.run(one, timed_seconds=budget)

    first, second, *timings = group.asked[one]
    spent = sum(calls + 1 for calls in timings) * seconds + 5 * seconds
    assert (first, second) == (1, 1)
    assert spent <= budget + 1e-9 or len(timings) == 1
    assert spent > budget - (timings[0] + 2) * seconds


PAIRS = ((0, 3), (1, 2))


@in_one_pass(
    "wrong, rank, words",
    [
        (LATENCY, 0, "all_reduce of 8 bytes over 4 ranks"),
        (step("bandwidth", 2, operation="host_to_device"), 2, "host_to_device of 1048576 bytes on rank 2"),
        (step("bandwidth", operation="send_recv", pairs=PAIRS), 2, "send_recv of 1048576 bytes from rank 1 to rank 2"),
        (step("latency", operation="send_recv", pairs=PAIRS), 0, "send_recv of 8 bytes from rank 3 to rank 0"),
        (
            step("bandwidth", operation="send_recv", pairs=(*PAIRS, (3, 0), (2, 1)), both_ways=True),
            1,
            "send_recv of 1048576 bytes from rank 2 to rank 1, both ways at once",
        ),
    ],
)
def test_what_is_not_exact_ends_the_rank(wrong: Step, rank: int, words: str) -> None:
    """The error names operation, size, and the ranks."""
    with pytest.raises(RankError, match=f"wrong_result: {words}: "):
        Books(constant(1e-4), wrong=wrong).run(wrong, rank=rank)


def test_errors_of_nccl_are_told_in_one_line() -> None:
    """What torch says first and what NCCL said last, which is the cause."""
    message = (
        "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\n"
        "Cuda failure 2 'out of memory'"
    )

    assert in_short(message) == message.splitlines()[0] + "; Cuda failure 2 'out of memory'"
    assert in_short("one line") == "one line"
    assert in_short("Last error:\n") == "Last error:"
    assert in_short("") == ""

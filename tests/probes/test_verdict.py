"""What came of a cycle: which of several troubles is its cause, and the outcome of each step."""

from __future__ import annotations

from commwatch.probes.cycle.outcome import Problem, Timeout, failed, failure_of, measured, stuck_problem
from commwatch.probes.cycle.process import RankProcess
from commwatch.probes.plan import CyclePlan, Failed, NcclNotes
from commwatch.probes.rank_plan import ErrorEvent, FailureReason, Phase, Purpose, RankResult, Step
from probes.cycles import cycle_plan
from support.passes import in_one_pass


class RankEnd(RankProcess):
    """A rank after its cycle, without a process."""

    def __init__(
        self, rank: int, pid: int = 0, phase: Phase = "measure", *, result: RankResult | None = None,
        error: ErrorEvent | None = None, own_status: int | None = None, words: str = "",
    ) -> None:  # fmt: skip
        self.rank, self.phase, self.gate, self.result = rank, phase, 1, result
        self.error, self.own_status, self._pid, self._words = error, own_status, pid, words

    @property
    def pid(self) -> int:
        return self._pid

    def last_words(self) -> str:
        return self._words


def error(reason: FailureReason, detail: str = "lost its peer") -> ErrorEvent:
    return ErrorEvent(reason, detail)


def result(*timings: tuple[float, ...]) -> RankResult:
    return RankResult(timings=timings)


TIMEOUT = Timeout(1, "setup", 0, 60.0)


@in_one_pass(
    "ranks, timeout, expected",
    [
        # A peer's death makes the others report errors: the dead one is the cause.
        ([RankEnd(0, error=error("crashed")), RankEnd(1, own_status=-9)], None, ("crashed", 1)),
        ([RankEnd(0, error=error("nccl_error")), RankEnd(1, own_status=-11)], None, ("crashed", 1)),
        # NCCL's own error comes before that of a rank that lost its peer.
        ([RankEnd(0, error=error("crashed")), RankEnd(1, error=error("nccl_error"))], None, ("nccl_error", 1)),
        # Wrong data come before everything.
        ([RankEnd(0, own_status=-9), RankEnd(1, error=error("wrong_result"))], None, ("wrong_result", 1)),
        # A deadline that ranks had passed with an error is named by the error.
        ([RankEnd(0, error=error("nccl_error")), RankEnd(1)], TIMEOUT, ("nccl_error", 0)),
        ([RankEnd(0), RankEnd(1)], TIMEOUT, ("setup_timeout", 1)),
        # What ranks did when they were ended for a deadline is not its cause.
        ([RankEnd(0, own_status=3), RankEnd(1)], TIMEOUT, ("setup_timeout", 1)),
    ],
)
def test_the_cause_among_several_troubles(
    ranks: list[RankEnd], timeout: Timeout | None, expected: tuple[str, int]
) -> None:
    """The rank that began it is named, not those that suffered from it."""
    problem = failure_of(cycle_plan(), ranks, timeout)

    assert problem is not None
    assert (problem.reason, problem.rank) == expected


def test_a_good_cycle_has_no_problem() -> None:
    """All ranks gave all times."""
    whole = result((1e-3,), (1e-2,))

    assert failure_of(cycle_plan(), [RankEnd(rank, phase="done", result=whole) for rank in (0, 1)], None) is None


@in_one_pass("timings", [((1e-3,),), ((1e-3,), ()), ()])
def test_a_result_without_a_time_that_counts_is_none(timings: tuple[tuple[float, ...], ...]) -> None:
    """A rank that reports, but not on all steps that its clock counts in, has failed."""
    ranks = [
        RankEnd(0, phase="done", result=result((1e-3,), (1e-2,))),
        RankEnd(1, phase="done", result=result(*timings)),
    ]

    problem = failure_of(cycle_plan(), ranks, None)

    assert problem is not None
    assert (problem.reason, problem.rank) == ("crashed", 1)


IB_RETRY = NcclNotes(category="ib_retry", warnings=("a warning",))
ABC = cycle_plan(ranks=3, devices=("a", "b", "c"))
STUCK = stuck_problem(ABC, [RankEnd(0, 41), RankEnd(2, 43, "setup")])


@in_one_pass(
    "problem, plan, notes, detail",
    [
        # One line names everything; of a long message, its first line.
        (Problem("nccl_error", "NCCL error in: x.cpp\nncclSystemError: and more", 2, "setup"), ABC, IB_RETRY,
         "rank 2 (c) in phase setup: nccl_error: ib_retry: NCCL error in: x.cpp"),
        # Torch quotes what NCCL said last; that is all there is where NCCL wrote no file.
        (Problem("nccl_error", "NCCL error; Cuda failure 700 'an illegal memory access'", 0, "setup"), ABC, NcclNotes(),
         "rank 0 (a) in phase setup: nccl_error: cuda: NCCL error; Cuda failure 700 'an illegal memory access'"),
        # Each that is stuck, since each GPU is left alone; the first one stands for the failure.
        (STUCK, ABC, NcclNotes(), "rank 0 (a) in phase measure: stuck: process 41 sits in the kernel and was left "
         "alone; so does process 43, rank 2 (c)"),
        # gloo has no GPUs; a cycle that could not be started has no rank.
        (Problem("crashed", "it broke", 1, "measure"), cycle_plan(backend="gloo", devices=()), NcclNotes(),
         "rank 1 in phase measure: crashed: it broke"),
        (Problem("start", "no lock"), ABC, NcclNotes(), "start: no lock"),
    ],
)  # fmt: skip
def test_a_failure_says_rank_gpu_phase_and_category(
    problem: Problem, plan: CyclePlan, notes: NcclNotes, detail: str
) -> None:
    """As far as there are any."""
    failure = failed(problem, plan, notes, finished_at=1.0, occupied_seconds=2.0)

    assert isinstance(failure, Failed)
    assert failure.detail == detail
    assert (failure.reason, failure.rank, failure.phase) == (problem.reason, problem.rank, problem.phase)
    assert failure.device == ("" if problem.rank is None or not plan.devices else plan.devices[problem.rank])
    assert failure.nccl.warnings == notes.warnings
    assert failure.nccl.category in detail


def test_only_the_clocks_that_count_give_times() -> None:
    """Latency of a pair is its source's, bandwidth its destination's; both ways at once has both."""

    def step(purpose: Purpose, *pairs: tuple[int, int]) -> Step:
        both_ways = len(pairs) > 1
        return Step(
            operation="send_recv", purpose=purpose, size_bytes=8, members=(0, 1), pairs=pairs, both_ways=both_ways
        )

    plan = cycle_plan(
        ranks=3,
        steps=(
            step("latency", (1, 0)),
            step("bandwidth", (1, 0)),
            step("bandwidth", (0, 1), (1, 0)),
        ),
    )
    ranks = [result((5.0, 1.0, 3.0), (2.0,), (4.0,)), result((6.0,), (7.0,), (8.0, 9.0)), result((), (), ())]

    outcomes = measured(plan, ranks, NcclNotes(), finished_at=1.0, occupied_seconds=2.0, setup_seconds=3.0).outcomes

    assert [outcome.seconds for outcome in outcomes] == [(None, 6.0, None), (2.0, None, None), (4.0, 8.5, None)]
    assert outcomes[2].slowest_seconds == 8.5

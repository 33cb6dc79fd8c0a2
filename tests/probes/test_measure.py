"""What a rank does between its phases, with a group that only keeps the books."""

from __future__ import annotations

import pytest

from commwatch.probes.measure import RankError, measure
from commwatch.probes.plan import Phase, RankPlan

SMALL, LARGE = 8, 2**20


class Books:
    """A group whose calls take a fixed time by size, and which writes down what was asked of it."""

    torch_version = ""
    nccl_version = "2.27.5"

    def __init__(self, seconds: dict[int, float], slowest_factor: float = 1.0, wrong: int = 0) -> None:
        self.calls = {SMALL: 0, LARGE: 0}
        self.checked: list[int] = []
        self._seconds = seconds
        self._slowest_factor = slowest_factor
        self._wrong = wrong

    def rendezvous(self) -> None:
        pass

    def first_call(self) -> float:
        return 2.0

    def time_calls(self, size_bytes: int, calls: int) -> float:
        self.calls[size_bytes] += calls
        return self._seconds[size_bytes]

    def slowest(self, seconds: float) -> float:
        return seconds * self._slowest_factor

    def exact(self, size_bytes: int) -> bool:
        self.checked.append(size_bytes)
        return size_bytes != self._wrong

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def plan(timed_seconds: float = 0.1) -> RankPlan:
    return RankPlan(
        backend="nccl",
        collective="all_reduce",
        rank=0,
        ranks=8,
        device=0,
        rendezvous_file="",
        latency_bytes=SMALL,
        bandwidth_bytes=LARGE,
        timed_seconds=timed_seconds,
        collective_timeout=30.0,
    )


def test_phases_come_in_order_and_both_sums_are_checked() -> None:
    """The first call is not part of the latency, and each size is timed and checked."""
    group, phases = Books({SMALL: 15e-6, LARGE: 374e-6}), list[Phase]()

    result = measure(plan(), group, phases.append)

    assert phases == ["rendezvous", "setup", "measure"]
    assert group.checked == [SMALL, LARGE]
    assert result.latency_seconds == (15e-6,) * 3
    assert result.bandwidth_seconds == (374e-6,) * 4
    assert (result.first_call_seconds, result.nccl_version) == (2.0, "2.27.5")


@pytest.mark.parametrize("large", [374e-6, 5e-3, 25e-3])
def test_calls_take_their_time_and_no_more(large: float) -> None:
    """All calls together stay within the time of the cycle, but for the two of each size that make the estimate."""
    group = Books({SMALL: 1e-4, LARGE: large})

    measure(plan(0.1), group, lambda _: None)

    assert (group.calls[SMALL] - 2) * 1e-4 <= 0.0251
    assert (group.calls[LARGE] - 2) * large <= 0.0751


def test_the_slowest_rank_sets_the_number_of_calls() -> None:
    """A fast rank makes as many calls as the slowest one can afford: a collective needs all of them."""
    fast = Books({SMALL: 1e-6, LARGE: 1e-3}, slowest_factor=10.0)
    slow = Books({SMALL: 1e-5, LARGE: 1e-2})

    measure(plan(), fast, lambda _: None)
    measure(plan(), slow, lambda _: None)

    assert fast.calls == slow.calls


@pytest.mark.parametrize("wrong", [SMALL, LARGE])
def test_a_sum_that_is_not_exact_ends_the_rank(wrong: int) -> None:
    """The error names size and number of ranks."""
    with pytest.raises(RankError, match=f"wrong_result: all_reduce of {wrong} bytes over 8 ranks"):
        measure(plan(), Books({SMALL: 15e-6, LARGE: 374e-6}, wrong=wrong), lambda _: None)

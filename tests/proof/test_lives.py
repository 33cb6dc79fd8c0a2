"""150 lives of nodes with one to three faults: the half of the seeds that was used while the rules were built."""

from __future__ import annotations

import pytest

from support.lives.judge import Score
from support.lives.score import BUILT_ON, CAUSES_RIGHT_FROM, RIGHT_FROM, score_of_seeds

pytestmark = pytest.mark.prometheus

TOGETHER = 25


@pytest.fixture(scope="module")
def whole() -> Score:
    """Of all lives that were played."""
    return Score()


@pytest.mark.parametrize("begin", range(0, len(BUILT_ON), TOGETHER))
def test_no_page_is_false(begin: int, capsys: pytest.CaptureFixture[str], whole: Score) -> None:
    """Whatever else is broken on the node, jobs, pauses, restarts and reloads among it."""
    told = score_of_seeds(BUILT_ON[begin : begin + TOGETHER])
    whole.add(told)
    with capsys.disabled():
        print(told.line)

    assert [one.line for one in told.misses if one.kind == "false page"] == []


def test_faults_are_told_at_the_right_place_and_time(whole: Score, capsys: pytest.CaptureFixture[str]) -> None:
    """The misses are printed by kind, each with its seed: ``python -m benchmarks.lives --lives 1 --seed N``."""
    with capsys.disabled():
        print(whole.line, whole.table(), *(one.line for one in whole.misses), sep="\n")

    assert whole.lives == len(BUILT_ON)
    assert whole.share_told >= RIGHT_FROM


def test_claimed_causes_are_right(whole: Score) -> None:
    """Where two or three faults are there."""
    assert whole.share_right >= CAUSES_RIGHT_FROM

"""Two unrelated faults of a node: neither gets a cause from the other, in the half of the seeds that was kept aside."""

from __future__ import annotations

import pytest

from support.fault_pairs import CHOSEN, KEPT_ASIDE, Kind, Score, chosen, score_of, score_of_seed


@pytest.fixture(scope="module")
def whole() -> Score:
    """Of all pairs that were played."""
    return Score()


@pytest.mark.parametrize("node", [*CHOSEN, *KEPT_ASIDE])
def test_no_cause_is_of_another_fault(node: str | int, capsys: pytest.CaptureFixture[str], whole: Score) -> None:
    """``python -m benchmarks.fault_pairs --nodes 1 --seed N`` plays a seed again."""
    told = score_of(chosen(node)) if isinstance(node, str) else score_of_seed(node)
    whole.add(told)
    with capsys.disabled():
        print(told.line)

    assert told.of_kind("wrong cause") == []


@pytest.mark.parametrize("kind", ["lost cause", "lost finding", "new finding"])
def test_nothing_is_lost_and_nothing_comes(kind: Kind, whole: Score) -> None:
    """Beside another fault."""
    assert whole.pairs > 0
    assert whole.of_kind(kind) == []

"""Lives of nodes with one to three faults: 25 of each half of the seeds; ``benchmarks.lives`` plays any number."""

from __future__ import annotations

import pytest

from support.lives.score import BUILT_ON, CAUSES_RIGHT_FROM, KEPT_ASIDE, RIGHT_FROM, score_of_seeds

pytestmark = pytest.mark.prometheus

LIVES = 25


@pytest.mark.parametrize("seeds", [BUILT_ON, KEPT_ASIDE], ids=["used while building", "kept aside"])
def test_faults_are_told_rightly(seeds: range, capsys: pytest.CaptureFixture[str]) -> None:
    """No page is false, whatever else is broken; misses are printed with their seeds."""
    told = score_of_seeds(seeds[:LIVES])
    with capsys.disabled():
        print(told.line, told.table(), *(one.line for one in told.misses), sep="\n")

    assert [one.line for one in told.misses if one.kind == "false page"] == []
    assert told.share_told >= RIGHT_FROM
    assert told.share_right >= CAUSES_RIGHT_FROM

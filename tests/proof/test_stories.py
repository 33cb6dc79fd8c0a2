"""200 stories of two and three faults at once, through the daemon on a clock of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fault_stories import stories
from support.story_score import RIGHT_FROM, Score, score

SEED, COUNT, TOGETHER = 20261123, 200, 50


@pytest.fixture(scope="module")
def whole() -> Score:
    """Of all stories that were played."""
    return Score()


@pytest.mark.parametrize("begin", range(0, COUNT, TOGETHER))
def test_each_of_several_faults_is_named(
    begin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], whole: Score
) -> None:
    """Each by itself, where it is seen alone at all."""
    told = score(list(stories(COUNT, SEED))[begin : begin + TOGETHER], tmp_path, monkeypatch)
    whole.add(told)
    with capsys.disabled():
        print(told.line)

    assert told.unnamed == []


def test_the_likeliest_cause_is_right(whole: Score, capsys: pytest.CaptureFixture[str]) -> None:
    """98 % of the times that one is said, over all stories."""
    with capsys.disabled():
        print(whole.line, *whole.wrong, sep="\n")

    assert whole.stories == COUNT
    assert whole.share_right >= RIGHT_FROM

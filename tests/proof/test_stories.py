"""200 stories of two and three faults at once, through the daemon on a clock of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fault_stories import stories
from support.story_score import RIGHT_FROM, score

SEED, COUNT, TOGETHER = 20261123, 200, 50


@pytest.mark.parametrize("begin", range(0, COUNT, TOGETHER))
def test_of_several_faults_each_is_named_and_causes_are_right(
    begin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """98 % of the times that a likeliest cause is said, and each fault by itself where it is seen at all."""
    told = score(list(stories(COUNT, SEED))[begin : begin + TOGETHER], tmp_path, monkeypatch)
    with capsys.disabled():
        print(told.line)

    assert told.unnamed == []
    assert told.share_right >= RIGHT_FROM, "\n".join(told.wrong)

"""Several faults at once on a simulated node, drawn at random: each is named, causes are right. 200: ``make proof``."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fault_stories import stories
from support.story_score import RIGHT_FROM, score

SEED = 267
"""Of a story on a small node, for the time that it takes, in which causes are named."""


def test_of_several_faults_each_is_named_and_no_wrong_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a likeliest cause is said of comes of the same fault."""
    told = score(list(stories(1, SEED)), tmp_path, monkeypatch)

    assert told.unnamed == []
    assert told.share_right >= RIGHT_FROM, told.wrong
    assert told.said

"""Plays lives and scores them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.day_daemon import STEP_SECONDS
from support.lives.judge import Score, judge
from support.lives.life import Life, life
from support.lives.play import BEFORE_SECONDS, play
from support.lives.told import alerts_of, sent

BUILT_ON = range(0, 150)
"""Seeds of the half that was used while the rules were built."""
KEPT_ASIDE = range(1_000_000, 1_000_150)
"""Seeds of the half that was kept aside until they were done."""


def score(one: Life, folder: Path) -> Score:
    """Of one life; the folder is for its files."""
    course = play(one, folder)
    alerts = alerts_of(course.scraped, folder, STEP_SECONDS, BEFORE_SECONDS)
    return judge(one, course, alerts, sent(alerts, STEP_SECONDS))


def score_of_seed(seed: int) -> Score:
    """Of the life of a seed."""
    with tempfile.TemporaryDirectory() as folder:
        return score(life(seed), Path(folder))


def scores(seeds: Iterable[int]) -> Iterator[Score]:
    """One for each seed."""
    return map(score_of_seed, seeds)

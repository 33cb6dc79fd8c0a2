"""Plays lives and scores them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from support.lives.judge import Score, judge
from support.lives.life import Life, life
from support.lives.play import BEFORE_SECONDS, play
from support.lives.told import alerts_of, sent
from support.simulated_daemon import STEP_SECONDS

BUILT_ON = range(150)
"""Seeds of the half that was used while the rules were built."""
KEPT_ASIDE = range(1_000_000, 1_000_150)
"""Seeds of the half that was kept aside until they were done."""

RIGHT_FROM = 0.97
"""Of the faults that can be seen for long enough: those with the right alert, place and time."""
CAUSES_RIGHT_FROM = 0.97
"""Of the causes that are claimed where two or three faults are."""


def score(one: Life, folder: Path) -> Score:
    """Of one life; the folder is for its files."""
    course = play(one, folder)
    alerts = alerts_of(course.scraped, folder, STEP_SECONDS, BEFORE_SECONDS)
    return judge(one, course, alerts, sent(alerts, STEP_SECONDS))


def score_of_seed(seed: int) -> Score:
    """Of the life of a seed."""
    with tempfile.TemporaryDirectory() as folder:
        return score(life(seed), Path(folder))


def score_of_seeds(seeds: Iterable[int]) -> Score:
    """Of the lives of some seeds."""
    total = Score()
    for seed in seeds:
        total.add(score_of_seed(seed))
    return total

"""Real gloo ranks of which one does not arrive at a collective: it is named, and none is named where all are alike.

Each case is sampled twice: by this test, which is root or the user of the ranks, and by a process of another user,
which sees what the daemon's unit sees.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from commwatch.jobs.ranks import SAMPLES, OddRank, RankSample, odd_rank, read_rank
from support.gloo_ranks import ALIKE, RANKS, Ranks

REPEATS, APART = 10, 1.0
NOBODY = 65534
FAULTS = {"stopped": "stopped", "loop": "spinning", "sleep": "sleeping", "open": "waiting_for_file"}
"""Ways not to arrive, with the reason that names them."""
UNSEEN = {"child": "sleeping", "socket": "sleeping"}
"""Kinds that were added after the rule was done: a rank waits for its child, or for an answer."""
BY_THE_UNIT = ("stopped", "loop")
"""Ways that state, CPU time and switches show."""


class Seen(NamedTuple):
    """What was named in a case, with either rights."""

    full: OddRank | None
    unit: OddRank | None


def play(ranks: Ranks, kind: str, victim: int) -> Seen:
    """One case, sampled with both rights."""
    ranks.begin(kind, victim)
    full, unit = [], []
    for number in range(SAMPLES):
        time.sleep(APART if number else 0.0)
        full.append((time.monotonic(), _read(ranks.pids)))
        unit.append((time.monotonic(), _read_as_nobody(ranks.pids)))
    ranks.release(kind, victim)
    return Seen(odd_rank(full), odd_rank(unit))


def _read(pids: Sequence[int]) -> dict[int, RankSample]:
    found = {pid: read_rank(Path("/proc"), pid) for pid in pids}
    return {pid: one for pid, one in found.items() if one is not None}


def _read_as_nobody(pids: Sequence[int]) -> dict[int, RankSample]:
    """The same by a process that is neither root nor the user of the ranks."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, pickle.dumps({pid: tuple(one) for pid, one in _read(pids).items()}))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        found = pickle.loads(stream.read())  # noqa: S301 - of our own fork
    os.waitpid(child, 0)
    return {pid: RankSample(*one) for pid, one in found.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four gloo ranks, started once: what keeps one of them away can be ended."""
    pytest.importorskip("torch")
    if os.geteuid():
        pytest.skip("only root can read as another user")
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("kind", [*FAULTS, *UNSEEN])
def test_the_rank_that_does_not_arrive_is_named(ranks: Ranks, kind: str) -> None:
    """Ten times, another rank each time, by root or the job's user; nobody else is named, with either rights."""
    full = unit = wrong = 0
    for number in range(REPEATS):
        victim = number % RANKS
        seen = play(ranks, kind, victim)
        right = (ranks.pids[victim], (FAULTS | UNSEEN)[kind])
        full += seen.full is not None and seen.full[:2] == right and seen.full.is_full
        unit += seen.unit is not None and seen.unit[:2] == right and not seen.unit.is_full
        wrong += sum(one is not None and one.pid != right[0] for one in seen)
    print(f"{kind}: {full} of {REPEATS} as root, {unit} of {REPEATS} as another user, {wrong} wrong")
    assert wrong == 0
    assert full == REPEATS
    assert unit == (REPEATS if kind in BY_THE_UNIT else 0)


@pytest.mark.parametrize("kind", ALIKE)
def test_nobody_is_named_where_no_rank_differs(ranks: Ranks, kind: str) -> None:
    """A mismatched collective, all that wait for each other, and two camps, ten times each, with either rights."""
    seen = [play(ranks, kind, number % RANKS) for number in range(REPEATS)]
    named = [one for pair in seen for one in pair if one is not None]
    print(f"{kind}: {len(named)} names")
    assert not named

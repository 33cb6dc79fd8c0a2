"""What fuzzing has found, and inputs as they should be: no reader breaks its promise on them again."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from benchmarks.fuzz.mutator import Mutator
from benchmarks.fuzz.run import corpus, fuzz
from benchmarks.fuzz.target import Check, Target, trouble
from benchmarks.fuzz.targets import TARGETS

SEEDS = 3
"""Of the inputs as they should be, so many are tried here; ``make proof`` tries all."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What is wrong with these inputs is no news."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    structlog.configure(**before)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_promise_is_broken_again(name: str, tmp_path: Path) -> None:
    """Each reader gives something or an error of ours, in a second of CPU and 64 MiB."""
    target = TARGETS[name]
    seeds = list(target.seeds())
    inputs = {f"seed {place}": one for place, one in enumerate(seeds[:: max(1, len(seeds) // SEEDS)])}
    inputs |= {str(file): file.read_bytes() for file in corpus(name)}
    with target.start(tmp_path) as check:
        broken = {what: problem for what, data in inputs.items() if (problem := trouble(check, data))}

    assert not broken


def test_what_breaks_a_promise_is_found_and_made_small(tmp_path: Path) -> None:
    """A reader that fails at a word it has only in parts; one that takes long; one that takes much memory."""

    def read(data: bytes) -> None:
        if b"fail" in data:
            raise IndexError("deep")
        if b"sleep" in data:
            while True:
                pass
        if b"eat" in data:
            bytes(b"x" * (100 * 2**20))

    @contextmanager
    def start(folder: Path) -> Iterator[Check]:
        yield read

    problems = [trouble(read, data, 0.5) for data in (b"fine", b"fail", b"sleep", b"eat")]
    target = Target("play", start, lambda: [b"fxxil, faxx, fa il"], (b"a", b"i", b"fai"))
    outcome = fuzz(target, 60, 1, tmp_path, most_found=1)

    assert problems[0] == ""
    assert problems[1].startswith("IndexError at test_corpus.py:")
    assert problems[2].startswith("more than 0.5 s of CPU at test_corpus.py:")
    assert problems[3].endswith("MiB of memory")
    assert [data for _, data in outcome.found.values()] == [b"fail"]


def test_the_same_seed_gives_the_same_changes() -> None:
    """So what was found is found again."""
    for name in ("http", "cluster_run", "frames"):
        target = TARGETS[name]
        seeds = target.seeds()
        first, second = ([Mutator(target, random.Random(7)).changed(seeds[0], seeds)] for _ in range(2))  # noqa: S311
        assert first == second
        assert first[0] != seeds[0]

"""Tries many inputs on a reader, and keeps what breaks its promise."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from benchmarks.fuzz import ROOT
from benchmarks.fuzz.mutator import Mutator
from benchmarks.fuzz.target import CPU_SECONDS, Check, Target, kind_of, trouble

CORPUS: Final = ROOT / "tests/fuzz/corpus"
_TRACED_CPU_SECONDS: Final = 20.0
"""Where lines are counted all takes longer; what takes so long is tried again without."""
_SMALLER_SECONDS: Final = 20.0


class Lines:
    """The lines of commwatch that have run; of a function that shows nothing new for long, one call in 16 counts."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int]] = set()
        self._calls = Counter[CodeType]()
        """Since a function has shown a new line."""
        self._new = False

    def grown(self) -> bool:
        """Whether lines were added since the last question."""
        new, self._new = self._new, False
        return new

    def called(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        """For ``sys.settrace``."""
        code = frame.f_code
        if "/commwatch" not in code.co_filename:
            return None
        self._calls[code] += 1
        return None if self._calls[code] > 64 and self._calls[code] % 16 else self._ran

    def _ran(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        place = (frame.f_code, frame.f_lineno)
        if place not in self.seen:
            self.seen.add(place)
            self._calls[frame.f_code] = 0
            self._new = True
        return self._ran


@dataclass
class Outcome:
    """What became of a target."""

    name: str
    seed: int
    seconds: float
    tried: int = 0
    kept: int = 0
    lines: int = 0
    found: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """The problem and the input, by kind."""


def fuzz(target: Target, seconds: float, seed: int, folder: Path, most_found: int = 20) -> Outcome:
    """Try changed inputs for so long, or until too much is found."""
    outcome = Outcome(target.name, seed, seconds)
    mutator, lines = Mutator(target, random.Random(seed)), Lines()  # noqa: S311  no secret
    chance = random.Random(seed + 1)  # noqa: S311  no secret
    kept = [*target.seeds(), *(file.read_bytes() for file in corpus(target.name))]
    fresh = list(kept)
    with target.start(folder) as check:

        def broken(data: bytes) -> str:
            """With lines counted; what takes long is tried again without."""
            sys.settrace(lines.called)
            try:
                problem = trouble(check, data, _TRACED_CPU_SECONDS)
            finally:
                sys.settrace(None)
            return problem

        end = time.monotonic() + seconds
        while time.monotonic() < end and len(outcome.found) < most_found:
            data = fresh.pop() if fresh else mutator.changed(chance.choice(kept), kept)
            started = time.process_time()
            problem = broken(data)
            if time.process_time() - started > CPU_SECONDS / 4:
                problem = trouble(check, data)
            outcome.tried += 1
            if lines.grown() and not problem and data not in kept:
                kept.append(data)
            if problem and kind_of(problem) not in outcome.found:
                outcome.found[kind_of(problem)] = (problem, smaller(check, data, problem))
    outcome.kept, outcome.lines = len(kept), len(lines.seen)
    return outcome


def smaller(check: Check, data: bytes, problem: str) -> bytes:
    """A shorter input that breaks the same promise, if one is found in time."""
    wanted, size, end = kind_of(problem), len(data) // 2, time.monotonic() + _SMALLER_SECONDS
    while size and time.monotonic() < end:
        for begin in range(0, len(data), size):
            shorter = data[:begin] + data[begin + size :]
            if kind_of(trouble(check, shorter)) == wanted:
                data = shorter
                break
            if time.monotonic() >= end:
                break
        else:
            size //= 2
    return data


def corpus(name: str) -> list[Path]:
    """The kept inputs of a target."""
    return sorted((CORPUS / name).glob("*"))


def keep(outcome: Outcome) -> list[str]:
    """Write what was found to the corpus; a line for each."""
    told = []
    for problem, data in outcome.found.values():
        file = CORPUS / outcome.name / hashlib.sha256(data).hexdigest()[:12]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        told.append(f"{outcome.name}: {problem}: {file.relative_to(ROOT)}")
    return told

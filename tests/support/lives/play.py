"""Plays a life through the daemon on a clock of its own: what it exposes and what its findings document says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.lives.life import Life, Span
from support.scraped_day import ScrapedDay
from support.simulated_daemon import STEP_SECONDS, SimulatedDaemon

BEFORE_SECONDS = 60.0
"""promtool's clock begins at 0, and the node boots so much later."""
_FINE_SECONDS = 5.0
_GENERATION_CHANGE_SECONDS = 10.0
_ASKED_AGAIN_SECONDS = 30.0
"""After the repair a GPU that was lost is asked again: a process of its own does, and here there are none."""


@dataclass
class Course:
    """What was seen of a node over its life."""

    scraped: ScrapedDay
    documents: list[tuple[float, Mapping[str, Any] | None]] = field(default_factory=list)
    """Seconds since the boot, and the document of findings; None: nobody answered."""


def moments(life: Life) -> Sequence[float]:
    """When the daemon works: at each scrape, each 5 s around what changes, and each second of what is short.

    The daemon itself reads NVLinks each second and looks each 10 s.
    """
    times = {place * STEP_SECONDS for place in range(round(life.seconds / STEP_SECONDS))}
    for begin, end in (span for one in life.broken for span in one.spans):
        fine = [(begin - 5.0, begin + 60.0), (end - 5.0, end + 30.0)]
        for since, until in fine:
            first = int(max(since, 0.0) // _FINE_SECONDS)
            times |= {place * _FINE_SECONDS for place in range(first, int(until // _FINE_SECONDS) + 1)}
        if end - begin < 30.0:
            times |= {float(second) for second in range(int(begin), int(end) + 2)}
    times |= asked_again(life)
    times |= {time for span in (life.pause, life.restart) if span is not None for time in span}
    return sorted(time for time in times if time < life.seconds)


def asked_again(life: Life) -> set[float]:
    """When the driver is opened again, after a GPU or the driver was gone."""
    return {
        float(round(one.end + _ASKED_AGAIN_SECONDS))
        for one in life.broken
        if one.is_repaired and one.row.probes == "stop"
    }


class _Player:
    def __init__(self, life: Life, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self._life, self._folder, self._patched = life, folder, patched
        self._daemon: SimulatedDaemon | None = None
        self._is_paused = False
        self.course = Course(ScrapedDay(round(BEFORE_SECONDS / STEP_SECONDS)))

    def run(self) -> None:
        life = self._life
        again = asked_again(life)
        self._start(0.0)
        for now in moments(life):
            self._act(now, life.restart, self._stop, partial(self._start, now))
            self._act(now, life.pause, self._pause, self._resume)
            if self._daemon is not None:
                if now in again and not self._is_paused:
                    self._daemon.renew()
                self._daemon.step_to(now)
            if now % STEP_SECONDS == 0.0:
                self._scrape(now)
        self._stop()

    @staticmethod
    def _act(now: float, span: Span | None, at_begin: Any, at_end: Any) -> None:
        if span is not None and now in span:
            (at_begin if now == span[0] else at_end)()

    def _scrape(self, now: float) -> None:
        daemon = self._daemon
        self.course.scraped.scrape(None if daemon is None else daemon.exposed())
        self.course.documents.append((now, None if daemon is None else daemon.findings()))

    def _start(self, now: float) -> None:
        self._daemon = SimulatedDaemon(
            self._life.preset, self._folder, self._patched, faults=self._life.faults_file(),
            booted_at=BEFORE_SECONDS, time_now=now, change_seconds=_GENERATION_CHANGE_SECONDS,
        )  # fmt: skip
        self._daemon.start()

    def _stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon = None

    def _pause(self) -> None:
        self._is_paused = True
        if self._daemon is not None:
            self._daemon.pause("upgrade")

    def _resume(self) -> None:
        self._is_paused = False
        if self._daemon is not None:
            self._daemon.resume()


def play(life: Life, folder: Path) -> Course:
    """One life.

    Args:
        life: what happens when.
        folder: for the files of the node and the state of the daemon.
    """
    with pytest.MonkeyPatch.context() as patched:
        player = _Player(life, folder, patched)
        player.run()
    return player.course

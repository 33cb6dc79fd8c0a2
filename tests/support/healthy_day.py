"""Plays a healthy day: the daemon on a clock of its own, each exposition scraped, the rules over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from commwatch.findings.codes import CODES
from commwatch_rehearsal.simulation.presets.parts import Preset
from support.scraped_day import Fired, ScrapedDay, alerts_fired
from support.simulated_daemon import STEP_SECONDS, Change, SimulatedDaemon
from support.simulated_day import GENERATION_CHANGE_SECONDS, Day, Step, faults_of, with_spare_port

BEFORE_SECONDS = 60.0
"""promtool's clock begins at 0; the day begins so much later, as no clock of a node stands at 0."""


@dataclass(frozen=True)
class Outcome:
    """What a day came to."""

    preset: str
    scrapes: int
    """Those that failed included."""
    series: int
    """That rules read."""
    alerts: tuple[Fired, ...]
    findings: tuple[Change, ...]
    """All that opened; times are since the day began."""

    def grave_alerts(self) -> list[Fired]:
        """Pages and tickets."""
        return [one for one in self.alerts if one.severity in {"critical", "warning"}]

    def grave_findings(self) -> list[Change]:
        """Findings that are more than context."""
        return [one for one in self.findings if CODES[one.code].severity != "info"]


class _Play:
    def __init__(self, preset: Preset, day: Day, folder: Path, patched: pytest.MonkeyPatch, faults: str) -> None:
        self._preset, self._day, self._folder, self._patched, self._faults = preset, day, folder, patched, faults
        self.scraped = ScrapedDay(round(BEFORE_SECONDS / STEP_SECONDS))
        self.findings: list[Change] = []
        self._daemon: SimulatedDaemon | None = None
        self._clock_error = 0.0
        self._paused = False
        self._failing_until = -1.0
        self.scrapes = 0

    def run(self) -> None:
        steps = list(self._day.steps())
        self._start(0.0)
        for place in range(round(60 * self._day.minutes / STEP_SECONDS)):
            now = place * STEP_SECONDS
            while steps and 60 * steps[0].at <= now:
                self._do(steps.pop(0), now)
            if self._daemon is not None:
                self._daemon.step_to(now - 60 * self._day.booted_at(now / 60))
            answers = self._daemon is not None and now >= self._failing_until
            self.scrapes += 1
            self.scraped.scrape(self._daemon.exposed() if self._daemon is not None and answers else None)
        self._stop()

    def _start(self, now: float) -> None:
        booted = 60 * self._day.booted_at(now / 60)
        faults = faults_of(self._preset, self._day, booted / 60) + self._faults
        self._daemon = SimulatedDaemon(
            with_spare_port(self._preset), self._folder, self._patched, faults=faults,
            booted_at=BEFORE_SECONDS + booted, time_now=now - booted, clock_error=self._clock_error,
            change_seconds=GENERATION_CHANGE_SECONDS,
        )  # fmt: skip
        self._daemon.start()
        if self._paused:
            self._daemon.pause("reboot")

    def _stop(self) -> None:
        if self._daemon is not None:
            since = self._daemon.booted_at - BEFORE_SECONDS
            self.findings += [
                Change(since + one.seconds, one.event, one.code, one.component)
                for one in self._daemon.changes
                if one.event == "opened"
            ]
            self._daemon.stop()
            self._daemon = None

    def _do(self, step: Step, now: float) -> None:
        actions: dict[str, Callable[[], None]] = {
            "pause": lambda: self._pause(paused=True),
            "resume": lambda: self._pause(paused=False),
            "stop": self._stop,
            "start": lambda: self._start(now),
            "clock": lambda: self._step_clock(step.seconds),
            "miss": lambda: self._miss(now + step.seconds),
        }
        actions[step.act]()

    def _pause(self, *, paused: bool) -> None:
        self._paused = paused
        if self._daemon is not None:
            self._daemon.pause("upgrade") if paused else self._daemon.resume()

    def _step_clock(self, seconds: float) -> None:
        self._clock_error += seconds
        if self._daemon is not None:
            self._daemon.step_clock(seconds)

    def _miss(self, until: float) -> None:
        self._failing_until = until


def play(preset: Preset, day: Day, folder: Path, faults: str = "") -> Outcome:
    """One node through a day.

    Args:
        preset: the node.
        day: what happens when.
        folder: for its files.
        faults: YAML, of what is not healthy; times are since the last boot.
    """
    with pytest.MonkeyPatch.context() as patched:
        played = _Play(preset, day, folder, patched, faults)
        played.run()
    scraped = played.scraped
    fired = alerts_fired(scraped, folder, STEP_SECONDS, BEFORE_SECONDS)
    return Outcome(preset.name, played.scrapes, scraped.series_count, tuple(fired), tuple(played.findings))

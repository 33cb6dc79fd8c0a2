"""Days of healthy nodes, drawn at random, at stepped time: nobody may be woken.

A day is made of quiet stretches and of what happens on healthy nodes: jobs, reboots, reloads of the driver, restarts,
harmless Xids, bursts of congestion, a retraining of a link. The daemon is stepped each 15 s around what happens, and
each half hour elsewhere. The pages are evaluated over these steps as if all were 15 s apart: a counter then rises
faster than it did, and a state stands as long as it takes to page: a page is more likely than in real time, not less.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commwatch_rehearsal.simulation.presets.parts import NVLINK_5, Preset
from support.lives.life import HALF_A_BOARD, Span, preset_of
from support.lives.told import Alert, alerts_of
from support.scraped_day import ScrapedDay
from support.simulated_daemon import STEP_SECONDS, SimulatedDaemon
from support.simulated_day import HARMLESS_XIDS

DAY_SECONDS = 86400.0
DAYS = 10
"""Of a life by default."""
NODES = (("a10x2", 3), ("a100x4", 3), (HALF_A_BOARD, 3), ("rtx3090x4", 2), ("h100x8ndr", 1), ("b200x8", 1))
"""With their weights."""
REBOOTS, RELOADS, RESTARTS, DEAF, XIDS, RESETS, RECOVERIES = 1 / 20, 1 / 30, 1 / 10, 1 / 10, 1 / 5, 1 / 20, 1 / 7
"""A day and node, on average."""
BEFORE_SECONDS = 60.0
QUIET_SECONDS = 1800.0
"""Between two steps where nothing happens."""
_FINE = (15.0, 45.0)
"""Seconds before and after what happens that are stepped finely."""
_REPLAYS_PER_MINUTE = 10
_GENERATION_CHANGE_SECONDS = 10.0
_KEPT_OPEN = 1e12


@dataclass(frozen=True)
class Noise:
    """Something that the node does and that is no fault."""

    begin: float
    end: float
    entry: str
    """JSON, without its times."""
    is_event: bool = False
    """It happens once, at its begin."""


@dataclass(frozen=True)
class HealthyLife:
    """A node in order, over days."""

    seed: int
    node: str
    days: int
    noise: tuple[Noise, ...]
    acts: tuple[tuple[float, str], ...]
    """What is done to the daemon, in order: pause, resume, stop, start, reboot."""
    deaf: tuple[Span, ...]
    """When scrapes fail."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.days * DAY_SECONDS

    def faults_file(self, booted: float) -> str:
        """What the simulated node is given that booted at a time."""
        lines = []
        for one in self.noise:
            if one.end <= booted or (one.is_event and one.begin < booted):
                continue
            times = {"at": f"{max(0.0, one.begin - booted):.1f}s"}
            if one.end < _KEPT_OPEN:
                times["until"] = f"{one.end - booted:.1f}s"
            lines.append(f"- {json.dumps({**json.loads(one.entry), **times})}\n")
        return "".join(lines) or "[]"

    def moments(self, quiet: float = QUIET_SECONDS) -> Sequence[float]:
        """When the daemon is stepped and scraped, in order."""
        marks = [time for time, _ in self.acts] + [one.begin for one in self.noise if one.begin > 0.0]
        marks += [one.end for one in self.noise if one.end < _KEPT_OPEN] + [span[0] for span in self.deaf]
        times = {place * quiet for place in range(int(self.seconds / quiet))}
        for mark in [0.0, *marks]:
            first, last = int((mark - _FINE[0]) // STEP_SECONDS), int((mark + _FINE[1]) // STEP_SECONDS)
            times |= {place * STEP_SECONDS for place in range(max(first, 0), last + 1)}
        return sorted(time for time in times if time < self.seconds)


def healthy_life(seed: int, days: int) -> HealthyLife:
    """The life of a seed; the same seed and length give the same one."""
    drawn = random.Random(f"healthy {seed} {days}")  # noqa: S311 - lives, no secrets
    names, weights = zip(*NODES, strict=True)
    node = drawn.choices(names, weights)[0]
    preset = preset_of(node)
    acts: list[tuple[float, str]] = []
    noise = [*_always(preset)]
    deaf = []
    for day in range(days):
        # Each hour has one thing at most that is done to daemon or driver, so that they do not lie within each other.
        hours = drawn.sample(range(24), 8)
        at = [day * DAY_SECONDS + hour * 3600.0 + 15.0 * drawn.randrange(8, 160) for hour in hours]
        if drawn.random() < REBOOTS:
            down, up, ready = (15.0 * drawn.randrange(*span) for span in ((3, 9), (8, 21), (4, 41)))
            times = (at[0], at[0] + down, at[0] + down + up, at[0] + down + up + ready)
            acts += [*zip(times, ("pause", "stop", "reboot", "resume"), strict=True)]
        if drawn.random() < RELOADS:
            acts += [(at[1], "pause"), (at[1] + 60.0, "note"), (at[1] + 180.0, "resume")]
            noise.append(_noise({"fault": "driver_reload"}, at[1] + 60.0, at[1] + 90.0))
        if drawn.random() < RESTARTS:
            acts += [(at[2], "stop"), (at[2] + 15.0 * drawn.randrange(1, 4), "start")]
        if drawn.random() < DEAF:
            deaf.append((at[3], at[3] + 15.0 * drawn.randrange(1, 4)))
        noise += _of_a_day(drawn, preset, day * DAY_SECONDS, at[4:])
    acts = sorted(one for one in acts if one[1] != "note")
    return HealthyLife(seed, node, days, tuple(noise), tuple(acts), tuple(deaf))


def _noise(entry: Mapping[str, Any], begin: float, end: float, *, is_event: bool = False) -> Noise:
    return Noise(begin, end, json.dumps(entry), is_event)


def _always(preset: Preset) -> Sequence[Noise]:
    """What counts a little on every node, all the time."""
    noise = [
        _noise({"fault": "pcie_replay", "gpu": gpu, "rate": f"{_REPLAYS_PER_MINUTE}/min"}, 0.0, _KEPT_OPEN)
        for gpu in range(len(preset.gpus))
    ]
    nvlink = preset.model.nvlink
    if nvlink is not None and nvlink.remote != "none":
        link = {"gpu": 0, "link": 1}
        if nvlink.version >= NVLINK_5:
            noise.append(
                _noise({"fault": "nvlink_bit_errors", **link, "rate": "1/min", "effective": 5e-13}, 0.0, _KEPT_OPEN)
            )
        else:
            noise.append(_noise({"fault": "nvlink_crc", **link, "rate": "50/s"}, 0.0, _KEPT_OPEN))
    return noise


def _of_a_day(drawn: random.Random, preset: Preset, day: float, at: Sequence[float]) -> Sequence[Noise]:
    gpus = len(preset.gpus)
    noise = []
    for begin in at[: drawn.randrange(3)]:
        job: dict[str, Any] = {"fault": "job", "nvlink_utilization": round(drawn.uniform(0.05, 0.6), 2)}
        if drawn.random() < 0.5:
            job["gpu"] = drawn.randrange(gpus)
        noise.append(_noise(job, begin, begin + drawn.uniform(60.0, 20_000.0)))
    if drawn.random() < XIDS:
        time = day + drawn.uniform(0.0, DAY_SECONDS - 600.0)
        xid = {"fault": "xid", "gpu": drawn.randrange(gpus), "xid": drawn.choice(HARMLESS_XIDS)}
        noise.append(_noise(xid, time, time + 30.0, is_event=True))
    if drawn.random() < RESETS:
        noise.append(_noise({"fault": "counter_reset"}, at[2], at[2] + 30.0, is_event=True))
    nvlink = preset.model.nvlink
    if nvlink is not None and nvlink.remote != "none" and drawn.random() < RECOVERIES:
        link = {"gpu": drawn.randrange(gpus), "link": drawn.randrange(nvlink.links)}
        if nvlink.remote == "switch" or preset.peer(link["gpu"], link["link"]) is not None:
            noise.append(
                _noise({"fault": "nvlink_recovery", **link, "rate": "1/d"}, at[3], at[3] + 30.0, is_event=True)
            )
    for _ in range(drawn.randrange(2)):
        time = day + drawn.uniform(0.0, DAY_SECONDS - 600.0)
        if preset.rdma_ports and drawn.random() < 0.5:
            device = drawn.choice(preset.rdma_ports).device
            noise.append(_noise({"fault": "rdma_congestion", "device": device, "rate": "500/s"}, time, time + 90.0))
        else:
            name = drawn.choice(preset.interfaces).name
            noise.append(
                _noise({"fault": "ethernet_congestion", "interface": name, "rate": "1000/s"}, time, time + 90.0)
            )
    return noise


@dataclass
class Silence:
    """Alerts and findings of healthy nodes."""

    node_days: float = 0.0
    gpu_days: float = 0.0
    link_days: float = 0.0
    steps: int = 0
    pages: list[str] = field(default_factory=list)
    """False ones."""
    findings: list[str] = field(default_factory=list)
    """Critical and warning ones, all false."""

    def add(self, other: Silence) -> None:
        """Take in further lives."""
        self.node_days += other.node_days
        self.gpu_days += other.gpu_days
        self.link_days += other.link_days
        self.steps += other.steps
        self.pages += other.pages
        self.findings += other.findings

    @property
    def excluded_per_1000_node_days(self) -> float:
        """More false pages per 1,000 nodes and day than this are excluded at 95 % by none: three over the node-days."""
        return 3000.0 / self.node_days if self.node_days and not self.pages else float("inf")

    @property
    def line(self) -> str:
        """For people."""
        excluded = (
            f"excludes more than {self.excluded_per_1000_node_days:.3g} per 1,000 nodes and day (95 %)"
            if not self.pages else f"that is {1000 * len(self.pages) / self.node_days:.3g} per 1,000 nodes and day"
        )  # fmt: skip
        return (
            f"{self.node_days:g} healthy node-days ({self.gpu_days:g} GPU-days, {self.link_days:g} NVLink-days, "
            f"{self.steps} steps): {len(self.pages)} false pages, {excluded}; {len(self.findings)} grave findings"
        )


class _Player:
    def __init__(self, life: HealthyLife, folder: Path, patched: pytest.MonkeyPatch, quiet: float) -> None:
        self._life, self._folder, self._patched, self._quiet = life, folder, patched, quiet
        self._daemon: SimulatedDaemon | None = None
        self._booted = 0.0
        self._is_paused = False
        self.scraped = ScrapedDay(round(BEFORE_SECONDS / STEP_SECONDS))
        self.times: list[float] = []
        self.open: dict[tuple[str, str], float] = {}

    def run(self) -> None:
        acts = list(self._life.acts)
        self._start(0.0)
        for now in self._life.moments(self._quiet):
            while acts and acts[0][0] <= now:
                self._do(acts.pop(0)[1], now)
            if self._daemon is not None:
                self._daemon.step_to(now - self._booted)
            self._scrape(now)
        self._stop()

    def _do(self, act: str, now: float) -> None:
        if act == "stop":
            self._stop()
        elif act in ("start", "reboot"):
            self._booted = now if act == "reboot" else self._booted
            self._start(now)
        else:
            self._is_paused = act == "pause"
            if self._daemon is not None:
                self._daemon.pause("reboot") if self._is_paused else self._daemon.resume()

    def _scrape(self, now: float) -> None:
        is_deaf = any(begin <= now < end for begin, end in self._life.deaf)
        self.times.append(now)
        self.scraped.scrape(None if self._daemon is None or is_deaf else self._daemon.exposed())
        for one in self._daemon.verdict.findings if self._daemon is not None else ():
            if one.severity != "info":
                self.open.setdefault(one.key, now)

    def _start(self, now: float) -> None:
        self._daemon = SimulatedDaemon(
            preset_of(self._life.node), self._folder, self._patched, faults=self._life.faults_file(self._booted),
            booted_at=BEFORE_SECONDS + self._booted, time_now=now - self._booted,
            change_seconds=_GENERATION_CHANGE_SECONDS,
        )  # fmt: skip
        self._daemon.start()
        if self._is_paused:
            self._daemon.pause("reboot")

    def _stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon = None


def silence(life: HealthyLife, folder: Path, quiet: float = QUIET_SECONDS) -> Silence:
    """What is said of one healthy life.

    Args:
        life: what happens when.
        folder: for files and state.
        quiet: seconds between two steps where nothing happens.
    """
    with pytest.MonkeyPatch.context() as patched:
        player = _Player(life, folder, patched, quiet)
        player.run()
    alerts = alerts_of(player.scraped, folder, STEP_SECONDS, BEFORE_SECONDS, "critical")
    preset = preset_of(life.node)
    nvlink = preset.model.nvlink
    links = len(preset.gpus) * nvlink.links if nvlink is not None and nvlink.remote != "none" else 0
    name = f"seed {life.seed} {Path(life.node).stem}"
    return Silence(
        life.days, life.days * len(preset.gpus), life.days * links, len(player.times),
        [f"{name}: {_words(one, player.times)}" for one in alerts if one.severity == "critical"],
        [f"{name}: {code} {component} at {at:.0f} s" for (code, component), at in player.open.items()],
    )  # fmt: skip


def _words(alert: Alert, times: Sequence[float]) -> str:
    """An alert, at the time of the node and not of promtool, which has all steps 15 s apart."""
    place = round(alert.times[0] / STEP_SECONDS)
    return f"{alert.name} at {times[min(place, len(times) - 1)]:.0f} s {alert.text}"

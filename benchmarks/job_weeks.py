"""Weeks of jobs on a node of eight GPUs: how often a job that works is called stuck, and whether each hang is.

    python -m benchmarks.job_weeks --weeks 8 --seed 1
    python -m benchmarks.job_weeks --faults 1 > week.yaml    # for commwatch run --simulate h100x8 --simulate.faults

Lengths and order of the phases come from the seed: training with steps, checkpoints (over the network, or by one rank
onto a disk while the others wait), evaluations, compilers, data stalls of all ranks and of one; services whose requests
thin out by night, idle or with kernels that spin. A rank that keeps the others waiting for over five minutes while
nothing moves is counted apart: the warning is true, though the job goes on by itself. A hang within ten minutes of a
pause is not found, as documented.
Power and traffic of a phase are those of the simulated node.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from random import Random
from typing import NamedTuple

from commwatch.config.thresholds import load_thresholds
from commwatch.jobs import stuck
from commwatch.jobs.ranks import RankSample
from commwatch.node.run import Collected, Collector, Outcome
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Layout
from commwatch_rehearsal.simulation.faults.nvidia_kinds import JOB_PHASES

GPUS = [(str(index), f"0000:{17 + index}:00.0") for index in range(8)]
WEEK, STEP, LIMIT = 7 * 86400.0, 10.0, 700.0
WARNED_SECONDS = 300.0
PIDS = tuple(range(100, 108))
EVERY = 5
"""Of readings alike one is played: 50 s apart no pause of a minute begins, and no reading of two minutes is missing."""


class Stretch(NamedTuple):
    """A time in which the job does one thing."""

    seconds: float
    phase: str
    waits_for: int | None = None
    """The rank for which the others wait with kernels that spin."""
    disk: float = 0.0
    """Bytes per second onto the disks of the node."""
    job: int = 0
    is_hang: bool = False

    @property
    def is_stop(self) -> bool:
        """Whether the job does nothing for as long as the warning waits, though it goes on by itself."""
        is_late = self.waits_for is not None and not self.disk and self.seconds >= WARNED_SECONDS
        return is_late and not self.is_hang


class _Window(NamedTuple):
    """The time between two readings of the GPUs."""

    at: float
    """Monotonic seconds of its end."""
    last: Stretch
    """The one at its end."""
    shares: dict[str, float]
    """The highest use by kind of link."""
    bytes: float
    """The counter of the port at the end."""
    disk: float
    """That of the disks."""
    noise: list[float]
    """Of the power, by GPU."""
    course: int | None
    """The job, 0 without one, if its payload moves here; windows alike need not all be read. None: each is read."""


def played_week(seed: int, hang_every: float = 0.0) -> Iterator[Stretch]:
    """What the jobs of a node do for a week.

    Args:
        seed: of lengths and order.
        hang_every: seconds of training between two hangs, on average, each of which ends its job; 0: none.
    """
    dice = Random(seed)  # noqa: S311 - the same week each time
    at, job = 0.0, 0
    while at < WEEK:
        job += 1
        course = _service(dice, at) if dice.random() < 0.25 else _training(dice, hang_every)
        for one in course:
            at += one.seconds
            yield one._replace(job=job)
        pause = dice.expovariate(1 / 1800)
        at += pause
        yield Stretch(pause, "none", job=0)


def _training(dice: Random, hang_every: float) -> Iterator[Stretch]:
    left = dice.lognormvariate(10.5, 1.0)
    step = dice.lognormvariate(1.5, 0.8)
    yield Stretch(dice.lognormvariate(5.2, 0.8), "compile")
    while left > 0:
        working = dice.lognormvariate(7.2, 0.8)
        left -= working
        while working > 0:
            compute, communicate = dice.uniform(0.5, 1.0) * step, dice.uniform(0.3, 1.5) * step
            working -= compute + communicate
            yield Stretch(compute, "compute")
            yield Stretch(communicate, "communicate")
        if hang_every and dice.random() < 1600 / hang_every:
            kind = dice.choice((None, dice.randrange(8)))
            yield Stretch(1200, "hang", kind, is_hang=True)
            return
        match dice.choice(("network", "network", "disk", "evaluate", "stall", "rank", "compile")):
            case "network":
                yield Stretch(min(3600, dice.lognormvariate(5.0, 1.2)), "checkpoint")
            case "disk":
                rate = dice.uniform(1e8, 3e9)
                yield Stretch(min(3600, dice.lognormvariate(5.0, 1.2)), "hang", dice.randrange(8), rate)
            case "evaluate":
                yield Stretch(dice.lognormvariate(6.2, 0.9), "evaluate")
            case "stall":
                yield Stretch(dice.lognormvariate(4.0, 1.2), "data_stall")
            case "rank":
                yield Stretch(dice.lognormvariate(3.0, 0.8), "hang", dice.randrange(8))
            case "compile":
                yield Stretch(dice.lognormvariate(4.5, 0.8), "compile")


def _service(dice: Random, at: float) -> Iterator[Stretch]:
    idle = dice.choice(("data_stall", "hang"))
    busy, slack = dice.lognormvariate(2.0, 1.0), dice.uniform(1.5, 6.0)
    end = at + dice.lognormvariate(11.5, 0.8)
    while at < end:
        by_night = abs((at / 43200) % 2 - 1)
        gap, work = dice.expovariate(1 / (busy * 10 ** (slack * by_night / 2))), dice.lognormvariate(1.6, 0.7)
        at += gap + work
        yield Stretch(gap, idle)
        yield Stretch(work, "communicate")


class Player:
    """Plays stretches through the tracker, at the shipped interval."""

    def __init__(self, seed: int) -> None:
        self.store = Store()
        thresholds = load_thresholds(None)
        self.payload = thresholds.job_stuck_payload_ratio
        self.tracker = stuck.StuckJobs(self.store, thresholds, {"H100": 0.45}, Path("/proc"))
        self.dice = Random(seed + 10_000)  # noqa: S311
        self.disk = self.disk_read = self.now = 0.0
        self.found: Counter[str] = Counter()
        vars(stuck).update(
            read_rank=lambda procfs, pid: RankSample("S", 1.0, 1.0, 1), read_storage=lambda procfs: int(self.disk_read)
        )
        read = ("utilization_ratio", "power_watts", "power_limit_watts")
        self.layouts = [Layout((f"commwatch_gpu_{name}", gpu) for name in read) for gpu in GPUS]
        self.uses = {kind: Layout((f"commwatch_{kind}_transmit_utilization_ratio", gpu) for gpu in GPUS)
                     for kind in ("nvlink", "pcie")}  # fmt: skip
        self.port = Layout([("commwatch_rdma_port_receive_bytes_total", ("mlx5_0", "1"))])
        self.bytes = 0.0
        self.collectors = {
            one: Collector(one, "nvml", 2.0, STEP, needs_release=True) for one in stuck.StuckJobs.collectors
        }
        for gpu in GPUS:
            layout = Layout(
                [("commwatch_gpu_info", (*gpu, "", "", "NVIDIA H100", "")), ("commwatch_nvlink_links", gpu)]
            )
            self.store.put("nvml_identity", gpu[1], Block(layout, [1, 18], 0.0), 1e12)
        interface = Layout([("commwatch_ethernet_receive_bytes_total", ("eth0",))])
        self.store.put("network", "eth0", Block(interface, [0], 0.0), 1e12)

    def play(self, stretches: Iterator[Stretch]) -> None:
        """All of them; counts how often a job was called stuck for five minutes, and hangs that were found.

        While payload moves in each reading, or no job runs, the tracker gets every fifth one: its pauses count from
        the last reading with payload and from the first without, which it gets.
        """
        before = 0.0
        for course, alike in groupby(self._windows(stretches), lambda window: window.course):
            windows = list(alike)
            for place, window in enumerate(windows):
                if course is None or place % EVERY == 0 or window is windows[-1]:
                    before = self._count(window, before)

    def _windows(self, stretches: Iterator[Stretch]) -> Iterator[_Window]:
        parts: list[tuple[float, Stretch]] = []
        filled = 0.0
        for stretch in stretches:
            left = stretch.seconds
            while left > 0:
                part = min(left, STEP - filled)
                parts.append((part, stretch))
                filled, left = filled + part, left - part
                if filled >= STEP - 1e-9:
                    yield self._window(parts)
                    parts, filled = [], 0.0
            self.found["hangs"] += stretch.is_hang
            self.found["stops"] += stretch.is_stop

    def _window(self, parts: list[tuple[float, Stretch]]) -> _Window:
        self.now += STEP
        seen = [(part, one, JOB_PHASES.get(one.phase)) for part, one in parts]
        shares = {
            kind: max((phase[f"{kind}_utilization"] for part, _, phase in seen if phase and part >= 1), default=0.0)
            for kind in self.uses
        }
        self.bytes += sum(
            part * 50e9 * max(phase["rdma_utilization"], phase["ethernet_utilization"])
            for part, _, phase in seen
            if phase
        )
        self.disk += sum(part * one.disk for part, one in parts)
        last = parts[-1][1]
        is_plain = not last.job or max(shares.values()) >= self.payload
        return _Window(
            self.now, last, shares, self.bytes, self.disk, [self.dice.uniform(0.93, 1.07) for _ in GPUS],
            last.job if is_plain else None,
        )  # fmt: skip

    def _count(self, window: _Window, before: float) -> float:
        seconds = self._read(window)
        if seconds >= WARNED_SECONDS > before:
            last = window.last
            kind = "hangs found" if last.is_hang else "stops called stuck" if last.is_stop else "false warnings"
            self.found[kind] += 1
        return seconds

    def _read(self, window: _Window) -> float:
        now, last = window.at, window.last
        self.disk_read = window.disk
        pids = PIDS if last.job else ()
        self.store.occupants = {gpu[1]: (last.job * 1000 + pid,) for gpu, pid in zip(GPUS, pids, strict=False)}
        self.store.jobs = {last.job * 1000 + pid: last.job for pid in pids}
        for kind, name in (("nvlink", "nvml_nvlink"), ("pcie", "nvml_gpm")):
            self.store.put(f"{kind}_use", "", Block(self.uses[kind], [window.shares[kind]] * 8, now), now + 60)
            self.tracker.on_batch(Outcome(self.collectors[name], Collected({}, [], 0.0), now))
        self.store.put("rdma", "mlx5_0", Block(self.port, [window.bytes], now), now + 60)
        blocks = {}
        for place, gpu in enumerate(GPUS):
            name = "data_stall" if place == last.waits_for else last.phase
            phase = JOB_PHASES.get(name, {"gpu_utilization": 0.0, "power": 0.1})
            watts = LIMIT * phase["power"] * window.noise[place]
            blocks[gpu[1]] = Block(self.layouts[place], [phase["gpu_utilization"], watts, LIMIT], now)
        self.tracker.on_batch(Outcome(self.collectors["nvml_gpu"], Collected(blocks, [], 0.0), now))
        shown = [block.get("commwatch_job_stuck_seconds", *GPUS[0]) for block in self.store.group(stuck.GROUP).values()]
        return max((one for one in shown if one is not None), default=0.0)


def as_faults(seed: int) -> Iterator[str]:
    """A week as a file of faults; steps that follow each other are one stretch of the job."""
    at, begun = 0.0, 0.0
    for one in played_week(seed):
        if one.phase == "none" and at > begun:
            yield f"- {{fault: job, at: {begun:.0f}s, until: {at:.0f}s, nvlink_utilization: 0.3}}"
        elif one.phase not in ("none", "compute", "communicate") and one.seconds >= 10:
            gpus = "" if one.waits_for is None else f", gpu: {one.waits_for}"
            phase = one.phase if one.waits_for is None else "data_stall"
            if one.waits_for is not None:
                yield f"- {{fault: job_phase, phase: hang, at: {at:.0f}s, until: {at + one.seconds:.0f}s}}"
            yield f"- {{fault: job_phase, phase: {phase}{gpus}, at: {at:.0f}s, until: {at + one.seconds:.0f}s}}"
        at += one.seconds
        begun = at if one.phase == "none" else begun


def main() -> None:
    """Play the weeks and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weeks", type=int, default=2, help="node-weeks to play, each with a seed of its own")
    parser.add_argument("--seed", type=int, default=1, help="of the first week")
    parser.add_argument("--hang-every", type=float, default=0.0, help="seconds of training between two hangs; 0: none")
    parser.add_argument("--faults", type=int, help="print the week of this seed as a file of faults instead")
    options = parser.parse_args()
    if options.faults is not None:
        print("\n".join(as_faults(options.faults)))
        return
    total: Counter[str] = Counter()
    began = time.process_time()
    for seed in range(options.seed, options.seed + options.weeks):
        player = Player(seed)
        player.play(played_week(seed, options.hang_every))
        total += player.found
        print(f"seed {seed}: {dict(player.found)}", flush=True)
    days = 7 * options.weeks
    false = total["false warnings"]
    print(f"{options.weeks} node-weeks, {time.process_time() - began:.0f} CPU s: {false} false warnings, "
          f"{total['hangs found']} of {total['hangs']} hangs found; {total['stops called stuck']} of {total['stops']} "
          "stops of over 5 min that ended by themselves were called stuck")  # fmt: skip
    if not false:
        print(f"With none in {days} node-days, fewer than {3000 / days:.2f} a day on 1,000 nodes (95 %)")


if __name__ == "__main__":
    main()

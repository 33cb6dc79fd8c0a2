"""An hour of real time: what the daemon and each of its readers hold after ten minutes is what they hold at the end.

``COMMWATCH_TORTURE=0.1`` takes six minutes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

from support.daemon import Daemon
from support.torture import SHARE, footing, scraped, told, tortured

EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class Sample:
    """What is held at a moment; by process, the daemon first, then its readers in the order of their start."""

    series: int
    own_kib: tuple[int, ...]
    """Memory that a process shares with no other one: another Python that comes and goes does not change it."""
    descriptors: tuple[int, ...]


def sample(daemon: Daemon, readers: Sequence[int]) -> Sample:
    """Look at all of them."""
    pids = [daemon.process.pid, *readers]
    return Sample(
        series=footing(daemon).series,
        own_kib=tuple(map(own_kib, pids)),
        descriptors=tuple(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
    )


def own_kib(pid: int) -> int:
    """Private pages, dirty and clean."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def test_an_hour_of_real_time(tmp_path: Path) -> None:
    """Scraped ten times a second with a probe as often as it may: memory, descriptors and series stay."""
    with tortured(tmp_path) as daemon, scraped(daemon) as scrapes:
        readers, began = daemon.children(), time.monotonic()
        samples = list[Sample]()
        while len(samples) <= 3600 * SHARE / EVERY_SECONDS:
            time.sleep(max(0.0, began + len(samples) * EVERY_SECONDS - time.monotonic()))
            samples.append(sample(daemon, readers))
        probes = sum(daemon.series("probe_attempts_total").values())
        tenth = max(1, len(samples) // 10)
        moments = {f"{round(at * EVERY_SECONDS / 60)} min": samples[at] for at in range(0, len(samples), tenth)}
        told("an hour of real time", scrapes.end(), f"{probes:.0f} probes",
             *(f"{when}: MiB {[round(kib / 1024, 1) for kib in one.own_kib]}, descriptors {sum(one.descriptors)}, "
               f"series {one.series}" for when, one in moments.items()))  # fmt: skip
    parts = [samples[at : at + tenth] for at in range(tenth, len(samples), tenth)]
    # The interpreter's table of interned strings grows once, by 1.9 MiB: one step of this size is left out, and no
    # larger one. What is never given back grows in each part.
    for place in range(len(samples[0].own_kib)):
        held = [mean(one.own_kib[place] for one in part) for part in parts]
        steps = sorted(after - before for before, after in pairwise(held))
        assert steps[-1] < 2560, place
        assert sum(steps[:-1]) < 1024, place
    # A rank that is being started holds descriptors of the daemon for a moment: so the least of some looks.
    early, late = samples[tenth : 3 * tenth], samples[-2 * tenth :]
    for place in range(len(samples[0].own_kib)):
        assert min(one.descriptors[place] for one in late) <= min(one.descriptors[place] for one in early), place
    assert max(one.series for one in late) <= max(one.series for one in early) + 10

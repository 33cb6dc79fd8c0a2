"""Lives of nodes, drawn at random: boot, learning, faults from minute 0 on, repairs, jobs, pauses, restarts, reloads.

What is broken, from when to when, is written in terms of hardware; nothing here knows a rule.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from commwatch_rehearsal.simulation.presets import find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset
from support.lives.hardware import HARDWARE, HARMLESS, Row, Struck, Wanted

Span: TypeAlias = tuple[float, float]
"""Seconds since the boot, from and to."""

HALF_A_BOARD = str(Path(__file__).parent / "vm4.yaml")
NODES: Sequence[tuple[str, int]] = (
    ("a100x4", 4), (HALF_A_BOARD, 5), ("h100x8", 1), ("h100x8ndr", 1), ("b200x8", 1),
    ("rtx3090x4", 1), ("a10x2", 1),
)  # fmt: skip
"""With their weights: those of eight GPUs take three times as long."""
FROM_BOOT_SECONDS = 1.0
"""A fault that begins before this was there when the node was read first."""
_LAST_BEGIN = 1200.0
_AFTER_REPAIR = 810.0
"""Seconds of a life after the last repair, at least: an alert that has stood for its 10 min is over by then."""
_SHORTEST = 1500.0
_LONG = (2800.0, 3600.0)
"""How long a fault lasts of which three probes are to speak."""
_LONG_LAST_BEGIN = 2400.0
_JOB_AFTER = 120.0
"""Seconds for which a job goes on after a repair that shows only under it, also where a daemon starts meanwhile."""
_ATTEMPTS = 200
"""To find faults that can stand beside each other: some nodes have few kinds of parts."""


@dataclass(frozen=True)
class Broken:
    """One fault of a life: a part, and the times at which it is broken."""

    kind: str
    """Key of ``HARDWARE``."""
    struck: Struck
    spans: tuple[Span, ...]
    """In order; several of a part that comes and goes."""
    is_repaired: bool

    @property
    def row(self) -> Row:
        """What is known of the kind."""
        return HARDWARE[self.kind]

    @property
    def begin(self) -> float:
        """Of the first span."""
        return self.spans[0][0]

    @property
    def end(self) -> float:
        """Of the last span."""
        return self.spans[-1][1]

    @property
    def is_from_boot(self) -> bool:
        """Whether no reading of this boot shows the part well before."""
        return self.begin < FROM_BOOT_SECONDS

    @property
    def wanted(self) -> Wanted | None:
        """What must reach somebody; None: nothing need be said."""
        if not self.is_from_boot or self.row.flaps:
            return self.row.wanted
        return None if self.struck.may_be_built_so else self.row.from_boot

    @property
    def words(self) -> str:
        """For people."""
        place = self.struck.place
        where = " ".join((*place.names, *([f"link {place.link}"] if place.link is not None else [])))
        times = f"{self.begin:.0f} to {self.end:.0f} s" + (f", {len(self.spans)} times" if self.row.flaps else "")
        return f"{self.kind} {where or 'node'} {times}"


@dataclass(frozen=True)
class Life:
    """One node from its boot on."""

    seed: int
    node: str
    """As ``--simulate`` takes it."""
    seconds: float
    broken: tuple[Broken, ...]
    job: Span | None
    pause: Span | None
    reload: Span | None
    """Of the driver, within the pause."""
    restart: Span | None
    """The daemon is not there."""
    harmless: tuple[tuple[float, str], ...]
    """Begin, and an entry as JSON without its times."""

    @property
    def preset(self) -> Preset:
        """The node."""
        return preset_of(self.node)

    def faults_file(self) -> str:
        """What the simulated node is given."""
        lines = [
            _entry(entry, begin, end) for one in self.broken for begin, end in one.spans for entry in one.struck.entries
        ]
        if self.job is not None:
            job = {"fault": "job", "nvlink_utilization": 0.25, "pcie_utilization": 0.3}
            lines.append(_entry(job, *self.job))
        if self.reload is not None:
            lines.append(_entry({"fault": "driver_reload"}, *self.reload))
        lines += [_entry(json.loads(entry), begin, begin + 30.0) for begin, entry in self.harmless]
        return "".join(lines) or "[]"

    def blind(self) -> Sequence[Span]:
        """When nobody looks at the node: a pause, or no daemon."""
        return [span for span in (self.pause, self.restart) if span is not None]

    @property
    def words(self) -> str:
        """For people."""
        more = [
            f"{name} {span[0]:.0f} to {span[1]:.0f} s"
            for name, span in (("job", self.job), ("pause", self.pause), ("reload", self.reload),
                               ("restart", self.restart))
            if span is not None
        ]  # fmt: skip
        return "; ".join((Path(self.node).stem, *(one.words for one in self.broken), *more))


def _entry(entry: object, begin: float, end: float) -> str:
    assert isinstance(entry, dict)
    times = {"at": f"{begin:.1f}s", "until": f"{end:.1f}s"}
    return f"- {json.dumps({**entry, **times})}\n"


@cache
def preset_of(node: str) -> Preset:
    """The node that goes by a name or file."""
    return find_preset(node)


def observable(span: Span, blind: Sequence[Span]) -> Iterator[Span]:
    """The parts of a span at which somebody looks, in order."""
    pieces = [span]
    for hidden_from, hidden_to in blind:
        pieces = [
            piece
            for begin, end in pieces
            for piece in ((begin, min(end, hidden_from)), (max(begin, hidden_to), end))
            if piece[1] > piece[0]
        ]
    yield from sorted(set(pieces))


def lives(seeds: Sequence[int]) -> Iterator[Life]:
    """A life for each seed; the same seed gives the same one."""
    for seed in seeds:
        yield life(seed)


def life(seed: int) -> Life:
    """The life of a seed."""
    drawn = random.Random(seed)  # noqa: S311 - lives, no secrets
    names, weights = zip(*NODES, strict=True)
    node = drawn.choices(names, weights)[0]
    preset = preset_of(node)
    wanted = drawn.choices((1, 2, 3), (4, 4, 2))[0]
    is_long = drawn.random() < 0.25
    broken: list[Broken] = []
    for _ in range(_ATTEMPTS):
        if len(broken) == wanted:
            break
        # In a long life the first fault lasts until probes speak of it, and others come and go meanwhile.
        leads = is_long and not broken
        kinds = [kind for kind, row in HARDWARE.items() if not leads or _slows_for_long(row)]
        kind = drawn.choices(kinds, [HARDWARE[one].weight for one in kinds])[0]
        struck = HARDWARE[kind].strike(drawn, preset)
        if struck is not None and all(_can_stand_beside(kind, struck, other) for other in broken):
            last_begin = _LONG_LAST_BEGIN if is_long and broken else _LAST_BEGIN
            broken.append(_timed(drawn, kind, struck, last_begin, _LONG if leads else None))
    seconds = max(_SHORTEST, *(one.end + (_after_repair(one.row) if one.is_repaired else 0.0) for one in broken))
    seconds = 15.0 * round(seconds / 15.0)
    broken = [one if one.is_repaired else _until(one, seconds) for one in broken]
    probed = is_long or any(one.row.lasts[0] > _LONG[1] for one in broken)
    job = _job(drawn, broken, seconds, probed=probed)
    pause = reload = restart = None
    if not probed and drawn.random() < 0.3:
        begin = drawn.uniform(60.0, 1400.0)
        pause = (round(begin), round(begin + drawn.uniform(90.0, 300.0)))
        if drawn.random() < 0.5:
            reload = (pause[0] + 20.0, pause[0] + 50.0)
    if not probed and drawn.random() < 0.3:
        begin = drawn.uniform(30.0, 1400.0)
        restart = (round(begin), round(begin + drawn.uniform(5.0, 40.0)))
        if pause is not None and restart[0] < pause[1] + 60 and restart[1] > pause[0] - 60:
            restart = None
    harmless = tuple(_harmless(drawn, preset, seconds) for _ in range(drawn.randrange(4)))
    return Life(seed, node, seconds, tuple(broken), job, pause, reload, restart, harmless)


def _can_stand_beside(kind: str, struck: Struck, other: Broken) -> bool:
    """Whether both can be seen: neither is the same again, nor takes what shows the other."""
    if kind == other.kind:
        return False
    mine, theirs = struck.place, other.struck.place
    names = ({*mine.names, *(name for name, _ in mine.others)}, {*theirs.names, *(name for name, _ in theirs.others)})
    takes = struck.takes, other.struck.takes
    if not takes[0].isdisjoint(names[1]) or not takes[1].isdisjoint(names[0]) or takes[0] & takes[1]:
        return False
    if "driver" in takes[0] | takes[1]:  # it shows nothing of any GPU meanwhile
        gpus = other.struck.gpus if "driver" in takes[0] else struck.gpus
        return not gpus
    # What is to be seen by probes alone stands beside what neither slows nor stops them, and needs a free node.
    row = HARDWARE[kind]
    for one, beside in ((row, other.row), (other.row, row)):
        if one.lasts[0] > _LONG[1] and (beside.probes or beside.needs_job):
            return False
    # Nor is a fault that lasts until probes speak of it beside one that shows only under a job.
    return not (row.needs_job and other.end - other.begin > _LONG[0])


def _after_repair(row: Row) -> float:
    return max(_AFTER_REPAIR, (row.ends or 0.0) + 90.0)


def _slows_for_long(row: Row) -> bool:
    """Whether it can be what a long life is about: probes run beside no job."""
    return bool(row.probes) and not (row.flaps or row.is_event or row.needs_job)


def _timed(
    drawn: random.Random, kind: str, struck: Struck, last_begin: float, lasts: tuple[float, float] | None
) -> Broken:
    row = HARDWARE[kind]
    begin = 0.0 if drawn.random() < 0.15 else round(drawn.uniform(0.0, last_begin), 1)
    if row.flaps:
        down = drawn.uniform(3.0, 20.0)
        apart = drawn.uniform(down + 15.0, 150.0)
        count = drawn.randint(3, 6)
        begin = max(begin, 5.0)
        spans = tuple(
            (round(begin + place * apart, 1), round(begin + place * apart + down, 1)) for place in range(count)
        )
        return Broken(kind, struck, spans, is_repaired=True)
    if row.is_event:
        return Broken(kind, struck, ((max(begin, 5.0), max(begin, 5.0) + 1.0),), is_repaired=True)
    end = round(begin + drawn.uniform(*(row.lasts if row.lasts[0] > _LONG[1] else lasts or row.lasts)), 1)
    return Broken(kind, struck, ((begin, end),), is_repaired=drawn.random() < 0.8 or row.ends is None)


def _until(one: Broken, seconds: float) -> Broken:
    return Broken(one.kind, one.struck, ((one.begin, seconds + 60.0),), is_repaired=False)


def _job(drawn: random.Random, broken: Sequence[Broken], seconds: float, *, probed: bool) -> Span | None:
    """A job on all GPUs: where a fault shows only under one, before it and beyond."""
    covered = [one for one in broken if one.row.needs_job]
    if covered:
        return (max(0.0, min(one.begin for one in covered) - 60.0), max(one.end for one in covered) + _JOB_AFTER)
    if probed or drawn.random() < 0.6:
        return None
    begin = round(drawn.uniform(0.0, 900.0))
    return (begin, min(seconds, begin + round(drawn.uniform(200.0, 900.0))))


def _harmless(drawn: random.Random, preset: Preset, seconds: float) -> tuple[float, str]:
    entry = dict(drawn.choice(HARMLESS))
    nvlink = preset.model.nvlink
    if entry["fault"] == "nvlink_recovery":
        if nvlink is None or nvlink.remote == "none":
            entry = {"fault": "xid", "xid": 13}
        else:
            entry["link"] = drawn.randrange(nvlink.links)
    entry["gpu"] = drawn.randrange(len(preset.gpus))
    return round(drawn.uniform(30.0, seconds - 60.0), 1), json.dumps(entry)

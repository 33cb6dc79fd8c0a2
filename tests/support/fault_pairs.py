"""Plays unrelated faults of a node in pairs and each alone: neither may change what is found of the other.

The truth is each fault alone, so that nothing here knows rules or causes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Literal, TypeAlias

from commwatch.findings.finding import ComponentKind, Finding
from commwatch_rehearsal.simulation.presets import find_preset
from support.fault_stories import LEARNED_AT, PRESET_OF_PAIRS, Injected, Story, unrelated
from support.simulated_daemon import STEP_SECONDS, simulated

BUILT_ON = range(2_000_002, 2_000_004)
"""Seeds of the half that was looked at while causes were corrected."""
KEPT_ASIDE = range(3_000_000, 3_000_002)
"""Seeds of the half that was kept aside until they were done."""

APART = "an SXid, and Xids and lost links of other GPUs"
MEETING = "a narrow PCIe link, and a GPU whose traffic takes it for want of NVLinks"
CHOSEN = {
    APART: (
        {"fault": "sxid", "nvswitch": "1", "sxid": "20034", "link": "6", "severity": "Fatal", "at": "700s"},
        {"fault": "gpu_lost", "gpu": "3", "at": "715s"},
        {"fault": "xid", "gpu": "5", "xid": "74", "at": "720s"},
        {"fault": "pcie_width", "gpu": "7", "lanes": "4", "at": "725s"},
        {"fault": "nvlink_down", "gpu": "6", "at": "735s"},
    ),
    MEETING: (
        {"fault": "nvlink_down", "gpu": "3", "at": "710s"},
        {"fault": "pcie_width", "gpu": "1", "lanes": "4", "at": "720s"},
    ),
}
"""Faults of a node which had causes of each other, or took them from each other, before that was corrected."""

_FAULTS = 5
"""Of a seed: ten pairs."""
_LEARNING_STEP = 230.0
_FINE_SECONDS = 180.0
"""In which the faults begin, and the daemon works at each scrape."""
_COARSE_STEP = 60.0
_PLAYED_SECONDS = 600.0
"""From the time on at which the node is learned."""
_PROBED_EACH = 120.0

_OF_ALL_PARTS: frozenset[ComponentKind] = frozenset({"probe", "pair", "part", "log"})
"""Kinds of findings about what all parts of the node do together: one fault can hide here what the other one does."""

Key: TypeAlias = tuple[str, str]
"""Code and identity of the component."""
Kind: TypeAlias = Literal["wrong cause", "lost cause", "lost finding", "new finding"]


@dataclass(frozen=True)
class Miss:
    """A change of the findings of one fault through the other."""

    kind: Kind
    seed: int
    words: str

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.kind}: seed {self.seed}: {self.words}"


@dataclass
class Score:
    """Of pairs."""

    pairs: int = 0
    causes: int = 0
    """Each finding with each of its causes, once a pair."""
    misses: list[Miss] = field(default_factory=list)

    def add(self, other: Score) -> None:
        """Take in the score of further pairs."""
        self.pairs += other.pairs
        self.causes += other.causes
        self.misses += other.misses

    def of_kind(self, kind: Kind) -> list[str]:
        """The misses of one kind, for people."""
        return [one.line for one in self.misses if one.kind == kind]

    @property
    def line(self) -> str:
        """For people."""
        kinds: tuple[Kind, ...] = ("wrong cause", "lost cause", "lost finding", "new finding")
        counted = ", ".join(f"{kind} {len(self.of_kind(kind))}" for kind in kinds)
        return f"{self.pairs} pairs, {self.causes} causes named: {counted}"


@dataclass
class Course:
    """All that was found over a play."""

    kinds: dict[Key, str] = field(default_factory=dict)
    """Findings and causes, with the kind of their component."""
    causes: dict[Key, set[Key]] = field(default_factory=dict)
    """By finding."""
    latest: dict[Key, tuple[set[Key], set[Key]]] = field(default_factory=dict)
    """By finding: its causes, and what else was seen at the time, as it was found last."""

    def take(self, findings: Iterable[Finding]) -> None:
        """Take in one look."""
        for one in findings:
            self.kinds[one.key] = one.component.kind
            self.kinds |= {cause.key: cause.component.kind for cause in one.causes}
            causes = {cause.key for cause in one.causes}
            self.causes.setdefault(one.key, set()).update(causes)
            self.latest[one.key] = causes, {cause.key for cause in one.also_seen}


def play(story: Story) -> Course:
    """The findings of all faults of a story together."""
    course = Course()
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated(story.preset, Path(folder), faults=story.file() or "[]", job_log=story.log()) as daemon,
    ):
        while daemon.time < LEARNED_AT:
            daemon.step_to(daemon.time + _LEARNING_STEP)
        while (since := daemon.time - LEARNED_AT) < _PLAYED_SECONDS:
            daemon.step_to(daemon.time + (STEP_SECONDS if since < _FINE_SECONDS else _COARSE_STEP))
            daemon.write_log()
            course.take(daemon.verdict.findings)
            if (daemon.time - LEARNED_AT) % _PROBED_EACH == 0:
                daemon.probe()
                course.take(daemon.verdict.findings)
    return course


def judge(story: Story, together: Course, alone: Sequence[tuple[Injected, Course]]) -> Score:
    """The score of one pair."""
    words = f"{story.preset}: {'; '.join(one.words for one in story.faults)}"
    misses = [Miss(kind, story.number, f"{what} | {words}") for kind, what in _changes(together, alone)]
    return Score(1, sum(map(len, together.causes.values())), misses)


def _changes(together: Course, alone: Sequence[tuple[Injected, Course]]) -> Iterator[tuple[Kind, str]]:
    for key in sorted(together.kinds):
        causes = together.causes.get(key, set())
        of_fault = [(fault, one) for fault, one in alone if key in one.kinds]
        if not of_fault:
            # Together they can slow what neither slows alone; any other finding is of both, and says so.
            if together.kinds[key] not in _OF_ALL_PARTS and not all(causes & one.kinds.keys() for _, one in alone):
                yield "new finding", f"{key} <- {sorted(causes)}"
            continue
        # A fault without a place of its own slows the same traffic as the other one: both explain what is slow.
        if together.kinds[key] in _OF_ALL_PARTS and not all(fault.places for fault, _ in of_fault):
            continue
        for cause in sorted(causes - set().union(*(one.kinds for _, one in of_fault))):
            yield "wrong cause", f"{key} <- {cause}"
    for _, one in alone:
        for key in sorted(one.kinds.keys() - together.kinds.keys()):
            if one.kinds[key] not in _OF_ALL_PARTS:
                yield "lost finding", f"{key}"
        for key in sorted(one.latest.keys() & together.latest.keys()):
            for cause in sorted(one.latest[key][0].difference(*together.latest[key])):
                yield "lost cause", f"{key} <- {cause}"


def score_of(node: Story) -> Score:
    """Of all pairs of the faults of a node."""
    total = Score()
    alone = [(one, play(replace(node, faults=(one,)))) for one in node.faults]
    for (one, of_one), (other, of_other) in combinations(alone, 2):
        both = replace(node, faults=(one, other))
        total.add(judge(both, play(both), ((one, of_one), (other, of_other))))
    return total


def chosen(name: str) -> Story:
    """A node of ``CHOSEN``; faults whose ways meet have no place of their own."""
    preset = find_preset(PRESET_OF_PAIRS)

    def address(entry: Mapping[str, str]) -> str:
        switch = entry.get("nvswitch")
        return preset.gpus[int(entry["gpu"])].pci_address if switch is None else preset.nvswitches[int(switch)]

    faults = (Injected(one, frozenset(), (address(one),) if name == APART else ()) for one in CHOSEN[name])
    return Story(0, preset.name, tuple(faults))


def score_of_seed(seed: int) -> Score:
    """Of the node of a seed."""
    return score_of(unrelated(seed, _FAULTS))

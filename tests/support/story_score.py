"""Plays a story through a rehearsed daemon and counts what it says of its causes; the truth is each fault alone.

A cause is right where a fault alone shows both the finding and the cause, or where the cause is that fault by its code
and place, and the finding is at the same place: beside another fault it may show what it does not show alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from commwatch.findings.finding import Component, Finding
from support.fault_stories import ENDS_AT, LEARNED_AT, Injected, Story
from support.simulated_daemon import rehearsed

Part: TypeAlias = tuple[str, str]
"""Code and identity of the component."""
Said: TypeAlias = tuple[Part, Part]
"""A finding and the likeliest cause that is named for it."""

RIGHT_FROM = 0.98
"""Of the times that a likeliest cause is said."""
STEP = 60.0
"""Seconds between two looks."""
PROBED_EACH = 180.0


@dataclass
class Course:
    """What was seen of a node over time."""

    seen: dict[Part, Component] = field(default_factory=dict)
    """All findings and causes."""
    said: set[Said] = field(default_factory=set)

    def take(self, findings: list[Finding]) -> None:
        """Take in one look."""
        for one in findings:
            self.seen[one.key] = one.component.component
            for cause in one.causes:
                self.seen[cause.key] = cause.component.component
            if one.causes:
                lead = one.causes[0]
                self.said.add((one.key, lead.key))


@dataclass
class Score:
    """How many faults were named, and how many causes right, over stories."""

    stories: int = 0
    faults: int = 0
    silent_alone: int = 0
    """Of them those that are not named on the node alone either: their size does not reach a limit there."""
    named: int = 0
    said: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def add(self, other: Score) -> None:
        """Take in the score of further stories."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    @property
    def share_right(self) -> float:
        """Of the times that a likeliest cause is named."""
        return self.right / self.said if self.said else 1.0

    @property
    def line(self) -> str:
        """For people."""
        return (
            f"{self.stories} stories: {self.named} of {self.faults - self.silent_alone} faults named "
            f"({self.silent_alone} more are not seen alone either); likeliest cause named {self.said} times, right "
            f"{self.right} times, {self.share_right:.1%}"
        )

    def take(self, story: Story, together: Course, alone: list[Course]) -> None:
        """Judge one story by what each of its faults does alone."""
        self.stories += 1
        for fault, course in zip(story.faults, alone, strict=True):
            self.faults += 1
            if not _names(fault, course):
                self.silent_alone += 1
            elif _names(fault, together):
                self.named += 1
            else:
                self.unnamed.append(f"{story.number} {story.preset}: {fault.words}")
        for finding, cause in sorted(together.said):
            self.said += 1
            if any(map(partial(_is_right, together, finding, cause), story.faults, alone)):
                self.right += 1
            else:
                words = "; ".join(one.words for one in story.faults)
                self.wrong.append(f"{story.number} {story.preset}: {finding} <- {cause} | {words}")


def _is_right(together: Course, finding: Part, cause: Part, fault: Injected, alone: Course) -> bool:
    """Whether a finding and its cause are both of one fault."""
    if finding in alone.seen and cause in alone.seen:
        return True
    struck = [together.seen[one] for one in (finding, cause)]
    # A probe is over many parts: that a fault strikes one of them says too little.
    is_placed = bool(fault.places) and all(one.kind != "probe" and _strikes(fault, one) for one in struck)
    return is_placed and cause[0] in fault.codes


def _names(fault: Injected, course: Course) -> bool:
    """Whether a finding or cause of one of its codes names a part that it strikes."""
    return any(code in fault.codes and _strikes(fault, component) for (code, _), component in course.seen.items())


def _strikes(fault: Injected, component: Component) -> bool:
    where = (component.key, component.name, *component.parts)
    return not fault.places or component.kind == "probe" or any(place in one for place in fault.places for one in where)


def play(story: Story, folder: Path, patch: pytest.MonkeyPatch, only: Injected | None = None) -> Course:
    """What the daemon says over a story, or with one fault of it alone."""
    folder.mkdir(parents=True)
    course = Course()
    log = story.log(only)
    with rehearsed(story.preset, folder, patch, story.file(only) or "[]", log) as daemon:
        daemon.until(LEARNED_AT / 60, step=STEP)
        probed = 0.0
        while daemon.time < ENDS_AT:
            daemon.until((daemon.time + STEP) / 60, step=STEP)
            course.take(daemon.verdict.findings)
            if daemon.time - probed >= PROBED_EACH:
                probed = daemon.time
                daemon.probe()
                course.take(daemon.verdict.findings)
    return course


def score(stories: list[Story], folder: Path, patch: pytest.MonkeyPatch) -> Score:
    """The score over stories."""
    total = Score()
    for story in stories:
        at = folder / f"{story.number}"
        alone = [play(story, at / f"{place}", patch, fault) for place, fault in enumerate(story.faults)]
        total.take(story, play(story, at / "all", patch), alone)
    return total

"""What the node's page says beside the snapshot: plain records that the daemon fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commwatch.probes.results.records import ProbeStatus
from commwatch.views.heatmap.grid import View


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """The last run of a collector."""

    name: str
    success: bool | None
    """None before the first run."""
    age_seconds: float | None
    """Since the last success; None where there was none."""
    interval_seconds: float
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class FindingStatus:
    """Something that is wrong, by the rules of the daemon."""

    severity: str
    title: str
    """What is wrong, in a few words."""
    part: str
    """Of the node."""
    age_seconds: float
    """Since it was seen first; with an effect, since that was."""
    causes: Sequence[str] = ()
    """What else explains it, the likeliest first."""
    culprit: str = ""
    """Part of the node that the likeliest cause is about; empty without a cause."""
    next_step: str = ""
    code: str = ""
    effect: str = ""
    """What it likely explains, where that was found and this is its cause; empty otherwise."""


@dataclass(frozen=True, slots=True)
class ClosedStatus:
    """A finding of the last day that is not open any more."""

    severity: str
    title: str
    """What was wrong, in a few words."""
    part: str
    """Of the node."""
    opened: str
    """A time of day, with its zone."""
    closed: str
    """Likewise."""


@dataclass(frozen=True, slots=True)
class Mark:
    """That something is wrong with a part of the picture."""

    severity: str
    title: str


@dataclass(frozen=True, slots=True)
class ScoreStatus:
    """How well the GPUs communicate."""

    ratio: float | None
    """0 to 1; None where nothing was measured."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """By name, 0 to 1; None where it was not measured."""
    losses: Sequence[str] = ()
    """What most points were lost to, the greatest first."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that this node is or has."""

    term: str
    words: str
    is_short: bool = False
    """Whether less is here than is expected."""


@dataclass(frozen=True, slots=True)
class VerdictStatus:
    """The verdict on the node, as all faces of commwatch say it."""

    word: str = "Unknown"
    """OK, Warning, Critical or Unknown."""
    line: str = "the daemon has just started and has not looked at the node yet"


@dataclass(frozen=True, slots=True)
class Status:
    """What the page says beside the snapshot."""

    version: str
    name: str = ""
    """What the node is called; empty where that is not known."""
    simulated: str = ""
    """Name of the simulated node; empty for a real one."""
    verdict: VerdictStatus = VerdictStatus()
    facts: Sequence[Fact] = ()
    notices: Sequence[str] = ()
    """What the reader should know or do first."""
    findings: Sequence[FindingStatus] = ()
    """What is wrong, most severe first."""
    closed: Sequence[ClosedStatus] = ()
    """What was wrong in the last day and is not any more, the latest first."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """By identity of the component (``nvlink/0000:17:00.0/3``) what is wrong with it."""
    score: ScoreStatus | None = None
    pairs: View | None = None
    """What every GPU sent to every other one in the last cycle over pairs; None where none is young enough."""
    pairs_probe: ProbeStatus | None = None
    """What measures them; None where no probe does."""
    collectors: Sequence[CollectorStatus] = ()
    probes: Sequence[ProbeStatus] = ()
    documentation: str = ""
    """URL of the folder docs/; empty where the site has not said."""

"""Contents of the node's page besides the snapshot: plain records that the daemon fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from commwatch.findings.api_documents import ClosedRecord
from commwatch.findings.finding import Finding
from commwatch.findings.score.records import Score
from commwatch.findings.verdict import Verdict
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
class Mark:
    """That something is wrong with a part of the picture."""

    severity: str
    title: str


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that this node is or has."""

    term: str
    words: str
    is_short: bool = False
    """Whether less is here than is expected."""


NOT_LOOKED_YET: Final = Verdict("Unknown", "the daemon has just started and has not looked at the node yet")


@dataclass(frozen=True, slots=True)
class Status:
    """Contents of the page besides the snapshot."""

    version: str
    time: float = 0.0
    """Seconds since 1970."""
    name: str = ""
    """Name of the node; empty if it is not known."""
    simulated: str = ""
    """Name of the simulated node; empty for a real one."""
    verdict: Verdict = NOT_LOOKED_YET
    facts: Sequence[Fact] = ()
    notices: Sequence[str] = ()
    """Notices that the reader should see first."""
    findings: Sequence[Finding] = ()
    """Open findings, most severe first."""
    closed: Sequence[ClosedRecord] = ()
    """Findings that closed in the last day, the latest first."""
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """By identity of the component (``nvlink/0000:17:00.0/3``) what is wrong with it."""
    score: Score | None = None
    pairs: View | None = None
    """Bandwidth from every GPU to every other one in the last cycle over pairs; None if there is no recent one."""
    pairs_probe: ProbeStatus | None = None
    """The probe that measures pairs; None if there is none."""
    collectors: Sequence[CollectorStatus] = ()
    probes: Sequence[ProbeStatus] = ()
    documentation: str = ""
    """URL of the folder docs/; empty where the site has not said."""

"""The whole diagnosis as one document: what ``commwatch diagnose --json`` prints and the report shows."""

from __future__ import annotations

from typing import Literal

import msgspec

from commwatch.diagnosis.check import Check
from commwatch.findings.api_documents import About, ClosedRecord
from commwatch.findings.finding import Finding
from commwatch.findings.score.records import Score
from commwatch.findings.verdict import Verdict
from commwatch.node.topology.pair_matrix import PairMatrix

DIAGNOSIS_SCHEMA: Literal["commwatch-diagnosis/1"] = "commwatch-diagnosis/1"


class Measure(msgspec.Struct, frozen=True):
    """A number that can be compared with that of another diagnosis."""

    what: str
    """With size and ranks, so that two of the same name are comparable."""
    value: float
    """In the base unit."""
    unit: Literal["bytes_per_second", "seconds", "ratio"]


class Diagnosis(About, frozen=True, kw_only=True):
    schema: Literal["commwatch-diagnosis/1"] = DIAGNOSIS_SCHEMA
    scan: Literal["quick", "full"]
    """quick: what the daemon knows; full: with probes run for it."""
    verdict: Verdict
    looked_at: float | None
    """When the daemon's rules ran last, seconds since 1970; None before the first time."""
    findings: tuple[Finding, ...]
    """A job that is stuck first, then the most severe."""
    checks: tuple[Check, ...]
    """In the order of the branches."""
    score: Score
    matrix: PairMatrix | None
    """The pairs that it was made from."""
    measures: tuple[Measure, ...] = ()
    """The last results of the probes; empty if there are none, or if an earlier version wrote the document."""
    gpu_model: str = ""
    """Name of the GPUs, as the driver gives it; empty where they differ, or an earlier version wrote it."""
    gpus: int = 0
    """How many there are; 0 likewise."""
    closed: tuple[ClosedRecord, ...] = ()
    """Critical and warning findings of the last day that are not open any more, the latest first."""

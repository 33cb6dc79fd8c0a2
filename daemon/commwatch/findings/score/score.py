"""The communication score of one moment, from the metrics and their last day; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Finding
from commwatch.findings.score.caps import failed_jobs, failed_jobs_of, losses
from commwatch.findings.score.jobs import jobs_of, words_of
from commwatch.findings.score.parts import balance, bandwidth, latency, stability, stability_of
from commwatch.findings.score.probes import rates_of
from commwatch.findings.score.records import Score, capped, weighted
from commwatch.units import format_percent
from commwatch_exporters.snapshot import Value

ScoreReading: TypeAlias = tuple[str, tuple[str, ...], Value]
"""Metric, label values and number; None for what was not measured."""


def score_of(
    facts: Facts, thresholds: Thresholds, findings: Sequence[Finding] = (), before: Score | None = None
) -> Score:  # fmt: skip
    """How well the GPUs of this node communicate.

    No part but balance rises when something that was measured gets worse: what is equally slow is in balance. The
    score stays below good while
    a critical finding is open, or a probe is below the mark from which on a bandwidth is a fault; below excellent while
    a loss is open, or a job failed or got stuck in the last hour.

    Args:
        facts: of this moment; their history watches the counters of ``stability.WINDOWS``.
        findings: that are open, most severe first.
        before: where these facts have no past: the score that gives ``stability``, and what failed jobs keep down.
    """
    rates, jobs_here = rates_of(facts), jobs_of(facts)
    parts = (
        bandwidth(facts, rates),
        latency(facts, thresholds),
        balance(facts, rates, jobs_here, thresholds),
        stability(facts, thresholds) if before is None else stability_of(before),
    )
    good, excellent = thresholds.score_good_ratio, thresholds.score_excellent_ratio
    score = weighted(parts, excellent, good)
    score = msgspec.structs.replace(score, jobs=tuple(words_of(jobs_here, findings, thresholds)))
    low = thresholds.probe_bandwidth_utilization_low_ratio
    if findings and findings[0].severity == "critical":
        lead = findings[0].lead
        return capped(score, good, good, lead.component.words, f"{lead.title}; a critical finding is open")
    slowest = min(parts[0].readings, key=lambda one: one.ratio, default=None)
    if slowest is not None and slowest.ratio < low:
        return capped(score, good, good, slowest.subject, f"{slowest.words}; below {format_percent(low)} is a fault")
    jobs = failed_jobs(facts) if before is None else failed_jobs_of(before)
    for subject, words in (*losses(facts, thresholds), *jobs):
        return capped(score, excellent, good, subject, words)
    return score


def readings_of(score: Score) -> Iterator[ScoreReading]:
    """The metrics of a score: always the same series, None where not measured."""
    yield "commwatch_communication_score_ratio", (), score.ratio
    for part in score.parts:
        yield "commwatch_communication_score_component_ratio", (part.name,), part.ratio

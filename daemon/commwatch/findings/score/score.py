"""The communication score of one moment, from the metrics and their last day; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.score.balance import balance
from commwatch.findings.score.bandwidth import bandwidth
from commwatch.findings.score.latency import latency
from commwatch.findings.score.probes import rates_of
from commwatch.findings.score.records import Score, weighted
from commwatch.findings.score.stability import stability
from commwatch_exporters.snapshot import Value

ScoreReading: TypeAlias = tuple[str, tuple[str, ...], Value]
"""Metric, label values and number; None for what was not measured."""


def score_of(facts: Facts, thresholds: Thresholds) -> Score:
    """How well the GPUs of this node communicate.

    No part rises when something that was measured gets worse, and so neither does the score.

    Args:
        facts: of this moment; their history watches the counters of ``stability.WINDOWS``.
        thresholds: in force.
    """
    rates = rates_of(facts)
    parts = (
        bandwidth(facts, rates),
        latency(facts, thresholds),
        balance(facts, rates, thresholds),
        stability(facts, thresholds),
    )
    return weighted(parts, thresholds.score_excellent_ratio, thresholds.score_good_ratio)


def readings_of(score: Score) -> Iterator[ScoreReading]:
    """The metrics of a score: always the same series, None where not measured."""
    yield "commwatch_communication_score_ratio", (), score.ratio
    for part in score.parts:
        yield "commwatch_communication_score_component_ratio", (part.name,), part.ratio

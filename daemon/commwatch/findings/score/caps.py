"""Caps that keep the score below excellent however good the parts are: an open loss, and jobs that failed; pure."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.rules.jobs import HARDWARE, side_of
from commwatch.findings.rules.probe import FIRM
from commwatch.findings.rules.rule_set import HOUR
from commwatch.findings.score.probes import of_probes
from commwatch.findings.score.records import Score
from commwatch.units import format_percent
from commwatch_exporters.node.model import LogCategory, Probe

_LOGS = "NCCL logs, "
_STUCK_OR_DEAD = frozenset({"timeout", "remote", "crash", "killed"})
"""Categories that show how a job ended, not why; errors on the side of the hardware end jobs too."""


def losses(facts: Facts, thresholds: Thresholds) -> Iterator[tuple[str, str]]:
    """Where something is lost, and what: below the own level, short of a firm expectation, or latency spikes in a row.

    Yields:
        Subject and words.
    """
    for probe, count in of_probes(facts, Probe.losses):
        if count:
            yield f"probe {probe.name}", "below this node's own level; the loss is open"
    for probe, streak in of_probes(facts, Probe.short_bandwidth_streak):
        if streak >= thresholds.probe_low_bandwidth_streak and probe.expected_source in FIRM:
            short = format_percent(thresholds.probe_bandwidth_short_ratio)
            yield f"probe {probe.name}", f"{streak:g} results in a row below {short} of what is expected"
    for probe, streak in of_probes(facts, Probe.latency_spike_streak):
        if streak >= thresholds.probe_latency_spike_streak:
            yield f"probe {probe.name}", f"{streak:g} latency spikes in a row"


def ends_a_job(category: str) -> bool:
    """Whether errors of a category in logs say that a job failed or got stuck; its own settings do not count."""
    return category in _STUCK_OR_DEAD or side_of(category) in HARDWARE


def failed_jobs(facts: Facts) -> Iterator[tuple[str, str]]:
    """Jobs that failed or got stuck in the last hour, by their logs; their own settings do not count.

    Yields:
        Subject and words.
    """
    for category, rise in facts.rises(LogCategory.errors, HOUR):
        if ends_a_job(category.name):
            yield f"{_LOGS}{category.name}", f"a job failed or got stuck: {rise:g} errors in the last hour"


def failed_jobs_of(score: Score) -> Iterator[tuple[str, str]]:
    """The same of an earlier score."""
    for loss in score.losses:
        if loss.part == "cap" and loss.subject.startswith(_LOGS):
            yield loss.subject, loss.words

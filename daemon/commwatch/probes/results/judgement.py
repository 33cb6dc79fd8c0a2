"""When a result of a probe is bad, and for how long it counts."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.config import settings
from commwatch.config.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class JudgementRules:
    """The rules of one probe."""

    thresholds: Thresholds
    interval: float
    """Seconds between cycles; results age by it."""
    latency_limit: float | None
    """Seconds above which a latency is a spike, as configured; None: see ``latency_mark``."""


def rules_of(probe: settings.Probe, thresholds: Thresholds) -> JudgementRules:
    """The rules of a probe: the thresholds in force, and its own interval and absolute limit."""
    return JudgementRules(thresholds, probe.interval, probe.latency_limit)

"""Which metrics are left off the metrics page."""

from __future__ import annotations

from pathlib import Path

from commwatch.config.settings import Metrics
from commwatch_exporters.catalogue import CATALOGUE

CORE_FILE = Path(__file__).parents[1] / "data/core_metrics.txt"
"""Written by ``make docs``."""


def unexported(settings: Metrics) -> frozenset[str]:
    """The families that a profile leaves off the page; findings, node page and API have them all the same."""
    if settings.profile != "core":
        return frozenset()
    return frozenset(CATALOGUE) - frozenset(CORE_FILE.read_text(encoding="utf-8").split()) - settings.asked_for

"""Evidence in words."""

from __future__ import annotations

import pytest

from commwatch.findings.finding import Evidence
from commwatch.findings.words import format_evidence


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (Evidence("link state", "inactive"), "link state: inactive"),
        (Evidence("recoveries", 4.0, threshold=3), "recoveries: 4 (threshold 3)"),
        (Evidence("utilisation", 0.375, "ratio", 0.6, "key"), "utilisation: 37.5 % (threshold 60 %)"),
        (Evidence("sent", 4.2e10, "bytes_per_second"), "sent: 42 GB/s"),
        (Evidence("buffer", 4194304, "bytes"), "buffer: 4 MiB"),
        (Evidence("latency", 0.0021, "seconds"), "latency: 2.1 ms"),
        (Evidence("width", 8, "lanes", 16), "width: x8 (threshold x16)"),
        (Evidence("replays", 12, "per_hour"), "replays: 12 per hour"),
    ],
)
def test_numbers_have_their_units(evidence: Evidence, words: str) -> None:
    """The threshold has the unit of the value; a state has neither."""
    assert format_evidence(evidence) == words

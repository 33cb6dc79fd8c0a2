"""Evidence as people read it."""

from __future__ import annotations

from commwatch.findings.finding import Evidence, EvidenceUnit, format_evidence


def test_numbers_have_three_digits_and_counts_all_of_theirs() -> None:
    """More digits of a rate are noise; a count is exact."""
    cases: list[tuple[float, EvidenceUnit, str]] = [
        (199.983, "", "200"),
        (2e-11, "", "2e-11"),
        (1234567.0, "", "1234567"),
        (1234.56, "", "1235"),
        (0.0, "", "0"),
        (1.0, "events", "once"),
        (1234567.0, "events", "1234567 times"),
        (0.0314, "ratio", "3.14 %"),
        (2e-11, "ratio", "2e-11"),
        (16.0, "lanes", "x16"),
        (3.333, "per_hour", "3.33 per hour"),
        (float("inf"), "", "inf"),
    ]
    for value, unit, words in cases:
        assert format_evidence(Evidence("errors", value, unit)) in (f"errors: {words}", f"errors, {words}")

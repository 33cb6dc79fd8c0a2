"""Findings in words: their evidence with units, for logs and terminals."""

from __future__ import annotations

from commwatch.findings.finding import Evidence, EvidenceUnit
from commwatch.units import format_bytes, format_rate, format_seconds


def format_evidence(evidence: Evidence) -> str:
    """``recoveries in the last hour: 4 (threshold 3)``."""
    if isinstance(evidence.value, str):
        return f"{evidence.what}: {evidence.value}"
    said = f"{evidence.what}: {format_quantity(evidence.value, evidence.unit)}"
    if evidence.threshold is None:
        return said
    return f"{said} (threshold {format_quantity(evidence.threshold, evidence.unit)})"


def format_quantity(value: float, unit: EvidenceUnit) -> str:
    """A number in a base unit as people read it: ``48 GB/s``, ``37.5 %``, ``x8``."""
    if unit == "bytes_per_second":
        return format_rate(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit == "ratio":
        return f"{value * 100:.3g} %"
    if unit == "lanes":
        return f"x{value:g}"
    return f"{value:g} per hour" if unit == "per_hour" else f"{value:g}"

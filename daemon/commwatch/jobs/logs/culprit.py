"""The likeliest cause among what lines of a log show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from commwatch.jobs.logs.categories import ENDINGS, PRECEDENCE, SEVERED, SIDES, Category

INCIDENT_SECONDS = 60.0
"""Lines within this time after the first one belong to the same incident."""

_RANKS: dict[str, int] = {one: rank for rank, group in enumerate(PRECEDENCE) for one in group}
_AFTER_CAUSES = len(PRECEDENCE)
_STATUSES: frozenset[Category] = frozenset({"cuda", "usage"})
"""Categories of NCCL's statuses that name no call."""


class Finding(NamedTuple):
    category: Category
    certain: bool = True
    """False where the line only gives the status of a call that failed, which names no cause."""


def first_culprit(findings: Iterable[Finding]) -> Category | None:
    """The likeliest cause among what was seen within about a minute; None for nothing.

    Causes come before unknown warnings, these before symptoms, and a status that says nothing is last; of equals, the
    first in the order given. A process that ended before the others lost their connections is why they lost them.
    """
    seen = list(findings)
    best = min(seen, key=_rank, default=None)
    if best is None:
        return None
    if best.category in SEVERED:
        first = next((one for one in seen if one.certain and one.category in ENDINGS | SEVERED), best)
        return first.category if first.category in ENDINGS else best.category
    if best.category == "killed" and Finding("cancelled") in seen[: seen.index(best)]:
        return "cancelled"  # the scheduler kills what does not end by itself
    return best.category


def _rank(finding: Finding) -> float:
    """Smaller is likelier to be the cause."""
    if SIDES[finding.category] == "symptom":
        return _AFTER_CAUSES + (5 if finding.category == "teardown" else 3 if finding.certain else 4)
    if finding.category == "other":
        return _AFTER_CAUSES + (2 if finding.certain else 7)
    if finding.category == "crash" and not finding.certain:
        return _AFTER_CAUSES + 6
    if finding.category in _STATUSES and not finding.certain:
        return _AFTER_CAUSES + 2.5  # an unknown warning of NCCL says more than the status of the call
    return _RANKS[finding.category] if finding.certain else _AFTER_CAUSES + 1

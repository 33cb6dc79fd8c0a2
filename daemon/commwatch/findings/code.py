"""What a finding code means: one record for each kind of thing that can be wrong."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.findings.finding import Role, Severity

STATE_OPENS_AFTER = 15.0
"""Seconds: one bad sample opens nothing; the alerts on states wait as long."""
STATE_CLOSES_AFTER = 60.0
"""Seconds: what comes back within a minute is one incident."""
COUNT_CLOSES_AFTER = 300.0
"""Seconds after an event has left its window."""


@dataclass(frozen=True, slots=True)
class FindingCode:
    """One code of the closed list; the row of ``docs/reference/findings/README.md`` is made of it."""

    name: str
    """Value of the label ``code``: ``nvlink_down``."""
    title: str
    """The finding in a few words, without its component: ``NVLink is down``."""
    severity: Severity
    role: Role
    meaning: str
    """What it says about the node, and what follows for those who use it."""
    next_step: str
    """What to do first."""
    alert: str = ""
    """The alert on the same metric; empty where none is shipped."""
    opens_after: float = STATE_OPENS_AFTER
    """Seconds for which it must be seen."""
    closes_after: float = STATE_CLOSES_AFTER
    """Seconds for which it must be gone."""
    replaces: tuple[str, ...] = ()
    """Names of the codes that are lesser degrees of it: at a component where it is open, none of them is."""

"""The closed list of finding codes, gathered from the rules that find them."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch.findings.finding import Match
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import FindingCode
from commwatch.findings.score import parts


def _gathered() -> Mapping[str, FindingCode]:
    codes: dict[str, FindingCode] = {}
    for rules in RULE_SETS:
        for code in rules.codes:
            if code.name in codes:
                raise ValueError(f"finding code {code.name} is defined twice")
            codes[code.name] = code
    return codes


CODES: Mapping[str, FindingCode] = _gathered()
"""By name, in the order of the documentation."""


def next_step_of(match: Match) -> str:
    """The first step for a match, with its own part in the place of ``ADDRESS``, ``DEVICE`` and ``PORT``."""
    step, component = match.next_step or CODES[match.code].next_step, match.component
    if component.kind == "rdma_port":
        device, _, port = component.key.partition("/")
        return step.replace("DEVICE", device).replace("PORT", port)
    if component.kind in ("gpu", "adapter", "pcie_link"):
        return step.replace("ADDRESS", component.key.removeprefix("index:"))
    return step


REPLACED_BY: Mapping[str, tuple[str, ...]] = {
    lesser: tuple(code.name for code in CODES.values() if lesser in code.replaces)
    for code in CODES.values()
    for lesser in code.replaces
}
"""By code: those of which it is a lesser degree."""

_WINDOWS = (*(rules.metrics_watched for rules in RULE_SETS), parts.WINDOWS)

WATCHED: Mapping[str, float] = {
    metric: max(windows[metric] for windows in _WINDOWS if metric in windows)
    for windows in _WINDOWS
    for metric in windows
}
"""Counters whose past changes the rules and the score use, with the longest window in seconds."""

EVENTS: frozenset[str] = frozenset(metric for rules in RULE_SETS for metric in rules.metrics_of_events)
"""Those of them of which a series is not there before its first event."""

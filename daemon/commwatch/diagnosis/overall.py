"""What findings and checks come to, in one word and one line; pure."""

from __future__ import annotations

from collections.abc import Sequence

from commwatch.diagnosis.check import Check
from commwatch.diagnosis.document import Verdict
from commwatch.findings.api_documents import STALE_SECONDS, CauseRecord, FindingRecord, FindingsDocument
from commwatch.units import format_seconds


def verdict_of(
    findings: Sequence[FindingRecord], checks: Sequence[Check], told: FindingsDocument, *, has_gpus: bool
) -> Verdict:
    """The verdict.

    Args:
        findings: most severe first.
        checks: of all branches.
        told: what the daemon said of itself.
        has_gpus: whether the daemon knows a GPU.
    """
    failed = [check for check in checks if check.verdict == "failed"]
    if findings and findings[0].severity != "info":
        return Verdict("broken" if findings[0].severity == "critical" else "degraded", _of_findings(findings))
    if failed:
        others = len(failed) - 1
        more = f"; and {others} more failed check{'s' * (others > 1)}" if others else ""
        return Verdict("degraded", f"{_check_words(failed[0])}{more}")
    if blind := _blind(told, has_gpus=has_gpus):
        return Verdict("unknown", blind)
    measured = [check for check in checks if check.verdict == "passed"]
    if not measured:
        return Verdict("unknown", "nothing wrong was found, and nothing was measured that could show it")
    if findings:
        return Verdict("notices", f"nothing is wrong; worth knowing: {findings[0].title}{_at(findings[0])}")
    missing = sum(check.verdict == "not measured" for check in checks)
    rest = f"; {missing} {'was' if missing == 1 else 'were'} not measured" if missing else ""
    return Verdict("healthy", f"{len(measured)} check{'s' * (len(measured) > 1)} passed, none failed{rest}")


def _blind(told: FindingsDocument, *, has_gpus: bool) -> str:
    """Why nothing wrong that is seen does not mean that nothing is wrong; empty where it does."""
    if told.looked_at is None:
        return "the daemon has only just started: nothing was looked at yet"
    age = told.time - told.looked_at
    if age > STALE_SECONDS:
        return f"the daemon looked last {format_seconds(age)} ago"
    if told.failing_rules:
        return f"nothing wrong was found, but rules failed: {', '.join(told.failing_rules)}"
    return "" if has_gpus else "the daemon knows no GPU on this node"


def _of_findings(findings: Sequence[FindingRecord]) -> str:
    """The part to look at first."""
    first = findings[0]
    said = f"{first.title}{_at(first)}"
    if first.lead is not first:
        said = f"{first.lead.title}{_at(first.lead)}, the likeliest cause of: {said}"
    others = sum(one.severity != "info" for one in findings) - 1
    return f"{said}; and {others} more" if others else said


def _at(record: FindingRecord | CauseRecord) -> str:
    words = record.component.component.words
    return f" ({record.detail})" if words == "this node" and record.detail else f": {words}"


def _check_words(check: Check) -> str:
    where = f" of {check.where}" if check.where else ""
    return f"{check.what}{where}: {check.measured}, required {check.required}"

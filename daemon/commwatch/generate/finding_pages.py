"""docs/reference/findings/README.md, made from codes and rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from commwatch.findings.explanations import EXPLANATIONS
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import FindingCode, Rule

FILE = Path("docs/reference/findings/README.md")
_INTRODUCTION = """\
<!-- Generated from the rules: change daemon/commwatch/findings/, then run `make docs`. -->
# Findings

What commwatch can find wrong on a node, one row per code. Rules read the daemon's own metrics every 10 s; each row
names those that decide. A finding opens after the first number of seconds in its row, and closes after the second.
While a metric is unread or the node is in maintenance, it neither opens nor closes. It survives a restart, and closes
after seven days unseen. One that becomes a graver one of the same part (a GPU that does not answer is lost) closes at
once.

A fault that explains a symptom is listed under it as a cause and is no finding of its own; the symptom is as severe as
its most severe cause. Causes are ranked by a weight between 0 and 1, a judgement, not a measurement.

A cause begins before its effect (it is seen up to 90 s later; a count begins with its first event, at most an hour
before it was a fault, or a day where only the day's number is too high), lasts until the effect begins, and touches it.
Across parts: an NVSwitch's link and a GPU with link trouble within 90 s; a job's time-outs and the GPU whose rank alone
did not report one; an adapter's errors by its name. If time or place is unknown, or the weight is below 0.5 (0.8 for a
probe over several GPUs), the fault is *also seen*: named beside the symptom, and a finding of its own.

Open findings: `commwatch_finding`, `/api/v1/findings` ([API](../../using/api.md)), the node's page, the log.
Alerts come from metrics, not from findings; a linked runbook belongs to the matching alert.

| role | what it means |
| --- | --- |
| fault | something is broken or set wrongly |
| symptom | communication is slow or fails, perhaps by a fault |
| state | worth knowing |

Severities: critical, act now; warning, a ticket; info, no action. Thresholds are keys of
[`thresholds.yaml`](../../../alerts/thresholds.yaml).
"""

_HEAD = """\
| finding | severity | what it means | what to do first | metrics | thresholds |
| --- | --- | --- | --- | --- | --- |
"""

_EXPLANATIONS = """\
## What explains what

What may explain a symptom, strongest first. An open finding names those seen on its parts, with weight and reason.

| symptom | what may explain it |
| --- | --- |
"""


def page() -> str:
    """The whole file."""
    rule_of = {code: rule for rules in RULE_SETS for rule in rules.rules for code in rule.codes}
    families = [
        f"## {rules.name}\n\n{_HEAD}{''.join([_row(code, rule_of[code.name]) for code in rules.codes])}"
        for rules in RULE_SETS
    ]
    explained = [f"| {_names(symptoms)} | {_names(faults)} |\n" for faults, symptoms in _explained().items()]
    return "\n".join([_INTRODUCTION, *families, f"{_EXPLANATIONS}{''.join(explained)}"])


def _row(code: FindingCode, rule: Rule) -> str:
    runbook = f" [{code.alert}](../../../alerts/runbooks/{code.alert}.md)" if code.alert else ""
    cells = (
        f'<a id="{code.name}"></a>`{code.name}` {code.title}',
        f"{code.severity} {code.role}<br>{code.opens_after:g} s, {code.closes_after:g} s",
        code.meaning,
        f"{code.next_step}{runbook}",
        _names(rule.metrics_read),
        _names(rule.thresholds),
    )
    return f"| {' | '.join(cells)} |\n"


def _names(names: Iterable[str]) -> str:
    return " ".join([f"`{name}`" for name in names])


def _explained() -> Mapping[tuple[str, ...], list[str]]:
    """By what may explain them, the strongest first: the symptoms."""
    faults: dict[str, dict[str, float]] = {}
    for (symptom, fault), why in EXPLANATIONS.items():
        faults.setdefault(symptom, {})[fault] = why.weight
    symptoms: dict[tuple[str, ...], list[str]] = {}
    for symptom, weights in faults.items():
        ranked = tuple(sorted(weights, key=lambda fault: (-weights[fault], fault)))
        symptoms.setdefault(ranked, []).append(symptom)
    return symptoms

"""docs/reference/findings/README.md, made from codes and rules."""

from __future__ import annotations

from pathlib import Path

from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import FindingCode, Rule

FILE = Path("docs/reference/findings/README.md")
_INTRODUCTION = """\
<!-- Generated from the rules: change daemon/commwatch/findings/, then run `make docs`. -->
# Findings

This page lists everything that commwatch can find wrong on a node. An entry leads to the runbook of the matching alert,
and has meaning and first step only where there is no such alert. Alerts come from metrics, not from findings. Open
findings are in `commwatch_finding`, in the [API](../../using/api.md), on the node's page and in the log.

## How a finding opens and closes

Rules read the daemon's own metrics every 10 s. A finding opens after the first number of seconds in its entry and
closes after the second. It neither opens nor closes while a metric that decides is unread, or while the node is in
maintenance. It survives a restart, and it closes after seven days unseen. When the same fault of the same part becomes
graver (a GPU that does not answer is lost), the lesser finding closes at once.

| role | meaning |
| --- | --- |
| fault | Something is broken or set wrongly. |
| symptom | Communication is slow or fails, perhaps because of a fault. |
| state | Worth knowing. |

Critical means: act now. Warning means: a ticket. Info needs no action. The second line of an entry names the metrics
that decide, without `commwatch_`, and in italics the keys of [`thresholds.yaml`](../../../alerts/thresholds.yaml). An
entry without one is decided by those of the entry above.

## Causes

A fault that explains a symptom is listed under it as a cause and is no finding of its own. The symptom is then as
severe as its most severe cause. Causes are ranked by a weight between 0 and 1, which is a judgement and not a
measurement: `daemon/commwatch/findings/explanations.py` has all pairs, with weight and reason.

A cause begins before its effect, lasts until the effect begins, and touches it:

- A cause may be seen up to 90 s later than its effect. A count begins with its first event, at most an hour before it
  became a fault, or at most a day where only the number of the day is too high.
- Faults of other parts touch it too: a link of an NVSwitch and a GPU that had link trouble within 90 s of each other,
  the time-outs of a job and the GPU whose rank alone did not report one, and an adapter and errors that name it.
- If time or place is unknown, or the weight is below 0.5 (0.8 for a probe over several GPUs), the fault is *also seen*:
  it is named beside the symptom and is a finding of its own.
"""


def page() -> str:
    rule_of = {code: rule for rules in RULE_SETS for rule in rules.rules for code in rule.codes}
    families = []
    for rules in RULE_SETS:
        rows, above = [], ""
        for code in rules.codes:
            decides = _decides(rule_of[code.name])
            rows.append(_entry(code, "" if decides == above else decides))
            above = decides
        families.append(f"## {rules.name}\n\n{''.join(rows)}")
    return "\n".join([_INTRODUCTION, *families])


def _entry(code: FindingCode, decides: str) -> str:
    runbook = f"[{code.alert}](../../../alerts/runbooks/{code.alert}.md)"
    return (
        f'- <a id="{code.name}"></a>`{code.name}` **{code.title}**: {code.severity} {code.role},'
        f" {code.opens_after:g}/{code.closes_after:g} s."
        f" {runbook if code.alert else f'{code.meaning} {code.next_step}'}{decides and f'<br>{decides}'}\n"
    )


def _decides(rule: Rule) -> str:
    """The metrics that a rule reads to decide, and its thresholds."""
    metrics = [f"`{name.removeprefix('commwatch_')}`" for name in rule.metrics_read]
    return " ".join([*metrics, *(f"*`{name}`*" for name in rule.thresholds)])

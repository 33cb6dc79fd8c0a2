"""Writes docs/findings/README.md from codes and rules: ``python -m commwatch.generate.finding_pages``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from commwatch.findings.code import FindingCode
from commwatch.findings.explanations import EXPLANATIONS
from commwatch.findings.rules import RULE_SETS
from commwatch.findings.rules.rule_set import Rule

_INTRODUCTION = """\
<!-- Generated from the rules: change daemon/commwatch/findings/, then run `make docs`. -->
# Findings

What commwatch can find wrong on a node, one row for each code. The rules look every 10 s at the daemon's own metrics;
each row names those that decide. A finding opens when it has been seen for some seconds and closes when it has been
gone for some. What cannot be read now, because a part does not answer or during maintenance, neither opens nor closes:
it closes only where all these metrics were read. It outlives a restart of the daemon. A finding that was neither seen
nor could be seen for seven days closes.

A fault that explains a symptom stands under it as a cause, with a weight between 0 and 1 by which causes are ranked:
a judgement, not a measurement. It then is no finding of its own, and the symptom is as severe as its most severe cause.

A cause begins before its effect (a state by 90 s after it at most, a count by an hour), still goes on when the effect
begins, and touches it: the link of an NVSwitch by the GPU that shows trouble of a link within 90 s, the time-outs of a
job by the GPU whose rank alone did not complain, errors of an adapter by its name. Where time or place is not known, or
where a fault rarely does such harm, it is *also seen*: named beside the symptom, and a finding of its own. That is a
weight below 0.5, and below 0.8 for a probe over several GPUs, which says that something is wrong, and not where.

Open findings are in `commwatch_finding`, at `/api/v1/findings` ([API](../api.md)), on the page of the node, and in the
log when they open and close. Alerts come from the metrics, not from findings; where a row names a runbook, its alert
looks at the same sign.

| role | what it means |
| --- | --- |
| fault | something is broken or set wrongly |
| symptom | communication is slow or fails, and a fault may be why |
| state | worth knowing, and neither |

Severities: critical, someone must act now; warning, a ticket; info, no one is woken. Below them stand the seconds after
which a finding opens and closes. Thresholds are keys of [`thresholds.yaml`](../../alerts/thresholds.yaml), which has
their values and origins.
"""

_HEAD = """\
| finding | severity | what it means | what to do first | metrics | thresholds |
| --- | --- | --- | --- | --- | --- |
"""

_EXPLANATIONS = """\
## What explains what

What may explain a symptom, the strongest first. An open finding names those that were seen on its parts, with weight
and reason.

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
    runbook = f" [{code.alert}](../../alerts/runbooks/{code.alert}.md)" if code.alert else ""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; with ``--check`` say whether it is current: exit code 1 if not."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m commwatch.generate.finding_pages",
        description="Writes docs/findings/README.md.",
    )
    default = Path("docs/findings/README.md")
    parser.add_argument("file", nargs="?", type=Path, default=default, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is not current")
    options = parser.parse_args(arguments)
    if options.check:
        if options.file.is_file() and options.file.read_text(encoding="utf-8") == page():
            return 0
        print(f"{options.file} is not current; run python -m commwatch.generate.finding_pages", file=sys.stderr)
        return 1
    options.file.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

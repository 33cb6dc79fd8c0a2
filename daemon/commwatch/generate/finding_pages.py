"""Writes docs/findings/ from codes, rules and what explains what: ``python -m commwatch.generate.finding_pages``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from commwatch.config.thresholds import Threshold, shipped_thresholds
from commwatch.findings.code import FindingCode
from commwatch.findings.codes import CODES
from commwatch.findings.explanations import EXPLANATIONS, Explanation
from commwatch.findings.rules import RULE_SETS
from commwatch.generate.finding_sources import RuleSource, rule_sources
from commwatch_exporters.catalogue import CATALOGUE

INDEX = "README.md"

_GENERATED = "<!-- Generated from the rules: change daemon/commwatch/findings/, then run `make docs`. -->\n"

_INTRODUCTION = """\
# Findings

What commwatch can find wrong on a node, one page for each code. The rules look every 10 s at the metrics of the page
and at nothing else. A finding opens when it has been seen for some seconds and closes when it has been gone for some;
what cannot be read now, because a part does not answer or during maintenance, neither opens nor closes. It outlives a
restart of the daemon. A finding that was neither seen nor could be seen for seven days closes.

A fault that explains a symptom stands under it as a cause, with a weight between 0 and 1 by which causes are ranked:
a judgement, not a measurement. It then is no finding of its own, and the symptom is as grave as its gravest cause.

Open findings are in `commwatch_finding`, at `/api/v1/findings` ([API](../api.md)), on the page of the node, and in the
log when they open and close. Alerts come from the metrics, not from findings; where a code names one, both look at
the same sign.

| role | what it means |
| --- | --- |
| fault | something is broken or set wrongly |
| symptom | communication is slow or fails, and a fault may be why |
| state | worth knowing, and neither |

Severities: critical, someone must act now; warning, a ticket; info, no one is woken.
"""


def pages() -> dict[str, str]:
    """All files of docs/findings/ by name."""
    sources, thresholds = rule_sources(), shipped_thresholds()
    written = {f"{name}.md": _page(code, sources, thresholds) for name, code in CODES.items()}
    return {INDEX: _index(), **written}


def _index() -> str:
    sections = []
    for rules in RULE_SETS:
        rows = [
            f"| [`{one.name}`]({one.name}.md) | {one.title} | {one.severity} | {one.role} | {_alert(one)} |\n"
            for one in rules.codes
        ]
        head = "| code | finding | severity | role | alert |\n| --- | --- | --- | --- | --- |\n"
        sections.append(f"## {rules.name}\n\n{head}{''.join(rows)}")
    return "\n".join([f"{_GENERATED}{_INTRODUCTION}", *sections])


def _page(code: FindingCode, sources: Iterable[RuleSource], thresholds: Mapping[str, Threshold]) -> str:
    own = [source for source in sources if code.name in source.codes]
    keys = sorted({key for source in own for key in source.thresholds})
    metrics = [metric for metric in CATALOGUE if any(metric in source.metrics for source in own)]
    parts = [
        f"{_GENERATED}# {code.title}\n",
        f"`{code.name}`, {code.severity}, {code.role}. {_words_of_time(code)}\n",
        f"## What it means\n\n{code.meaning}\n",
        f"## What to do\n\n{code.next_step}\n",
        "## Evidence\n\n" + "".join([f"- `{source.name}`: {_escaped(source.docstring)}\n" for source in own]),
        _table("metric", "what it says", [(f"`{name}`", _escaped(CATALOGUE[name].help)) for name in metrics]),
        _table("threshold", "value, unit, origin", [(f"`{key}`", _threshold(thresholds[key])) for key in keys]),
        _explanations("What may explain it", {
            fault: why for (symptom, fault), why in EXPLANATIONS.items() if symptom == code.name
        }),
        _explanations("What it may explain", {
            symptom: why for (symptom, fault), why in EXPLANATIONS.items() if fault == code.name
        }),
        f"## Alert\n\n{_alert(code) or 'None is shipped on the same sign.'}\n",
    ]  # fmt: skip
    return "\n".join([part for part in parts if part])


def _words_of_time(code: FindingCode) -> str:
    opens = f"Opens when it has been seen for {code.opens_after:g} s" if code.opens_after else "Opens when it is seen"
    return f"{opens}, closes when it has been gone for {code.closes_after:g} s."


def _alert(code: FindingCode) -> str:
    return f"[{code.alert}](../../alerts/runbooks/{code.alert}.md)" if code.alert else ""


def _threshold(threshold: Threshold) -> str:
    return f"{threshold.value:g} {threshold.unit}. {_escaped(threshold.origin)}"


def _explanations(title: str, known: Mapping[str, Explanation]) -> str:
    ranked = sorted(((name, why) for name, why in known.items() if name in CODES), key=lambda one: -one[1].weight)
    rows = [f"- [{CODES[name].title}]({name}.md), weight {why.weight:g}: {why.reason}\n" for name, why in ranked]
    return f"## {title}\n\n{''.join(rows)}" if rows else ""


def _table(left: str, right: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {one} | {other} |\n" for one, other in rows]
    return f"| {left} | {right} |\n| --- | --- |\n{''.join(lines)}" if lines else ""


def _escaped(text: str) -> str:
    """A text as Markdown shows it in a table."""
    words = " ".join(text.split())
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


def outdated(folder: Path) -> list[str]:
    """Names of the files that are not what the rules say, that are missing, or that have no code any more."""
    written, present = pages(), {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.md")}
    return sorted(name for name in written.keys() | present.keys() if written.get(name) != present.get(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages and remove those without a code; with ``--check`` say which are not current: exit code 1."""
    parser = argparse.ArgumentParser(
        prog="python -m commwatch.generate.finding_pages", description="Writes docs/findings/."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/findings"), help="default: docs/findings")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    options = parser.parse_args(arguments)
    wrong = outdated(options.folder)
    if options.check:
        for name in wrong:
            print(
                f"{options.folder / name} is not current; run python -m commwatch.generate.finding_pages",
                file=sys.stderr,
            )
        return 1 if wrong else 0
    options.folder.mkdir(parents=True, exist_ok=True)
    written = pages()
    for name in wrong:
        if name in written:
            (options.folder / name).write_text(written[name], encoding="utf-8")
        else:
            (options.folder / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""docs/reference/findings/README.md and the rules."""

from __future__ import annotations

import re
from pathlib import Path

from commwatch.config.assets import asset
from commwatch.findings.codes import CODES
from support.facts import RULES

FILE = Path(__file__).parents[2] / "docs/reference/findings/README.md"


def test_every_code_has_an_entry_that_says_what_decides_it() -> None:
    """Runbook, or meaning and first step; both times; and all that its rule reads to decide."""
    entries: dict[str, str] = {}
    decides: dict[str, str] = {}
    for section in FILE.read_text(encoding="utf-8").split("\n## "):
        above = ""
        for name, entry in re.findall(r'^(?=- <a id="(\w+)"></a>)(.*)$', section, re.MULTILINE):
            assert name not in entries
            _, _, own = entry.partition("<br>")
            above = own or above
            entries[name], decides[name] = entry, above

    assert entries.keys() == CODES.keys()
    for rule in RULES:
        for code in [CODES[name] for name in rule.codes]:
            runbook = f"[{code.alert}](../../../alerts/runbooks/{code.alert}.md)"
            texts = {code.title, code.severity, *({runbook} if code.alert else {code.meaning, code.next_step})}
            entry = entries[code.name]
            assert {one for one in texts if one not in entry} == set()
            assert f"{code.opens_after:g}/{code.closes_after:g} s" in entry
            read = [name.removeprefix("commwatch_") for name in rule.metrics_read]
            assert re.findall(r"`(\w+)`", decides[code.name]) == [*read, *rule.thresholds]


def test_codes_name_alerts_that_are_shipped() -> None:
    """A runbook is what such an alert has."""
    runbooks = {file.stem for file in (asset("alerts") / "runbooks").glob("*.md")}

    assert {code.alert for code in CODES.values()} - {""} <= runbooks

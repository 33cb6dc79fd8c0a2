"""docs/reference/findings/README.md and the rules."""

from __future__ import annotations

import re
from pathlib import Path

from commwatch.config.assets import asset
from commwatch.findings.codes import CODES
from support.facts import RULES

FILE = Path(__file__).parents[2] / "docs/reference/findings/README.md"


def test_every_code_has_a_row_that_says_what_it_stands_on() -> None:
    """Meaning, next step, both times, and all that its rule reads to decide."""
    written = FILE.read_text(encoding="utf-8")
    rows = {name: re.findall(rf'^\| <a id="{name}"></a>.*$', written, re.MULTILINE) for name in CODES}

    for rule in RULES:
        for code in [CODES[name] for name in rule.codes]:
            [row] = rows[code.name]
            assert {one for one in (code.title, code.severity, code.meaning, code.next_step) if one not in row} == set()
            assert f"{code.opens_after:g} s, {code.closes_after:g} s" in row
            assert re.findall(r"`(\w+)`", row) == [code.name, *rule.metrics_read, *rule.thresholds]
            assert row.count(" | ") == 5, "a text breaks the table"


def test_codes_name_alerts_that_are_shipped() -> None:
    """A runbook is what such an alert has."""
    runbooks = {file.stem for file in (asset("alerts") / "runbooks").glob("*.md")}

    assert {code.alert for code in CODES.values()} - {""} <= runbooks

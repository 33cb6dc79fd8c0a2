"""docs/reference/counters.md: every counter that is read, and where it comes from; each is named by a test."""

from __future__ import annotations

import re
from pathlib import Path

from commwatch.generate.counter_tables import Entry, sections

TESTS = Path(__file__).parents[1]

_WORD = re.compile(r"[A-Za-z0-9_/]+(?:\.[A-Za-z0-9_/]+)*")


def naming(entry: Entry, words: dict[str, frozenset[str]]) -> list[str]:
    """The tests that name a counter or its metric, the metric with or without prefix."""
    names = {entry.metric, entry.metric.removeprefix("commwatch_"), entry.counter}
    return sorted(name for name, these in words.items() if not names.isdisjoint(these))


def test_every_counter_is_tested() -> None:
    """There is no counter whose metric no test names; recorded pages and trees that many tests read count too."""
    texts = {
        f"{file.parent.name}/{file.stem.removeprefix('test_')}": file.read_text(encoding="utf-8")
        for file in TESTS.rglob("test_*.py")
        if file != Path(__file__)
    }
    texts["infiniband_trees"] = (TESTS / "support" / "infiniband.py").read_text(encoding="utf-8")
    texts["golden_pages"] = "".join(file.read_text(encoding="utf-8") for file in (TESTS / "golden").glob("*.txt"))
    words = {name: frozenset(_WORD.findall(text)) for name, text in texts.items()}

    assert [entry.counter for group in sections().values() for entry in group if not naming(entry, words)] == []

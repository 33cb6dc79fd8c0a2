"""docs/using/cases.md: prose by hand, outputs that the tests of the cases hold current."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path

CASES = Path(__file__).parents[2] / "docs/using/cases"
"""Nodes, faults and logs of the published cases."""
PAGE = CASES.with_suffix(".md")


def show(name: str, output: str, *, write: bool) -> None:
    """Hold the block of the page that stands below ``<!-- output: NAME -->`` against an output, or write it.

    Args:
        name: of the block.
        output: what was printed.
        write: put it there instead of comparing.
    """
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- output: {re.escape(name)} -->\n```\n.*?^```\n", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, f"{PAGE.name} has {len(blocks)} blocks for {name}"
    block = f"<!-- output: {name} -->\n```\n{output.strip()}\n```\n"
    if write:
        PAGE.write_text(page.replace(blocks[0], block), encoding="utf-8")
        return
    difference = "\n".join(unified_diff(blocks[0].splitlines(), block.splitlines(), "the page", "printed", lineterm=""))
    assert not difference, f"if this is meant: make cases\n{difference}"


def names_on_the_page() -> list[str]:
    """The outputs that the page has."""
    return re.findall(r"^<!-- output: (.+) -->$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def until(output: str, line: str) -> str:
    """An output up to a line that begins like this, and a mark that there is more; all of it has to have the line."""
    lines = output.splitlines()
    end = next(place for place, text in enumerate(lines) if text.startswith(line))
    return "\n".join([*lines[:end], "[...]"])

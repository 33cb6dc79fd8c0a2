"""Every link between the files of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.passes import in_one_pass

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    file
    for folder in ("alerts", "docs", "grafana", "packaging", "systemd", ".")
    for file in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)
_LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|href)="([^"]+)\"""")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+\]\([^`\n]+`", re.DOTALL | re.MULTILINE)
"""Blocks, and an example of a link within a line."""


@cache
def anchors(file: Path) -> frozenset[str]:
    """As GitHub makes them of the headings, and those that a page sets by itself; of a file of tests, their names."""
    if file.suffix == ".py":
        return frozenset(re.findall(r"^(?:async )?def (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    text = _CODE.sub("", file.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    made = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return frozenset((*made, *re.findall(r"""(?:id|name)="([^"]+)\"""", text)))


def links(file: Path) -> Iterator[str]:
    """Of one page, to other files and its own headings."""
    for pair in _LINK.findall(_CODE.sub("", file.read_text(encoding="utf-8"))):
        target = "".join(pair)
        if not re.match(r"[a-z]+:", target):
            yield target


@in_one_pass("file", PAGES)
def test_links_lead_somewhere(file: Path) -> None:
    """To a file of this repository, and to a heading that it has."""
    for link in links(file):
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link

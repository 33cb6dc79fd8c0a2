"""The pieces of HTML that every section is made of; all text that comes from elsewhere is escaped here."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

ABSENT: Final = "–"
"""Stands for what was not read."""

_UNSEEN = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F}
_REPLACED = dict.fromkeys(_UNSEEN - {0x20}, "\ufffd")

GLYPHS: Final = {"good": "✓", "warn": "!", "bad": "✕", "info": "i", "plain": "·"}
"""The sign with the same meaning as each colour."""

_LEVELS: Final = {"critical": "bad", "warning": "warn", "info": "info"}


def text(value: str) -> str:
    """A text from elsewhere: escaped, and with what would hide or turn other text made visible."""
    return html.escape(value.translate(_REPLACED))


def level_of(severity: str) -> str:
    """The class of a severity."""
    return _LEVELS.get(severity, "info")


def tag(level: str, words: str) -> str:
    """A state with its sign, so that it does not depend on the colour alone."""
    return f'<span class="tag {level}"><span aria-hidden="true">{GLYPHS[level]}</span> {text(words)}</span>'


def cell(value: str) -> str:
    return f"<td>{text(value) or ABSENT}</td>"


def wrapped(value: str) -> str:
    """A text that may take several lines."""
    return f'<td class="text">{text(value) or ABSENT}</td>'


def number(value: str) -> str:
    return f'<td class="n">{value}</td>'


def judged(level: str, value: str) -> str:
    """A cell that shows whether something is well."""
    return f'<td class="{level}">{text(value)} <span aria-hidden="true">{GLYPHS[level]}</span></td>'


def section(identity: str, title: str, body: str) -> str:
    """A part of the page under a heading."""
    return f'<section aria-labelledby="{identity}"><h2 id="{identity}">{title}</h2>{body}</section>'


def table(
    identity: str,
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    empty: str,
    *,
    stacks: bool = False,
) -> str:
    """A section with a table; a column whose heading begins with # holds numbers. The first cell names the row.

    Args:
        rows: cells as HTML.
        empty: the text in place of a table without rows.
        stacks: whether the cells of a row are stacked on a phone, each with its heading.
    """
    if not rows:
        return section(identity, title, f'<p class="dim">{empty}</p>')
    head = "".join(
        [f'<th scope="col" class="n">{one[1:]}</th>' if one[0] == "#" else f'<th scope="col">{one}</th>'
         for one in headings]
    )  # fmt: skip
    if stacks:
        rows = [[row[0], *map(_labelled, row[1:], headings[1:])] for row in rows]
    body = "".join([f"<tr>{_row_head(row[0])}{''.join(row[1:])}</tr>" for row in rows])
    kind = ' class="stack"' if stacks else ""
    return section(
        identity,
        title,
        f'<div class="wide" tabindex="0" role="region" aria-labelledby="{identity}">'
        f'<table{kind} aria-labelledby="{identity}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>',
    )


def _labelled(cell: str, heading: str) -> str:
    """The cell with its heading, which a phone shows beside it."""
    return cell.replace("<td", f'<td data-label="{heading.lstrip("#")}"', 1)


def _row_head(first: str) -> str:
    return f'<th scope="row"{first.removeprefix("<td").removesuffix("</td>")}</th>'


def percent(value: float | None, *, is_bound: bool = False) -> str:
    """A share as a number, with a sign where it is only known to be at least that; a dash where it is not known."""
    return number(ABSENT if value is None else f"{'≥ ' * is_bound}{value:.1%}")


def duration(seconds: float | None) -> str:
    """A time in the unit that suits it; a dash where it is not known."""
    if seconds is None:
        return ABSENT
    for limit, size, unit, digits in ((10, 1, "s", 1), (120, 1, "s", 0), (7200, 60, "min", 0), (172800, 3600, "h", 0)):
        if seconds < limit:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86400:.0f} d"

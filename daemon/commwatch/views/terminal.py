"""What the commands share: JSON output, tables, styled lines."""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from commwatch.lines import WIDTH, Line, plain, printable


def print_json(value: Any) -> None:
    """Print a value as indented JSON; what would move a terminal's cursor or hide text is an escape of JSON in it."""
    lines = msgspec.json.format(msgspec.json.encode(value)).decode().split("\n")
    sys.stdout.writelines(f"{line if line.isprintable() else _escaped(line)}\n" for line in lines)


def _escaped(line: str) -> str:
    return "".join(one if one.isprintable() else _escape(one) for one in line)


def _escape(sign: str) -> str:
    return "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack(">H", sign.encode("utf-16-be")))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> None:
    """A table: drawn with colour on a terminal, plain aligned columns in a pipe.

    Args:
        title: above the drawn one.
        columns: headings; one may have a second line, for its unit.
        rows: cells.
        right: places of the columns that are aligned to the right.
    """
    rows = [tuple(map(printable, row)) for row in rows]
    heads = _heading_rows(columns)
    widths = [max(len(row[position]) for row in (*heads, *rows)) for position in range(len(columns))]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console()
        # A drawn table that does not fit would fold names and verdicts.
        if sum(widths) + 3 * len(widths) + 1 <= console.width:
            table = Table(title=title, title_justify="left")
            for place, column in enumerate(columns):
                table.add_column(column, justify="right" if place in right else "left")
            for row in rows:
                table.add_row(*map(Text, row))  # plain text: a cell may hold brackets
            console.print(table)
            return
    gaps = len(widths) - 1
    # One blank where that makes it fit: what does not fit anyway keeps two.
    gap = " " if sum(widths) + gaps <= WIDTH < sum(widths) + 2 * gaps else "  "
    for row in (*heads, *rows):
        aligned = (
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print(gap.join(aligned).rstrip())


def _heading_rows(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """The lines of the headings: a second one where any heading has one."""
    height = max(column.count("\n") for column in columns) + 1
    split = [(column.split("\n") + [""] * height)[:height] for column in columns]
    return list(zip(*split, strict=True))


def screen() -> tuple[bool, int | None]:
    """Whether standard output shows colours, and how many columns wide it is; None where it is no terminal."""
    if not sys.stdout.isatty():
        return False, None
    from rich.console import Console

    console = Console()
    return console.color_system is not None and not console.no_color, console.width


def print_lines(lines: Iterable[Line]) -> None:
    """Styled lines: with colour on a terminal, plain in a pipe."""
    lines = ([(printable(text), style) for text, style in line] for line in lines)
    if not sys.stdout.isatty():
        for line in lines:
            print(plain(line))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)

"""Shared terminal output of the commands: JSON, tables, styled lines, progress."""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
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


_ENDLESS = 10**6
"""Columns of what is not folded."""


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> None:
    """A table: drawn with colour on a terminal, plain aligned columns in a pipe.

    Args:
        columns: headings; one may have a second line, for its unit.
        right: places of the columns that are aligned to the right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()

    def filled(table: Table, lines: int = 0) -> tuple[Table, int]:
        for place, column in enumerate(columns):
            head = column + "\n" * (lines - column.count("\n"))
            table.add_column(Text(head), justify="right" if place in right else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))  # plain text: a cell may hold brackets
        return table, console.measure(table, options=console.options.update_width(_ENDLESS)).maximum

    if sys.stdout.isatty():
        drawn, width = filled(Table(title=title, title_justify="left"))
        if width <= console.width:  # else names and verdicts would be cut
            console.print(drawn)
            return
    # Two blanks between columns, or one where that makes it fit: what does not fit anyway keeps two.
    for gap in (2, 1, 2):
        bare = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
        plain_table, width = filled(bare, max(column.count("\n") for column in columns))
        if width <= WIDTH:
            break
    for line in console.render_lines(plain_table, console.options.update_width(_ENDLESS), pad=False):
        print("".join(segment.text for segment in line).rstrip())


def screen() -> tuple[bool, int | None]:
    """Whether standard output shows colours, and how many columns wide it is; None where it is no terminal."""
    if not sys.stdout.isatty():
        return False, None
    from rich.console import Console

    console = Console()
    return console.color_system is not None and not console.no_color, console.width


def show(document: Any, lines: Iterable[Line | str], *, as_json: bool) -> None:
    """Print an answer: the document as JSON, or its lines, which are not made for JSON."""
    if as_json:
        print_json(document)
    else:
        print_lines(lines)


@contextmanager
def progress(words: str) -> Iterator[None]:
    """Show on a terminal what is waited for, on standard error, until it is over; in a pipe nothing."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(words):
        yield


def print_lines(lines: Iterable[Line | str]) -> None:
    """Lines, styled or not: with colour on a terminal, plain in a pipe."""
    styled = ([(line, "")] if isinstance(line, str) else line for line in lines)
    shown = ([(printable(text), style) for text, style in line] for line in styled)
    if not sys.stdout.isatty():
        for line in shown:
            print(plain(line))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in shown:
        console.print(Text.assemble(*line), soft_wrap=True)

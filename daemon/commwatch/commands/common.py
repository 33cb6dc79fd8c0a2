"""What the commands share: the state directory, JSON output, tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from commwatch.styled import Line, plain


def json_option(parser: argparse.ArgumentParser) -> None:
    """The ``--json`` option of every command."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn with colour on a terminal, plain aligned columns in a pipe."""
    widths = [max(len(row[position]) for row in (columns, *rows)) for position in range(len(columns))]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console()
        # A drawn table that does not fit would fold names and verdicts.
        if sum(widths) + 3 * len(widths) + 1 <= console.width:
            table = Table(title=title, title_justify="left")
            for column in columns:
                table.add_column(column)
            for row in rows:
                table.add_row(*map(Text, row))  # plain text: a cell may hold brackets
            console.print(table)
            return
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_lines(lines: Iterable[Line]) -> None:
    """Styled lines: with colour on a terminal, plain in a pipe."""
    if not sys.stdout.isatty():
        for line in lines:
            print(plain(line))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)

"""What the commands share: the state directory, JSON output, tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from commwatch.config import Config
from commwatch.state import default_state_path


def json_option(parser: argparse.ArgumentParser) -> None:
    """The ``--json`` option of every command."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")


def state_path(config: Config) -> Path:
    """The state directory in force; a simulated node keeps its own, so that it never mixes with the real one."""
    path = Path(config.paths.state) if config.paths.state else default_state_path()
    return path / f"simulated-{config.simulation.preset}" if config.simulation.preset else path


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn with colour on a terminal, plain aligned columns in a pipe."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*map(Text, row))  # plain text: a cell may hold brackets
        Console().print(table)
        return
    widths = [max(len(row[position]) for row in (columns, *rows)) for position in range(len(columns))]
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

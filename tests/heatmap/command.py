"""commwatch heatmap over matrices made by hand, without a process."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec

from commwatch.config.settings import Config, Paths
from commwatch.node.topology.pair_matrix import PairMatrix
from support.command_line import Terminal, run_command

NOWHERE = Config(paths=Paths(state="/nonexistent"))


def run(config: Config, *arguments: str) -> int:
    """The exit code."""
    return run_command(config, "heatmap", *arguments)


def drawn(found: PairMatrix, *arguments: str, before: PairMatrix | None = None) -> str:
    """The output of the command for a matrix, or for two, in a pipe."""
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as out:
        run(NOWHERE, *_files(Path(folder), found, before), *arguments)
        return out.getvalue()


def lines(found: PairMatrix, *arguments: str, before: PairMatrix | None = None) -> list[str]:
    """The same by line."""
    return drawn(found, *arguments, before=before).splitlines()


def on_terminal(found: PairMatrix, columns: int, *, coloured: bool = False) -> str:
    """The same on a terminal of that width."""
    settings = {"COLUMNS": str(columns), "TERM": "xterm-256color", "COLORTERM": "truecolor", "FORCE_COLOR": "1"}
    settings |= {} if coloured else {"NO_COLOR": "1"}
    with TemporaryDirectory() as folder, redirect_stdout(Terminal()) as out, patch.dict(os.environ, settings):
        if coloured:
            os.environ.pop("NO_COLOR", None)
        run(NOWHERE, *_files(Path(folder), found, None))
        return out.getvalue()


def picture(found: PairMatrix, *arguments: str, before: PairMatrix | None = None) -> str:
    """The SVG file that it writes."""
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        file = Path(folder, "pairs.svg")
        run(NOWHERE, *_files(Path(folder), found, before), "--output", str(file), *arguments)
        return file.read_text(encoding="utf-8")


def compared(before: PairMatrix, now: PairMatrix, *arguments: str) -> Any:
    """The comparison of two matrices as JSON."""
    return json.loads(drawn(now, "--json", *arguments, before=before))


def _files(folder: Path, found: PairMatrix, before: PairMatrix | None) -> list[str]:
    arguments = ["--from", str(folder / "now.json")]
    (folder / "now.json").write_bytes(msgspec.json.encode(found))
    if before is not None:
        (folder / "before.json").write_bytes(msgspec.json.encode(before))
        arguments += ["--compare", str(folder / "before.json")]
    return arguments

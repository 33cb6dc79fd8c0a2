"""A fire drill as a process, and what it has left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.daemon import environment


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A drill in the fast form whose own folder lies in ``folder``."""
    return subprocess.Popen(
        [sys.executable, "-m", "commwatch", "drill", "--fast", *arguments],
        env={**environment(), "TMPDIR": str(folder)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def left(folder: Path) -> list[str]:
    """Files in a folder, and command lines that name it."""
    found = [str(file) for file in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            found.append(line)
    return found

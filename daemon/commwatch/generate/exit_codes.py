"""docs/reference/exit-codes.md: what the exit code of each command means."""

from __future__ import annotations

from pathlib import Path

from commwatch.config.exit_codes import COMMANDS, GENERAL, SIGNALLED, UNWRITTEN, WRONG, Meanings, meanings_of
from commwatch.errors import ExitCode

FILE = Path("docs/reference/exit-codes.md")


def page() -> str:
    """The table of all codes, and the table of all commands."""
    lines = [
        "# Exit codes",
        "",
        "Written by `make docs` from `config/exit_codes.py`. Each help has its part.",
        "",
        "| code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in GENERAL.items()),
        "",
        f"{SIGNALLED} {UNWRITTEN}",
        "",
        "A number alone means what it does above.",
        "",
        "| command | 0 | 1 | others |",
        "| --- | --- | --- | --- |",
        *(f"| `{command}` | {' | '.join(_cells(meanings_of(command)))} |" for command in COMMANDS),
    ]
    return "\n".join(lines) + "\n"


def _cells(meanings: Meanings) -> tuple[str, str, str]:
    """What 0 and 1 mean, and each other code with its meaning."""
    others = [
        f"**{code}**" if meaning in (GENERAL[code], WRONG) else f"**{code}** {meaning}"
        for code, meaning in meanings.items()
        if code not in (ExitCode.OK, ExitCode.FOUND)
    ]
    return meanings[ExitCode.OK], meanings.get(ExitCode.FOUND, "-"), "<br>".join(others)

"""Writes docs/reference/exit-codes.md: what the exit code of each command means."""

from __future__ import annotations

from pathlib import Path

from commwatch.config.exit_codes import COMMANDS, GENERAL, SIGNALLED, UNWRITTEN, meanings_of

FILE = Path("docs/reference/exit-codes.md")


def page() -> str:
    """The table of all codes, and the table of all commands."""
    lines = [
        "# Exit codes",
        "",
        "Written by `python -m commwatch.generate.exit_codes` from `config/exit_codes.py`. Each help has its part.",
        "",
        "| code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in GENERAL.items()),
        "",
        f"{SIGNALLED} {UNWRITTEN}",
        "",
        "| command | code | meaning |",
        "| --- | --- | --- |",
    ]
    for command in COMMANDS:
        for code, meaning in meanings_of(command).items():
            lines.append(f"| `commwatch {command}` | {code} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")

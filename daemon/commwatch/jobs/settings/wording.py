"""Foreign text made fit to be shown."""

from __future__ import annotations

_LONGEST = 200


def printable(text: str) -> str:
    """A text that does no harm on a terminal: what does not print becomes an escape, what is too long is cut."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text[:_LONGEST]
    )
    return shown if len(text) <= _LONGEST else f"{shown}…"

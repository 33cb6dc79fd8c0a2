"""The lines of a piece of a log by kind: most of a log are its steps, which differ in nothing but digits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from commwatch.jobs.logs.rules import GOES_ON

_LONGEST_LINE = 4096
_DIGITS = b"0123456789"
_MANY_KINDS = 1000
IDENTIFIER = re.compile(rb"\b[0-9a-f-]{6,64}\b")
"""Hashes, addresses of memory, names of pods and the like: no word of trouble looks like one."""


class Kinds:
    """Finds words in a piece of a log by reading one line of each kind.

    Args:
        data: of a log; lines end with a line feed, or with a carriage return as those of progress bars do.
    """

    __slots__ = ("_kinds", "_lines", "_shapes")

    def __init__(self, data: bytes) -> None:
        if b"\r" in data:
            data = data.replace(b"\r\n", b" \n").replace(b"\r", b"\n")
        self._lines = data.split(b"\n")
        self._shapes = data.translate(None, _DIGITS).split(b"\n")
        kinds = dict.fromkeys(self._shapes)
        if len(kinds) > _MANY_KINDS:
            self._shapes = IDENTIFIER.sub(b"", data).translate(None, _DIGITS).split(b"\n")
            kinds = dict.fromkeys(self._shapes)
        self._kinds = b"\n".join(kinds) + b"\n"

    def may_hold(self, *words: bytes) -> bool:
        """False if no line contains any of the words; digits in them do not count."""
        return any(word.translate(None, _DIGITS) in self._kinds for word in words)

    def telling(self, hints: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """The lines that hold one of some words, each with where it begins, and with those that ``GOES_ON`` names."""
        held: dict[bytes, list[bytes]] = {}
        for hint in hints:
            bare = hint.translate(None, _DIGITS)
            at = self._kinds.find(bare)
            while at >= 0:
                end = self._kinds.find(b"\n", at)
                held.setdefault(self._kinds[self._kinds.rfind(b"\n", 0, at) + 1 : end], []).append(hint)
                at = self._kinds.find(bare, end + 1)
        told: list[tuple[int, bytes]] = []
        if not held:
            return told
        goes_on_until: dict[bytes, int] = {}
        start = 0
        for number, (line, shape) in enumerate(zip(self._lines, self._shapes, strict=False)):
            if shape in held:
                found = [one for one in held[shape] if one in line + b"\n" and number >= goes_on_until.get(one, 0)]
                goes_on_until |= {one: number + 1 + GOES_ON[one] for one in found if one in GOES_ON}
                if found:
                    end = number + 1 + max(GOES_ON.get(one, 0) for one in found)
                    told.append((start, b"\n".join(self._lines[number:end])[:_LONGEST_LINE]))
            start += len(line) + 1
        return told

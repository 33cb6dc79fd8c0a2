"""What a terminal sends, taken apart into keys; pure."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Key: TypeAlias = Literal["up", "down", "page_up", "page_down", "home", "end", "quit", "pause", "help", "back", "redraw"]

_PLAIN: dict[bytes, Key] = {
    b"q": "quit", b"Q": "quit", b"j": "down", b"k": "up", b" ": "page_down", b"b": "page_up", b"g": "home",
    b"G": "end", b"p": "pause", b"?": "help", b"h": "help", b"\x0c": "redraw",
}  # fmt: skip
_SEQUENCES: dict[bytes, Key] = {
    b"A": "up", b"B": "down", b"H": "home", b"F": "end", b"1~": "home", b"7~": "home", b"4~": "end", b"8~": "end",
    b"5~": "page_up", b"6~": "page_down",
}  # fmt: skip
_TOKEN = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\[[ -?]*(?=[^ -~])|\x1bO.|\x1b(?=\x1b)|\x1b[^\[O\x1b]|[^\x1b]", re.DOTALL
)
"""A control sequence (ECMA-48), one that breaks off, a key of the keypad's application mode, a lone escape, a key with
Alt, a sign."""
_ESCAPE = b"\x1b"
_LONGEST = 32
"""Bytes of a sequence that is not finished yet; what is longer is none."""


def keys(data: bytes) -> tuple[list[Key], bytes]:
    """The keys that mean something, and the beginning of a sequence of which the rest has not come yet."""
    found: list[Key] = []
    place = 0
    while token := _TOKEN.match(data, place):
        place = token.end()
        text = token[0]
        key = _SEQUENCES.get(text[2:]) if len(text) > 2 else _PLAIN.get(text)
        if key is not None:
            found.append(key)
    rest = data[place:]
    if rest == _ESCAPE:  # that key: terminals send the whole of a sequence at once
        return [*found, "back"], b""
    return found, rest if len(rest) <= _LONGEST else b""

"""Keys out of the bytes of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.views.top.terminal import Key, keys


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"q", ["quit"]),
        (b"jk", ["down", "up"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA\x1bOB\x1bOH\x1bOF", ["up", "down", "home", "end"]),
        (b"\x1b[5~\x1b[6~\x1b[1~\x1b[4~", ["page_up", "page_down", "home", "end"]),
        (b" bgGp?", ["page_down", "page_up", "home", "end", "pause", "help"]),
        (b"\x1b[1;5A\x1b[200~x\x1b[<0;1;1M\x1bq\xc3\xa4\x00", []),
        (b"\x1b\x1b[A", ["up"]),
        (b"\x1b[5\x00q", ["quit"]),
    ],
    ids=str,
)
def test_what_is_pressed_is_known(data: bytes, found: list[Key]) -> None:
    """In the normal and the application mode of the keypad; other keys, mouse and paste marks mean nothing."""
    assert keys(data) == (found, b"")


def test_a_sequence_in_two_pieces_is_one_key() -> None:
    """As over a slow line."""
    found, rest = keys(b"j\x1b[6")
    assert (found, rest) == (["down"], b"\x1b[6")
    assert keys(rest + b"~") == (["page_down"], b"")


def test_a_lone_escape_swallows_no_key() -> None:
    """Pressed by habit, before q."""
    assert keys(b"\x1b") == (["back"], b"")


@given(st.binary(max_size=200))
def test_no_bytes_hold_it_up(data: bytes) -> None:
    """Whatever comes, what is kept is short."""
    _, rest = keys(data)
    assert len(rest) <= 32

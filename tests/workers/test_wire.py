"""The frames between daemon and worker, and the mark of progress."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.workers.wire import Inbox, ProgressMark, frame, take_frames


@given(st.lists(st.binary(max_size=300)), st.integers(1, 64))
def test_frames_survive_any_split(messages: list[bytes], piece: int) -> None:
    """However the bytes arrive, the same messages come out, in order."""
    stream = b"".join(map(frame, messages))
    buffer, taken = bytearray(), []

    for start in range(0, len(stream), piece):
        buffer += stream[start : start + piece]
        taken += take_frames(buffer)

    assert taken == messages
    assert not buffer


def test_an_absurd_length_is_refused() -> None:
    """A stream that is not ours does not make the daemon collect gigabytes."""
    with pytest.raises(ValueError, match="frame"):
        take_frames(bytearray(b"\xff\xff\xff\xff...."))


def test_the_mark_tells_the_last_device() -> None:
    """A shorter name leaves nothing of a longer one behind, and a too long one is cut."""
    mark = ProgressMark.create()
    try:
        assert mark.get() == ""
        mark.set("0000:17:00.0")
        mark.set("eth0")
        assert mark.get() == "eth0"
        mark.set("x" * 500)
        assert mark.get() == "x" * 127
        mark.set("")
        assert mark.get() == ""
    finally:
        mark.close()


def test_a_connection_that_is_closed_with_a_reply_unread_has_ended() -> None:
    """The kernel calls that a reset; a worker that was given up on ends without an error in the log."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(b"a reply")
        theirs.close()
        assert Inbox(ours).take(wait=True) is None

"""The frames between daemon and worker, and the mark of progress."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.workers.wire import Cadence, Inbox, ProgressMark, frame, on_grid, take_frames
from support.passes import in_one_pass


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
        mark.set("x" * 5000)
        assert mark.get() == "x" * 4095
        mark.set("")
        assert mark.get() == ""
    finally:
        mark.close()


def test_a_connection_that_is_closed_with_a_batch_unread_has_ended() -> None:
    """The kernel calls that a reset; a worker that was given up on ends without an error in the log."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(b"a batch")
        theirs.close()
        assert Inbox(ours).take() is None


def test_a_worker_waits_no_longer_for_a_message_than_it_may() -> None:
    """It has something else to do then."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Inbox(ours).take(0.001) == []
        theirs.sendall(frame(b"an order"))
        assert Inbox(ours).take(5.0) == [b"an order"]


def test_a_daemon_that_is_gone_is_not_heard_any_more() -> None:
    """Whatever it said before: nobody would take what that gives."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(frame(b"an order"))
        theirs.close()
        assert Inbox(ours).take() is None


def test_a_collector_is_due_at_once_and_then_on_the_grid() -> None:
    """Nothing is made up for; another interval counts from the order on, and without one it is not repeated."""
    one = Cadence()
    assert one.due == float("inf")
    one.order(1.0, 100.3, at_once=True)
    assert one.due == 100.3
    for now, due in ((100.4, 101.0), (101.01, 102.0), (107.5, 108.0)):
        one.ran(now)
        assert one.due == due
    one.order(5.0, 107.6, at_once=False)
    assert one.due == 110.0
    one.order(5.0, 108.0, at_once=True)
    one.order(5.0, 109.0, at_once=True)
    assert one.due == 108.0
    one.order(0.0, 109.0, at_once=False)
    assert one.due == float("inf")
    one.order(0.0, 109.0, at_once=True)
    one.ran(109.1)
    assert one.due == float("inf")


@in_one_pass("interval, due", [(1.0, 8.0), (5.0, 10.0), (15.0, 20.0), (0.5, 7.5), (7.0, 14.0)])
def test_what_has_a_common_interval_is_due_together(interval: float, due: float) -> None:
    """On whole seconds, and on every fifth; an interval that fits neither has a grid of its own."""
    assert on_grid(7.2 + interval, interval) == due

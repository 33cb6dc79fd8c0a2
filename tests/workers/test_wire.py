"""The frames between daemon and worker, and the mark of progress."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.workers.child import StandingOrders
from commwatch.workers.wire import Inbox, ProgressMark, Reply, Request, frame, on_grid, take_frames


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
        assert Inbox(ours).take() is None


def test_a_worker_waits_no_longer_for_a_message_than_it_may() -> None:
    """It has something else to do then."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Inbox(ours).take(0.001) == []
        theirs.sendall(frame(b"a request"))
        assert Inbox(ours).take(5.0) == [b"a request"]


def test_a_standing_order_is_run_on_the_grid_as_long_as_all_is_well() -> None:
    """Each second from the first clean answer; what is not clean ends it until it is ordered again, or ordered off."""
    now = [100.3]
    orders = StandingOrders(lambda: now[0])
    well, ill = Reply(0, [], [], [], None, {}, 0.0), Reply(0, [], [], [], ("unreadable", "no"), {}, 0.0)
    assert (orders.take_due(), orders.seconds_left()) == ([], None)

    orders.follow(Request(1, "nvlink", 1.0), well)
    assert orders.take_due() == []
    assert orders.seconds_left() == pytest.approx(0.7)
    for second in (101.0, 102.0):
        now[0] = second + 0.01
        assert orders.take_due() == [Request(0, "nvlink")]
        orders.follow(Request(0, "nvlink"), well)
        assert orders.seconds_left() == pytest.approx(0.99)
    orders.follow(Request(0, "nvlink"), ill)
    assert orders.seconds_left() is None

    orders.follow(Request(2, "nvlink", 1.0), well)
    assert orders.seconds_left() is not None
    orders.follow(Request(3, "nvlink"), well)
    assert orders.seconds_left() is None


@pytest.mark.parametrize(("interval", "due"), [(1.0, 8.0), (5.0, 10.0), (15.0, 20.0), (0.5, 7.5), (7.0, 14.0)])
def test_what_has_a_common_interval_is_due_together(interval: float, due: float) -> None:
    """On whole seconds, and on every fifth; an interval that fits neither has a grid of its own."""
    assert on_grid(7.2 + interval, interval) == due

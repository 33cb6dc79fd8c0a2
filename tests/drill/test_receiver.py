"""The receiver of pages."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

import pytest

from commwatch_rehearsal.drill.receiver import Receiver, line_of, parse_notification, parse_time
from support.passes import in_one_pass

BODY = json.dumps({
    "alerts": [
        {"status": "firing", "labels": {"alertname": "A", "instance": "n"},
         "startsAt": "2026-11-21T18:35:42.758123456Z"},
        {"status": "resolved", "labels": {"alertname": "B"}, "startsAt": "2026-11-21T18:35:42Z"},
    ]
}).encode()  # fmt: skip


def test_a_notification_is_taken_alert_by_alert() -> None:
    """With the receiver that Alertmanager chose, its labels and when it began to fire."""
    first, second = parse_notification(BODY, "page", 5.0)
    assert (first.receiver, first.at, first.resolved, first.labels["instance"]) == ("page", 5.0, False, "n")
    assert second.resolved
    assert first.started_at - second.started_at == pytest.approx(0.758123456, abs=1e-6)


def test_an_alert_is_a_line() -> None:
    """When it came, in UTC, by which receiver, and what it is about; labels that it lacks are left out."""
    assert [line_of(one) for one in parse_notification(BODY, "drill", 3725.0)] == [
        "01:02:05 drill firing A n",
        "01:02:05 drill resolved B",
    ]


@in_one_pass("body", [b"", b"[]", b"{}", b'{"alerts": [{"status": "firing"}]}'])
def test_what_is_no_notification_is_refused(body: bytes) -> None:
    """A stray request does not end the drill."""
    with pytest.raises(ValueError, match=r"."):
        parse_notification(body, "page", 5.0)


def test_times_have_zones() -> None:
    """UTC as Z, others with their offset."""
    assert parse_time("1970-01-01T01:00:00.5+01:00") == 0.5
    with pytest.raises(ValueError, match="no time"):
        parse_time("yesterday")


def test_what_is_posted_is_taken_once_and_nothing_listens_after_the_close() -> None:
    """A wrong request is answered with 400 and counts for nothing."""
    receiver = Receiver()
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(f"{receiver.address}/drill", b"nonsense"))
        assert caught.value.code == 400
        caught.value.close()
        with urllib.request.urlopen(urllib.request.Request(f"{receiver.address}/a%20b", BODY)) as answer:
            assert answer.status == 200
        assert [notice.receiver for notice in receiver.take()] == ["a b", "a b"]
        assert receiver.take() == []
    finally:
        receiver.close()
    host, port = receiver.address.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))

"""What systemd gets."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from commwatch.service.notify import notify


@pytest.mark.parametrize("kind", ["a file", "an abstract address"])
def test_each_message_is_one_datagram(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an address in the file system, and on one whose leading zero byte systemd writes as @."""
    address = str(tmp_path / "notify") if kind == "a file" else "\0commwatch-test-notify"
    monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(1)
        notify("READY=1", "STATUS=7 collectors")
        notify("WATCHDOG=1")

        assert systemd.recv(1000) == b"READY=1\nSTATUS=7 collectors"
        assert systemd.recv(1000) == b"WATCHDOG=1"


def test_nothing_happens_outside_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No address, or one that nobody listens on, is no error."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")

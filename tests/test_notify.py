"""What systemd gets."""

from __future__ import annotations

import socket
from pathlib import Path

from commwatch.service.notify import Notifier


def test_each_message_is_one_datagram(tmp_path: Path) -> None:
    """Ready carries the status; reloading carries the time that systemd 253 asks for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(1)
        notifier = Notifier(str(tmp_path / "notify"))

        notifier.ready("7 collectors")
        notifier.watchdog()
        notifier.reloading()
        notifier.stopping()

        assert systemd.recv(1000) == b"READY=1\nSTATUS=7 collectors"
        assert systemd.recv(1000) == b"WATCHDOG=1"
        assert systemd.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert systemd.recv(1000) == b"STOPPING=1"


def test_an_abstract_address_is_understood() -> None:
    """systemd writes the leading zero byte as @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0commwatch-test-notify")
        systemd.settimeout(1)
        Notifier("@commwatch-test-notify").watchdog()
        assert systemd.recv(1000) == b"WATCHDOG=1"


def test_nothing_happens_outside_systemd(tmp_path: Path) -> None:
    """No address, or one that nobody listens on, is no error."""
    Notifier(None).ready("x")
    Notifier(str(tmp_path / "gone")).ready("x")

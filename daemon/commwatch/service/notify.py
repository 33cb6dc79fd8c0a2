"""Messages of the daemon to systemd, which started it or did not: the protocol of sd_notify."""

from __future__ import annotations

import os
import socket


def notify(*lines: str) -> None:
    """Send systemd one message of lines such as ``READY=1``; does nothing where systemd did not start us."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    if address.startswith("@"):  # stands for the zero byte of an abstract address
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as datagrams:
        try:
            datagrams.sendto("\n".join(lines).encode(), address)
        except OSError:
            return  # systemd is restarting or its queue is full: the next message contains the same or more

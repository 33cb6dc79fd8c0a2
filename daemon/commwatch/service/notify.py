"""Reports of the daemon to systemd: ready, status, reloading, stopping, and watchdog progress."""

from __future__ import annotations

import os
import socket
import time


class Notifier:
    """Sends sd_notify datagrams; does nothing where systemd did not start us."""

    def __init__(self, address: str | None) -> None:
        # A leading @ stands for the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    @classmethod
    def from_environment(cls) -> Notifier:
        """By systemd's variables in this process's environment."""
        return cls(os.environ.get("NOTIFY_SOCKET"))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as datagrams:
            try:
                datagrams.sendto("\n".join(lines).encode(), self._address)
            except OSError:
                # systemd is restarting or its queue is full: the next message contains the same or more.
                return

    def ready(self, status: str) -> None:
        """The daemon serves."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={status}")

    def reloading(self) -> None:
        """The configuration is read again; ``ready`` follows."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The daemon is on its way out."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """The daemon makes progress."""
        self._send("WATCHDOG=1")

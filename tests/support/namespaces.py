"""Nodes on one machine: network namespaces on a bridge; threads in them have a host name and hosts of their own."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

NEW_MOUNTS, FILES, NEW_NAMES, NEW_NETWORK = 0x20000, 0x200, 0x4000000, 0x40000000
PRIVATE, RECURSIVE, BIND = 1 << 18, 16384, 4096

Found = TypeVar("Found")


def ip(*arguments: str) -> None:
    """Run ip; what it says of a failure is in the error."""
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Nodes:
    """Nodes node0, node1, ... with 10.77.0.1, .2, ... on eth0, and a bridge between them."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self.folder = count, folder
        self._mark = f"cw{os.getpid()}"
        self.hosts = {node: self.usual_hosts() for node in range(count)}

    def namespace(self, node: int) -> str:
        """Its name."""
        return f"{self._mark}-{node}"

    @property
    def bridge(self) -> str:
        """The namespace of the bridge."""
        return f"{self._mark}-b"

    def address(self, node: int) -> str:
        """Of its eth0."""
        return f"10.77.0.{node + 1}"

    def usual_hosts(self) -> str:
        """/etc/hosts that knows all nodes."""
        return "127.0.0.1 localhost\n" + "".join(f"{self.address(one)} node{one}\n" for one in range(self.count))

    def ip(self, node: int, *arguments: str) -> None:
        """Run ip in a node."""
        ip("-n", self.namespace(node), *arguments)

    def of_bridge(self, *arguments: str) -> None:
        """Run ip where the bridge is; the port of a node is called as its number: port0."""
        ip("-n", f"{self._mark}-b", *arguments)

    @contextmanager
    def made(self) -> Iterator[Nodes]:
        """Make all of it, and take it away."""
        try:
            ip("netns", "add", f"{self._mark}-b")
            self.of_bridge("link", "add", "bridge", "type", "bridge")
            self.of_bridge("link", "set", "bridge", "up")
            for node in range(self.count):
                ip("netns", "add", self.namespace(node))
                self.ip(node, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{node}",
                        "netns", f"{self._mark}-b")  # fmt: skip
                self.of_bridge("link", "set", f"port{node}", "master", "bridge", "up")
                self.ip(node, "link", "set", "lo", "up")
                self.ip(node, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
                self.ip(node, "link", "set", "eth0", "up")
            yield self
        finally:
            for name in (f"{self._mark}-b", *map(self.namespace, range(self.count))):
                subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def shape(self, node: int, rate: str, *, receives: bool = False) -> None:
        """Let a node send, or receive, no faster than ``rate``, such as 1gbit."""
        where, device = (f"{self._mark}-b", f"port{node}") if receives else (self.namespace(node), "eth0")
        _run("tc", "-n", where, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb",
             "latency", "50ms")  # fmt: skip

    @contextmanager
    def rule(self, node: int, action: str, *match: str) -> Iterator[None]:
        """A rule of routing that stands before all others: ``blackhole``, ``prohibit`` or ``unreachable``."""
        self.ip(node, "rule", "add", "pref", "9", "lookup", "local")
        self.ip(node, "rule", "add", "pref", "5", *match, action)
        self.ip(node, "rule", "del", "pref", "0")
        try:
            yield
        finally:
            self.ip(node, "rule", "add", "pref", "0", "lookup", "local")
            self.ip(node, "rule", "del", "pref", "5")
            self.ip(node, "rule", "del", "pref", "9")

    def run(self, work: Callable[[int], Coroutine[Any, Any, Found]], nodes: range | None = None) -> dict[int, Found]:
        """Run a coroutine in each node, at once; raises what the first of them raised."""
        found: dict[int, Found] = {}
        errors: dict[int, BaseException] = {}

        def stand(node: int) -> None:
            try:
                self.enter(node)
                found[node] = asyncio.run(work(node))
            except BaseException as error:
                errors[node] = error

        threads = [threading.Thread(target=stand, args=(node,)) for node in nodes or range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.errors = errors
        if errors and not found:
            raise next(iter(errors.values()))
        return found

    def enter(self, node: int) -> None:
        """Put this thread, and those that it starts, into a node."""
        libc = ctypes.CDLL(None, use_errno=True)
        hosts = self.folder / f"hosts{node}"
        hosts.write_text(self.hosts[node])
        with open(f"/run/netns/{self.namespace(node)}", "rb") as file:
            _done(libc.unshare(NEW_MOUNTS | FILES | NEW_NAMES), "unshare")
            _done(libc.mount(b"none", b"/", None, PRIVATE | RECURSIVE, None), "mount /")
            _done(libc.mount(bytes(hosts), b"/etc/hosts", None, BIND, None), "mount hosts")
            name = f"node{node}".encode()
            _done(libc.sethostname(name, len(name)), "sethostname")
            _done(libc.setns(file.fileno(), NEW_NETWORK), "setns")


def _done(code: int, what: str) -> None:
    if code:
        raise OSError(ctypes.get_errno(), what)

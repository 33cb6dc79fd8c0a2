"""A rank on plain TCP sockets, with the one of another node: what the kernels carry between them, without torch."""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median

from commwatch.probes.cycle.measure import RankError
from commwatch.probes.rank_plan import Meeting, RankPlan, Step

STREAMS = 4
"""Connections that carry large messages together: one alone takes one way of several, and one queue of the adapter."""

_CONNECT_SECONDS = 3.0
_HELLO_SECONDS = 1.0
_NONCE_BYTES = 16
_SEAL_BYTES = 32
_NUMBER = struct.Struct(">d")


class SocketGroup:
    """Two ranks: one connection for small messages, some for large ones."""

    torch_version = ""
    nccl_version = ""

    def __init__(self, plan: RankPlan) -> None:
        if plan.meeting is None:
            raise ValueError("plain sockets lead to another node")
        self._meeting = plan.meeting
        self._small: list[socket.socket] = []
        """One."""
        self._large: list[socket.socket] = []
        size = max(step.size_bytes for step in plan.steps)
        self._sent, self._received = bytearray(size), bytearray(size)

    def rendezvous(self) -> None:
        """Connect to the other end, or be connected to.

        Raises:
            RankError: there is no way; the detail begins with ``refused``, ``filtered`` or ``no_route``.
        """
        ends = _accepted(self._meeting) if self._meeting.end == 0 else _connected(self._meeting)
        self._small, self._large = ends[:1], ends[1:]
        for one in ends:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(one in self._small)

    def first_call(self) -> None:
        """One exchange of numbers."""
        self.larger(0.0)

    def time_calls(self, step: Step, calls: int) -> float:
        """Seconds of one call: of small ones half the median of there and back, of large ones the mean.

        Large ones begin on an empty way, when the receiver asks for them: what was on its way before would make the
        network faster than it is.
        """
        call = self._call(step, self._sent, self._received)
        times = []
        if step.purpose == "latency":
            for _ in range(1 + calls):
                started = time.perf_counter()
                call()
                times.append(time.perf_counter() - started)
            return median(times[1:]) / 2
        started = time.perf_counter()
        self.larger(0.0)
        for _ in range(calls):
            call()
        return (time.perf_counter() - started) / calls

    def clock(self) -> float:
        """Wall time."""
        return time.perf_counter()

    def slowest(self, step: Step, seconds: float) -> float:
        """The larger of the numbers of both ends."""
        return self.larger(seconds)

    def larger(self, own: float) -> float:
        """The larger of a number of each end."""
        talk = self._small[0]
        talk.sendall(_NUMBER.pack(own))
        other: float
        (other,) = _NUMBER.unpack(_exactly(talk, _NUMBER.size))
        return max(own, other)

    def exact(self, step: Step) -> bool:
        """Whether zeros arrived as zeros, and other bytes as they were sent."""
        size, end = step.size_bytes, self._meeting.end
        receives = step.purpose == "latency" or step.pairs[0][1] == end
        stayed_zero = self._received.count(0) == len(self._received)
        self._call(step, bytearray(_pattern(end, size)), self._received)()
        exact = not receives or self._received[:size] == _pattern(1 - end, size)
        self._received[:size] = bytes(size)
        return stayed_zero and exact

    def close(self) -> None:
        for one in (*self._small, *self._large):
            one.close()

    def abort(self) -> None:
        """Wake whatever waits for the other end."""
        for one in (*self._small, *self._large):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _call(self, step: Step, sent: bytearray, received: bytearray) -> Callable[[], None]:
        """The function for one call of a step at this end."""
        out, into = memoryview(sent)[: step.size_bytes], memoryview(received)[: step.size_bytes]
        sends = step.pairs[0][0] == self._meeting.end
        if step.purpose != "latency":
            return (lambda: self._send(out)) if sends else (lambda: self._receive(into))
        talk = self._small[0]

        def there_and_back() -> None:
            if sends:
                talk.sendall(out)
            into[:] = _exactly(talk, len(into))
            if not sends:
                talk.sendall(out)

        return there_and_back

    def _send(self, content: memoryview) -> None:
        self._each(content, select.POLLOUT, lambda one, left: one.send(left))

    def _receive(self, content: memoryview) -> None:
        self._each(content, select.POLLIN, lambda one, left: one.recv_into(left))

    def _each(self, content: memoryview, event: int, move: Callable[[socket.socket, memoryview], int]) -> None:
        """Move an equal part of the content over each connection, as these let it."""
        poll, part = select.poll(), -(-len(content) // len(self._large))
        left: dict[int, tuple[socket.socket, memoryview]] = {}
        for place, one in enumerate(self._large):
            if rest := content[place * part : (place + 1) * part]:
                left[one.fileno()] = one, rest
                poll.register(one, event)
        while left:
            for number, _ in poll.poll():
                one, rest = left[number]
                if not (moved := move(one, rest)):
                    raise _gone()
                left[number] = one, rest[moved:]
                if moved == len(rest):
                    poll.unregister(one)
                    del left[number]


def _pattern(end: int, size: int) -> bytes:
    return hashlib.shake_128(bytes([end])).digest(size)


# --- how the ends find each other ---


def _accepted(meeting: Meeting) -> list[socket.socket]:
    """The connections of the other end, in its order; whoever has no key is turned away."""
    listening = socket.socket(fileno=meeting.descriptor)
    listening.setblocking(True)
    found: dict[int, socket.socket] = {}
    while len(found) <= STREAMS:
        one, _ = listening.accept()
        one.settimeout(_HELLO_SECONDS)
        nonce = os.urandom(_NONCE_BYTES)
        try:
            one.sendall(nonce)
            hello = _exactly(one, 1 + _SEAL_BYTES)
            place = hello[0]
            if hmac.compare_digest(hello[1:], _seal(meeting, b"to", nonce, place)) and place <= STREAMS:
                one.sendall(_seal(meeting, b"from", nonce, place))
                found[place] = one
                continue
        except (OSError, RankError):
            pass
        one.close()
    listening.close()
    return [found[place] for place in sorted(found)]


def _connected(meeting: Meeting) -> list[socket.socket]:
    return [_connection(meeting, place) for place in range(1 + STREAMS)]


def _connection(meeting: Meeting, place: int) -> socket.socket:
    where = f"{meeting.address} port {meeting.port}"
    one = socket.socket(socket.AF_INET6 if ":" in meeting.address else socket.AF_INET)
    one.settimeout(_CONNECT_SECONDS)
    try:
        with suppress(PermissionError):  # else routing decides, by the address that it is bound to
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, meeting.interface.encode())
        one.bind((meeting.own_address, 0))
        one.connect((meeting.address, meeting.port))
        nonce = _exactly(one, _NONCE_BYTES)
        one.sendall(bytes([place]) + _seal(meeting, b"to", nonce, place))
        if not hmac.compare_digest(_exactly(one, _SEAL_BYTES), _seal(meeting, b"from", nonce, place)):
            raise RankError("rendezvous_timeout", f"refused: {where} has not the key of this run")
        return one
    except OSError as error:
        one.close()
        words = {ConnectionRefusedError: "refused", TimeoutError: "filtered"}.get(type(error), "no_route")
        raise RankError("rendezvous_timeout", f"{words}: {where}: {error.strerror or 'no answer'}") from error
    except RankError:
        one.close()
        raise


def _seal(meeting: Meeting, way: bytes, nonce: bytes, place: int) -> bytes:
    return hmac.digest(bytes.fromhex(meeting.key), way + bytes([place]) + nonce, "sha256")


def _exactly(one: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = one.recv(count - len(content))
        if not piece:
            raise _gone()
        content += piece
    return bytes(content)


def _gone() -> RankError:
    return RankError("crashed", "the other end has closed the connection")

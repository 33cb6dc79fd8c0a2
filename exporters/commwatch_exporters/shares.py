"""What each client may take of an endpoint: places for connections, and requests in a second."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

_MAPPED_IPV4 = bytes(10) + b"\xff\xff"
_NETWORK_BYTES = 8  # of an IPv6 address: a host has all addresses of its /64
_CLIENTS = 1024  # that are remembered
_PLACES_OF_KNOWN = 8  # of a client that has shown who it is; they count for nothing when others want room

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def client_of(peer: object) -> str:
    """The client behind the address of a socket's peer.

    Args:
        peer: As ``socket.getpeername`` gives it.

    Returns:
        The address for IPv4, also where it is mapped into IPv6; the /64 for IPv6; empty for anything else.
    """
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    address = socket.inet_pton(socket.AF_INET6, host)
    if address.startswith(_MAPPED_IPV4):
        return socket.inet_ntop(socket.AF_INET, address[len(_MAPPED_IPV4) :])
    return socket.inet_ntop(socket.AF_INET6, address[:_NETWORK_BYTES] + bytes(_NETWORK_BYTES)) + "/64"


def keep(kept: dict[_Key, _Value], key: _Key, value: _Value, most: int = _CLIENTS) -> None:
    """Remember something as the newest; above the limit the oldest is forgotten."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


class Holder(Protocol):
    """A connection, as far as its place goes."""

    client: str
    served: bool
    """Whether a request was answered that earns a place."""
    over_tls: bool
    """Whether it has begun to speak TLS, which takes memory."""
    sending: bool
    """Whether an answer is under way."""

    @property
    def is_slow(self) -> bool:
        """Whether the client has been taking an answer for long."""

    def abort(self) -> None:
        """Close now."""


class Places:
    """Who holds connections, and who loses one where there is no place left: the client that holds most."""

    def __init__(self) -> None:
        self.identifies = False
        """Whether a client that was served has shown who it is."""
        self._held: dict[str, dict[Holder, None]] = {}
        """By client its connections, the one longest unused first; who has done nothing for longest is first."""
        self._known: dict[str, None] = {}
        """Clients that were answered what earns a place, the one longest unseen first."""

    def open(self, one: Holder, limit: int) -> None:
        """Count a connection in; it is never the one that goes for it."""
        loses = self._holds_most(limit, {client: len(held) for client, held in self._held.items()})
        self._held[one.client] = {**self._held.pop(one.client, {}), one: None}
        if loses is not None:
            self._throw_out(list(self._held[loses]))

    def begin_tls(self, one: Holder, limit: int) -> None:
        """Count a connection in that begins to speak TLS."""
        speaking = [other for held in self._held.values() for other in held if other.over_tls]
        loses = self._holds_most(limit, Counter(other.client for other in speaking))
        one.over_tls = True
        if loses is not None:
            self._throw_out([other for other in speaking if other.client == loses])

    def earn(self, one: Holder) -> None:
        """A connection was answered what earns it a place."""
        one.served = True
        keep(self._known, one.client, None)
        if one in (held := self._held.get(one.client, {})):
            del held[one], self._held[one.client]
            self._held[one.client] = {**held, one: None}

    def close(self, one: Holder) -> None:
        """Count a connection out."""
        held = self._held.get(one.client, {})
        held.pop(one, None)
        if not held:
            self._held.pop(one.client, None)

    def forget(self) -> None:
        """Whoever was served has shown nothing of what counts from now on."""
        self._known.clear()

    def _holds_most(self, limit: int, held: Mapping[str, int]) -> str | None:
        """The client that is to lose a connection; None while there is room."""
        return max(held, key=lambda client: self._excess(client, held[client])) if sum(held.values()) >= limit else None

    def _excess(self, client: str, held: int) -> int:
        """How many places of a client can be taken."""
        if client not in self._known:
            return held
        # Where nobody is asked who it is, anybody is answered: then two connections weigh no more than one.
        return held - _PLACES_OF_KNOWN if self.identifies else max(1, held - 1)

    def _throw_out(self, held: Sequence[Holder]) -> None:
        leaving = _first_to_go(held)
        self.close(leaving)
        leaving.abort()


def _first_to_go(held: Sequence[Holder]) -> Holder:
    """Which of a client's connections loses its place; the one longest unused comes first.

    First those that have earned none, but for the newest; then one that takes long for its answer, then an idle one.
    """
    unearned = [one for one in held if not one.served][:-1]
    slow = (one for one in held if one.is_slow)
    idle = (one for one in held if one.served and not one.sending)
    return next(iter((*unearned[:1], *slow, *idle)), held[0])


class TokenBucket:
    """Starts full.

    Args:
        interval: Seconds after which one token more is there.
        burst: Tokens that it holds.
        clock: Seconds that never go back.
    """

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._burst = float(burst)
        self._clock = clock
        self._tokens = self._burst
        self._counted_at = clock()

    def take(self) -> bool:
        """Take a token; False where there is none."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) / self._interval)
        self._counted_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ClientRates:
    """A bucket for each address, so that a flood from one takes nothing from the others.

    Of the addresses that asked last; whose bucket is forgotten has a full one the next time.

    Args:
        interval: As of a bucket.
        burst: As of a bucket.
        clock: As of a bucket.
    """

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._full = partial(TokenBucket, interval, burst, clock)
        self._buckets: dict[str, TokenBucket] = {}  # who has not asked for longest comes first

    def take(self, client: str) -> bool:
        """Take a token of a client; False where there is none."""
        bucket = self._buckets.get(client) or self._full()
        keep(self._buckets, client, bucket)
        return bucket.take()

"""The share of each client in an endpoint: places for connections, turns at slow work, requests in a second."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from commwatch_exporters.http_server import Connection

_MAPPED_IPV4 = bytes(10) + b"\xff\xff"
_NETWORK_BYTES = 8  # of an IPv6 address: a host has all addresses of its /64
_CLIENTS = 1024  # that are remembered
_PLACES_OF_KNOWN = 8  # of a client that has shown who it is; they count for nothing when others want room

_MOST_FAILED = 64  # failures that count, so that even who succeeds after thousands has a turn

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Share = TypeVar("_Share", bound=Hashable)
_Result = TypeVar("_Result")


def client_of(peer: object) -> str:
    """The client behind what ``socket.getpeername`` gives: the address for IPv4, also where it is mapped into IPv6; the
    /64 for IPv6; empty for anything else."""
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


@dataclass(slots=True)
class _Past:
    """The turns that a share has had."""

    failed: int = 0
    """Turns that came to nothing since the last that did not."""
    turn: int = 0
    """Number of the last turn."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[_Share, _Result]):
    """Work whose result is awaited."""

    share: _Share
    work: Callable[[], Awaitable[_Result]]
    result: asyncio.Future[_Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Turns(Generic[_Share, _Result]):
    """Work that is done one at a time, in turns: the share with the fewest failures comes first.

    Of equals one that has succeeded before, then the one whose last turn is longest ago. Of those that never had a
    turn, the newest and the oldest alternate, so that a scraper does not wait for a crowd that came before it.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting[_Share, _Result]] = []
        """In the order in which they came, with the one whose turn it is."""
        self._past: dict[_Share, _Past] = {}
        """The share whose last turn is longest ago is first."""
        self._succeeded: dict[_Share, None] = {}
        self._numbers = itertools.count(1)
        self._serving: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> Counter[_Share]:
        """Number of unfinished requests of each share."""
        return Counter(one.share for one in self._waiting if not one.result.done())

    def ask(self, share: _Share, work: Callable[[], Awaitable[_Result]]) -> asyncio.Future[_Result]:
        """Have work done when the share has its turn; cancel the future if the result is no longer needed."""
        one = _Waiting(share, work)
        self._waiting.append(one)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.get_running_loop().create_task(self._serve())
        return one.result

    def failed(self, share: _Share) -> None:
        """A turn came to nothing, as far as is known."""
        if (past := self._past.get(share)) is not None:
            past.failed += 1

    def succeeded(self, share: _Share) -> None:
        """A turn came to something: earlier failures do not count any more."""
        self.completed(share)
        keep(self._succeeded, share, None)

    def completed(self, share: _Share) -> None:
        """A turn came to its end without success: earlier failures do not count any more."""
        if (past := self._past.get(share)) is not None:
            past.failed = 0

    def has_succeeded(self, share: _Share) -> bool:
        """Whether a turn of the share ever came to something, of the last that did."""
        return share in self._succeeded

    def forget(self) -> None:
        """No success counts from now on."""
        self._succeeded.clear()

    def close(self) -> None:
        """Begin nothing any more."""
        if self._serving is not None:
            self._serving.cancel()

    async def _serve(self) -> None:
        for newest_first in itertools.cycle((True, False)):
            self._waiting = [one for one in self._waiting if not one.result.done()]
            if not self._waiting:
                return
            ordered = reversed(self._waiting) if newest_first else self._waiting
            share = min(dict.fromkeys(one.share for one in ordered), key=self._order)
            one = next(one for one in self._waiting if one.share == share)
            past = self._past.get(share) or _Past()
            past.turn = next(self._numbers)
            keep(self._past, share, past)
            try:
                result = await one.work()
            except Exception as error:  # it is the answer of this one
                if not one.result.done():
                    one.result.set_exception(error)
            else:
                if not one.result.done():
                    one.result.set_result(result)

    def _order(self, share: _Share) -> tuple[int, bool, int]:
        past = self._past.get(share) or _Past()
        return min(past.failed, _MOST_FAILED), not self.has_succeeded(share), past.turn


class Places:
    """Who holds connections, and who loses one where there is no place left: the client that holds most.

    Whose turns have succeeded was answered what earns a place.
    """

    def __init__(self, turns: Turns[str, None]) -> None:
        self._turns = turns
        self.identifies = False
        """Whether a client that was served has shown who it is."""
        self._held: dict[str, dict[Connection, None]] = {}
        """By client its connections, the one longest unused first; who has done nothing for longest is first."""

    def open(self, one: Connection, limit: int) -> None:
        """Count a connection in; it is never the one that goes for it."""
        loses = self._holds_most(limit, {client: len(held) for client, held in self._held.items()})
        self._held[one.client] = {**self._held.pop(one.client, {}), one: None}
        if loses is not None:
            self._throw_out(list(self._held[loses]))

    def begin_tls(self, one: Connection, limit: int) -> None:
        """Count a connection in that begins to speak TLS."""
        speaking = [other for held in self._held.values() for other in held if other.over_tls]
        loses = self._holds_most(limit, Counter(other.client for other in speaking))
        one.over_tls = True
        if loses is not None:
            self._throw_out([other for other in speaking if other.client == loses])

    def earn(self, one: Connection) -> None:
        """A connection was answered what earns it a place."""
        one.served = True
        self._turns.succeeded(one.client)
        if one in (held := self._held.get(one.client, {})):
            del held[one], self._held[one.client]
            self._held[one.client] = {**held, one: None}

    def close(self, one: Connection) -> None:
        """Count a connection out."""
        held = self._held.get(one.client, {})
        held.pop(one, None)
        if not held:
            self._held.pop(one.client, None)

    def _holds_most(self, limit: int, held: Mapping[str, int]) -> str | None:
        """The client that is to lose a connection; None while there is room."""
        return max(held, key=lambda client: self._excess(client, held[client])) if sum(held.values()) >= limit else None

    def _excess(self, client: str, held: int) -> int:
        """How many places of a client can be taken."""
        if not self._turns.has_succeeded(client):
            return held
        # Without passwords any client is answered: then two connections weigh no more than one.
        return held - _PLACES_OF_KNOWN if self.identifies else max(1, held - 1)

    def _throw_out(self, held: Sequence[Connection]) -> None:
        leaving = _first_to_go(held)
        self.close(leaving)
        leaving.abort()


def _first_to_go(held: Sequence[Connection]) -> Connection:
    """Which of a client's connections loses its place; the one longest unused comes first.

    First those that have earned none, but for the newest; then one that takes long for its answer, then an idle one.
    """
    unearned = [one for one in held if not one.served][:-1]
    slow = (one for one in held if one.is_slow)
    idle = (one for one in held if one.served and not one.sending)
    return next(iter((*unearned[:1], *slow, *idle)), held[0])


class ClientRates:
    """A bucket of tokens for each address, so that a flood from one takes nothing from the others; full at first.

    Of the addresses that asked last; whose bucket is forgotten has a full one the next time.

    Args:
        interval: Seconds after which one token more is there.
        burst: Tokens that a bucket holds.
        clock: Seconds that never go back.
    """

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """Tokens, and the time of their count; the client that has not asked for the longest time comes first."""

    def take(self, client: str) -> bool:
        """Take a token of a client; False where there is none."""
        now = self._clock()
        tokens, counted_at = self._buckets.get(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted_at) / self._interval)
        has_one = tokens >= 1
        keep(self._buckets, client, (tokens - 1 if has_one else tokens, now))
        return has_one

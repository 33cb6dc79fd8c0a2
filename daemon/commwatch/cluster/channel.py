"""Messages between a member and the store: JSON of known types, each sealed with the key of the run.

Whoever reaches the store's port can spoil a run, not forge a word of it. The two ends send 32 random bytes each; every
message then carries an HMAC-SHA256 over both, its direction, its number and its text. So a message that was recorded
in another connection, or comes a second time in its own, is not taken. Nothing is unpickled, nothing is evaluated.
"""

from __future__ import annotations

import asyncio
import hmac
import operator
import secrets
import socket
import struct
from contextlib import suppress
from functools import reduce
from typing import Final, TypeVar

import msgspec

MAGIC: Final = b"commwatch-cluster 1\n"
"""The store's first message; the number is that of this format."""
MOST_BYTES: Final = 64 * 1024
"""Of a message from a member."""

_NONCE_BYTES: Final = 32
_MAC_BYTES: Final = 32
_SMALL_PACKET_BYTES: Final = 536
_HEAD = struct.Struct(">I")

Message = TypeVar("Message", bound=msgspec.Struct)


class ChannelError(Exception):
    """The other end is not of this run, or sends what it may not: too much, or no message of an expected type."""


class Stranger(ChannelError):
    """Something else answers: no store of commwatch."""


class OtherFormat(ChannelError):
    """A store of commwatch, of a version with another format."""


class NotSealed(ChannelError):
    """A message is not sealed with the key of this run: another key, a message recorded elsewhere, or a changed one."""


class Gone(ChannelError):
    """The other end has closed the connection."""

    def __init__(self) -> None:
        super().__init__("left without a word")


class Channel:
    """One connection, after both ends have sent their random bytes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, session: bytes, *, of_store: bool
    ) -> None:
        self._reader, self._writer = reader, writer
        self._key, self._session = key, session
        self._labels = (b"s", b"m") if of_store else (b"m", b"s")
        self._sent = self._taken = 0

    @property
    def is_gone(self) -> bool:
        """Whether the other end has closed the connection, and nothing is left to be received."""
        return self._reader.at_eof() or self._reader.exception() is not None

    async def send(self, message: msgspec.Struct) -> None:
        """Send a message.

        Raises:
            Gone: the other end takes nothing more.
        """
        text = msgspec.json.encode(message)
        mac = self._mac(self._labels[0], self._sent, text)
        self._sent += 1
        try:
            self._writer.write(_HEAD.pack(_MAC_BYTES + len(text)) + mac + text)
            await self._writer.drain()
        except OSError as error:
            raise Gone from error

    async def receive(self, *kinds: type[Message], most: int = MOST_BYTES) -> Message:
        """The next message.

        Args:
            kinds: which it may be.
            most: bytes of it.

        Raises:
            ChannelError: it is not sealed, too long, of no such type, or does not come any more.
        """
        (length,) = _HEAD.unpack(await _exactly(self._reader, _HEAD.size))
        if length == 0:
            raise NotSealed("the other end has another run key")
        if length > most + _MAC_BYTES:
            raise ChannelError(f"a message of {length} bytes, expected at most {most}")
        if length < _MAC_BYTES:
            raise NotSealed("not sealed with the key of this run")
        body = await _exactly(self._reader, length)
        mac, text = body[:_MAC_BYTES], body[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(self._labels[1], self._taken, text)):
            raise NotSealed("not sealed with the key of this run")
        self._taken += 1
        try:
            message: Message = msgspec.json.decode(text, type=reduce(operator.or_, kinds))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            names = " or ".join(one.__name__ for one in kinds)
            raise ChannelError(f"a message that is no {names}: {error}"[:300]) from error
        return message

    async def refuse_key(self) -> None:
        """Say, unsealed, that the other end's key is not ours, and close; it can only end its own run on that."""
        self._writer.write(_HEAD.pack(0))
        await self.closed()

    def close(self) -> None:
        """Close the connection once all is sent."""
        self._writer.close()

    async def closed(self) -> None:
        """Close the connection, and wait until all is sent."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close the connection at once, whatever is still to be sent."""
        self._writer.transport.abort()

    def _mac(self, label: bytes, number: int, text: bytes) -> bytes:
        return hmac.digest(self._key, MAGIC + self._session + label + number.to_bytes(8, "big") + text, "sha256")


async def _exactly(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise Gone from error


def small_packets(sock: socket.socket) -> None:
    """Send small packets that pass where large ones are lost, so that a member can report the loss."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SMALL_PACKET_BYTES)


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> Channel:
    """The store's end of a new connection.

    Raises:
        ChannelError: the other end does not answer.
    """
    own = secrets.token_bytes(_NONCE_BYTES)
    try:
        writer.write(MAGIC + own)
        await writer.drain()
    except OSError as error:
        raise Gone from error
    return Channel(reader, writer, key, own + await _exactly(reader, _NONCE_BYTES), of_store=True)


async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> Channel:
    """The member's end of a new connection.

    Raises:
        ChannelError: no store of this format answers.
    """
    said = await _exactly(reader, len(MAGIC))
    if not said.startswith(MAGIC.split(b" ", maxsplit=1)[0]):
        raise Stranger("something else answers")
    if said != MAGIC:
        raise OtherFormat("commwatch of another version answers")
    theirs, own = await _exactly(reader, _NONCE_BYTES), secrets.token_bytes(_NONCE_BYTES)
    writer.write(own)
    return Channel(reader, writer, key, theirs + own, of_store=False)

"""Changes inputs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from benchmarks.fuzz.target import Target

_NUMBERS: Final = tuple(
    str(one).encode()
    for one in (-1, 0, 1, 127, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
                10**20, 10**40, "1e308", "1e999", "-0", "nan", "inf", "0x10", "1_0", "٣", "²")
)  # fmt: skip
_TEXTS: Final = (
    b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xae", b"\x1b[2J", b"\r", b"\n", b"\r\n", b" ",
    b"\t", b"'", b'"', b"\\", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"<<: ", b"!!binary ", b"!x ", b"%", b"../", b"/",
    b"~", b"null", b"true", b"2026-02-30", b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:59+14:00", b"-", b":", b",",
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 1e18, 1e300, 5e-324, "",
    "x", "\0", "\ud7ff", "a" * 300, "../..", "١", [], {}, [[]], {"": None}, [0] * 300, 253402300800.0,
)  # fmt: skip


class Mutator:
    """Changes inputs; the same seed gives the same changes."""

    def __init__(self, target: Target, chance: random.Random) -> None:
        self._target = target
        self._chance = chance

    def changed(self, data: bytes, others: Sequence[bytes]) -> bytes:
        """An input after one to eight changes.

        Args:
            data: the input.
            others: from which parts are taken.
        """
        chance = self._chance
        if self._target.form != "bytes" and chance.random() < 0.7:
            changed = self._changed_value(data, others)
            if changed is not None:
                return changed[: self._target.most_bytes]
        for _ in range(1 << chance.randrange(4)):
            data = self._step(data, others)
        return data[: self._target.most_bytes]

    def _step(self, data: bytes, others: Sequence[bytes]) -> bytes:
        chance = self._chance
        begin = chance.randint(0, len(data))
        end = min(len(data), begin + chance.choice((1, 1, 2, 4, 16, 64, 1024)))
        span = data[begin:end]
        other = chance.choice(others) if others else b""
        cut = chance.randint(0, len(other))
        piece = other[cut : cut + chance.choice((1, 8, 64, 1024))]
        match chance.randrange(11):
            case 0:
                span = b""
            case 1:
                span += span
            case 2:
                span = span * chance.choice((3, 50, 2000))
            case 3:
                span = bytes(chance.randrange(256) for _ in span)
            case 4:
                span = chance.choice(_TEXTS) + span
            case 5:
                span = chance.choice(_TEXTS)
            case 6:
                span = chance.choice(self._target.words or _TEXTS)
            case 7:
                return self._with_number(data)
            case 8:
                span = piece
            case 9:
                return data[:begin] + other[cut:]
            case _:
                return self._with_line(data)
        return data[:begin] + span + data[end:]

    def _with_number(self, data: bytes) -> bytes:
        """With another number in the place of one that is there."""
        places = [place for place, one in enumerate(data) if 48 <= one <= 57]
        if not places:
            return data + self._chance.choice(_NUMBERS)
        begin = end = self._chance.choice(places)
        while end < len(data) and 48 <= data[end] <= 57:
            end += 1
        return data[:begin] + self._chance.choice(_NUMBERS) + data[end:]

    def _with_line(self, data: bytes) -> bytes:
        """With a line doubled, gone, elsewhere or deeper."""
        lines = data.split(b"\n")
        place = self._chance.randrange(len(lines))
        line = lines.pop(place)
        for _ in range(self._chance.randrange(3)):
            lines.insert(self._chance.randint(0, len(lines)), self._chance.choice((b"", b" ", b"  ", b"- ")) + line)
        return b"\n".join(lines)

    def _changed_value(self, data: bytes, others: Sequence[bytes]) -> bytes | None:
        """With a value in place of another one; None where the input is not of the form."""
        coder: Any = msgspec.json if self._target.form == "json" else msgspec.msgpack
        head = self._target.head
        try:
            document = coder.decode(data[head:])
            for _ in range(self._chance.choice((1, 1, 2, 5))):
                ways = list(_ways(document))
                document = _with(document, self._chance.choice(ways), self._value(coder, document, ways, others))
            return data[:head] + bytes(coder.encode(document))
        except (ValueError, RecursionError, TypeError, OverflowError):
            return None

    def _value(self, coder: Any, document: Any, ways: Sequence[tuple[Any, ...]], others: Sequence[bytes]) -> Any:
        chance = self._chance
        match chance.randrange(5):
            case 0 if others:
                other = coder.decode(chance.choice(others)[self._target.head :])
                return _at(other, chance.choice(list(_ways(other))))
            case 1:
                return _at(document, chance.choice(ways))
            case 2:
                return chance.choice(self._target.words or (b"",)).decode(errors="replace")
            case 3:
                value: Any = chance.choice(_VALUES)
                for _ in range(chance.choice((1, 3, 40, 1500))):
                    value = [value] if chance.random() < 0.5 else {"x": value}
                return value
            case _:
                return chance.choice(_VALUES)


def _ways(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from _ways(below, (*way, key))


def _at(value: Any, way: Sequence[Any]) -> Any:
    for step in way:
        value = value[step]
    return value


def _with(document: Any, way: Sequence[Any], value: Any) -> Any:
    """The document with a value at a place; copied, so that no value holds itself."""
    value = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    if not way:
        return value
    _at(document, way[:-1])[way[-1]] = value
    return document

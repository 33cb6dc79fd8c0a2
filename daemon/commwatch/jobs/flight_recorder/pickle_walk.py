"""The value of a pickled Flight Recorder dump, without unpickling it: nothing is imported, called or constructed.

torch writes protocol 2 with about eighteen kinds of opcodes (``torch/csrc/jit/serialization/pickler.cpp``). Every other
opcode ends the walk, and so does a dump that would need more memory than a real one of 50,000 calls.
``pickletools.genops`` takes three times as long and decodes the arguments of opcodes that no dump has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

Value: TypeAlias = "dict[str, Value] | list[Value] | tuple[Value, ...] | str | int | float | None"

MOST_OPCODES: Final = 4_000_000
"""A dump of 20,000 calls has 1.4 million."""
MOST_CONTAINERS: Final = 600_000
"""A dump of 20,000 calls has 160,000."""
MOST_VALUES: Final = 100_000
"""On the stack at a time: the calls of a list are there until the list is complete."""
MOST_MARKS: Final = 16
LONGEST_TEXT: Final = 2**20
"""Bytes."""
_MOST_SHARED_KEYS: Final = 16

_BINGET, _STOP = 0x68, 0x2E
_CONSTANTS: Final = {0x4E: None, 0x88: True, 0x89: False}
_UINT16, _UINT32, _INT32, _DOUBLE = (struct.Struct(form) for form in ("<H", "<I", "<i", ">d"))


class NoDump(ValueError):
    """A file is no Flight Recorder dump that can be read; the message says why, and where."""


class _Mark:
    """Where a list, a dictionary or a tuple of several values begins on the stack."""


_MARK: Final = _Mark()


def walk(data: bytes) -> Value:
    """The value that a pickle of plain values stands for.

    Raises:
        NoDump: it has another opcode, is cut off, or is larger than a dump.
    """
    if data[:2] != b"\x80\x02":
        raise NoDump("it does not begin like a pickle of torch (80 02)")
    return _Walker(data).run()


class _Walker:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[Value | _Mark] = []
        self._memo: list[Value | _Mark] = []
        self._marks: list[int] = []
        self._used_again: set[int] = set()
        """Ids of dictionaries that came from the memo, which keeps them."""
        self._containers = 0
        numbers = ((0x4D, _UINT16), (0x4A, _INT32), (0x47, _DOUBLE))
        self._takers: dict[int, Callable[[int], int]] = {
            **{code: self._number(form) for code, form in numbers},
            **{code: self._tuple_of(length) for length, code in enumerate((0x29, 0x85, 0x86, 0x87))},
            0x4B: self._binint1,
            0x8A: self._long1,
            0x28: self._mark,
            0x5D: self._empty_list,
            0x7D: self._empty_dict,
            0x65: self._appends,
            0x61: self._append,
            0x75: self._setitems,
            0x73: self._setitem,
            0x74: self._tuple,
            0x58: self._binunicode,
            0x71: self._binput,
            0x72: self._long_binput,
            0x6A: self._long_binget,
        }  # fmt: skip

    def run(self) -> Value:
        """Walk to the end.

        Raises:
            NoDump: see ``walk``.
        """
        data, stack, memo, takers = self._data, self._stack, self._memo, self._takers
        at, begin = 2, 2
        try:
            for _ in range(MOST_OPCODES):
                begin = at
                code = data[at]
                if code == _BINGET:  # half of all
                    value = memo[data[at + 1]]
                    stack.append(value if type(value) is str else self._shared(value))
                    at += 2
                elif code in _CONSTANTS:
                    stack.append(_CONSTANTS[code])
                    at += 1
                elif code in takers:
                    at = takers[code](at + 1)
                elif code == _STOP:
                    return self._result()
                else:
                    raise NoDump(f"opcode 0x{code:02x}, which no dump has")
                if len(stack) > MOST_VALUES:
                    raise NoDump(f"more than {MOST_VALUES} values in one list")
        except NoDump as error:
            raise NoDump(f"{error}, at byte {begin}") from None
        except (struct.error, IndexError):
            cut = at >= len(data) - 8
            raise NoDump(f"{'cut off' if cut else 'damaged: something is missing'} at byte {begin}") from None
        except UnicodeDecodeError:
            raise NoDump(f"a text that is no UTF-8, at byte {begin}") from None
        raise NoDump(f"more than {MOST_OPCODES} opcodes")

    def _result(self) -> Value:
        if len(self._stack) != 1:
            raise NoDump(f"it ends with {len(self._stack)} values instead of one")
        return self._plain(self._stack[0])

    # --- values; each returns where the next opcode begins ---

    def _number(self, form: struct.Struct) -> Callable[[int], int]:
        length = form.size

        def take(at: int) -> int:
            self._stack.append(form.unpack_from(self._data, at)[0])
            return at + length

        return take

    def _binint1(self, at: int) -> int:
        self._stack.append(self._data[at])
        return at + 1

    def _long1(self, at: int) -> int:
        length = self._data[at]
        if length > 8:
            raise NoDump("a number of more than 64 bits")
        end = at + 1 + length
        if end > len(self._data):
            raise IndexError(end)
        self._stack.append(int.from_bytes(self._data[at + 1 : end], "little", signed=True))
        return end

    def _binunicode(self, at: int) -> int:
        length: int = _UINT32.unpack_from(self._data, at)[0]
        end = at + 4 + length
        if length > LONGEST_TEXT:
            raise NoDump(f"a text of {length} bytes")
        if end > len(self._data):
            raise NoDump("cut off in a text")
        self._stack.append(self._data[at + 4 : end].decode())
        return end

    # --- lists, dictionaries, tuples ---

    def _count(self) -> None:
        self._containers += 1
        if self._containers > MOST_CONTAINERS:
            raise NoDump(f"more than {MOST_CONTAINERS} lists and dictionaries")

    def _mark(self, at: int) -> int:
        if len(self._marks) >= MOST_MARKS:
            raise NoDump(f"more than {MOST_MARKS} open marks")
        self._marks.append(len(self._stack))
        self._stack.append(_MARK)
        return at

    def _since_mark(self) -> list[Value]:
        if not self._marks:
            raise NoDump("a list without its beginning")
        begin = self._marks.pop()
        if begin >= len(self._stack):
            raise NoDump("a list whose beginning is gone")
        values = self._stack[begin + 1 :]
        del self._stack[begin:]
        if _MARK in values:
            raise NoDump("a mark in place of a value")
        return values  # type: ignore[return-value]  # no mark is among them

    def _plain(self, value: Value | _Mark) -> Value:
        if isinstance(value, _Mark):
            raise NoDump("a mark in place of a value")
        return value

    def _empty_list(self, at: int) -> int:
        self._count()
        self._stack.append([])
        return at

    def _empty_dict(self, at: int) -> int:
        self._count()
        self._stack.append({})
        return at

    def _appends(self, at: int) -> int:
        values, target = self._since_mark(), self._stack[-1]
        if not isinstance(target, list):
            raise NoDump("values are appended to something that is no list")
        target.extend(values)
        return at

    def _append(self, at: int) -> int:
        self._marks.append(len(self._stack) - 1)
        self._stack.insert(-1, _MARK)
        return self._appends(at)

    def _setitems(self, at: int) -> int:
        values, target = self._since_mark(), self._stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise NoDump("a dictionary is filled that is none, or with half a pair")
        if id(target) in self._used_again:
            raise NoDump("a dictionary grows after it was used twice")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):
                raise NoDump("a key that is no text")
            target[key] = value
        return at

    def _setitem(self, at: int) -> int:
        self._marks.append(len(self._stack) - 2)
        self._stack.insert(-2, _MARK)
        return self._setitems(at)

    def _tuple(self, at: int) -> int:
        self._count()
        self._stack.append(tuple(self._since_mark()))
        return at

    def _tuple_of(self, length: int) -> Callable[[int], int]:
        def take(at: int) -> int:
            self._count()
            begin = len(self._stack) - length
            if begin < 0:
                raise NoDump("a tuple of more values than there are")
            joined = tuple(self._plain(value) for value in self._stack[begin:])
            del self._stack[begin:]
            self._stack.append(joined)
            return at

        return take

    # --- the memo ---

    def _binput(self, at: int) -> int:
        return self._put(self._data[at], at + 1)

    def _long_binput(self, at: int) -> int:
        (index,) = _UINT32.unpack_from(self._data, at)
        return self._put(index, at + 4)

    def _put(self, index: int, at: int) -> int:
        # torch numbers them in order; an index of a file's choice would be a table of any size.
        if index != len(self._memo):
            raise NoDump(f"memo index {index} where {len(self._memo)} comes next")
        self._memo.append(self._stack[-1])
        return at

    def _long_binget(self, at: int) -> int:
        (index,) = _UINT32.unpack_from(self._data, at)
        self._stack.append(self._shared(self._memo[index]))
        return at + 4

    def _shared(self, value: Value | _Mark) -> Value:
        """A value of the memo, which a few bytes can repeat any number of times."""
        value = self._plain(value)
        if isinstance(value, (list, tuple)) or (isinstance(value, dict) and not _is_frame(value)):
            raise NoDump("a list or dictionary is used twice")
        if isinstance(value, dict):
            self._used_again.add(id(value))
        return value


def _is_frame(value: dict[str, Value]) -> bool:
    """Whether a dictionary is complete and holds plain values only, as a frame of a call that several calls share."""
    return 0 < len(value) <= _MOST_SHARED_KEYS and not any(
        isinstance(one, (dict, list, tuple)) for one in value.values()
    )

"""The file of a recording: gzip, one JSON object a line; what is foreign, cut off or hostile is refused."""

from __future__ import annotations

import gzip
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from commwatch.errors import ConfigError, UsageError
from commwatch.regular_file import read_regular
from commwatch.sources.ethtool.abi import MOST_STATISTICS, NAME_BYTES
from commwatch.state.replace import NEW_FILE
from commwatch_rehearsal.simulation.recording.lines import (
    ANSWERS,
    FORMAT,
    Answer,
    AnyLine,
    Call,
    Cost,
    End,
    Event,
    Fields,
    File,
    Folder,
    Head,
    Hung,
    LogLine,
    Statistics,
)

ENDING: Final = ".cwrec"
_MOST_PACKED: Final = 64 * 2**20
_MOST_BYTES: Final = 128 * 2**20
_LONGEST_LINE: Final = 4 * 2**20
_MOST_LINES: Final = 2_000_000
_MOST_PATHS: Final = 50_000
_MOST_ARGUMENTS: Final = 16
_HEXADECIMAL: Final = re.compile(r"(?:[0-9a-f]{2}){0,65536}|[0-9]{1,9}")
_COUNT_DIGITS: Final = (2, 4, 6, 8)
_MOST_COUNTED: Final = {"nvmlDeviceGetCount": 1024, "RunningProcesses": 65_536}
"""By what the name of a call holds, the most that it may count: the readers go through them one by one."""
_LONGEST_PATH: Final = 1024
_LONGEST_NAME: Final = 255
_LONGEST_TEXT: Final = 8192
_PIECE: Final = 2**20
_DECODER: Final = msgspec.json.Decoder(AnyLine)


class RecordingFile:
    """A new file, readable for its owner alone; whoever has written the last line calls ``close``.

    Raises:
        UsageError: it exists or cannot be made.
    """

    def __init__(self, path: Path, head: Head) -> None:
        self.path = path
        try:
            self._file = os.fdopen(os.open(path, NEW_FILE, 0o600), "wb")
        except FileExistsError:
            raise UsageError(f"-o {path}: exists already, and a recording replaces nothing; name another") from None
        except OSError as error:
            raise UsageError(f"-o {path}: {error.strerror}") from error
        self._stream = gzip.GzipFile("", "wb", 6, self._file, mtime=0)
        self._encoder = msgspec.json.Encoder()
        self._lock = threading.Lock()
        self._lines = 0
        self.write(head)

    def write(self, line: AnyLine) -> None:
        """Add a line; from any thread."""
        data = self._encoder.encode(line) + b"\n"
        with self._lock:
            if not self._stream.closed:
                self._stream.write(data)
                self._lines += 1

    def close(self, seconds: float) -> int:
        """Write the last line; returns the size of the file in bytes."""
        with self._lock:
            self._stream.write(self._encoder.encode(End(seconds, self._lines)) + b"\n")
            self._stream.close()
            self._file.close()
        return self.path.stat().st_size

    def discard(self) -> None:
        """Remove what was begun."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class Recording:
    """The content of a file; equal to itself alone, so that what is made of it can be kept."""

    head: Head
    answers: list[Answer]
    """By time."""
    costs: list[Cost]
    hung: list[Hung]
    seconds: float


class _Bad(Exception):
    pass


def read_recording(path: Path) -> Recording:
    """Read and check a recording.

    Raises:
        ConfigError: it cannot be used; names the file and, where it can, the line.
    """
    number = 0
    head: Head | None = None
    end: End | None = None
    held: list[Answer | Cost | Hung] = []
    try:
        for number, data in enumerate(_lines(read_regular(path, _MOST_PACKED)), 1):
            if end is not None:
                raise _Bad("more lines follow its end")
            line = _DECODER.decode(data)
            if head is None:
                head = _checked_head(line)
            elif isinstance(line, Head):
                raise _Bad("a second head")
            elif isinstance(line, End):
                end = line
                if end.lines != number - 1:
                    raise _Bad(f"{number - 1} lines instead of {end.lines}: some are missing")
            else:
                _check(line)
                held.append(line)
        number = 0  # from here on no line is at fault alone
        return _recording(head, held, end)
    except OSError as error:
        raise ConfigError(str(path), None, "", error.strerror or str(error)) from None
    except _Bad as error:
        raise ConfigError(str(path), number or None, "", f"not a usable recording: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if head is None:
            raise ConfigError(str(path), None, "", "is no recording of commwatch") from None
        raise ConfigError(str(path), number, "", f"not a usable recording: {error}") from None


def _recording(head: Head | None, held: Sequence[Answer | Cost | Hung], end: End | None) -> Recording:
    """The whole recording.

    Raises:
        _Bad: it has no head or end, or its answers do not fit each other.
    """
    if head is None or end is None:
        raise _Bad("it has no last line: it was cut off, or is still being written")
    answers = [one for one in held if isinstance(one, ANSWERS)]
    if answers and max(one.at for one in answers) > end.seconds + 1:
        raise _Bad("answers come after its end")
    _check_tree(answers)
    answers.sort(key=lambda one: one.at)
    costs, hung = [one for one in held if isinstance(one, Cost)], [one for one in held if isinstance(one, Hung)]
    return Recording(head, answers, costs, hung, end.seconds)


def _checked_head(line: object) -> Head:
    if not isinstance(line, Head):
        raise _Bad("its first line is none of a recording")
    if line.format != FORMAT:
        raise _Bad(f"its format is version {line.format}, and this commwatch reads version {FORMAT}")
    return line


def _lines(packed: bytes) -> Iterator[bytes]:
    """The lines, unpacked piece by piece, so that none of the limits is passed by more than a piece."""
    unpack = zlib.decompressobj(31)
    rest, total, count = b"", 0, 0
    data = packed
    try:
        while not unpack.eof:
            piece = unpack.decompress(data, _PIECE)
            data = unpack.unconsumed_tail
            total += len(piece)
            if total > _MOST_BYTES:
                raise _Bad(f"it unpacks to more than {_MOST_BYTES // 2**20} MiB")
            *lines, rest = (rest + piece).split(b"\n")
            count += len(lines)
            if count > _MOST_LINES:
                raise _Bad(f"more than {_MOST_LINES} lines")
            if max(map(len, (*lines, rest))) > _LONGEST_LINE:
                raise _Bad(f"a line of more than {_LONGEST_LINE // 2**20} MiB")
            yield from lines
            if not piece and not data and not unpack.eof:
                raise _Bad("it ends in the middle: it was cut off")
    except zlib.error:
        raise _Bad("it is damaged, or is no gzip file") from None
    if unpack.unused_data:
        raise _Bad("bytes follow its end")
    if rest:
        raise _Bad("its last line is cut off")


def _check(line: Answer | Cost | Hung) -> None:
    """Check the limits that the types of the lines cannot express.

    Raises:
        _Bad: it makes no sense.
    """
    if check := _CHECKS.get(type(line)):
        check(line)


def _check_call(line: Call) -> None:
    if len(line.arguments) > _MOST_ARGUMENTS or len(line.memory) > len(line.arguments):
        raise _Bad("a call with more arguments than any has")
    for content in line.memory:
        if content is not None and not _HEXADECIMAL.fullmatch(content):
            raise _Bad("memory that is not hexadecimal")
    most = next((most for name, most in _MOST_COUNTED.items() if name in line.function), None)
    counts = (one for one in line.memory if one is not None and len(one) in _COUNT_DIGITS)
    if most is not None and any(int.from_bytes(bytes.fromhex(one), "little") > most for one in counts):
        raise _Bad(f"{line.function} counts more than {most}")


def _check_fields(line: Fields) -> None:
    if not _fit((value for *_, value in line.entries), 64):
        raise _Bad("a field value that 64 bits cannot hold")


def _check_event(line: Event) -> None:
    if not (_fit((line.kind, line.data), 64) and _fit(line.instances, 32)):
        raise _Bad("an event that 64 bits cannot hold")


def _check_statistics(line: Statistics) -> None:
    places = [place for place, _ in line.numbers]
    if max(line.count, len(line.names), *places, 0) > MOST_STATISTICS:
        raise _Bad(f"more than {MOST_STATISTICS} statistics of an interface")
    if not _fit((value for _, value in line.numbers), 64):
        raise _Bad("a statistic that 64 bits cannot hold")
    if not all(_is_bytes(one) and len(one) <= NAME_BYTES for one in line.names):
        raise _Bad(f"a name of a statistic that is longer than {NAME_BYTES} bytes")


def _check_file(line: File) -> None:
    if not _is_bytes(line.content):
        raise _Bad("a file whose content is not bytes")
    _check_path(line.path)


def _check_folder(line: Folder) -> None:
    _check_path(line.path, is_root_allowed=True)
    for name in (*(line.entries or ()), *line.files):
        if "/" in name:
            raise _Bad(f"a path that leads out of the tree: {name[:60]!r}")
        _check_path(name)
    for to in (line.entries or {}).values():
        _check_path(to, is_root_allowed=True)


def _check_log(line: LogLine) -> None:
    if len(line.text) > _LONGEST_TEXT or "\n" in line.text or not _is_bytes(line.text):
        raise _Bad("a record of the kernel log that no kernel writes")


_CHECKS: Final[dict[type, Callable[[Any], None]]] = {
    Call: _check_call, Fields: _check_fields, Event: _check_event, Statistics: _check_statistics, File: _check_file,
    Folder: _check_folder, LogLine: _check_log,
}  # fmt: skip


def _fit(numbers: Iterable[int], bits: int) -> bool:
    return all(0 <= number < 2**bits for number in numbers)


def _is_bytes(text: str) -> bool:
    return text.isascii() or max(text) <= "\xff"


def _check_path(path: str, *, is_root_allowed: bool = False) -> None:
    if not path and is_root_allowed:
        return
    parts = path.split("/")
    if "\0" in path or not {"", ".", ".."}.isdisjoint(parts):
        raise _Bad(f"a path that leads out of the tree: {path[:60]!r}")
    if len(path.encode("utf-8", "surrogatepass")) > _LONGEST_PATH or max(map(len, parts)) > _LONGEST_NAME:
        raise _Bad(f"a path that is too long: {path[:60]!r}")
    if not _is_bytes(path):
        raise _Bad(f"a path that is not bytes: {path[:60]!r}")


def _check_tree(answers: list[Answer]) -> None:
    """Every path is of one kind for good, and no link is on the way to another path: writing it stays in its folder.

    Raises:
        _Bad: it does not.
    """
    kinds: dict[str, str] = {}
    for line in answers:
        if isinstance(line, File | Folder):
            for path, kind in _paths(line):
                if kinds.setdefault(path, kind) != kind:
                    raise _Bad(f"{path[:60]} is two things at once")
        if len(kinds) > _MOST_PATHS:
            raise _Bad(f"more than {_MOST_PATHS} paths")
    for path in kinds:
        parts = path.split("/")
        for count in range(1, len(parts)):
            above = "/".join(parts[:count])
            if kinds.get(above, "folder") != "folder":
                raise _Bad(f"{above[:60]} is on the way to another path, and no folder")


def _paths(line: File | Folder) -> Iterator[tuple[str, str]]:
    """The paths that a line makes, from the root's name on, and what each of them is."""
    if isinstance(line, File):
        yield f"{line.root}/{line.path}", "file"
        return
    here = f"{line.root}/{line.path}" if line.path else line.root
    yield here, "folder"
    for name, to in (line.entries or {}).items():
        yield f"{here}/{name}", "link" if to else "folder"
        if to:
            yield f"{line.root}/{to}", "folder"
    for name in line.files:
        yield f"{here}/{name}", "file"

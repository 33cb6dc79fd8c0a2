"""The file of a recording: gzip, one JSON object a line; what is foreign, cut off or hostile is refused."""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from commwatch.errors import ConfigError, UsageError
from commwatch.regular_file import read_regular
from commwatch_rehearsal.simulation.recording.lines import (
    ANSWERS,
    FORMAT,
    Answer,
    AnyLine,
    Cost,
    End,
    Event,
    Fields,
    File,
    Folder,
    Head,
    Hung,
    Statistics,
)

ENDING: Final = ".cwrec"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_PACKED: Final = 64 * 2**20
_MOST_BYTES: Final = 128 * 2**20
_LONGEST_LINE: Final = 4 * 2**20
_MOST_LINES: Final = 2_000_000
_MOST_PATHS: Final = 200_000
_LONGEST_PATH: Final = 1024
_LONGEST_NAME: Final = 255
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
            self._file = os.fdopen(os.open(path, _NEW, 0o600), "wb")
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


@dataclass(frozen=True)
class Recording:
    """What a file holds."""

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
    answers: list[Answer] = []
    costs: list[Cost] = []
    hung: list[Hung] = []
    head = end = None
    try:
        for number, data in enumerate(_lines(read_regular(path, _MOST_PACKED)), 1):
            if end is not None:
                raise _Bad("more lines follow its end")
            line = _DECODER.decode(data)
            if number == 1:
                head = _checked_head(line)
            elif isinstance(line, ANSWERS):
                _check(line)
                answers.append(line)
            elif isinstance(line, Cost):
                costs.append(line)
            elif isinstance(line, Hung):
                hung.append(line)
            elif isinstance(line, End):
                end = line
                if line.lines != number - 1:
                    raise _Bad(f"{number - 1} lines instead of {line.lines}: some are missing")
            else:
                raise _Bad("a second head")
        if head is None or end is None:
            raise _Bad("it has no last line: it was cut off, or is still being written")
        if answers and max(one.at for one in answers) > end.seconds + 1:
            raise _Bad("answers come after its end")
        number = 0
        _check_tree(answers)
    except OSError as error:
        raise ConfigError(str(path), None, "", error.strerror or str(error)) from None
    except _Bad as error:
        raise ConfigError(str(path), number or None, "", f"not a usable recording: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if head is None:
            raise ConfigError(str(path), None, "", "is no recording of commwatch") from None
        raise ConfigError(str(path), number + 1, "", f"not a usable recording: {error}") from None
    answers.sort(key=lambda one: one.at)
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
            if len(rest) > _LONGEST_LINE:
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


def _check(line: Answer) -> None:
    """What the types of the lines cannot say.

    Raises:
        _Bad: it makes no sense.
    """
    if isinstance(line, Fields) and not all(0 <= value < 2**64 for *_, value in line.entries):
        raise _Bad("a field value that 64 bits cannot hold")
    if isinstance(line, Event) and not all(0 <= value < 2**64 for value in (line.kind, line.data)):
        raise _Bad("an event that 64 bits cannot hold")
    if isinstance(line, Event) and not all(0 <= value < 2**32 for value in line.instances):
        raise _Bad("an instance that 32 bits cannot hold")
    if isinstance(line, Statistics):
        from commwatch.sources.ethtool.abi import MOST_STATISTICS

        places = [place for place, _ in line.numbers]
        if max(line.count, len(line.names), *places, 0) > MOST_STATISTICS:
            raise _Bad(f"more than {MOST_STATISTICS} statistics of an interface")
        if not all(0 <= value < 2**64 for _, value in line.numbers):
            raise _Bad("a statistic that 64 bits cannot hold")
        if not all(_is_bytes(one) and len(one) <= 32 for one in line.names):
            raise _Bad("a name of a statistic that is longer than 32 bytes")
    if isinstance(line, File) and not _is_bytes(line.content):
        raise _Bad("a file whose content is not bytes")
    if isinstance(line, File | Folder):
        _check_path(line.path, is_root_allowed=isinstance(line, Folder))
    if isinstance(line, Folder):
        for name in (*(line.entries or ()), *line.files):
            if "/" in name:
                raise _Bad(f"a path that leads out of the tree: {name[:60]!r}")
            _check_path(name)
        for to in (line.entries or {}).values():
            _check_path(to, is_root_allowed=True)


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
    kinds: dict[tuple[str, str], str] = {}

    def note(root: str, path: str, kind: str) -> None:
        if kinds.setdefault((root, path), kind) != kind:
            raise _Bad(f"{root}/{path[:60]} is two things at once")
        if len(kinds) > _MOST_PATHS:
            raise _Bad(f"more than {_MOST_PATHS} paths")

    for line in answers:
        if isinstance(line, File):
            note(line.root, line.path, "file")
        elif isinstance(line, Folder):
            note(line.root, line.path, "folder")
            below = f"{line.path}/" if line.path else ""
            for name, to in (line.entries or {}).items():
                note(line.root, below + name, "link" if to else "folder")
                if to:
                    note(line.root, to, "folder")
            for name in line.files:
                note(line.root, below + name, "file")
    for root, path in list(kinds):
        while path:
            path = path.rpartition("/")[0]
            if kinds.get((root, path), "folder") != "folder":
                raise _Bad(f"{root}/{path[:60]} is on the way to another path, and no folder")

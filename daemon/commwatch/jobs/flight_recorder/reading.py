"""Dumps read in a child process with limits: memory, processor time, and what it may answer."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from typing import IO, Final, cast

import msgspec

from commwatch.jobs.flight_recorder.dump import MOST_BYTES, Dump, parse
from commwatch.jobs.flight_recorder.files import DumpFile, file_of, rank_of
from commwatch.jobs.flight_recorder.pickle_walk import NoDump
from commwatch.jobs.flight_recorder.recording import Recording, condense
from commwatch.jobs.flight_recorder.verdict import RankDump
from commwatch.regular_file import open_regular

MOST_MEMORY: Final = 512 * 2**20
"""Bytes of address space of the child."""
MOST_CPU_SECONDS: Final = 10
"""For one dump."""
MOST_SECONDS: Final = 60.0
"""For one dump: a file server may be gone."""
_LARGEST_ANSWER: Final = 2 * MOST_BYTES
_LENGTH_BYTES: Final = 4
_NAMED: Final = 4
"""Files that are named of those that share a problem."""


class _Task(msgspec.Struct, frozen=True):
    """What the child is to do, on its standard input."""

    paths: tuple[str, ...]
    is_whole: bool
    """Answer the dumps themselves instead of what they say."""


class _Answer(msgspec.Struct, frozen=True):
    """Of one file."""

    problem: str = ""
    owner: int = 0
    written: float = 0.0
    recording: Recording | None = None
    dump: Dump | None = None


def read_dumps(files: Sequence[DumpFile]) -> tuple[list[RankDump], list[str]]:
    """Read files, and say why some cannot be used, as sentences.

    Args:
        files: see ``find_files``.

    Raises:
        OSError: no process can be started.
    """
    dumps: list[RankDump] = []
    left_out: dict[str, list[str]] = {}
    for file, answer in zip(files, _ask([one.path for one in files], is_whole=False), strict=True):
        recording = answer.recording
        rank = recording.rank if recording is not None and recording.rank is not None else rank_of(file.path)
        if recording is None:
            left_out.setdefault(answer.problem, []).append(file.path)
        elif answer.owner != file.owner:
            left_out.setdefault("another user has replaced it", []).append(file.path)
        elif rank is None:
            left_out.setdefault("the name has no rank; torch ends it with the rank", []).append(file.path)
        else:
            dumps.append(RankDump(rank, file.path, answer.written, recording))
    return dumps, [f"{_some(paths)} left out: {problem}." for problem, paths in left_out.items()]


def _some(paths: Sequence[str]) -> str:
    """The first of some paths."""
    more = len(paths) - _NAMED
    return ", ".join(sorted(paths)[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def read_whole(path: str) -> Dump:
    """A dump with all that it holds.

    Raises:
        NoDump: it cannot be read; the message says why.
        OSError: no process can be started.
    """
    (answer,) = _ask([path], is_whole=True)
    if answer.dump is None:
        raise NoDump(answer.problem)
    return answer.dump


def _ask(paths: Sequence[str], *, is_whole: bool) -> Iterator[_Answer]:
    """The answers of child processes to all files; one that ends early has met a file that is too much for it."""
    from commwatch.children import NOTHING, PIPE, clean_environment, own_module, start

    place = 0
    while place < len(paths):
        child = start(
            own_module(__name__), clean_environment(os.environ), stdin=PIPE, stdout=PIPE, stderr=NOTHING
        )  # fmt: skip
        try:
            task = msgspec.json.encode(_Task(tuple(map(os.path.abspath, paths[place:])), is_whole))
            with cast("IO[bytes]", child.stdin) as stdin:
                stdin.write(task)
            while place < len(paths):
                frame = _frame(cast("IO[bytes]", child.stdout).fileno(), time.monotonic() + MOST_SECONDS)
                place += 1
                if frame is None:
                    yield _Answer(f"reading it takes more than {MOST_CPU_SECONDS} s or {MOST_MEMORY >> 20} MiB")
                    break
                yield msgspec.msgpack.decode(frame, type=_Answer)
        finally:
            child.kill()
            child.wait()


def _frame(descriptor: int, end: float) -> bytes | None:
    """The next answer; None where the child has ended or does not answer in time."""
    head = _exactly(descriptor, _LENGTH_BYTES, end)
    length = int.from_bytes(head or b"", "little")
    return _exactly(descriptor, length, end) if head and length <= _LARGEST_ANSWER else None


def _exactly(descriptor: int, number: int, end: float) -> bytes | None:
    data = bytearray()
    while len(data) < number:
        if not select.select([descriptor], [], [], max(end - time.monotonic(), 0))[0]:
            return None
        part = os.read(descriptor, min(number - len(data), 2**20))
        if not part:
            return None
        data += part
    return bytes(data)


# --- in the child ---


def read_file(path: str, most_bytes: int = MOST_BYTES) -> tuple[Dump, DumpFile]:
    """A dump and its file as it was read.

    Raises:
        NoDump: it is none, or was rewritten meanwhile; ``OSError`` where it cannot be opened.
    """
    with open(open_regular(path), "rb") as file:
        before = file_of(path, os.fstat(file.fileno()))
        if before.size > most_bytes:
            raise NoDump(f"it has {before.size:,} bytes, more than {most_bytes:,}")
        data = file.read(before.size + 1)
        if file_of(path, os.fstat(file.fileno())).stamp != before.stamp or len(data) != before.size:
            raise NoDump("it is being written; read it again")
    return parse(data), before


def _answer(path: str, *, is_whole: bool) -> _Answer:
    try:
        dump, file = read_file(path)
        if is_whole:
            named = dump if dump.rank is not None else msgspec.structs.replace(dump, rank=rank_of(path))
            return _Answer(owner=file.owner, written=file.written, dump=named)
        return _Answer(owner=file.owner, written=file.written, recording=condense(dump))
    except NoDump as error:
        return _Answer(str(error))
    except OSError as error:
        return _Answer(error.strerror or type(error).__name__)
    except MemoryError:
        return _Answer(f"reading it takes more than {MOST_MEMORY >> 20} MiB")


def main() -> None:
    """Read the files of the task, one answer for each."""
    import resource

    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for path in task.paths:
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + MOST_CPU_SECONDS, hard))
        encoded = msgspec.msgpack.encode(_answer(path, is_whole=task.is_whole))
        sys.stdout.buffer.write(len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

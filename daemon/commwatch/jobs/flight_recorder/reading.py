"""Dumps read in a child process with limits: memory, processor time, and what it may answer."""

from __future__ import annotations

import errno
import math
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
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
_GONE_SECONDS: Final = 0.5
"""Time that a killed child has to disappear."""
_LARGEST_ANSWER: Final = 2 * MOST_BYTES
_LENGTH_BYTES: Final = 4
_PROCESS: Final = "pid:"
_NAMED: Final = 4
"""Files that are named of those that share a problem."""


class _Task(msgspec.Struct, frozen=True):
    """What the child is to do, on its standard input."""

    names: tuple[str, ...]
    """Paths of files, and processes as ``pid:1234``."""
    procfs: str
    is_whole: bool
    """Answer the dumps themselves instead of what they say."""


class _Answer(msgspec.Struct, frozen=True):
    """Of one file or process."""

    problem: str = ""
    is_unresponsive: bool = False
    owner: int = 0
    taken: float = 0.0
    rank: int | None = None
    recordings: tuple[Recording, ...] = ()
    dump: Dump | None = None


def read_dumps(files: Sequence[DumpFile], seconds: float = math.inf) -> tuple[list[RankDump], list[str]]:
    """Read files, and say why some cannot be used, as sentences.

    Args:
        files: see ``find_files``.
        seconds: for all of them.

    Raises:
        OSError: no process can be started; ``TimeoutError`` where it takes longer.
    """
    dumps: list[RankDump] = []
    left_out: dict[str, list[str]] = {}
    answers = _ask([one.path for one in files], Path("/proc"), is_whole=False, seconds=seconds)
    for file, answer in zip(files, answers, strict=True):
        if answer.problem:
            left_out.setdefault(answer.problem, []).append(file.path)
        elif answer.owner != file.owner:
            left_out.setdefault("another user has replaced it", []).append(file.path)
        elif answer.rank is None:
            left_out.setdefault("the name has no rank; torch ends it with the rank", []).append(file.path)
        else:
            dumps += [RankDump(answer.rank, file.path, answer.taken, one) for one in answer.recordings]
    return dumps, _left_out(left_out)


def _left_out(names: Mapping[str, Sequence[str]]) -> list[str]:
    """Sentences about what shares a problem; of many only the first are named."""
    told = []
    for problem, several in names.items():
        more = len(several) - _NAMED
        some = ", ".join(sorted(several)[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        told.append(f"{some} left out: {problem}.")
    return told


def read_processes(pids: Sequence[int], procfs: Path) -> tuple[list[RankDump], dict[int, str], list[str]]:
    """Ask live processes, see ``worker_server``.

    Returns:
        Their dumps, the ranks that did not answer with the reason, and why others could not be asked, as sentences.

    Raises:
        OSError: no process can be started.
    """
    dumps: list[RankDump] = []
    unresponsive: dict[int, str] = {}
    left_out: dict[str, list[str]] = {}
    for pid, answer in zip(pids, _ask([f"{_PROCESS}{pid}" for pid in pids], procfs, is_whole=False), strict=True):
        if answer.rank is not None:
            dumps += [RankDump(answer.rank, f"process {pid}", answer.taken, one) for one in answer.recordings]
        if answer.rank is not None and answer.is_unresponsive:
            unresponsive[answer.rank] = answer.problem
        elif answer.problem:
            left_out.setdefault(answer.problem, []).append(f"process {pid}")
    return dumps, unresponsive, _left_out(left_out)


def read_whole(path: str) -> Dump:
    """A dump with all that it holds.

    Raises:
        NoDump: it cannot be read; the message says why.
        OSError: no process can be started.
    """
    (answer,) = _ask([os.path.abspath(path)], Path("/proc"), is_whole=True)
    if answer.dump is None:
        raise NoDump(answer.problem)
    return answer.dump


def _ask(names: Sequence[str], procfs: Path, *, is_whole: bool, seconds: float = math.inf) -> Iterator[_Answer]:
    """The answers of child processes to all names; one that ends early has met what is too much for it.

    Raises:
        TimeoutError: not all came in time.
    """
    from commwatch.children import NOTHING, PIPE, StillRuns, clean_environment, own_module, start

    place, until = 0, time.monotonic() + seconds
    while place < len(names):
        child = start(
            own_module(__name__), clean_environment(os.environ), stdin=PIPE, stdout=PIPE, stderr=NOTHING
        )  # fmt: skip
        try:
            task = msgspec.json.encode(_Task(tuple(names[place:]), str(procfs), is_whole))
            with cast("IO[bytes]", child.stdin) as stdin:
                stdin.write(task)
            while place < len(names):
                end = min(time.monotonic() + MOST_SECONDS, until)
                frame = _frame(cast("IO[bytes]", child.stdout).fileno(), end)
                if time.monotonic() >= until:
                    raise TimeoutError(errno.ETIMEDOUT, "not all of them came in time")
                place += 1
                if frame is None:
                    yield _Answer(f"reading it takes more than {MOST_CPU_SECONDS} s or {MOST_MEMORY >> 20} MiB")
                    break
                yield msgspec.msgpack.decode(frame, type=_Answer)
        finally:
            child.kill()
            with suppress(StillRuns):  # what sits in the kernel, as for a file server that is gone, is left behind
                child.wait(_GONE_SECONDS)
            cast("IO[bytes]", child.stdout).close()


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


def _answer(name: str, task: _Task) -> _Answer:
    try:
        if name.startswith(_PROCESS):
            return _answer_of_process(int(name.removeprefix(_PROCESS)), Path(task.procfs))
        dump, file = read_file(name)
        rank = rank_of(name) if dump.rank is None else dump.rank
        if task.is_whole:
            return _Answer(dump=msgspec.structs.replace(dump, rank=rank))
        return _Answer(owner=file.owner, taken=file.written, rank=rank, recordings=(condense(dump),))
    except NoDump as error:
        return _Answer(str(error))
    except OSError as error:
        return _Answer(error.strerror or type(error).__name__)
    except MemoryError:
        return _Answer(f"reading it takes more than {MOST_MEMORY >> 20} MiB")


def _answer_of_process(pid: int, procfs: Path) -> _Answer:
    # Only here: what speaks HTTP takes longer to load than a dump to read.
    from commwatch.jobs.flight_recorder.worker_server import NoServer, Unresponsive, ask, rank_and_socket

    try:
        rank, socket = rank_and_socket(pid, procfs)
    except NoServer as error:
        return _Answer(str(error))
    taken = time.time()
    try:
        recordings = [condense(parse(body)) for body in ask(pid, socket)]
    except NoServer as error:
        return _Answer(str(error))
    except Unresponsive as error:
        return _Answer(str(error), is_unresponsive=True, rank=rank)
    if not recordings:
        return _Answer("its worker server has no handler of a recorder")
    return _Answer(taken=taken, rank=rank, recordings=tuple(recordings))


def main() -> None:
    """Carry out the task, one answer for each name."""
    import resource

    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_Task)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for name in task.names:
        used = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + MOST_CPU_SECONDS, hard))
        encoded = msgspec.msgpack.encode(_answer(name, task))
        sys.stdout.buffer.write(len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

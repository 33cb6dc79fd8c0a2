"""The one way to ask a program once: it runs as a child with a deadline, and what it prints is taken up to a limit."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final, NamedTuple

from commwatch.children import PIPE, WITH_OUTPUT, Child, start

MOST_BYTES: Final = 32 * 2**20
"""Of output; the largest is the kubelet's, of 16 MiB at most."""
LEFT_ALONE: Final[list[Child]] = []
"""Programs that are still there after their deadline; kept, so that each stays known as a child until it has ended."""

_GONE_SECONDS = 0.5
"""Time that a killed child has to disappear; one that sits in the kernel is left behind."""
_LOOK_SECONDS = 0.01
"""Seconds between two checks whether a child that has closed its output has ended."""
_PIECE_BYTES = 2**16


class Answer(NamedTuple):
    """Exit status and output of a program."""

    code: int
    """Exit status; minus the number of the signal that ended it."""
    output: str
    errors: str = ""
    is_cut: bool = False
    """Whether its output exceeded the limit. The rest is not read, and the code is that of SIGPIPE."""

    @property
    def last_error(self) -> str:
        """The last line that it wrote to standard error or, without any, to standard output."""
        lines = [line.strip() for text in (self.errors, self.output) for line in text.splitlines()[-1:]]
        return next((line for line in lines if line), f"exit code {self.code}")


class NoAnswer(Exception):
    """The program is not there, cannot be started, or did not end in time."""

    def __init__(self, detail: str, *, missing: bool = False) -> None:
        super().__init__(detail)
        self.missing = missing


async def ask(
    command: Sequence[str], environment: Mapping[str, str], deadline: float,
    *, limit: int = MOST_BYTES, together: bool = False, spare: bool = False,
) -> Answer:  # fmt: skip
    """Run a program to its end.

    One that has not ended in time is killed, and so it is when this is cancelled; where it sits in the kernel, it is
    left behind.

    Args:
        command: its command line.
        environment: the whole environment; see ``children.clean_environment``.
        deadline: seconds.
        limit: bytes of output that are taken.
        together: standard error comes with the output, in the order in which both were written.
        spare: it gets no signal, for what opens a driver: one that was killed in there has frozen GPUs. It ends by
            itself when its call returns and its output is not read.

    Raises:
        NoAnswer: it is missing or cannot be started, or has not ended in time.
    """
    LEFT_ALONE[:] = [process for process in LEFT_ALONE if process.poll() is None]
    name = os.path.basename(command[0])
    try:
        # Not by asyncio, which kills what still runs when its loop ends.
        process = start(command, environment, stdout=PIPE, stderr=WITH_OUTPUT if together else PIPE)
    except OSError as error:
        raise NoAnswer(f"{name}: {error.strerror}", missing=isinstance(error, FileNotFoundError)) from error
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    try:
        return await asyncio.wait_for(_answer(process, streams, limit), deadline)
    except asyncio.TimeoutError as error:
        left = " and is left alone" if spare else ""
        raise NoAnswer(f"{name} gave no answer in {deadline:.3g} s{left}") from error
    finally:
        for stream in streams:
            stream.close()
        if process.poll() is None and not spare:
            await _kill(process)
        if process.poll() is None:
            LEFT_ALONE.append(process)


async def _answer(process: Child, streams: Sequence[IO[bytes]], limit: int) -> Answer:
    contents = await asyncio.gather(*(_read(stream, limit) for stream in streams))
    output, errors = (*(content[:limit].decode(errors="replace") for content in contents), "")[:2]
    if any(len(content) > limit for content in contents):
        return Answer(-signal.SIGPIPE, output, errors, is_cut=True)
    while (code := process.poll()) is None:
        await asyncio.sleep(_LOOK_SECONDS)
    return Answer(code, output, errors)


async def _read(stream: IO[bytes], limit: int) -> bytearray:
    """All that comes, or a little more than the limit."""
    reader, content = asyncio.StreamReader(), bytearray()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), stream
    )
    try:
        while len(content) <= limit and (piece := await reader.read(_PIECE_BYTES)):
            content += piece
    finally:
        transport.close()
    return content


async def _kill(process: Child) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + _GONE_SECONDS
    while process.poll() is None and time.monotonic() < until:
        await asyncio.sleep(_LOOK_SECONDS)

"""Asks a program that may not answer: runs it as a child with a deadline, and takes what it prints."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

_GONE_SECONDS = 0.5
"""Time that a killed child has to disappear; one that sits in the kernel is left behind."""
_INHERITED = ("PATH", "LD_LIBRARY_PATH")


class Answer(NamedTuple):
    """What a program said."""

    code: int
    """Exit status; minus the number of the signal that ended it."""
    output: str
    errors: str

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


async def ask(command: Sequence[str], environment: Mapping[str, str], deadline: float) -> Answer:
    """Run a program to its end.

    Args:
        command: its command line.
        environment: the whole environment; see ``clean_environment``.
        deadline: seconds.

    Raises:
        NoAnswer: it is missing or cannot be started, or has not ended in time; then it is killed, and so it is when
            this is cancelled.
    """
    name = os.path.basename(command[0])
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswer(f"{name}: {error.strerror}", missing=isinstance(error, FileNotFoundError)) from error
    try:
        output, errors = await asyncio.wait_for(process.communicate(), deadline)
    except asyncio.TimeoutError as error:
        raise NoAnswer(f"{name} gave no answer in {deadline:.3g} s") from error
    finally:
        if process.returncode is None:
            await _end(process)
    return Answer(process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), _GONE_SECONDS)


def clean_environment(own: Mapping[str, str], *names: str) -> dict[str, str]:
    """An environment made from nothing, with where programs are, a plain language, and the named variables of ours."""
    return {"LC_ALL": "C", **{name: own[name] for name in (*_INHERITED, *names) if name in own}}

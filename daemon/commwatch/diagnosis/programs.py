"""Runs the programs that a vendor asks for: a deadline for each, and none is killed, since it may sit in the driver."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from commwatch.workers.one_shot import NoAnswer, clean_environment

_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
"""Where lspci and ibstat lie on some systems; not in the path of every user."""
_PIECE_BYTES = 2**16

LEFT_ALONE: list[subprocess.Popen[bytes]] = []
"""Programs that did not end in time; kept, so that each stays known as a child."""


class Output(NamedTuple):
    """What a program printed, standard error with it."""

    code: int | None
    """Exit status; minus the number of a signal. None where the output was cut before its end."""
    text: str
    is_cut: bool


def program_environment(own: Mapping[str, str]) -> dict[str, str]:
    """A clean environment whose path has the system's folders."""
    clean = clean_environment(own)
    return {**clean, "PATH": os.pathsep.join([clean.get("PATH", os.defpath), *_SYSTEM_FOLDERS])}


def run_program(command: Sequence[str], environment: Mapping[str, str], deadline: float, limit: int) -> Output:
    """Run a program to its end. Blocks.

    One that does not end in time gets no signal: a process that is killed inside the driver has frozen GPUs. It is
    left behind, and ends by itself when its call returns and nobody takes its output.

    Args:
        command: its command line.
        environment: the whole environment.
        deadline: seconds.
        limit: bytes of output that are taken.

    Raises:
        NoAnswer: it is missing, cannot be started, or has not ended in time.
    """
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswer(f"{command[0]}: {error.strerror}", missing=isinstance(error, FileNotFoundError)) from error
    until = time.monotonic() + deadline
    stream = process.stdout
    if stream is None:
        raise RuntimeError("started without a pipe")
    with stream:
        content = _read(stream.fileno(), until, limit)
    if content is None:
        LEFT_ALONE.append(process)
        raise NoAnswer(f"{command[0]} gave no answer in {deadline:.3g} s and is left alone")
    text = content[:limit].decode(errors="replace")
    if len(content) > limit:
        LEFT_ALONE.append(process)  # its next write ends it
        return Output(None, text, is_cut=True)
    try:
        return Output(process.wait(max(0.0, until - time.monotonic())), text, is_cut=False)
    except subprocess.TimeoutExpired as error:
        LEFT_ALONE.append(process)
        raise NoAnswer(f"{command[0]} did not end in {deadline:.3g} s and is left alone") from error


def _read(descriptor: int, until: float, limit: int) -> bytes | None:
    """Up to one piece more than the limit; None where the end was not there in time."""
    content = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(content) <= limit:
            left = until - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            piece = os.read(descriptor, _PIECE_BYTES)
            if not piece:
                break
            content += piece
    return content

"""What the processes of a job and its folders say, read in a child process with a deadline.

A file of the job may lie on a file server that is gone, which keeps whoever touches it. A child that does not come back
is left behind.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from commwatch.jobs.flight_recorder.files import DumpFile, find_all
from commwatch.jobs.settings.facts import ProcessSettings
from commwatch.jobs.settings.process_environment import read_process_settings
from commwatch.jobs.settings.variables import known_variables

SECONDS: Final = 10.0
"""For one question."""
GONE_SECONDS: Final = 0.5
"""Time that a killed child has to disappear."""


class Task(msgspec.Struct, frozen=True):
    procfs: str = "/proc"
    pids: tuple[int, ...] = ()
    folders: tuple[str, ...] = ()


class Found(msgspec.Struct, frozen=True):
    settings: tuple[ProcessSettings, ...] = ()
    """Of the processes that could be read."""
    dumps: tuple[DumpFile, ...] = ()
    """That may be dumps; a folder that is not here holds none."""


def ask(task: Task) -> Found:
    """The answer of a child process.

    Raises:
        OSError: no process can be started; ``TimeoutError`` where it does not answer in time.
    """
    if not (task.pids or task.folders):
        return Found()
    from commwatch.children import NOTHING, PIPE, StillRuns, clean_environment, own_module, start

    child = start(own_module(__name__), clean_environment(os.environ), stdin=PIPE, stdout=PIPE, stderr=NOTHING)
    try:
        output, _ = child.communicate(msgspec.msgpack.encode(task), timeout=SECONDS)
        return msgspec.msgpack.decode(output, type=Found)
    except StillRuns as error:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {SECONDS:.3g} s; a file server may be gone") from error
    except msgspec.DecodeError as error:  # it has ended before its answer
        raise OSError(errno.EIO, os.strerror(errno.EIO)) from error
    finally:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        child.kill()
        with suppress(StillRuns):  # what sits in the kernel is left behind
            child.wait(GONE_SECONDS)


def answer(task: Task) -> Found:
    """Carry a task out in this process."""
    dumps: dict[str, DumpFile] = {}
    for folder in task.folders:
        with suppress(OSError):  # a folder that is not here holds no dump
            dumps |= {one.path: one for one in find_all([folder])[0]}
    settings = read_process_settings(task.pids, known_variables(), Path(task.procfs)).processes if task.pids else ()
    return Found(settings, tuple(dumps.values()))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task))))

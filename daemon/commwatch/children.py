"""The one way to start another process.

A child of ours begins in the root folder, with an environment made from nothing, no descriptors but those that it is
given, and in a session of its own. So it reads nothing of the folder, the home or the environment of whoever called us,
and keeps no file system busy. Relative paths are made absolute before a child gets them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, TypeAlias

from commwatch.caller import search_path

Child: TypeAlias = "subprocess.Popen[bytes]"
StillRuns = subprocess.TimeoutExpired
"""Raised by ``Child.wait`` with a time limit."""
NOTHING: Final = subprocess.DEVNULL
PIPE: Final = subprocess.PIPE
WITH_OUTPUT: Final = subprocess.STDOUT
"""Standard error goes where standard output goes."""
INHERITED: Final = None
"""Standard error goes where ours goes."""

Stream: TypeAlias = "int | IO[bytes] | None"


def start(
    command: Sequence[str], environment: Mapping[str, str],
    *, stdin: Stream = NOTHING, stdout: Stream = NOTHING, stderr: Stream = NOTHING, descriptors: Collection[int] = (),
) -> Child:  # fmt: skip
    """Start a process; returns once it has called exec, which takes about a millisecond.

    Args:
        command: its command line: ``own_module``, an absolute path, or a program of the search path.
        environment: the whole environment; see ``clean_environment``.
        descriptors: that it inherits, under the numbers that they have here.

    Raises:
        OSError: there is no such program, or no process can be started.
    """
    return subprocess.Popen(
        list(command),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=dict(environment),
        cwd="/",
        # Not in our process group: Ctrl-C on a terminal is for us alone.
        start_new_session=True,
        bufsize=0,
        pass_fds=tuple(descriptors),
    )


def own_module(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs a module of ours on this interpreter, isolated (``python -I``).

    It imports from where this process imports, and from nowhere else.
    """
    return (
        *(sys.executable, "-I", "-X", "frozen_modules=on"),
        *(["-B"] if sys.dont_write_bytecode else []),
        str(Path(__file__).with_name("run_module.py")),
        os.pathsep.join(filter(os.path.isabs, sys.path)),
        module,
        *arguments,
    )


def clean_environment(own: Mapping[str, str], *names: str) -> dict[str, str]:
    """An environment made from nothing: where programs and libraries are, a plain language, and the named variables.

    ``LD_LIBRARY_PATH`` comes along: whoever sets it for us already decides what code this process runs.
    """
    kept = ("LD_LIBRARY_PATH", *names)
    return {"LC_ALL": "C", "PATH": search_path(own), **{name: own[name] for name in kept if name in own}}


def find_program(name: str, more_folders: str = "") -> str | None:
    """Where a child would find a program; None where it is not installed.

    Args:
        name: without a folder.
        more_folders: searched after the search path, in its form.
    """
    import shutil  # readers need none of it

    return shutil.which(name, path=os.pathsep.join(filter(None, [search_path(os.environ), more_folders])))

"""One reader, and whether an input breaks its promise."""

from __future__ import annotations

import contextlib
import resource
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Literal, TypeAlias

CPU_SECONDS: Final = 1.0
"""For one input, of CPU and not of the clock: a busy machine breaks no promise."""
MOST_KIB: Final = 64 * 1024
"""By which one input may raise the memory of the process."""
MOST_BYTES: Final = 64 * 1024
"""Of an input."""
_HIGHEST_MEMORY: Final = Path("/proc/self/clear_refs")

Form: TypeAlias = Literal["bytes", "json", "msgpack"]
Check: TypeAlias = Callable[[bytes], object]
"""Gives an input to a reader; raises what the reader should not."""


@dataclass(frozen=True)
class Target:
    """One reader."""

    name: str
    start: Callable[[Path], AbstractContextManager[Check]]
    """Prepares it, in a folder of its own."""
    seeds: Callable[[], Sequence[bytes]]
    """Inputs as they should be."""
    words: tuple[bytes, ...] = ()
    """What its inputs are made of."""
    form: Form = "bytes"
    """Whether values are changed beside bytes."""
    head: int = 0
    """Bytes before a document: they say what it is."""
    most_bytes: int = MOST_BYTES


class TooLong(BaseException):
    """The CPU time of an input is over; no handler of errors in the reader takes it."""


def trouble(check: Check, data: bytes, cpu_seconds: float = CPU_SECONDS) -> str:
    """Which promise an input breaks, with the place in our code; empty where it breaks none."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    with contextlib.suppress(OSError):
        _HIGHEST_MEMORY.write_text("5")  # the highest use begins again at the present one
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    earlier = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        check(data)
    except TooLong as error:
        return f"more than {cpu_seconds:g} s of CPU at {_place(error)}"
    except Exception as error:
        return f"{type(error).__name__} at {_place(error)}: {str(error)[:200]!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return f"{grown // 1024} MiB of memory" if grown > MOST_KIB else ""


def _place(error: BaseException) -> str:
    """The innermost line of ours on the way to an error."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    ours = [one for one in frames if "/commwatch" in one.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def kind_of(problem: str) -> str:
    """What two inputs that break the same promise at the same place have in common."""
    return problem.partition(":")[0] + problem.partition(":")[2].partition(":")[0]

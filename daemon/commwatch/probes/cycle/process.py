"""A rank process as its parent sees it: started in a group of its own, listened to, and ended in order."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from commwatch.children import PIPE, Child, start
from commwatch.lines import printable
from commwatch.probes.cycle.priority import go_on, let_others_go_first
from commwatch.probes.cycle.rank import EXIT_SECONDS
from commwatch.probes.rank_plan import (
    EVENTS,
    PHASES,
    ErrorEvent,
    GateEvent,
    Phase,
    PhaseEvent,
    RankEvent,
    RankPlan,
    RankResult,
    ResultEvent,
)
from commwatch.workers.process_state import uninterruptible

ASK_SECONDS = 0.35
"""Time from closing a rank's standard input, on which it aborts its communicator and ends, to SIGTERM."""
TERM_SECONDS = 0.15
"""Time from SIGTERM to SIGKILL; with the one above and the interval of the checks it is within the second for
yielding."""
KILL_SECONDS = 5.0
"""Time that a killed rank has to disappear; freeing GPU memory takes a while."""
_LEFTOVER_SECONDS = 0.1
"""Time that what a rank left in its group has to disappear once it is killed."""
_POLL_SECONDS = 0.02
_LINE_BYTES = 2**20
_TAIL_BYTES = 1000
_NOISE_BYTES = 2**26
"""Most that a rank and its libraries may write to standard error, which is memory; what is more gets an error."""
_LONGEST_DETAIL = 16 * 2**10


class RankProcess:
    """One rank; its state is what it said last."""

    def __init__(self, rank: int, process: Child, procfs: Path, noise: int) -> None:
        self.rank = rank
        self.phase: Phase = "start"
        self._began = False
        self.gate = -1
        """Number of the last gate that it came to; -1 before the first."""
        self.waiting = False
        """Whether it waits at that gate."""
        self.result: RankResult | None = None
        self.error: ErrorEvent | None = None
        self.said_all = False
        """Its standard output is closed: it has ended, or is about to."""
        self.own_status: int | None = None
        """Exit status, or minus the number of the signal, of a rank that ended before it was asked to."""
        self.exit_seconds = EXIT_SECONDS
        """Time that the rank has to close its group after its result; shorter if the cycle must yield."""
        self.ended_at: float | None = None
        """Monotonic time at which it was found to have ended."""
        self._status = 0
        self._process = process
        self._procfs = procfs
        self._noise = noise
        self._input: asyncio.WriteTransport | None = None
        self._listened_to = False
        self._dismissed = False

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        rank: int,
        environment: Mapping[str, str],
        procfs: Path,
        inherited: Collection[int] = (),
    ) -> RankProcess:
        """Start a rank; blocks for some milliseconds.

        Raises:
            OSError: the process could not be made.
        """
        noise = _bounded_memory(f"rank{rank}.stderr")
        try:
            process = start(command, environment, stdin=PIPE, stdout=PIPE, stderr=noise, descriptors=inherited)
        except OSError:
            os.close(noise)
            raise
        let_others_go_first(process.pid)
        return cls(rank, process, procfs, noise)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._process.pid

    async def listen(self, plan: RankPlan, changed: Callable[[], None]) -> None:
        """Hand over the plan and receive the rank's messages until its output closes.

        Never waits for a rank that does not read. ``changed`` is called after each line and at the end.
        """
        if self._dismissed:
            return
        self._listened_to = True
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        loop = asyncio.get_running_loop()
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        self._input.write(msgspec.json.encode(plan) + b"\n")
        if self._dismissed:  # meanwhile
            self._close_pipes()
        output, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout)
        try:
            while line := await reader.readline():
                self._take(line)
                changed()
        except ValueError:  # a line without end
            self._garbled()
        finally:
            output.close()
            self.said_all = True
            changed()

    def open_gate(self) -> None:
        """Let the rank through the gate at which it waits."""
        self.waiting = False
        if self._input is not None and not self._input.is_closing():
            self._input.write(b"g")

    def _take(self, line: bytes) -> None:
        if self.result is not None or self.error is not None:
            return  # the first word on how it went is the one that counts
        try:
            event = read_event(line)
        except (ValueError, RecursionError):  # also text that is not UTF-8, and endless nesting
            self._garbled()
            return
        if not self._goes_on(event):
            self._garbled()
        elif isinstance(event, PhaseEvent):
            if self.phase == "start" and event.phase != "start":
                go_on(self.pid)
            self.phase = event.phase
        elif isinstance(event, GateEvent):
            self.gate, self.waiting = event.gate, True
        elif isinstance(event, ResultEvent):
            self.result = event.result
            self.phase = "done"
        else:
            # Shown and searched through: it does no harm to a terminal, and takes no long search.
            lines = map(printable, event.detail[:_LONGEST_DETAIL].split("\n"))
            self.error = ErrorEvent(event.reason, "\n".join(lines))

    def _goes_on(self, event: RankEvent) -> bool:
        """Whether phases and gates come in order, each once, which bounds the number of a rank's messages."""
        if isinstance(event, GateEvent):
            return event.gate > self.gate
        if isinstance(event, PhaseEvent):
            began, self._began = self._began, True
            return PHASES.index(event.phase) > PHASES.index(self.phase) or not began
        return True

    def _garbled(self) -> None:
        self.error = ErrorEvent("crashed", "the rank wrote something that is no event")

    def last_words(self) -> str:
        """The end of what the rank and its libraries wrote to standard error, in one line; empty once it is reaped."""
        if self._process.returncode is not None:
            return ""
        written = os.lseek(self._noise, 0, os.SEEK_CUR)  # the rank writes through the same open file
        tail = min(written, _TAIL_BYTES)
        end = os.pread(self._noise, tail, written - tail)
        return printable(" | ".join(end.decode(errors="replace").split("\n"))).strip(" |")

    def ended(self) -> bool:
        """Whether the process has ended; it is not reaped, so that its id still names its own group."""
        if self.ended_at is not None:
            return True
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            return False
        self.ended_at = time.monotonic()
        self._status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        self._close_pipes()
        return True

    def reap(self) -> None:
        """Kill what the rank, which has ended, left in its group: its guard, and children."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            os.close(self._noise)

    def end_if_back(self) -> bool:
        """Whether a rank that was stuck in the kernel has ended and is reaped; it gets SIGKILL once it is back."""
        if not self.ended() and not uninterruptible(self._procfs, self.pid):
            self._signal(signal.SIGKILL)
        if self.ended():
            self.reap()
        return self.ended()

    async def end(self) -> bool:
        """Ask, then SIGTERM, then SIGKILL; False if it is stuck in the kernel and was left alone.

        No signal is sent while a thread is in state D: killing a process inside the driver has frozen GPUs.
        """
        if self.said_all and await self._ended_within(lambda: ASK_SECONDS):
            self.own_status = self._status
        self._close_pipes()
        return (
            await self._ended_within(lambda: self.exit_seconds if self.result is not None else ASK_SECONDS)
            or await self._ended_within(lambda: TERM_SECONDS, signal.SIGTERM)
            or await self._ended_within(lambda: KILL_SECONDS, signal.SIGKILL)
        )

    async def _ended_within(self, seconds: Callable[[], float], number: signal.Signals | None = None) -> bool:
        started = time.monotonic()
        while not self.ended():
            if number is not None and not uninterruptible(self._procfs, self.pid):
                self._signal(number)
                number = None
            if time.monotonic() - started >= seconds():
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def leftovers_gone(self) -> None:
        """Wait for the guard and the children that ``reap`` killed; they are init's now, or ours where we are init."""
        deadline = time.monotonic() + _LEFTOVER_SECONDS
        with suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                self._reap_leftovers()
                os.killpg(self.pid, 0)
                await asyncio.sleep(_POLL_SECONDS / 4)

    def _reap_leftovers(self) -> None:
        with suppress(ChildProcessError):  # they are not our children
            os.waitpid(-self.pid, os.WNOHANG)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the group is gone
            os.killpg(self.pid, number)

    def _close_pipes(self) -> None:
        """Close its input; pipes that the event loop has are closed by it."""
        self._dismissed = True
        if self._input is not None and not self._input.is_closing():
            self._input.abort()  # what it has not read by now, it need not read
        self._input = None
        if not self._listened_to:
            for pipe in filter(None, (self._process.stdin, self._process.stdout)):
                pipe.close()


_VERSION = re.compile(r"[\w.+-]{0,64}")
"""It becomes a label value."""
_LONGEST_SECONDS = 1e6


def read_event(line: bytes) -> RankEvent:
    """The event in a line from a rank.

    Raises:
        msgspec.DecodeError: it is no event, or says what no rank measures.
    """
    fields = msgspec.json.decode(line, type=dict[str, Any])
    name = fields.pop("type", "")
    kind = EVENTS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise msgspec.ValidationError("no type of an event")
    event = msgspec.convert(fields, type=kind)
    if isinstance(event, ResultEvent) and not _is_measured(event.result):
        raise msgspec.ValidationError("a result that no rank measures")
    return event


def _is_measured(result: RankResult) -> bool:
    """Whether its seconds can be those of calls, and its versions those of libraries."""
    seconds = all(0 < one <= _LONGEST_SECONDS for timings in result.timings for one in timings)
    return seconds and all(map(_VERSION.fullmatch, (result.torch_version, result.nccl_version)))


def _bounded_memory(name: str) -> int:
    """A file in memory that cannot grow beyond ``_NOISE_BYTES``; it takes no more memory than is written.

    Raises:
        OSError: it cannot be made.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, _NOISE_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor

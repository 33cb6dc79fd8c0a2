"""A rank process as its parent sees it: started in a group of its own, listened to, and ended in order."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from commwatch.probes.plan import ErrorEvent, Phase, PhaseEvent, RankEvent, RankPlan, RankResult, ResultEvent
from commwatch.probes.rank import EXIT_SECONDS
from commwatch.workers.process_state import uninterruptible

ASK_SECONDS = 0.7
"""Time from closing a rank's standard input, on which it aborts its communicator and ends, to SIGTERM."""
TERM_SECONDS = 0.4
"""Time from SIGTERM to SIGKILL; with the one above well within the two seconds of giving way."""
KILL_SECONDS = 5.0
"""Time that a killed rank has to disappear; freeing GPU memory takes a while."""
_POLL_SECONDS = 0.02
_LINE_BYTES = 2**20
_TAIL_BYTES = 2000

_decoder = msgspec.json.Decoder(RankEvent)


class RankProcess:
    """One rank; its state is what it said last."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], procfs: Path, noise: Path) -> None:
        self.rank = rank
        self.phase: Phase = "start"
        self.result: RankResult | None = None
        self.error: ErrorEvent | None = None
        self.said_all = False
        """Its standard output is closed: it has ended, or is about to."""
        self.own_status: int | None = None
        """Exit status, or minus the number of the signal, of a rank that ended before it was asked to."""
        self._process = process
        self._procfs = procfs
        self._noise = noise
        self._heard = False
        self.exit_seconds = EXIT_SECONDS
        """Time that the rank has to close its group after its result; shorter when the cycle must give way."""

    @classmethod
    def start(
        cls, command: Sequence[str], plan: RankPlan, environment: Mapping[str, str], folder: Path, procfs: Path
    ) -> RankProcess:
        """Start a rank and hand it its plan; blocks for some milliseconds.

        Raises:
            OSError: the process could not be made.
        """
        message = msgspec.json.encode(plan) + b"\n"
        noise = folder / f"rank{plan.rank}.stderr"
        with noise.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                bufsize=0,
            )
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for; tells the type checker so
        with suppress(BrokenPipeError):  # it has ended already; its closed output will say so
            # A plan is far smaller than a pipe's buffer, so this never waits for the rank.
            process.stdin.write(message)
        return cls(plan.rank, process, procfs, noise)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._process.pid

    async def listen(self, changed: Callable[[], None]) -> None:
        """Take in what the rank says until its output closes; ``changed`` is called after each line and at the end."""
        self._heard = True
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout)
        try:
            while line := await reader.readline():
                self._take(line)
                changed()
        except ValueError:  # a line without end
            self._garbled()
        finally:
            transport.close()
            self.said_all = True
            changed()

    def _take(self, line: bytes) -> None:
        if self.result is not None or self.error is not None:
            return  # the first word on how it went is the one that counts
        try:
            event = _decoder.decode(line)
        except msgspec.DecodeError:
            self._garbled()
            return
        if isinstance(event, PhaseEvent):
            self.phase = event.phase
        elif isinstance(event, ResultEvent):
            self.result = event.result
            self.phase = "done"
        else:
            self.error = event

    def _garbled(self) -> None:
        self.error = ErrorEvent("crashed", "the rank wrote something that is no event")

    def last_words(self) -> str:
        """The end of what the rank and its libraries wrote to standard error, in one line; reads a file."""
        with suppress(OSError), self._noise.open("rb") as stream:
            stream.seek(max(0, self._noise.stat().st_size - _TAIL_BYTES))
            return " | ".join(stream.read().decode(errors="replace").split("\n")).strip(" |")
        return ""

    def ended(self) -> bool:
        """Whether the process has ended; then it is reaped and whatever it left in its group is killed."""
        if self._process.returncode is not None:
            return True
        # Not reaped yet, so that its id still names its own group.
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._close_pipes()
        return True

    async def end(self) -> bool:
        """Ask, then SIGTERM, then SIGKILL; False if it is stuck in the kernel and was left alone.

        No signal is sent while a thread is in state D: killing a process inside the driver has frozen GPUs.
        """
        if self.said_all and await self._ended_within(lambda: ASK_SECONDS):
            self.own_status = self._process.returncode
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

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the group is gone
            os.killpg(self.pid, number)

    def _close_pipes(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.stdout is not None and not self._heard:
            self._process.stdout.close()

"""Programs that a drill starts: each in a session of its own, found again by what it writes, and none left behind."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from commwatch.children import StillRuns, clean_environment, start
from commwatch.errors import CommwatchError, ExitCode
from commwatch_rehearsal.drill.ending import pause

_STOP_SECONDS = 10.0


class DrillError(CommwatchError):
    """The drill cannot be run: a program is missing or does not start, or a server does not answer."""

    exit_code = ExitCode.NOT_KNOWN


class Program:
    """A child process whose output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start it.

        Raises:
            DrillError: it cannot be started.
        """
        self.name = Path(command[0]).name
        self.log_file = log
        self._below: dict[int, str] = {}
        try:
            with log.open("wb") as stream:
                self._process = start(command, clean_environment(os.environ), stdout=stream, stderr=stream)
        except OSError as error:
            raise DrillError(f"{command[0]}: {error.strerror}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def said(self, pattern: str) -> str | None:
        """The first group of a pattern in what it has written; None as long as it is not there.

        Raises:
            DrillError: it has ended without.
        """
        ended = self.has_ended()
        if match := re.search(pattern, self.log()):
            return match[1]
        if ended:
            last = self.log().strip().splitlines()[-1:] or ["it wrote nothing"]
            raise DrillError(f"{self.name} ended (exit code {self._process.returncode}): {last[0][:500]}")
        return None

    def wait_for(self, pattern: str, seconds: float) -> str:
        """The first group of a pattern in what it writes. Blocks.

        Raises:
            DrillError: it has ended, or has not written it in time.
        """
        until = time.monotonic() + seconds
        while (found := self.said(pattern)) is None:
            if time.monotonic() > until:
                raise DrillError(f"{self.name} was not ready after {seconds:g} s")
            pause(0.05)
        return found

    def ask_to_end(self) -> None:
        """SIGTERM, if it still runs; what it has started is remembered."""
        if not self.has_ended():
            self._below |= _descendants(self._process.pid)
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End it and whatever it started. Blocks for some seconds at most."""
        if not self._below:
            self.ask_to_end()
        try:
            self._process.wait(_STOP_SECONDS)
        except StillRuns:
            self._process.kill()
            self._process.wait()
        _wait_until_gone(self._below, _STOP_SECONDS)


def _stat(pid: int) -> tuple[int, str] | None:
    """Parent and start time of a process; None where there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def _descendants(pid: int) -> dict[int, str]:
    """The processes below one, with the start time that distinguishes each from a later one of the same number."""
    known = {int(entry): stat for entry in os.listdir("/proc") if entry.isdigit() and (stat := _stat(int(entry)))}
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        parents = {child for child, (parent, _) in known.items() if parent in parents and child not in found}
        found |= {child: known[child][1] for child in parents}
    return found


def _wait_until_gone(processes: Mapping[int, str], seconds: float) -> None:
    """Wait for processes to end; those that do not are killed: they belong to a node that does not exist."""
    until = time.monotonic() + seconds

    def left() -> list[int]:
        return [pid for pid, started in processes.items() if (stat := _stat(pid)) and stat[1] == started]

    while left() and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue

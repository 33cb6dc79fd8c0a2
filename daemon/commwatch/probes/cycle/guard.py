"""A small process beside each rank: ends the rank when the daemon is gone, also where the rank itself cannot.

A rank sees the end of its input when the daemon dies, and leaves. But a thread that sits in a foreign call may hold the
interpreter's lock, and then no other thread of the rank runs. The guard is forked before anything large is imported.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from commwatch.workers.process_state import process_state, uninterruptible

PARENT_VARIABLE = "COMMWATCH_PROBE_PARENT"
"""Process id of the daemon, or the command, that started the rank."""
FOLDER_VARIABLE = "COMMWATCH_PROBE_FOLDER"
"""The cycle's private folder, which the guard removes once the daemon is gone."""
FOLDER_PREFIX = "commwatch-probe-"
"""The name of such a folder begins so; a guard removes no other."""

LEAVE_SECONDS = 3.0
"""Time that a rank has to leave by itself when the daemon is gone."""
TERM_SECONDS = 1.0
"""Time from SIGTERM to SIGKILL."""
_TICK_SECONDS = 0.2
_LAST_WAIT_SECONDS = 2.0
"""Time after the end of its rank for which a guard still checks whether the daemon is gone too; the daemon needs less
time to remove the folder and end the guard."""

_PROCFS = Path("/proc")
_RANK_ENDED = signal.SIGUSR1
_PR_SET_PDEATHSIG = 1


def start_guard(environment: Mapping[str, str]) -> None:
    """Fork the guard of this process; without the variables of a rank's environment there is none.

    It outlives the rank for a moment: the parent kills it once it has removed the folder itself. A rank cannot tell a
    parent that closes its pipes from one that is being killed.
    """
    if PARENT_VARIABLE not in environment or FOLDER_VARIABLE not in environment:
        return
    rank, parent, folder = os.getpid(), int(environment[PARENT_VARIABLE]), Path(environment[FOLDER_VARIABLE])
    if os.fork() == 0:
        try:
            Guard(rank, parent).run(folder)
        finally:
            os._exit(0)


class Guard:
    """The work of the forked process."""

    def __init__(self, rank: int, parent: int) -> None:
        self._rank = rank
        self._parent = parent
        self._parent_gone = False

    def run(self, folder: Path) -> None:
        """Wait for the end of the rank or of its parent; after the parent's, see to it that nothing is left."""
        # All but standard input: the parent takes a closed output for the end of the rank.
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # meant for the rank; the guard ends when the rank has
        signal.pthread_sigmask(signal.SIG_BLOCK, {_RANK_ENDED})
        _ask_for_signal_at_parents_death(_RANK_ENDED)

        if not self._wait_for_lonely_rank() and not self._parent_goes_too():
            return
        # The next signals are sent to the group of the rank, and are not for the guard.
        os.setpgid(0, 0)
        if not self._rank_ends_within(LEAVE_SECONDS):
            self.send(signal.SIGTERM)
            if not self._rank_ends_within(TERM_SECONDS):
                self.send(signal.SIGKILL)
                while not self._rank_ends_within(_TICK_SECONDS):
                    pass  # it sits in the kernel, and may come back
        with suppress(ProcessLookupError, PermissionError):  # children that the rank left
            os.killpg(self._rank, signal.SIGKILL)
        if folder.name.startswith(FOLDER_PREFIX):
            import shutil  # rarely needed

            shutil.rmtree(folder, ignore_errors=True)

    def _wait_for_lonely_rank(self) -> bool:
        """True once the rank lives and its parent does not; False once the rank has ended."""
        poll = select.poll()
        poll.register(0, 0)  # reports only that the other end has closed, and reads nothing
        while not (poll.poll(0) and self._parent_is_gone()):
            if self._rank_ends_within(_TICK_SECONDS):
                return False
        return True

    def _parent_goes_too(self) -> bool:
        """Whether the rank ended because its parent did: that is still ending when its pipes are closed already."""
        deadline = time.monotonic() + _LAST_WAIT_SECONDS
        while not self._parent_is_gone() and time.monotonic() < deadline:
            time.sleep(_TICK_SECONDS / 10)
        return self._parent_gone

    def _parent_is_gone(self) -> bool:
        # Kept: its number may be given to another process.
        self._parent_gone = self._parent_gone or process_state(_PROCFS, self._parent) in (None, "Z", "X")
        return self._parent_gone

    def _rank_ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while os.getppid() == self._rank:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            signal.sigtimedwait({_RANK_ENDED}, min(left, _TICK_SECONDS))
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the rank's group, as soon as no thread of the rank is in state D.

        Killing a process inside the driver has frozen GPUs.
        """
        while uninterruptible(_PROCFS, self._rank):
            if self._rank_ends_within(_TICK_SECONDS):
                return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._rank, number)


def _ask_for_signal_at_parents_death(number: signal.Signals) -> None:
    """Linux: prctl(2); where it is not available, the guard checks every tick."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # only here: it is not small

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)

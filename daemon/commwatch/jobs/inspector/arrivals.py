"""Which processes of a node arrive late at a collective, and how long the others wait for them.

A kernel of NCCL runs from the arrival of its GPU until all have arrived and the data is there. So of the ranks of one
collective the last one to arrive has the shortest time; records with start times (verbose) show the arrival itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

EACH: Final = 8
"""Of the collectives of a communicator and operation one in this many is compared."""
_MOST: Final = 4096
"""Collectives that may wait for records of other processes."""
_LATE_RUNS: Final = 6
"""Runs after which a collective is given up that not all processes have recorded."""
_LATE_US: Final = 100.0
"""The others wait at least this long, or nobody was late."""
_LONGEST_US: Final = 86_400e6
_PUBLISH_SECONDS: Final = 60.0
_LEAST: Final = 10
"""Collectives without which nothing is published."""

_Process: TypeAlias = "tuple[int, int]"
"""User who owns its file, and the id that it writes: anybody can write the id of another one."""
_Communicator: TypeAlias = "tuple[int, str]"
"""User, and the id that the files have."""
_Collective: TypeAlias = "tuple[_Communicator, str, int]"
"""Communicator, operation and number."""


class Waiting(NamedTuple):
    """One process over the last minute."""

    seconds: float
    """Mean time for which it waits at a collective for the last process of the node."""
    last_ratio: float
    """Share of the collectives at which it was the last one, and the others waited for it."""


class _Open:
    """A collective whose records are coming in."""

    __slots__ = ("ranks", "runs")

    def __init__(self) -> None:
        self.ranks: dict[_Process, tuple[float, int]] = {}
        """By process the microseconds in the kernel, and when it started (0: not known)."""
        self.runs = 0


class Arrivals:
    """Compares the processes of this node over the collectives that they have in common."""

    def __init__(self) -> None:
        self._open: dict[_Collective, _Open] = {}
        self._members: dict[_Communicator, dict[_Process, int]] = {}
        """By communicator the processes that wrote records of it, and the last run in which one did."""
        self._run = 0
        self._sums: dict[_Process, list[float]] = {}
        """By process: collectives, microseconds of waiting, and how often it was last."""
        self._begin = float("-inf")
        self.published: dict[_Process, Waiting] = {}

    def take(self, collective: _Collective, process: _Process, exec_us: float, start: int) -> None:
        """Take a record of a process; ``start`` is 0 where the record has none."""
        found = self._open.get(collective)
        if found is None:
            if len(self._open) >= _MOST:
                return
            found = self._open[collective] = _Open()
        found.ranks[process] = exec_us, start
        self._members.setdefault(collective[0], {})[process] = self._run

    def settle(self, now: float) -> None:
        """Compare what all processes have recorded; once in each run, at monotonic seconds."""
        oldest, self._run = self._run - _LATE_RUNS, self._run + 1
        members = {
            one: {process: run for process, run in runs.items() if run >= oldest} for one, runs in self._members.items()
        }
        self._members = {one: runs for one, runs in members.items() if runs}
        for collective, found in list(self._open.items()):
            found.runs += 1
            # In the run in which it came first the files of other processes may not have been known.
            is_whole = found.runs > 1 and found.ranks.keys() >= self._members.get(collective[0], {}).keys()
            if is_whole and len(found.ranks) > 1:
                self._compare(found)
            if is_whole or found.runs > _LATE_RUNS:
                del self._open[collective]
        if now - self._begin >= _PUBLISH_SECONDS:
            self.published = {
                process: Waiting(waited / count / 1e6, last / count)
                for process, (count, waited, last) in self._sums.items()
                if count >= _LEAST
            }
            self._sums, self._begin = {}, now

    def _compare(self, found: _Open) -> None:
        if all(start for _, start in found.ranks.values()):
            latest = max(start for _, start in found.ranks.values())
            waits = {process: float(latest - start) for process, (_, start) in found.ranks.items()}
        else:
            shortest = min(exec_us for exec_us, _ in found.ranks.values())
            waits = {process: exec_us - shortest for process, (exec_us, _) in found.ranks.items()}
        if max(waits.values()) > _LONGEST_US:
            return  # the times of one of them are wrong
        (_, last), (second, _) = sorted((wait, process) for process, wait in waits.items())[:2]
        for process, wait in waits.items():
            sums = self._sums.setdefault(process, [0, 0.0, 0])
            sums[0] += 1
            sums[1] += wait
            sums[2] += process == last and second >= _LATE_US

"""Sums over what Inspector wrote of one process: by operation, size class and scope, and as a share of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

OPERATIONS: Final = {
    "AllGather": "all_gather", "AllReduce": "all_reduce", "AlltoAll": "all_to_all", "Broadcast": "broadcast",
    "Gather": "gather", "Recv": "recv", "Reduce": "reduce", "ReduceScatter": "reduce_scatter", "Scatter": "scatter",
    "Send": "send", "SendRecv": "send_recv",
}  # fmt: skip
"""Label by the name in the record (``ncclFuncToString`` of NCCL); ``other`` for names of later versions."""
_SIZES: Final = (
    (1 << 16, "64KiB"), (1 << 20, "1MiB"), (1 << 24, "16MiB"), (1 << 28, "256MiB"), (1 << 32, "4GiB")
)  # fmt: skip
WINDOW_SECONDS: Final = 60.0
"""Rates and shares are taken over at least this time."""
_PAUSE_SECONDS: Final = 0.2
"""A dump is over once nothing came for this long: a window ends between two dumps."""
_LATEST_SECONDS: Final = 75.0
"""A window ends here even where dumps follow each other without a pause."""
_FIRST_SECONDS: Final = 1.0
"""Records of this time after the first one may be of the time before it: they are left out of the share."""
_STEP_SECONDS: Final = 60.0
"""By which the times of a file may run ahead of the clock of this node between two readings: it may be written late."""


class Key(NamedTuple):
    operation: str
    size: str
    """Upper bound of the size of the message; ``larger`` above 4 GiB."""
    scope: str
    """``within``: communicators on one node; ``between``: on several."""


@lru_cache(maxsize=4096)
def key_of(operation: str, size: int, nodes: int) -> Key:
    """Where an operation counts.

    Args:
        operation: as NCCL writes it.
        size: of its message in bytes.
    """
    name = next((label for bound, label in _SIZES if size <= bound), "larger")
    return Key(OPERATIONS.get(operation, "other"), name, "within" if nodes <= 1 else "between")


class Cell:
    """Operations of one key in the window that is open."""

    __slots__ = ("bus_gbs", "count", "exec_us", "reported")

    def __init__(self) -> None:
        self.count = 0
        self.exec_us = 0.0
        self.reported = (0, 0.0)
        """Count and microseconds that ``drain`` gave."""
        self.bus_gbs = 0.0
        """Sum over the operations, GB/s."""


Means: TypeAlias = Mapping[Key, float]
"""Mean bus bandwidth by key, bytes per second."""


class Result(NamedTuple):
    at: float
    """Monotonic seconds at which it ended here."""
    seconds: float
    """Its length by the times in the file."""
    share: float | None
    """Seconds in NCCL over that length, 1 at most; None where records are missing in it."""
    means: Means


class Window:
    """The operations of one process since a time; times are seconds of its file."""

    def __init__(self) -> None:
        self.cells: dict[Key, Cell] = {}
        self.is_whole = True
        """Whether nothing of it is missing."""
        self.result: Result | None = None
        """Of the window before."""
        self._opened: float | None = None
        self._begin = self._last = 0.0
        self._read_at = 0.0
        """Monotonic seconds at which the last time was read."""
        self._exec_us = 0.0
        self._ended: list[dict[Key, Cell]] = []

    def drain(self) -> Iterator[tuple[Key, int, float]]:
        """Count and seconds by key since the last call."""
        for cells in (*self._ended, self.cells):
            for key, cell in cells.items():
                count, exec_us = cell.reported
                cell.reported = cell.count, cell.exec_us
                yield key, cell.count - count, (cell.exec_us - exec_us) / 1e6
        self._ended.clear()

    def move(self, time: float, now: float) -> None:
        """Go on to a time in the file, read now (monotonic seconds)."""
        if self._opened is None:
            self._opened = self._begin = self._last = time
            self.is_whole = True
        elif not self._last - 1.0 <= time <= self._last + (now - self._read_at) + _STEP_SECONDS:
            self.forget()  # the clock was stepped
            self._opened = self._begin = self._last = time
        elif time > self._last:
            length = self._last - self._begin
            if length >= WINDOW_SECONDS and (time - self._last >= _PAUSE_SECONDS or length >= _LATEST_SECONDS):
                self._end(length, now)
            self._last = time
            if time - self._opened < _FIRST_SECONDS:
                self._begin, self._exec_us = time, 0.0
        self._read_at = now

    def add(self, exec_us: float) -> None:
        if self._last > self._begin:
            self._exec_us += exec_us

    def forget(self) -> None:
        """Begin a new window, with neither share nor length of this one."""
        self._opened, self.result = None, None
        self._exec_us = 0.0

    def _end(self, length: float, now: float) -> None:
        share = min(1.0, self._exec_us / 1e6 / length) if self.is_whole else None
        means = {key: cell.bus_gbs / cell.count * 1e9 for key, cell in self.cells.items() if cell.count}
        self.result = Result(now, length, share, means)
        self._begin, self._exec_us, self.is_whole = self._last, 0.0, True
        self._ended.append(self.cells)
        self.cells = {}

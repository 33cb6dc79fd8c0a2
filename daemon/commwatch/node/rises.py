"""How far counters have risen lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


class Rises(Generic[_Key]):
    """The rises of some counters within a window."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._totals: dict[_Key, float] = {}
        self._rises: dict[_Key, deque[tuple[float, float]]] = {}
        """Time and rise, oldest first; only of those that rose."""

    def forget(self) -> None:
        """Forget the rises so far; the totals are kept, so that what rises from now on counts."""
        self._rises.clear()

    def take(self, key: _Key, total: float, time: float) -> bool:
        """Take a reading; says whether it is higher than the last. A lower one is a counter that started again.

        Args:
            time: monotonic seconds.
        """
        before = self._totals.get(key, total)
        self._totals[key] = total
        if total > before:
            self.add(key, total - before, time)
        return total > before

    def add(self, key: _Key, rise: float, time: float) -> None:
        """Take a rise.

        Args:
            time: monotonic seconds.
        """
        rises = self._rises.setdefault(key, deque())
        if rises and rises[-1][0] == time:  # a log that is read in one go has thousands
            rise += rises.pop()[1]
        rises.append((time, rise))

    def within(self, time: float) -> dict[_Key, float]:
        """The rises in the window that ends at this time, by key."""
        for key, rises in list(self._rises.items()):
            while rises and rises[0][0] <= time - self._seconds:
                rises.popleft()
            if not rises:
                del self._rises[key]
        return {key: sum(rise for _, rise in rises) for key, rises in self._rises.items()}

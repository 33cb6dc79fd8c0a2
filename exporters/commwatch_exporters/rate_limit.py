"""A token bucket: so many requests at once, and one more after each interval."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Starts full.

    Args:
        interval: Seconds after which one token more is there.
        burst: Tokens that it holds.
        clock: Seconds that never go back.
    """

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._burst = float(burst)
        self._clock = clock
        self._tokens = self._burst
        self._counted_at = clock()

    def take(self) -> bool:
        """Take a token; False where there is none."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._counted_at) / self._interval)
        self._counted_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

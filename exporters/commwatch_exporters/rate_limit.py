"""How often a client may ask: so many requests at once, and one more after each interval."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

_CLIENTS = 1024  # whose bucket is kept


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


class ClientRates:
    """A bucket for each address, so that a flood from one takes nothing from the others.

    Of the addresses that asked last; whose bucket is forgotten has a full one the next time.

    Args:
        interval: As of a bucket.
        burst: As of a bucket.
        clock: As of a bucket.
    """

    def __init__(self, interval: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._full = partial(TokenBucket, interval, burst, clock)
        self._buckets: dict[str, TokenBucket] = {}  # who has not asked for longest comes first

    def take(self, client: str) -> bool:
        """Take a token of a client; False where there is none."""
        bucket = self._buckets.pop(client, None) or self._full()
        self._buckets[client] = bucket
        if len(self._buckets) > _CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        return bucket.take()

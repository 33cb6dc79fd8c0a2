"""A body that costs something: it is made once a second at most, for all who ask, plain and compressed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

KEPT_SECONDS = 1.0
"""Within this time every client gets the same body: readers, many or hostile, take little from the scrapes."""
_GZIP_LEVEL, _GZIP_WRAPPER = 1, 31


class SharedBody:
    """The body of a path.

    Args:
        make: Makes it.
        monotonic: Seconds of a clock that never steps.
    """

    def __init__(self, make: Callable[[], bytes], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._monotonic = monotonic
        self._until = float("-inf")
        self._plain = b""
        self._compressed = b""

    def get(self, *, gzip: bool) -> bytes:
        """The body, as one gzip member where that is wanted. Raises what ``make`` raises."""
        now = self._monotonic()
        if now >= self._until:
            self._plain, self._compressed, self._until = self._make(), b"", now + KEPT_SECONDS
        if not gzip:
            return self._plain
        if not self._compressed:
            compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WRAPPER)
            self._compressed = compressor.compress(self._plain) + compressor.flush()
        return self._compressed

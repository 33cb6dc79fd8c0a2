"""A path whose answer costs something: it is made once a second at most, for all who ask, plain and compressed."""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus

from commwatch_exporters.http_server import Request, Response
from commwatch_exporters.negotiation import GZIP, accepts_gzip, compressed

KEPT_SECONDS = 1.0
"""Within this time every client gets the same body: readers, many or hostile, take little from the scrapes."""
_VARY = ("Vary", "Accept-Encoding")


class SharedAnswer:
    """The handler of such a path.

    Args:
        make: Makes the body; what it raises is the answer of who asked.
        content_type: Of the body.
        monotonic: Seconds of a clock that never steps.
    """

    def __init__(
        self, make: Callable[[], bytes], content_type: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._content_type = content_type
        self._monotonic = monotonic
        self._until = float("-inf")
        self._plain = b""
        self._compressed = b""

    def __call__(self, request: Request) -> Response:
        """The answer of this second."""
        now = self._monotonic()
        if now >= self._until:
            self._plain, self._compressed, self._until = self._make(), b"", now + KEPT_SECONDS
        if not accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(HTTPStatus.OK, self._plain, self._content_type, (_VARY,))
        self._compressed = self._compressed or compressed(self._plain)
        return Response(HTTPStatus.OK, self._compressed, self._content_type, (_VARY, GZIP))

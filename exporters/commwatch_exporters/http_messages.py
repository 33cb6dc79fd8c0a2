"""Requests and responses, what a client may use, and which well-formed requests are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import h11

_LOOSE = re.compile(rb"(?<!\r)\n|\n[ \t]")
"""A line that ends without CR, or goes on in the next (RFC 9112 2.2, 5.2): h11 takes both, and a proxy may not."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may use."""

    head_bytes: int = 16384
    """Request line and headers together."""
    head_seconds: float = 5.0
    """From the connection, or the first byte of a later request, to the end of the request."""
    idle_seconds: float = 60.0
    """Between an answer and the first byte of the next request."""
    write_seconds: float = 10.0
    """From the start of an answer until the kernel has taken all of it."""
    connections: int = 512


@dataclass(frozen=True, slots=True)
class Request:
    """A GET or HEAD request."""

    path: str
    """Path of the target, without query, as it was sent."""
    headers: Mapping[str, str]
    """Values by lower-case name; values of a repeated header are joined by a comma."""
    query: str = ""
    """What follows the first ``?`` of the target, as it was sent."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


def short_response(status: HTTPStatus, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A status in one line of text."""
    return Response(status, f"{status.value} {status.phrase}\n".encode(), headers=headers)


def refusal(event: h11.Request, head: bytes, limits: Limits) -> Response | None:
    """Why a request that h11 takes is not served; None if it is.

    Args:
        event: The request.
        head: Its request line and headers as they came.
        limits: What a client may use.
    """
    size = len(event.method) + len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
    lengths = [value for name, value in event.headers if name == b"content-length"]
    status: HTTPStatus | None = None
    if _LOOSE.search(head):
        status = HTTPStatus.BAD_REQUEST
    elif size > limits.head_bytes:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    elif event.http_version not in (b"1.0", b"1.1"):
        status = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
    elif event.method not in (b"GET", b"HEAD"):
        return short_response(HTTPStatus.METHOD_NOT_ALLOWED, (("Allow", "GET, HEAD"),))
    elif any(name == b"transfer-encoding" for name, _ in event.headers):
        status = HTTPStatus.BAD_REQUEST
    elif any(int(length) > 0 for length in lengths):
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return None if status is None else short_response(status)


def request_of(event: h11.Request) -> Request:
    """The request as a handler sees it."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in event.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    target, _, query = event.target.decode("latin-1").partition("?")
    return Request(_path(target), headers, query)


def _path(target: str) -> str:
    """The path of a request target without its query, also of one in absolute form."""
    scheme, separator, rest = target.partition("://")
    if separator and scheme.lower() in ("http", "https"):
        return "/" + rest.partition("/")[2]
    return target

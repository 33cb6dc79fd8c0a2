"""Access control for requests: first the rate limit, then name and password."""

from __future__ import annotations

import base64
import binascii
from http import HTTPStatus

from commwatch_exporters.http_server import Request, Response, short_response
from commwatch_exporters.passwords import Passwords
from commwatch_exporters.shares import ClientRates

_TOO_MANY = short_response(HTTPStatus.TOO_MANY_REQUESTS, (("Retry-After", "1"),))
_WHO = short_response(HTTPStatus.UNAUTHORIZED, (("WWW-Authenticate", 'Basic realm="commwatch", charset="UTF-8"'),))


class Gate:
    """Judges requests; None of passwords: nobody is asked for one; None of rates: any rate is allowed."""

    def __init__(self, passwords: Passwords | None, rates: ClientRates | None) -> None:
        self._passwords = passwords
        self._rates = rates

    async def __call__(self, request: Request) -> Response | None:
        """Why a request is not let in; None if it is."""
        if self._rates is not None and not self._rates.take(request.client):
            return _TOO_MANY
        if self._passwords is None:
            return None
        credentials = _credentials(request.headers.get("authorization", ""))
        if credentials is None:
            return _WHO
        is_right = self._passwords.known(*credentials)
        if is_right is None:
            check = self._passwords.check(*credentials, request.client)
            if check is None:
                return _TOO_MANY
            is_right = await check
        return None if is_right else _WHO


def _credentials(header: str) -> tuple[bytes, bytes] | None:
    """Name and password of an Authorization header (RFC 7617); None where it holds none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.partition(b":")
    return (user, password) if colon else None

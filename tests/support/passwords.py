"""Passwords of which a test sees who waits."""

from __future__ import annotations

import asyncio
from collections import Counter

from commwatch_exporters.passwords import Passwords


class SeenPasswords(Passwords):
    """The users of an endpoint, and how many comparisons of each client have not ended."""

    _asked: tuple[tuple[str, asyncio.Future[bool]], ...] = ()

    def check(self, user: bytes, password: bytes, client: str) -> asyncio.Future[bool] | None:
        """As it is, and remembered."""
        result = super().check(user, password, client)
        if result is not None:
            self._asked += ((client, result),)
        return result

    @property
    def waiting(self) -> Counter[str]:
        """By client."""
        return Counter(client for client, result in self._asked if not result.done())

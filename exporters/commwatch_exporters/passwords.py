"""Passwords against their bcrypt hashes: one comparison at a time, in a thread, remembered, and telling nothing.

A comparison takes 70 ms of a core at cost 10. So a right password is compared once. Clients share the thread in turns,
where a wrong guess is a failure. A name that is not known takes as long as one that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import bcrypt

from commwatch_exporters.shares import Turns, keep

HIGHEST_COST = 14
"""A comparison at this cost takes a second; at a higher one a scrape would time out before it is let in."""

_HASH = re.compile(rb"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_PASSWORD_BYTES = 72  # bcrypt knows no more of a password
_WRONG_KEPT = 256  # wrong passwords that are remembered: a scraper with an old one asks again and again
_RIGHT_KEPT = 1024
_WAITING_OF_ONE_CLIENT = 4  # there is no limit in all: each waits on a connection of its own, and those are limited

Compare = Callable[[bytes, bytes], bool]
"""Whether a password has a hash; may take long."""


_Share: TypeAlias = "tuple[str, bytes | None]"
"""Who has a share of the thread: a client, or a user at the client where it was right before."""


def hash_problem(hashed: bytes) -> str | None:
    """The error in a bcrypt hash; None if it is valid. The text never shows the hash."""
    match = _HASH.fullmatch(hashed)
    if match is None:
        return "is no bcrypt hash ($2y$10$ and 53 more characters); make one with: htpasswd -nBC 10 USER"
    if not 4 <= int(match[1]) <= HIGHEST_COST:
        return (
            f"has cost {int(match[1])}; possible: 4 to {HIGHEST_COST}, of which one comparison takes a second. "
            "Make one with: htpasswd -nBC 10 USER"
        )
    try:
        bcrypt.hashpw(b"", b"$2b$04$" + hashed[-53:-31])
    except ValueError:
        return "is no bcrypt hash: its salt cannot be read; make one with: htpasswd -nBC 10 USER"
    return None


class Passwords:
    """The users and what has been found out about their passwords."""

    def __init__(self, compare: Compare = bcrypt.checkpw) -> None:
        self._compare = compare
        self._users: dict[bytes, bytes] = {}
        self._nobody: Mapping[int, bytes] = {}
        self._secret = os.urandom(32)
        self._found: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        self._turns: Turns[_Share, bool] = Turns()
        self._thread = ThreadPoolExecutor(1, "passwords", initializer=_step_back)

    def use(self, users: Mapping[bytes, bytes]) -> None:
        """Have these users, bcrypt hashes by name, from the next question on."""
        self._users = dict(users)
        # Of each cost that a user has, a hash that no password has.
        costs = sorted({_cost(hashed) for hashed in users.values()})
        self._nobody = {cost: b"$2b$%02d$" % cost + b"." * 53 for cost in costs}

    def known(self, user: bytes, password: bytes) -> bool | None:
        """Whether a user has a password, where that has been found out before."""
        digest = self._digest(user, password)
        for is_right, found in self._found.items():
            if digest in found:
                keep(found, digest, None)  # it is the one that was used last
                return is_right
        return None

    def check(self, user: bytes, password: bytes, client: str) -> asyncio.Future[bool] | None:
        """Compare on behalf of a client when it has its turn; None where as many of its comparisons wait as may.

        Cancel the future if the client has gone: then nothing is compared.
        """
        share = (client, user) if self._turns.has_succeeded((client, user)) else (client, None)
        if self._turns.waiting[share] >= _WAITING_OF_ONE_CLIENT:
            return None
        return self._turns.ask(share, partial(self._find_out, share, user, password))

    async def _find_out(self, share: _Share, user: bytes, password: bytes) -> bool:
        is_right = self.known(user, password)
        if is_right is None:
            is_right = await self._compared(user, password)
            if is_right:
                self._turns.succeeded(share)
                self._turns.succeeded((share[0], user))
            else:
                self._turns.failed(share)
        return is_right

    async def _compared(self, user: bytes, password: bytes) -> bool:
        digest = self._digest(user, password)
        is_right = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._compare_at_all_costs, password[:_PASSWORD_BYTES], self._users.get(user), self._nobody
        )
        keep(self._found[is_right], digest, None, _RIGHT_KEPT if is_right else _WRONG_KEPT)
        return is_right

    def _compare_at_all_costs(self, password: bytes, hashed: bytes | None, nobody: Mapping[int, bytes]) -> bool:
        """Compare once at each cost that any user has: the time is that of every name, known or not."""
        own = None if hashed is None else _cost(hashed)
        found = {cost: self._compare(password, (hashed if cost == own else None) or nobody[cost]) for cost in nobody}
        return own is not None and found[own]

    def close(self) -> None:
        """Begin no further comparison; one that runs ends by itself."""
        self._turns.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _digest(self, user: bytes, password: bytes) -> bytes:
        """A keyed digest of user, hash and password together.

        Each part has its length before it: joined as they are, other parts could give the same text (CVE-2022-46146).
        The key is this process's own, so that nothing can be learned from how long a look-up takes.
        """
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in (user, self._users.get(user, b""), password[:_PASSWORD_BYTES]):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()


def _step_back() -> None:
    """Lower the priority of this thread only: password guesses must not take the core from served clients."""
    with contextlib.suppress(OSError):  # a sandbox may forbid it; then guesses cost as much as before
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # to Linux a thread has a niceness of its own


def _cost(hashed: bytes) -> int:
    return int(hashed[4:6])  # of a hash in which ``hash_problem`` finds none

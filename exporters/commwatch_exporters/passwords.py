"""Passwords against their bcrypt hashes: one comparison at a time, in a thread, remembered, and telling nothing.

A comparison takes 70 ms of a core at cost 10. So a right password is compared once; who guesses waits in a short queue
beside which every other client is served; and a name that is not known takes as long as one that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import bcrypt

HIGHEST_COST = 14
"""A comparison at this cost takes a second; at a higher one a scrape would time out before it is let in."""

_HASH = re.compile(rb"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_PASSWORD_BYTES = 72  # bcrypt knows no more of a password
_WRONG_KEPT = 256  # wrong passwords that are remembered: a scraper with an old one asks again and again
_RIGHT_KEPT = 1024
_WAITING = 32
_WAITING_OF_ONE_CLIENT = 4

Compare = Callable[[bytes, bytes], bool]
"""Whether a password has a hash; may take long."""


def hash_problem(hashed: bytes) -> str | None:
    """What is wrong with a bcrypt hash; None if nothing is. It never shows the hash."""
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
    """The users and what has been found out about their passwords.

    Args:
        compare: Compares a password with a hash.
    """

    def __init__(self, compare: Compare = bcrypt.checkpw) -> None:
        self._compare = compare
        self._users: dict[bytes, bytes] = {}
        self._nobody = b""
        self._secret = os.urandom(32)
        self._found: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        self._waiting: Counter[str] = Counter()  # comparisons asked for and not ended, by client
        self._thread = ThreadPoolExecutor(1, "passwords", initializer=_step_back)

    def use(self, users: Mapping[bytes, bytes]) -> None:
        """Have these users, bcrypt hashes by name, from the next question on."""
        self._users = dict(users)
        cost = max((_cost(hashed) for hashed in users.values()), default=10)
        # Compared in place of the hash of a name that is not known; no password has it.
        self._nobody = b"$2b$%02d$" % cost + b"." * 53

    def known(self, user: bytes, password: bytes) -> bool | None:
        """Whether a user has a password, where that has been found out before."""
        digest = self._digest(user, password)
        if digest in self._found[True]:
            return True
        return False if digest in self._found[False] else None

    def check(self, user: bytes, password: bytes, client: str) -> asyncio.Task[bool] | None:
        """Compare on behalf of a client, when those who came before have been served; None where there is no room."""
        if self._waiting[client] >= _WAITING_OF_ONE_CLIENT or self._waiting.total() >= _WAITING:
            return None
        self._waiting[client] += 1
        task = asyncio.get_running_loop().create_task(self._check(user, password))
        task.add_done_callback(lambda _: self._leave(client))
        return task

    async def _check(self, user: bytes, password: bytes) -> bool:
        digest = self._digest(user, password)
        hashed = self._users.get(user)
        matches = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._compare, password[:_PASSWORD_BYTES], hashed or self._nobody
        )
        is_right = hashed is not None and matches
        found, kept = self._found[is_right], _RIGHT_KEPT if is_right else _WRONG_KEPT
        found[digest] = None
        if len(found) > kept:
            del found[next(iter(found))]
        return is_right

    def _leave(self, client: str) -> None:
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]

    def close(self) -> None:
        """Begin no further comparison; one that runs ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _digest(self, user: bytes, password: bytes) -> bytes:
        """Stands for user, hash and password together.

        Each part has its length before it: joined as they are, other parts could give the same text (CVE-2022-46146).
        The key is this process's own, so that nothing can be learned from how long a look-up takes.
        """
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in (user, self._users.get(user, b""), password[:_PASSWORD_BYTES]):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()


def _step_back() -> None:
    """Let this thread alone give way: guesses must not take the core from those who are served."""
    with contextlib.suppress(OSError):  # a sandbox may forbid it; then guesses cost as much as before
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # to Linux a thread has a niceness of its own


def _cost(hashed: bytes) -> int:
    match = _HASH.fullmatch(hashed)
    return int(match[1]) if match else 10

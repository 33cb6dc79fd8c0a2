"""Passwords against their bcrypt hashes: one comparison at a time, in a thread, remembered, and telling nothing.

A comparison takes 70 ms of a core at cost 10. So a right password is compared once. Clients share the thread: the one
with the fewest wrong guesses is served first. Of equals the newest and the oldest take turns, so a scraper does not
wait for a crowd that came before it. A name that is not known takes as long as one that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import bcrypt

HIGHEST_COST = 14
"""A comparison at this cost takes a second; at a higher one a scrape would time out before it is let in."""

_HASH = re.compile(rb"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_PASSWORD_BYTES = 72  # bcrypt knows no more of a password
_WRONG_KEPT = 256  # wrong passwords that are remembered: a scraper with an old one asks again and again
_RIGHT_KEPT = 1024
_WAITING_OF_ONE_CLIENT = 4  # there is no limit in all: each waits on a connection of its own, and those are limited
_CLIENTS_KEPT = 1024  # of which wrong guesses are counted
_MOST_WRONG = 64  # guesses that count, so that even who has corrected a password after thousands has a turn

Compare = Callable[[bytes, bytes], bool]
"""Whether a password has a hash; may take long."""


class _Asker(NamedTuple):
    """Who has a share of the thread."""

    client: str
    user: bytes | None
    """The user where this client gave the right password of that user before: both have a share of their own."""


_Check: TypeAlias = "asyncio.Future[bool]"
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


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
        self._nobody: Mapping[int, bytes] = {}
        self._secret = os.urandom(32)
        self._found: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        self._waiting: dict[_Asker, dict[_Check, tuple[bytes, bytes]]] = {}
        """Users and passwords to be compared; the asker who was served longest ago comes first."""
        self._wrong: dict[_Asker, int] = {}
        """Wrong guesses since the last right one."""
        self._right: dict[_Asker, None] = {}
        self._work: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "passwords", initializer=_step_back)

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many comparisons each client has asked for that have not ended."""
        return Counter(asker.client for asker, checks in self._waiting.items() for _ in checks)

    def use(self, users: Mapping[bytes, bytes]) -> None:
        """Have these users, bcrypt hashes by name, from the next question on."""
        self._users = dict(users)
        # Of each cost that a user has, a hash that no password has.
        costs = sorted({_cost(hashed) for hashed in users.values()})
        self._nobody = {cost: b"$2b$%02d$" % cost + b"." * 53 for cost in costs}

    def known(self, user: bytes, password: bytes) -> bool | None:
        """Whether a user has a password, where that has been found out before."""
        digest = self._digest(user, password)
        if digest in self._found[True]:
            return True
        return False if digest in self._found[False] else None

    def check(self, user: bytes, password: bytes, client: str) -> asyncio.Future[bool] | None:
        """Compare on behalf of a client when it has its turn; None where as many of its comparisons wait as may.

        Cancel the future if the client has gone: then nothing is compared.
        """
        known = _Asker(client, user)
        asker = known if known in self._right else _Asker(client, None)
        checks = self._waiting.setdefault(asker, {})
        if len(checks) >= _WAITING_OF_ONE_CLIENT:
            return None
        loop = asyncio.get_running_loop()
        check: _Check = loop.create_future()
        checks[check] = user, password
        check.add_done_callback(partial(self._leave, asker))
        if self._work is None or self._work.done():
            self._work = loop.create_task(self._serve())
        return check

    async def _serve(self) -> None:
        """Make the comparisons that wait, one after the other."""
        for is_newest in itertools.cycle((True, False)):
            if not self._waiting:
                return
            asker = min(reversed(self._waiting) if is_newest else self._waiting, key=self._turn)
            checks = self._waiting[asker] = self._waiting.pop(asker)
            check, (user, password) = next(iter(checks.items()))
            try:
                is_right = self.known(user, password)
                if is_right is None:
                    is_right = await self._compared(user, password)
                    self._count(asker, user, is_right=is_right)
            except Exception as error:  # the thread is closed, or bcrypt failed: it is the answer of this request
                if not check.done():
                    check.set_exception(error)
            else:
                if not check.done():
                    check.set_result(is_right)
            self._leave(asker, check)

    def _turn(self, asker: _Asker) -> tuple[int, bool]:
        return min(self._wrong.get(asker, 0), _MOST_WRONG), asker.user is None

    async def _compared(self, user: bytes, password: bytes) -> bool:
        digest = self._digest(user, password)
        is_right = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._compare_at_all_costs, password[:_PASSWORD_BYTES], self._users.get(user), self._nobody
        )
        _keep(self._found[is_right], digest, None, _RIGHT_KEPT if is_right else _WRONG_KEPT)
        return is_right

    def _compare_at_all_costs(self, password: bytes, hashed: bytes | None, nobody: Mapping[int, bytes]) -> bool:
        """Compare once at each cost that any user has: the time is that of every name, known or not."""
        own = None if hashed is None else _cost(hashed)
        found = {cost: self._compare(password, (hashed if cost == own else None) or nobody[cost]) for cost in nobody}
        return own is not None and found[own]

    def _count(self, asker: _Asker, user: bytes, *, is_right: bool) -> None:
        wrong = self._wrong.pop(asker, 0)
        if is_right:
            _keep(self._right, _Asker(asker.client, user), None, _RIGHT_KEPT)
        else:
            _keep(self._wrong, asker, wrong + 1, _CLIENTS_KEPT)

    def _leave(self, asker: _Asker, check: _Check) -> None:
        checks = self._waiting.get(asker, {})
        checks.pop(check, None)
        if not checks:
            self._waiting.pop(asker, None)

    def close(self) -> None:
        """Begin no further comparison; one that runs ends by itself."""
        if self._work is not None:
            self._work.cancel()
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


def _keep(kept: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Remember something as the newest; above the limit the oldest is forgotten."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


def _step_back() -> None:
    """Let this thread alone give way: guesses must not take the core from those who are served."""
    with contextlib.suppress(OSError):  # a sandbox may forbid it; then guesses cost as much as before
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # to Linux a thread has a niceness of its own


def _cost(hashed: bytes) -> int:
    match = _HASH.fullmatch(hashed)
    return int(match[1]) if match else 10

"""Passwords and the rate limit, over real sockets; the comparison itself is replaced where time matters."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from http import HTTPStatus

import bcrypt
import pytest

from commwatch_exporters.gate import Gate
from commwatch_exporters.http_server import Access, HttpServer, Limits, Response
from commwatch_exporters.passwords import Passwords, hash_problem
from commwatch_exporters.shares import ClientRates
from support.http import ask, authorization, connected, serving
from support.passes import in_one_pass
from support.passwords import SeenPasswords
from support.waiting import comes

SOON = 0.05
ALICE = bcrypt.hashpw(b"right", bcrypt.gensalt(4))
USERS = {b"alice": ALICE, "müller".encode(): bcrypt.hashpw("größe".encode(), bcrypt.gensalt(4))}


class Comparisons:
    """Compares as bcrypt does and counts, or waits until it is told to go on."""

    def __init__(self, *, held: bool = False) -> None:
        self.hashes: list[bytes] = []
        self.go_on = threading.Event()
        if not held:
            self.go_on.set()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.hashes.append(hashed)
        assert self.go_on.wait(10)
        return bcrypt.checkpw(password, hashed)


def server(
    passwords: Passwords | None = None, rates: ClientRates | None = None, limits: Limits | None = None
) -> HttpServer:
    """A server behind a gate, with one path that is not."""
    answer = Response(HTTPStatus.OK, b"text\n")
    made = HttpServer({"/text": lambda _: answer, "/healthz": lambda _: answer}, limits, open_paths=["/healthz"])
    made.let_in(Access(admit=Gate(passwords, rates)))
    return made


def known(
    compare: Callable[[bytes, bytes], bool] = bcrypt.checkpw, users: Mapping[bytes, bytes] = USERS
) -> SeenPasswords:
    """Passwords of some users."""
    passwords = SeenPasswords(compare)
    passwords.use(users)
    return passwords


async def checked(passwords: Passwords, user: bytes, password: bytes) -> bool:
    """What a comparison finds out."""
    check = passwords.check(user, password, "client")
    assert check is not None
    return await check


def test_comparisons_give_way_to_everything_else() -> None:
    """Their thread alone has the least claim to a core."""
    niceness: list[int] = []

    def compare(password: bytes, hashed: bytes) -> bool:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return True

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    asyncio.run(checked(known(compare), b"alice", b"right"))

    assert niceness == [19]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_guesses_are_compared_one_at_a_time() -> None:
    """However many clients guess, one core compares."""
    running: list[int] = []
    most: list[int] = []

    def compare(password: bytes, hashed: bytes) -> bool:
        running.append(1)
        most.append(len(running))
        bcrypt.checkpw(password, ALICE)
        running.pop()
        return False

    async def test() -> None:
        passwords = known(compare)
        checks = [passwords.check(b"alice", b"%d" % number, f"client {number}") for number in range(32)]
        await asyncio.gather(*[check for check in checks if check is not None])

    asyncio.run(test())

    assert most == [1] * 32


@in_one_pass(
    "headers, status",
    [
        ([authorization("alice", "right")], 200),
        ([authorization("müller", "größe")], 200),
        (["Authorization: bAsIc " + base64.b64encode(b"alice:right").decode()], 200),
        ([], 401),
        ([authorization("alice", "wrong")], 401),
        ([authorization("alice", "")], 401),
        ([authorization("bob", "right")], 401),
        ([authorization("", "")], 401),
        ([authorization("müller", "größe", "latin-1")], 401),
        ([authorization("alice", "right\0")], 401),
        ([authorization("alice", "right" + "x" * 5000)], 401),
        (["Authorization: Basic"], 401),
        (["Authorization: Basic "], 401),
        (["Authorization: Basic Og="], 401),
        (["Authorization: Basic YWxpY2U="], 401),
        (["Authorization: basicOg=="], 401),
        (["Authorization: Basic YWxpY2U6cmlnaHQ=="], 401),
        (["Authorization: Basic YWxpY2U6 cmlnaHQ="], 401),
        (["Authorization: Basic \xff"], 401),
        (["Authorization: Bearer YWxpY2U6cmlnaHQ="], 401),
        ([authorization("alice", "right"), authorization("alice", "wrong")], 401),
    ],
)
def test_who_is_let_in(headers: list[str], status: int) -> None:
    """A known name with its password; everybody else is asked for one."""

    async def test() -> None:
        async with serving(server(known())) as port:
            for _ in range(2):  # compared, then remembered
                found = await ask(port, "/text", *headers)
                assert status == found.status
                if status == 401:
                    assert found.headers["www-authenticate"] == 'Basic realm="commwatch", charset="UTF-8"'
                    assert found.body == b"401 Unauthorized\n"

    asyncio.run(test())


def test_health_needs_no_password() -> None:
    """Whoever asks whether the process lives gets an answer; a path that does not exist is not told to strangers."""

    async def test() -> None:
        async with serving(server(known(), ClientRates(3600, 1))) as port:
            assert [(await ask(port, "/healthz")).status for _ in range(3)] == [200, 200, 200]
            assert (await ask(port, "/none")).status == 401

    asyncio.run(test())


def test_each_password_is_compared_once() -> None:
    """What was found out is remembered, right or wrong; a changed hash is compared again, and a lost user is out."""
    compare = Comparisons()
    passwords = known(compare)

    async def status(port: int, password: str) -> int:
        return (await ask(port, "/text", authorization("alice", password))).status

    async def test() -> None:
        async with serving(server(passwords)) as port:
            assert [await status(port, one) for one in ("right", "wrong") * 3] == [200, 401] * 3
            assert len(compare.hashes) == 2
            passwords.use({b"alice": bcrypt.hashpw(b"wrong", bcrypt.gensalt(4))})
            assert [await status(port, one) for one in ("right", "wrong") * 2] == [401, 200] * 2
            assert len(compare.hashes) == 4
            passwords.use({b"bob": ALICE})
            assert [await status(port, one) for one in ("right", "wrong")] == [401, 401]

    asyncio.run(test())


def test_a_name_that_is_not_known_takes_as_long() -> None:
    """Whatever costs the users' hashes have, each name is compared at the same ones, so that its time tells nothing."""
    carol = bcrypt.hashpw(b"x", bcrypt.gensalt(6))
    own = {b"alice": ALICE, b"carol": carol, b"bob": None}
    costs = {}
    for user, hashed in own.items():
        compare = Comparisons()
        assert not asyncio.run(checked(known(compare, {b"alice": ALICE, b"carol": carol}), user, b"wrong"))
        costs[user] = [one[:7] for one in compare.hashes]
        assert [one for one in compare.hashes if one in (ALICE, carol)] == [one for one in (hashed,) if one]

    assert costs == {user: [b"$2b$04$", b"$2b$06$"] for user in own}
    for user, password in ((b"alice", b"right"), (b"carol", b"x")):
        assert asyncio.run(checked(known(users={b"alice": ALICE, b"carol": carol}), user, password))


class Order:
    """Compares nothing, and remembers which passwords came in which order; ``right`` is right."""

    def __init__(self) -> None:
        self.passwords: list[bytes] = []

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.passwords.append(password)
        return password.startswith(b"right")

    def take(self) -> list[str]:
        """Those since the last time."""
        taken, self.passwords = self.passwords, []
        return [one.decode() for one in taken]


def asked(passwords: Passwords, client: str, *given: str, user: bytes = b"alice") -> list[asyncio.Future[bool] | None]:
    """Have passwords compared for a client."""
    return [passwords.check(user, one.encode(), client) for one in given]


def test_clients_have_turns() -> None:
    """Who has guessed wrong least comes first, of equals by turns the newest and the oldest; four of a client wait."""

    async def test() -> None:
        order = Order()
        passwords = known(order)

        async def all_of(*checks: list[asyncio.Future[bool] | None]) -> None:
            await asyncio.gather(*(one for some in checks for one in some if one is not None))

        of_a = asked(passwords, "a", "a1", "a2", "a3", "a4", "a5")
        assert [one is None for one in of_a] == [False] * 4 + [True]
        await all_of(of_a, asked(passwords, "b", "b1", "b2"), asked(passwords, "c", "c1"))
        assert order.take() == ["c1", "a1", "b1", "a2", "b2", "a3", "a4"]

        await all_of(asked(passwords, "a", "a5"), asked(passwords, "b", "b3"), asked(passwords, "new", "right"))
        assert order.take() == ["right", "b3", "a5"]

    asyncio.run(test())


@in_one_pass("addresses", [12, 60, 500])
@in_one_pass("have_guessed", [True, False])
def test_a_scraper_that_was_never_seen(addresses: int, *, have_guessed: bool) -> None:
    """Guesses of many addresses, four of each, neither have it refused nor keep it waiting for more than two."""

    async def test() -> None:
        order = Order()
        passwords = known(order)
        guessing = [f"10.0.{number // 250}.{number % 250}" for number in range(addresses)]
        if have_guessed:
            await asyncio.gather(
                *(one for client in guessing for one in asked(passwords, client, f"{client} 0") if one)
            )
            order.take()
        checks = [one for client in guessing for one in asked(passwords, client, *(f"{client} {n}" for n in "1234"))]
        assert None not in checks
        await asyncio.sleep(0)  # the first of them is being compared
        (honest,) = asked(passwords, "192.0.2.9", "right")
        assert honest is not None
        assert await honest
        assert order.take().index("right") <= 2
        for one in checks:
            if one is not None:
                one.cancel()

    asyncio.run(test())


def test_who_was_right_before_has_a_share_of_its_own() -> None:
    """A user is let in with a new password although others at the same address fill that address's places."""

    async def test() -> None:
        order = Order()
        passwords = known(order)
        (first,) = asked(passwords, "shared", "right")
        assert first is not None
        assert await first
        guesses = asked(passwords, "shared", *(f"guess {number}" for number in range(6)), user=b"root")
        assert [one is None for one in guesses] == [False] * 4 + [True] * 2
        (again,) = asked(passwords, "shared", "right, and new")
        assert again is not None
        assert await again
        assert order.take()[:2] == ["right", "right, and new"]  # by now a guess may have begun
        await asyncio.gather(*(one for one in guesses if one is not None))

    asyncio.run(test())


def test_the_same_password_that_waits_twice_is_compared_once() -> None:
    """Requests that come together after a start cost one comparison."""

    async def test() -> None:
        order = Order()
        passwords = known(order)
        checks = [one for client in ("a", "b", "b") for one in asked(passwords, client, "right")]
        assert [await one for one in checks if one is not None] == [True] * 3
        assert order.take() == ["right"]

    asyncio.run(test())


def test_passwords_are_kept_as_keyed_digests_alone() -> None:
    """Nothing that is kept holds a password, right or wrong; two processes keep other digests of the same one."""
    first, second = known(), known()

    async def test() -> None:
        for passwords in (first, second):
            for guess in (b"right", b"guess-of-mallory"):
                await checked(passwords, b"alice", guess)

    asyncio.run(test())
    digests = [{*passwords._found[True], *passwords._found[False]} for passwords in (first, second)]

    assert [len(some) for some in digests] == [2, 2]
    assert not digests[0] & digests[1]
    assert {len(one) for some in digests for one in some} == {32}
    assert "guess-of-mallory" not in str([vars(passwords) for passwords in (first, second)])


def test_other_parts_that_join_to_the_same_text() -> None:
    """A wrong pair cannot borrow what was found out about a right one (CVE-2022-46146)."""
    passwords = known()

    assert asyncio.run(checked(passwords, b"alice", b"right"))
    assert passwords.known(b"alice", b"right") is True
    for user, password in ((b"alicer", b"ight"), (b"alic", b"eright"), (b"alice" + ALICE, b"right"), (b"", b"")):
        assert passwords.known(user, password) is None


def test_what_is_remembered_is_bounded() -> None:
    """Guesses push out guesses, and never what is right."""
    passwords = known(lambda password, _: password == b"right")

    async def test() -> None:
        assert await checked(passwords, b"alice", b"right")
        for number in range(1000):
            assert not await checked(passwords, b"alice", b"%d" % number)

    asyncio.run(test())

    assert passwords.known(b"alice", b"right") is True
    assert passwords.known(b"alice", b"999") is False
    assert passwords.known(b"alice", b"1") is None


def test_who_guesses_holds_up_nobody() -> None:
    """One client has so many guesses waiting and no more; meanwhile health, users and other clients are served."""
    compare = Comparisons(held=True)

    async def test() -> None:
        passwords = known(compare)
        compare.go_on.set()
        await checked(passwords, b"alice", b"right")
        compare.go_on.clear()
        async with serving(server(passwords)) as port:
            guesses = [
                asyncio.create_task(ask(port, "/text", authorization("alice", f"guess {number}"), local="127.0.0.2"))
                for number in range(20)
            ]
            await comes(lambda: sum(one.done() for one in guesses) == 16)
            waiting = [one for one in guesses if not one.done()]
            refused = [await one for one in guesses if one.done()]
            assert [(one.status, one.headers["retry-after"]) for one in refused] == [(429, "1")] * 16
            assert (await ask(port, "/text", authorization("alice", "right"))).status == 200
            assert (await ask(port, "/healthz")).status == 200
            other = asyncio.create_task(ask(port, "/text", authorization("müller", "größe"), local="127.0.0.3"))
            await comes(lambda: "127.0.0.3" in passwords.waiting)
            compare.go_on.set()
            assert (await other).status == 200
            assert [(await one).status for one in waiting] == [401] * 4
            assert passwords.waiting == {}

    asyncio.run(test())


def test_clients_that_leave_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their guesses are not compared, and their places are free again at the deadline of an answer."""
    compare = Comparisons(held=True)

    async def test() -> None:
        passwords, loop, ahead = known(compare), asyncio.get_running_loop(), 0.0
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + ahead)
        async with serving(server(passwords, limits=Limits(write_seconds=1000.0))) as port:
            for number in range(4):
                async with connected(port) as client:
                    header = authorization("alice", f"guess {number}")
                    client.send(f"GET /text HTTP/1.1\r\nHost: node\r\n{header}\r\n\r\n".encode())
                    await comes(lambda number=number: passwords.waiting == {"127.0.0.1": number + 1})  # type: ignore[misc]
            ahead = 1000.0
            await comes(lambda: not passwords.waiting)
            compare.go_on.set()
            assert (await ask(port, "/text", authorization("alice", "right"))).status == 200
        assert len(compare.hashes) == 2  # the one that ran, and the last

    asyncio.run(test())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_comparison_that_takes_too_long(method: str) -> None:
    """The client learns that the node has no time, at the deadline of an answer."""
    compare = Comparisons(held=True)

    async def test() -> None:
        async with serving(server(known(compare), limits=Limits(write_seconds=SOON))) as port:
            answer = await ask(port, "/text", authorization("alice", "right"), method=method)
            assert answer.status == 503
            compare.go_on.set()

    asyncio.run(test())


def test_a_comparison_that_fails() -> None:
    """The client gets a bare 500, and the next one is served."""

    def fail(_: bytes, hashed: bytes) -> bool:
        raise ValueError(hashed)

    async def test() -> None:
        async with serving(server(known(fail))) as port:
            answer = await ask(port, "/text", authorization("alice", "right"))
            assert (answer.status, answer.body) == (500, b"500 Internal Server Error\n")
            assert (await ask(port, "/healthz")).status == 200

    asyncio.run(test())


def test_requests_that_come_together() -> None:
    """They are answered in their order, although the first waits for its comparison."""

    async def test() -> None:
        async with serving(server(known())) as port, connected(port) as client:
            request = "GET {} HTTP/1.1\r\nHost: node\r\n{}\r\n\r\n"
            asked = [("/text", "right"), ("/none", "right"), ("/text", "wrong"), ("/text", "right")]
            client.send("".join(request.format(path, authorization("alice", word)) for path, word in asked).encode())
            assert [(await client.answer()).status for _ in asked] == [200, 404, 401, 200]

    asyncio.run(test())


def test_the_rate_of_a_client() -> None:
    """So many at once, then one more after each interval; over it the answer is 429 before a password is looked at."""
    now = 100.0
    compare = Comparisons()
    right = authorization("alice", "right")

    async def test() -> None:
        nonlocal now
        async with serving(server(known(compare), ClientRates(2.0, 3, lambda: now))) as port:
            assert [(await ask(port, "/text", right)).status for _ in range(5)] == [200, 200, 200, 429, 429]
            assert (await ask(port, "/text", authorization("alice", "wrong"))).headers["retry-after"] == "1"
            now += 3.9
            assert [(await ask(port, "/text", right)).status for _ in range(2)] == [200, 429]
            now += 1000
            assert [(await ask(port, "/text", right)).status for _ in range(4)] == [200, 200, 200, 429]
        assert len(compare.hashes) == 1

    asyncio.run(test())


def test_a_flood_takes_nothing_from_others() -> None:
    """Who asks too often learns so, with and without a password; a scraper with another address is served."""

    async def test() -> None:
        right = authorization("alice", "right")
        for passwords in (known(), None):
            async with serving(server(passwords, ClientRates(3600, 2))) as port:
                flood = [(await ask(port, "/text", local="127.0.0.2")).status for _ in range(5)]
                assert flood[2:] == [429, 429, 429]
                assert [(await ask(port, "/text", right)).status for _ in range(3)] == [200, 200, 429]

    asyncio.run(test())


def test_rates_that_are_kept_are_bounded() -> None:
    """The address that has not asked for longest is forgotten first; one that goes on asking stays at its limit."""
    rates = ClientRates(3600, 1, lambda: 0.0)
    assert [rates.take("first"), rates.take("busy"), rates.take("first")] == [True, True, False]

    for number in range(2000):
        assert rates.take(str(number))
        assert not rates.take("busy")

    assert len(rates._buckets) == 1024
    assert rates.take("first")


def test_headers_of_the_operator() -> None:
    """They go over ours, an empty one takes ours away, and every answer has them."""

    async def test() -> None:
        made = server(known())
        headers = {"X-Frame-Options": "deny", "Content-Security-Policy": "", "X-Content-Type-Options": "nosniff"}
        made.let_in(Access(admit=Gate(known(), None), headers=headers))
        async with serving(made) as port:
            for path in ("/healthz", "/text", "/none"):
                found = (await ask(port, path)).headers
                assert found["x-frame-options"] == "deny"
                assert "content-security-policy" not in found
                assert found["x-content-type-options"] == "nosniff"
                assert found["cache-control"] == "no-store"

    asyncio.run(test())


def test_strangers_make_room() -> None:
    """At the limit of clients, one that was not let in goes before one that was."""

    async def test() -> None:
        async with serving(server(known(), limits=Limits(connections=2))) as port, connected(port) as ours:
            request = f"GET /text HTTP/1.1\r\nHost: node\r\n{authorization('alice', 'right')}\r\n\r\n".encode()
            ours.send(request)
            assert (await ours.answer()).status == 200
            for _ in range(3):
                async with connected(port) as stranger:
                    stranger.send(b"GET /text HTTP/1.1\r\nHost: node\r\n\r\n")
                    assert (await stranger.answer()).status == 401
                    async with connected(port) as second:
                        second.send(b"GET /text HTTP/1.1\r\nHost: node\r\n\r\n")
                        assert (await second.answer()).status == 401
            ours.send(request)
            assert (await ours.answer()).status == 200

    asyncio.run(test())


def test_hashes() -> None:
    """Those of htpasswd and of bcrypt are taken, whatever letter they have."""
    assert hash_problem(ALICE) is None
    for letter in (b"a", b"y"):
        assert hash_problem(b"$2" + letter + ALICE[3:]) is None
        assert asyncio.run(checked(known(users={b"alice": b"$2" + letter + ALICE[3:]}), b"alice", b"right"))


def test_health_wins_no_place() -> None:
    """At the limit who only asked what everybody may goes first, also in the middle of its answer."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            site = server(known(), limits=Limits(connections=2))
            port = await stack.enter_async_context(serving(site))
            scraper, stranger = [await stack.enter_async_context(connected(port)) for _ in range(2)]
            scrape = f"GET /text HTTP/1.1\r\nHost: node\r\n{authorization('alice', 'right')}\r\n\r\n".encode()
            scraper.send(scrape)
            assert (await scraper.answer()).status == 200
            stranger.send(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
            assert (await stranger.answer()).status == 200

            assert (await ask(port, "/text", authorization("alice", "right"))).status == 200
            assert await stranger.rest() == b""
            scraper.send(scrape)
            assert (await scraper.answer()).status == 200

    asyncio.run(test())

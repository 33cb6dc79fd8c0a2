"""Whose share of the endpoint a connection takes, and whose turn it is."""

from __future__ import annotations

import asyncio
from functools import partial

from commwatch_exporters.shares import Turns, client_of
from support.passes import in_one_pass


@in_one_pass(
    "peer, client",
    [
        (("192.0.2.7", 4711), "192.0.2.7"),
        (("::ffff:192.0.2.7", 4711, 0, 0), "192.0.2.7"),
        (("::1", 4711, 0, 0), "::/64"),
        (("2001:db8:1:2:3:4:5:6", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::", 4711, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:3::1", 4711, 0, 0), "2001:db8:1:3::/64"),
        (("fe80::1%eth0", 4711, 0, 2), "fe80::/64"),
        ("", ""),
        ("/run/other.sock", ""),
        (b"\0name", ""),
        (None, ""),
    ],
)
def test_the_client_behind_an_address(peer: object, client: str) -> None:
    """An IPv4 address, mapped or not; the /64 of an IPv6 address; of a unix socket the address says nothing."""
    assert client_of(peer) == client


@in_one_pass(
    "before, waiting, order",
    [
        ("", "a1 a2 a3 b1 c1", "c1 a1 b1 a2 a3"),  # of those that never had a turn, the newest and the oldest alternate
        ("a+ b+ c+", "c1 a1 b1", "a1 b1 c1"),  # whose last turn is longest ago
        ("a+ b- c+", "b1 b2 c1 c2 a1", "a1 c1 c2 b1 b2"),  # who has failed comes last
        ("b- b- a-", "b1 a1", "a1 b1"),
        ("b- b- b+ a-", "a1 b1", "b1 a1"),  # until it has succeeded
        ("a+", "b1 a1", "a1 b1"),  # who has succeeded comes before who never had a turn
    ],
)
def test_turns(before: str, waiting: str, order: str) -> None:
    """Each piece of work is done once, in the order of the shares' failures, successes and last turns.

    Args:
        before: Turns that came to something (+) or to nothing (-).
        waiting: What is asked for at once: a letter for the share, and a number.
        order: In which it is done.
    """
    done: list[str] = []

    async def test() -> None:
        turns: Turns[str, None] = Turns()

        async def work(one: str) -> None:
            done.append(one)

        for share, ending in map(tuple, before.split()):
            await turns.ask(share, partial(work, share))
            (turns.succeeded if ending == "+" else turns.failed)(share)
        done.clear()
        await asyncio.gather(*(turns.ask(one[0], partial(work, one)) for one in waiting.split()))

    asyncio.run(test())

    assert " ".join(done) == order

"""Two ranks on plain sockets over the loopback: what they measure, whom they let in, and what keeps them apart."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Thread
from typing import TypeVar

import pytest

from commwatch.probes.cycle.measure import RankError, measure
from commwatch.probes.cycle.rank_sockets import STREAMS, SocketGroup
from commwatch.probes.plan import CyclePlan, Deadlines
from commwatch.probes.rank_plan import Meeting, RankPlan, RankResult
from commwatch.probes.workload import plan_between
from support.passes import in_one_pass

KEY, OTHER_KEY = "00" * 32, "11" * 32
Found = TypeVar("Found")


def plan_of(end: int, port: int, descriptor: int = -1, key: str = KEY, address: str = "127.0.0.1") -> CyclePlan:
    """One end; its calls may take a twentieth of a second."""
    meeting = Meeting(
        end=1 if end else 0, address=address, port=port, descriptor=descriptor, own_address="127.0.0.1", interface="lo",
        key=key,
    )  # fmt: skip
    limits = Deadlines(start=1.0, rendezvous=1.0, setup=1.0, measure=1.0)
    plan = plan_between(meeting, backend="tcp", device="", deadlines=limits, timed_seconds=1.0)
    return CyclePlan(**{**{name: getattr(plan, name) for name in plan.__struct_fields__}, "timed_seconds": 0.05})


@contextmanager
def both(make: Callable[[RankPlan], SocketGroup] = SocketGroup) -> Iterator[tuple[SocketGroup, SocketGroup]]:
    """Two ends that have not met."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=STREAMS + 8)
    port = listening.getsockname()[1]
    ends = make(plan_of(0, port, listening.detach()).rank_plan(0, "")), make(plan_of(1, port).rank_plan(0, ""))
    try:
        yield ends
    finally:
        for one in ends:
            one.abort()
            one.close()


def together(*work: Callable[[], Found]) -> list[Found]:
    """At once, each in its thread; raises what the first of them raised, and waits for no other one then."""
    results: Queue[tuple[int, Found | None, BaseException | None]] = Queue()

    def run(place: int) -> None:
        try:
            results.put((place, work[place](), None))
        except (RankError, OSError) as error:  # OSError: its end was closed after the other had failed
            results.put((place, None, error))

    for place in range(len(work)):
        Thread(target=run, args=(place,), daemon=True).start()
    found: dict[int, Found] = {}
    while len(found) < len(work):
        place, value, error = results.get(timeout=60)
        if error is not None:
            raise error
        found[place] = value  # type: ignore[assignment]
    return [found[place] for place in range(len(work))]


def measured(group: SocketGroup, end: int) -> RankResult:
    plan = plan_of(end, 1).rank_plan(0, "")
    return measure(plan, group, lambda phase: None, lambda number: None)


def test_both_ends_time_all_steps_and_check_what_arrives() -> None:
    """Each has a time for each step; who counts is the plan's."""
    with both() as (first, second):
        results = together(lambda: measured(first, 0), lambda: measured(second, 1))

    for result in results:
        assert [len(timings) > 0 for timings in result.timings] == [True] * 4
        assert all(seconds > 0 for timings in result.timings for seconds in timings)


def test_a_changed_byte_is_a_wrong_result() -> None:
    """Of the bytes that arrive none may differ."""

    class Faulty(SocketGroup):
        def _receive(self, content: memoryview) -> None:
            super()._receive(content)
            content[len(content) // 3] ^= 1

    with both(Faulty) as (first, second), pytest.raises(RankError, match="wrong_result"):
        together(lambda: measured(first, 0), lambda: measured(second, 1))


def test_an_end_that_goes_is_no_wait_without_end() -> None:
    """The other one says so."""
    with both() as (first, second):
        together(first.rendezvous, second.rendezvous)
        second.close()
        with pytest.raises(RankError, match="the other end has closed"):
            first.larger(0.0)


def test_a_stranger_at_the_listener_is_turned_away() -> None:
    """It says nothing, or what is not sealed with the key of the turn."""
    with both() as (first, second):
        port = second._meeting.port
        silent, liar = (socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(2))
        liar.sendall(bytes(1 + 32))

        together(first.rendezvous, second.rendezvous)

        assert silent.recv(100)[16:] == b""
        silent.close()
        liar.close()


def refusing() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return "127.0.0.1", port


@in_one_pass("where, word", [(refusing, "refused"), (lambda: ("255.255.255.255", 1), "no_route")])
def test_what_keeps_an_end_away_is_the_first_word(where: Callable[[], tuple[str, int]], word: str) -> None:
    """The pair's result has it."""
    address, port = where()
    group = SocketGroup(plan_of(1, port, address=address).rank_plan(0, ""))

    with pytest.raises(RankError, match=f"rendezvous_timeout: {word}: {address} port {port}"):
        group.rendezvous()


def test_a_listener_with_another_key_is_no_other_end() -> None:
    """Neither end takes the other one."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    first = SocketGroup(plan_of(0, port, listening.detach(), OTHER_KEY).rank_plan(0, ""))
    second = SocketGroup(plan_of(1, port).rank_plan(0, ""))
    third = SocketGroup(plan_of(1, port, key=OTHER_KEY).rank_plan(0, ""))

    def right_one_comes_later() -> None:
        with pytest.raises(RankError, match="the other end has closed"):
            second.rendezvous()
        third.rendezvous()

    together(first.rendezvous, right_one_comes_later)
    for one in (first, third):
        one.close()

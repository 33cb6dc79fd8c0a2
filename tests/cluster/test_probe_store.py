"""The store of a probe among members of a play: turns, results, and members that die, hang, give way or lie."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import pytest

from commwatch import __version__
from commwatch.cluster.channel import Channel, ChannelError, Gone, join
from commwatch.cluster.connections import bound
from commwatch.cluster.messages import Contact, Join, Prober, RailOffer, RailReport, Ready, Refused, Turn, Void
from commwatch.cluster.node_report import Ended
from commwatch.cluster.probe_store import ProbeResult, Wanted, key_of_turn, serve_probe
from commwatch.cluster.store import Deadlines, Store
from commwatch.probes import plan
from commwatch.probes.rank_plan import Backend
from support.passes import in_one_pass

KEY = b"the key of this run"
RATE = 1e9
ALL = Wanted()
Rates = Callable[[int, Turn], tuple[RailReport, ...]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that does not answer is waited for no longer than the play needs."""
    monkeypatch.setattr("commwatch.cluster.probe_store._GRACE_SECONDS", 0.1)


def prober(**others: object) -> Prober:
    rails = (RailOffer(name="eth0", address="127.0.0.1"),)
    return msgspec.structs.replace(
        Prober(version=__version__, backend="tcp", rails=rails, no_adapter_latency="none"), **others
    )


class Stage:
    """A store on the loopback, and members that say what a play wants."""

    def __init__(self, size: int, wanted: Wanted, seconds: float) -> None:
        self.size, self.turns = size, list[tuple[int, Turn]]()
        limits = plan.Deadlines(start=seconds, rendezvous=0.0, setup=0.0, measure=0.0)
        deadlines: dict[Backend, plan.Deadlines] = {"tcp": limits}
        wanted = Wanted(wanted.rounds, wanted.leaves, wanted.expected, wanted.inside, deadlines)
        self.store = Store(KEY, size, "probe", Deadlines(join=seconds))
        self.socket = bound("127.0.0.1", 0)
        names = [f"node{rank}" for rank in range(size)]
        work = partial(serve_probe, names=names, wanted=wanted)
        self.served = asyncio.ensure_future(self.store.serve(self.socket, work))

    async def joined(self, rank: int, **others: object) -> Channel:
        """A member that has come."""
        own = await join(*await asyncio.open_connection(*self.socket.getsockname()), KEY)
        contact = Contact(rank=rank, name=f"node{rank}", token="0" * 16, addresses=(), ports=(), low=0, high=0)
        await own.send(Join(contact=contact, size=self.size, prober=prober(**others)))
        return own

    async def member(self, rank: int, rates: Rates, turns: int = 99, **others: object) -> int | None:
        """A member that measures what the play says; it leaves after some turns. Its exit code."""
        own = await self.joined(rank, **others)
        ready = Ready(ports=(4000 + rank,))
        try:
            while True:
                await own.send(ready)
                answer: Turn | Ended = await own.receive(Turn, Ended)
                if isinstance(answer, Ended):
                    return answer.exit_code
                self.turns.append((rank, answer))
                if turns == 0:
                    return None
                turns -= 1
                ready = Ready(ports=(4000 + rank,), turn=answer.number, rails=rates(rank, answer))
        finally:
            own.close()


def play(
    scene: Callable[[Stage], object], size: int = 4, wanted: Wanted = ALL, seconds: float = 60.0
) -> tuple[ProbeResult, Stage]:
    """Run a scene; whatever its members do, the store ends and leaves no task behind.

    Args:
        scene: what the members do.
        size: how many are expected.
        wanted: of the run.
        seconds: for joining, and for each turn.
    """

    async def whole() -> tuple[ProbeResult, Stage]:
        stage = Stage(size, wanted, seconds)
        await scene(stage)  # type: ignore[misc]
        result = await asyncio.wait_for(stage.served, 60)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result, stage

    return asyncio.run(whole())


def healthy(rank: int, turn: Turn) -> tuple[RailReport, ...]:
    return (RailReport(latency=1e-5, received=RATE),)


def slow_sender(slow: int) -> Rates:
    """What one node sends arrives at half the rate."""

    def rates(rank: int, turn: Turn) -> tuple[RailReport, ...]:
        return (RailReport(latency=1e-5, received=RATE / 2 if turn.peer == f"node{slow}" else RATE),)

    return rates


def all_of(rates: Rates, size: int = 4) -> Callable[[Stage], object]:
    async def scene(stage: Stage) -> None:
        await asyncio.gather(*(stage.member(rank, rates) for rank in range(size)))

    return scene


def states(result: ProbeResult) -> list[str]:
    return [one.state for one in result.members]


def test_four_healthy_nodes_all_meet_in_three_rounds() -> None:
    """Each pair once, each end told of the same listener, the exit code given to all."""
    result, stage = play(all_of(healthy))

    assert {frozenset((one.first, one.second)) for one in result.run.measured} == {
        frozenset((a, b)) for a in range(4) for b in range(a)
    }
    assert [one.round for one in result.run.measured] == [1, 1, 2, 2, 3, 3]
    assert result.exit_code == 0
    assert states(result) == ["probed"] * 4
    ends = {(turn.number, turn.end): (rank, turn) for rank, turn in stage.turns}
    for rank, turn in ends.values():
        other, theirs = ends[turn.number, 0 if turn.end else 1]
        assert (turn.peer, theirs.peer) == (f"node{other}", f"node{rank}")
        assert turn.ports == theirs.ports == (4000 + (other if turn.end else rank),)
        assert key_of_turn(KEY, turn) == key_of_turn(KEY, theirs) != key_of_turn(b"another", turn)
    assert len({key_of_turn(KEY, turn) for _, turn in stage.turns}) == 6


def test_a_slow_transmitter_is_named_with_its_direction() -> None:
    """Bytes count where they arrive."""
    result, _ = play(all_of(slow_sender(3)))

    (named,) = result.verdict.named
    assert (named.kind, named.elements, named.rails, named.direction) == ("nic", ("node3",), (0,), "out")
    assert result.exit_code == 1


def test_suspects_of_many_nodes_meet_witnesses() -> None:
    """Round 3 has the suspect alone."""
    result, _ = play(all_of(slow_sender(5), 8), size=8)

    assert [one.elements for one in result.verdict.named] == [("node5",)]
    third = [one for one in result.run.measured if one.round == 3]
    assert third
    assert all(5 in (one.first, one.second) for one in third)


@in_one_pass("turns", [(0,), (1,)])
def test_a_member_that_dies_spoils_nothing_for_the_others(turns: tuple[int]) -> None:
    """Its pair does not count, and nobody is paired with it again."""

    async def scene(stage: Stage) -> None:
        await asyncio.gather(
            *(stage.member(rank, healthy) for rank in range(5)), stage.member(5, healthy, turns=turns[0])
        )

    result, _ = play(scene, size=6)

    assert states(result) == ["probed"] * 5 + ["lost"]
    assert len([one for one in result.run.measured if 5 in (one.first, one.second)]) == turns[0]
    assert result.verdict.named == ()
    assert result.exit_code == 0


def test_who_is_left_alone_in_a_turn_is_told_at_once() -> None:
    """It need not wait for the deadline of its ranks."""

    async def patient(stage: Stage) -> None:
        own = await stage.joined(0)
        await own.send(Ready(ports=(4000,)))
        turn = await own.receive(Turn)
        assert (await own.receive(Void)).number == turn.number
        await own.send(Ready(ports=(4000,), turn=turn.number))
        assert (await own.receive(Ended)).exit_code == 3
        own.close()

    async def scene(stage: Stage) -> None:
        await asyncio.gather(patient(stage), stage.member(1, healthy, turns=0))

    assert states(play(scene, size=2)[0]) == ["probed", "lost"]


def test_a_member_that_hangs_is_lost_after_the_deadline() -> None:
    """It keeps its connection, and says nothing."""

    async def scene(stage: Stage) -> None:
        hung = await stage.joined(4)
        await hung.send(Ready(ports=(4004,)))
        await asyncio.gather(*(stage.member(rank, healthy) for rank in range(4)))
        hung.close()

    result, _ = play(scene, size=5, seconds=1.0)

    assert states(result) == ["probed"] * 4 + ["lost"]
    assert "gave no answer" in result.members[4].detail
    assert not any(4 in (one.first, one.second) for one in result.run.measured)


def test_a_node_that_is_busy_or_absent_is_counted_and_gets_no_turn() -> None:
    """The others are matched among themselves."""

    async def scene(stage: Stage) -> None:
        codes = await asyncio.gather(
            *(stage.member(rank, healthy) for rank in range(3)), stage.member(3, healthy, busy="gpu_busy: a job")
        )
        assert codes == [0] * 4

    result, stage = play(scene, size=5, seconds=1.0)

    assert states(result) == ["probed"] * 3 + ["busy", "absent"]
    assert {rank for rank, _ in stage.turns} == {0, 1, 2}


def test_a_member_that_gives_way_voids_its_pair() -> None:
    """It stays to hear of the end."""

    async def gives_way(stage: Stage) -> None:
        own = await stage.joined(3)
        await own.send(Ready(ports=(4003,)))
        turn = await own.receive(Turn)
        await own.send(Ready(ports=(4003,), turn=turn.number, gave_way="process_appeared: a job came"))
        assert (await own.receive(Ended)).exit_code == 0
        own.close()

    async def scene(stage: Stage) -> None:
        await asyncio.gather(*(stage.member(rank, healthy) for rank in range(3)), gives_way(stage))

    result, _ = play(scene)

    assert states(result) == ["probed"] * 3 + ["gave way"]
    assert result.members[3].detail == "process_appeared: a job came"
    assert not any(3 in (one.first, one.second) for one in result.run.measured)


def test_a_pair_that_fails_though_both_are_there_is_a_failure_with_its_word() -> None:
    """What one end knows of it says more than that the other one waited."""

    def rates(rank: int, turn: Turn) -> tuple[RailReport, ...]:
        if 2 in (rank, int(turn.peer[-1])):
            return (RailReport(failed="filtered" if turn.end else "rendezvous_timeout"),)
        return healthy(rank, turn)

    result, _ = play(all_of(rates))

    (named,) = result.verdict.named
    assert (named.kind, named.fault, named.elements, named.reason) == ("nic", "failed", ("node2",), "filtered")


@in_one_pass("reason", [("start",), ("starved",)])
def test_ranks_that_do_not_start_say_nothing_of_the_network(reason: tuple[str]) -> None:
    """Their node is not measured, and nothing is named; the other end has only waited."""

    def rates(rank: int, turn: Turn) -> tuple[RailReport, ...]:
        if 2 in (rank, int(turn.peer[-1])):
            return (RailReport(failed=reason[0] if rank == 2 else "rendezvous_timeout"),)
        return healthy(rank, turn)

    result, _ = play(all_of(rates))

    assert result.verdict.named == ()
    assert states(result) == ["probed", "probed", "gave way", "probed"]
    assert result.members[2].detail == "not measured: host busy, its ranks did not start in time"


@in_one_pass("seconds, most", [(5.0, 8), (12.0, 3)])
def test_gpus_are_held_for_forty_seconds_at_most(seconds: float, most: int) -> None:
    """All turns of a member count; a suspect that nothing clears is left as it is."""

    two = tuple(RailOffer(name=name, address="127.0.0.1") for name in ("eth0", "eth1"))

    async def member(stage: Stage, rank: int) -> None:
        own = await stage.joined(rank, rails=two)
        ready, rails = Ready(ports=(1, 2)), (RailReport(received=RATE / 2), RailReport(received=RATE))
        while True:
            await own.send(ready)
            turn: Turn | Ended = await own.receive(Turn, Ended)
            if isinstance(turn, Ended):
                break
            stage.turns.append((rank, turn))
            ready = Ready(ports=(1, 2), turn=turn.number, rails=rails, occupied_seconds=seconds)
        own.close()

    async def scene(stage: Stage) -> None:
        await asyncio.gather(*(member(stage, rank) for rank in range(3)))

    result, stage = play(scene, size=3)

    turns = Counter(rank for rank, _ in stage.turns)
    assert 2 < max(turns.values()) <= most
    assert result.occupied_seconds == seconds * max(turns.values()) <= 40


def test_what_a_node_says_of_itself_stands_in_the_result() -> None:
    """A warning is found; a node whose daemon does not run says nothing."""

    async def scene(stage: Stage, word: str) -> None:
        await asyncio.gather(
            stage.member(0, healthy, diagnosis="Unknown: no daemon"), stage.member(1, healthy, diagnosis=f"{word}: x")
        )

    for word, code in (("OK", 0), ("Warning", 1), ("Critical", 1)):
        result, _ = play(partial(scene, word=word), size=2)
        assert (result.members[1].diagnosis, result.exit_code) == (f"{word}: x", code)


def test_members_with_another_backend_stay_out() -> None:
    """What they measure could not be compared."""

    async def scene(stage: Stage) -> None:
        await asyncio.gather(
            *(stage.member(rank, healthy) for rank in range(3)), stage.member(3, healthy, backend="gloo")
        )

    result, _ = play(scene)

    assert states(result) == ["probed"] * 3 + ["busy"]
    assert "over gloo, most over tcp" in result.members[3].detail


def test_leaves_come_from_the_launcher_or_from_the_file() -> None:
    """With a file, what Slurm says does not count."""

    async def scene(stage: Stage) -> None:
        await asyncio.gather(*(stage.member(rank, healthy, leaf="leaf0") for rank in range(2)))

    assert play(scene, size=2)[0].run.leaf_source == "slurm"
    result, _ = play(scene, size=2, wanted=Wanted(leaves={"node0": "a", "node1": "b"}))
    assert [one.leaf for one in result.run.members] == ["a", "b"]
    assert result.run.leaf_source == "file"


def test_one_member_is_too_few() -> None:
    """Exit code 3."""

    async def scene(stage: Stage) -> None:
        await stage.member(0, healthy)

    result, _ = play(scene, size=2, seconds=0.2)

    assert (result.exit_code, result.run.measured) == (3, ())


@in_one_pass(
    "others, reason",
    [
        ({"version": "0.0.1"}, "rank 1 runs commwatch 0.0.1, rank 0 "),
        (None, "rank 1 came for a check, rank 0 for a probe"),
    ],
)
def test_who_came_for_something_else_is_refused_with_the_reason(others: dict[str, object] | None, reason: str) -> None:
    """Another version of commwatch, or the other command."""

    async def scene(stage: Stage) -> None:
        if others is not None:
            own = await stage.joined(1, **others)
        else:
            own = await join(*await asyncio.open_connection(*stage.socket.getsockname()), KEY)
            contact = Contact(rank=1, name="node1", token="0" * 16, addresses=(), ports=(), low=0, high=0)
            await own.send(Join(contact=contact, size=2))
        assert (await own.receive(Refused)).reason.startswith(reason)
        own.close()
        await stage.member(0, healthy)

    result, stage = play(scene, size=2, seconds=1.0)

    assert states(result) == ["probed", "absent"]
    assert any(reason in one for one in stage.store.strangers)


HOSTILE = {
    "a rate that is none": b'{"type":"ready","ports":[1],"turn":1,"rails":[{"received":-1}]}',
    "a rate beyond all": b'{"type":"ready","ports":[1],"turn":1,"rails":[{"received":1e300}]}',
    "too many rails": b'{"type":"ready","ports":[1],"turn":1,"rails":[' + b"{}," * 64 + b"{}]}",
    "ports for rails that it has not": b'{"type":"ready","ports":[1,2]}',
}


@in_one_pass("text", [(text,) for text in HOSTILE.values()])
def test_what_a_member_may_not_say_puts_it_out_of_the_run(text: tuple[bytes]) -> None:
    """It has the key; no value of it counts, and the others are measured."""

    async def lies(stage: Stage) -> None:
        own = await stage.joined(3)
        await own.send(msgspec.Raw(text[0]))  # type: ignore[arg-type]
        with suppress(Gone):
            while True:
                await own.receive(Turn)
        own.close()

    async def scene(stage: Stage) -> None:
        await asyncio.gather(*(stage.member(rank, healthy) for rank in range(3)), lies(stage))

    result, stage = play(scene)

    assert states(result) == ["probed"] * 3 + ["lost"]
    assert not any(3 in (one.first, one.second) for one in result.run.measured)
    assert len(stage.store.strangers) == 1


def test_a_result_of_another_turn_does_not_count() -> None:
    """A member that repeats an old answer voids its pair."""

    async def repeats(stage: Stage) -> None:
        own = await stage.joined(1)
        with suppress(ChannelError):
            await own.send(Ready(ports=(4001,)))
            while True:
                await own.receive(Turn)
                await own.send(Ready(ports=(4001,), turn=77, rails=(RailReport(received=1.0),)))
        own.close()

    async def scene(stage: Stage) -> None:
        await asyncio.gather(stage.member(0, healthy), repeats(stage))

    assert play(scene, size=2)[0].run.measured == ()


FOUR, WITHOUT_1, OTHERS = ("a", "b", "c", "d"), ("a", "c", "d"), ("x", "y", "z", "w")


@in_one_pass(
    "offers, rails, met",
    [
        ((FOUR, FOUR), {0, 1, 2, 3}, {("a", "a"), ("b", "b"), ("c", "c"), ("d", "d")}),
        ((FOUR, WITHOUT_1), {0, 2, 3}, {("a", "a"), ("c", "c"), ("d", "d")}),
        ((WITHOUT_1, FOUR), {0, 2, 3}, {("a", "a"), ("c", "c"), ("d", "d")}),
        ((FOUR, FOUR[::-1]), {0, 1, 2, 3}, {("a", "d"), ("b", "c"), ("c", "b"), ("d", "a")}),
        ((FOUR, OTHERS[:3]), {0, 1, 2}, {("a", "x"), ("b", "y"), ("c", "z")}),
        ((("a",), ("b",), ("a", "b")), {0, 1}, {("a", "a"), ("b", "b")}),
    ],
)
def test_rails_of_the_same_name_meet(
    offers: tuple[tuple[str, ...], ...], rails: set[int], met: set[tuple[str, str]]
) -> None:
    """One that a node lacks moves no other, and two nodes without one in common are not measured together; where names
    or their order differ, the order counts."""

    async def member(stage: Stage, rank: int) -> None:
        own = await stage.joined(
            rank, rails=tuple(RailOffer(name=name, address=f"127.0.0.{ord(name)}", rate=RATE) for name in offers[rank])
        )
        ready = Ready(ports=tuple(range(4000, 4000 + len(offers[rank]))))
        while True:
            await own.send(ready)
            answer: Turn | Ended = await own.receive(Turn, Ended)
            if isinstance(answer, Ended):
                break
            stage.turns.append((rank, answer))
            ready = msgspec.structs.replace(
                ready, turn=answer.number, rails=(RailReport(latency=1e-5, received=RATE),) * len(answer.rails)
            )
        own.close()

    async def scene(stage: Stage) -> None:
        await asyncio.gather(*(member(stage, rank) for rank in range(len(offers))))

    result, stage = play(scene, size=len(offers))

    assert {one.rail for one in result.run.measured} == rails
    pairs: dict[int, dict[int, Turn]] = {}
    for rank, turn in stage.turns:
        pairs.setdefault(turn.number, {})[rank] = turn
    found = set[tuple[str, str]]()
    for turns in pairs.values():
        ends = {rank: [offers[rank][rail] for rail in turn.rails] for rank, turn in sorted(turns.items())}
        found.update(zip(*ends.values(), strict=True))
        host = next(rank for rank, turn in turns.items() if turn.end == 0)
        for turn in turns.values():
            assert list(turn.addresses) == [f"127.0.0.{ord(name)}" for name in ends[host]]
            assert [offers[host][port - 4000] for port in turn.ports] == ends[host]
    assert found == met


def test_hundreds_of_members_in_leaves_are_served_in_waves() -> None:
    """One in eight of a leaf sends to other leaves at once; the slow transmitter is the only name."""

    async def scene(stage: Stage) -> None:
        rates = slow_sender(5)
        await asyncio.gather(*(stage.member(rank, rates, leaf=f"leaf{rank // 32}") for rank in range(256)))

    result, _ = play(scene, size=256)

    assert [(one.elements, one.direction) for one in result.verdict.named] == [(("node5",), "out")]
    assert result.run.leaf_source == "slurm"
    assert 256 <= len(result.run.measured) <= 260
    assert states(result) == ["probed"] * 256

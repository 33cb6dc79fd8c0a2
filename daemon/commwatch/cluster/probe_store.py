"""The store of a probe: gives each pair its turn, takes what both ends measured, and judges; member 0 hosts it.

The pairs are those of ``schedule``, which any member could compute. The store says when: pairs of a wave measure at
once, and those of the next one begin when all have answered or their deadline has passed.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal, TypeAlias

import msgspec

from commwatch import __version__
from commwatch.cluster import adapter_latency
from commwatch.cluster.channel import Channel, Gone, Malformed
from commwatch.cluster.locate import Verdict, locate
from commwatch.cluster.messages import Join, Prober, RailReport, Ready, Turn, Void
from commwatch.cluster.node_findings import Findings, findings_of
from commwatch.cluster.node_report import Ended, NodeReport, RunOutcome, skip_of
from commwatch.cluster.run_file import SCHEMA, Measured, Member, Run
from commwatch.cluster.schedule import NO_LEAF, Pair, first_round, second_round, witness_round
from commwatch.cluster.store import DEADLINES, Deadlines, Store, within
from commwatch.cluster.terms import LeafSource
from commwatch.errors import ExitCode
from commwatch.probes import plan
from commwatch.probes.rank_plan import Backend

PAIR_DEADLINES: Final[Mapping[Backend, plan.Deadlines]] = {
    "tcp": plan.Deadlines(start=5.0, rendezvous=7.0, setup=4.0, measure=8.0),
    # torch takes seconds to import, and NCCL 45 s until it says of an InfiniBand path that it is dead.
    "gloo": plan.Deadlines(start=30.0, rendezvous=35.0, setup=10.0, measure=10.0),
    "nccl": plan.Deadlines(start=30.0, rendezvous=35.0, setup=50.0, measure=20.0),
    "simulated": plan.Deadlines(start=10.0, rendezvous=12.0, setup=10.0, measure=10.0),
}
"""Of the ranks of a pair, seconds; a rank waits for the other one a little longer than that may take to start."""
HDR_BYTES_PER_SECOND: Final = 25e9
"""Of a port of InfiniBand HDR over 4 lanes: 200 Gbit/s."""
_GRACE_SECONDS = 8.0
"""For the ends of the ranks, and the way to the store."""
_WORDS: Final = ("refused", "filtered", "no_route")
"""What says more of a failed pair than that it took too long."""

State: TypeAlias = Literal["probed", "busy", "absent", "lost", "gave way"]


_OUTCOMES: Final[Mapping[State, RunOutcome]] = {
    "probed": "completed",
    "busy": "busy",
    "absent": "lost",
    "lost": "lost",
    "gave way": "gave_way",
}


class ProbedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a run that has ended."""

    rank: int
    name: str
    state: State
    """``busy``: its node was not free; ``lost``: it came and left, or did not answer in time."""
    detail: str = ""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found."""

    backend: str
    members: tuple[ProbedMember, ...]
    run: Run
    verdict: Verdict
    occupied_seconds: float
    """Of a GPU, at most."""
    hdr_rails: tuple[int, ...] = ()
    """Rails on which each node has a port of InfiniBand HDR."""
    no_adapter_latency: str = ""
    """Why the latency of the adapters was not measured; empty where it was."""
    strangers: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """As docs/using/cluster.md has them."""
        if self.verdict.nodes < 2:
            return ExitCode.NOT_KNOWN
        return ExitCode.FOUND if self.verdict.named or self.verdict.open else ExitCode.OK


@dataclass(frozen=True, slots=True)
class Wanted:
    """What member 0 was asked for."""

    rounds: int = 3
    leaves: Mapping[str, str] = field(default_factory=dict)
    """By the name of the node; in place of what the launchers say."""
    expected: float | None = None
    inside: float | None = None
    pair_deadlines: Mapping[Backend, plan.Deadlines] = field(default_factory=lambda: PAIR_DEADLINES)


class ProbeStore(Store[ProbeResult]):
    """The members of a probe: each waits for its turns, and answers each with what it measured."""

    purpose = "probe"

    def __init__(
        self, key: bytes, size: int, names: Sequence[str], wanted: Wanted, deadlines: Deadlines = DEADLINES
    ) -> None:
        super().__init__(key, size, deadlines)
        self._names, self._wanted = names, wanted
        self._probers: dict[int, Prober] = {}
        self._channels: dict[int, Channel] = {}
        """Of members that are still here."""
        self._ready: dict[int, Ready] = {}
        """Of those that wait for a turn."""
        self._out: dict[int, tuple[State, str]] = {}
        """Who takes no further part, and why."""
        self._changed = asyncio.Event()
        self._turns = 0
        self._nonce = secrets.token_hex(16)
        self._seed = secrets.token_hex(4)
        self._measured: list[Measured] = []
        self._occupied: dict[int, float] = {}

    def _why_not(self, request: Join) -> str | None:
        theirs = request.prober.version if request.prober is not None else ""
        if theirs and theirs != __version__:
            return f"rank {request.contact.rank} runs commwatch {theirs}, rank 0 {__version__}"
        return super()._why_not(request)

    async def _member(self, channel: Channel, request: Join) -> None:
        rank, prober = request.contact.rank, request.prober
        assert prober is not None  # noqa: S101 - by _why_not
        self._probers[rank], self._channels[rank] = prober, channel
        if prober.busy:
            self._out[rank] = "busy", prober.busy
        while True:
            ready = await channel.receive(Ready)
            if rank in self._ready or len(ready.ports) != len(prober.rails):
                raise Malformed("an answer that no turn asked for")
            self._occupied[rank] = max(self._occupied.get(rank, 0.0), ready.occupied_seconds)
            if ready.gave_way:
                self._out.setdefault(rank, ("gave way", ready.gave_way))
            else:
                self._ready[rank] = ready
            self._changed.set()

    def _left(self, rank: int) -> None:
        self._channels.pop(rank, None)
        self._ready.pop(rank, None)
        self._out.setdefault(rank, ("lost", "left before the end"))
        self._changed.set()

    # --- the rounds ---

    async def _work(self) -> ProbeResult:
        ranks = sorted(self._probers)
        backend = self._one_backend()
        deadline = self._wanted.pair_deadlines[backend].total + _GRACE_SECONDS
        if not all(one.no_adapter_latency for one in self._probers.values()):
            deadline += adapter_latency.SECONDS
        leaves = self._leaves()
        met: list[Pair] = []
        for number in range(1, self._wanted.rounds + 1):
            # Members by their places among those that are still here: nobody is paired with one that left.
            here = [rank for rank in ranks if rank not in self._out]
            if len(here) < 2:
                break
            pairs = self._pairs(number, here, [leaves[rank] for rank in here], met)
            met += pairs
            for _, wave in groupby(sorted(pairs, key=lambda one: one.wave), key=lambda one: one.wave):
                await self._wave(number, backend, list(wave), deadline)
        run = self._run(ranks, leaves, backend)
        members = tuple(self._member_of(rank) for rank in range(self.size))
        result = ProbeResult(
            backend=backend, members=members, run=run, verdict=locate(run),
            occupied_seconds=round(max(self._occupied.values(), default=0.0), 3),
            hdr_rails=self._hdr_rails(),
            no_adapter_latency=self._why_no_adapter_latency(),
        )  # fmt: skip
        found = findings_of(run, result.verdict, [self._devices(rank) for rank in ranks])
        for place, rank in enumerate(ranks):
            report = self._report(rank, place, result, found, leaves[rank])
            await self._say(rank, Ended(exit_code=result.exit_code, report=report))
        return result

    def _devices(self, rank: int) -> tuple[str, ...]:
        return tuple(one.name for one in self._probers[rank].rails)

    def _report(self, rank: int, place: int, result: ProbeResult, found: Findings, leaf: str) -> NodeReport:
        """What the run says of one member; its clock is its own."""
        state, detail = self._out.get(rank, ("probed", ""))
        outcome: RunOutcome = _OUTCOMES[state]
        if outcome == "completed" and result.verdict.nodes < 2:
            outcome = "too_few"
        report = NodeReport(
            run=self._nonce, finished_at=0.0, outcome=outcome, skip=skip_of(detail) if state == "busy" else "",
            backend=result.backend, nodes=result.verdict.nodes, occupied_seconds=self._occupied.get(rank, 0.0),
            leaf=leaf, leaf_source=result.run.leaf_source,
        )  # fmt: skip
        if outcome != "completed":
            return report
        return msgspec.structs.replace(
            report, rails=found.rails.get(place, ()), suspicions=found.suspicions.get(place, ()), network=found.network
        )

    def _one_backend(self) -> Backend:
        """That of most; whoever has another one cannot be measured with them."""
        free = [rank for rank in self._probers if rank not in self._out]
        backends = [self._probers[rank].backend for rank in free]
        chosen: Backend = max(backends, key=lambda one: (backends.count(one), one), default="tcp")
        for rank in free:
            if (other := self._probers[rank].backend) != chosen:
                self._out[rank] = "busy", f"probes over {other}, most over {chosen}: --backend says which"
        return chosen

    def _leaves(self) -> dict[int, str]:
        given = self._wanted.leaves
        return {
            rank: given.get(self._members[rank].name, NO_LEAF) if given else one.leaf
            for rank, one in self._probers.items()
        }

    def _pairs(self, number: int, here: Sequence[int], leaves: Sequence[str], met: Iterable[Pair]) -> list[Pair]:
        """The pairs of a round, by rank."""
        places = {rank: place for place, rank in enumerate(here)}
        before = [Pair(places[one.first], places[one.second]) for one in met if {*one[:2]} <= places.keys()]
        if number == 1:
            found = first_round(leaves, self._seed)
        elif number == 2:
            found = second_round(leaves, self._seed, before)
        else:
            verdict = locate(self._run(here, dict(zip(here, leaves, strict=True)), ""))
            found = witness_round(
                leaves, self._seed, verdict.suspects, verdict.doubtful, {frozenset(one[:2]) for one in before}
            )
        return [Pair(here[one.first], here[one.second], one.wave) for one in found]

    async def _wave(self, number: int, backend: Backend, pairs: Sequence[Pair], deadline: float) -> None:
        """Let pairs measure at once; who has not answered by the deadline is lost."""
        asked: dict[Pair, int] = {}
        await self._until(lambda: all(self._is_settled(rank) for pair in pairs for rank in pair[:2]), _GRACE_SECONDS)
        for pair in pairs:
            if all(rank in self._ready for rank in pair[:2]):
                self._turns += 1
                asked[pair] = self._turns
                await self._ask(pair, number, self._turns)
        await within(self._answers(asked), deadline)
        for rank in (rank for pair in asked for rank in pair[:2]):
            if not self._is_settled(rank):
                self._out[rank] = "lost", f"gave no answer within {deadline:.0f} s"
        for pair, turn in asked.items():
            ends = [self._ready.get(rank) for rank in pair[:2]]
            if all(one is not None and one.turn == turn for one in ends):
                self._measured += _measured(number, pair, [one.rails for one in ends if one is not None])

    async def _answers(self, asked: Mapping[Pair, int]) -> None:
        """Wait for both ends of each pair; an end that is left alone is let go."""
        void: set[Pair] = set()
        while True:
            self._changed.clear()
            waiting = {pair: [one for one in pair[:2] if not self._is_settled(one)] for pair in asked}
            for pair, ranks in waiting.items():
                if len(ranks) == 1 and pair not in void and any(rank in self._out for rank in pair[:2]):
                    void.add(pair)
                    await self._say(ranks[0], Void(number=asked[pair]))
            if not any(waiting.values()):
                return
            await self._changed.wait()

    def _is_settled(self, rank: int) -> bool:
        return rank in self._ready or rank in self._out

    async def _ask(self, pair: Pair, of_round: int, number: int) -> None:
        first, second = pair[:2]
        rails = min(len(self._probers[rank].rails) for rank in (first, second))
        turn = Turn(
            number=number, round=of_round, end=0, peer=self._members[second].name,
            addresses=tuple(one.address for one in self._probers[first].rails[:rails]),
            ports=self._ready[first].ports[:rails], nonce=self._nonce,
            adapter_latency=not any(self._probers[rank].no_adapter_latency for rank in (first, second)),
        )  # fmt: skip
        other = msgspec.structs.replace(turn, end=1, peer=self._members[first].name)
        for rank, own in ((first, turn), (second, other)):
            del self._ready[rank]
            await self._say(rank, own)

    async def _say(self, rank: int, message: Turn | Void | Ended) -> None:
        if (channel := self._channels.get(rank)) is not None:
            with suppress(Gone):  # it has left, which its own connection says
                await channel.send(message)

    async def _until(self, enough: Callable[[], bool], seconds: float) -> None:
        async def changes() -> None:
            while not enough():
                self._changed.clear()
                await self._changed.wait()

        await within(changes(), seconds)

    # --- what came of it ---

    def _run(self, ranks: Sequence[int], leaves: Mapping[int, str], backend: str) -> Run:
        """The run so far, of those members."""
        places = {rank: place for place, rank in enumerate(ranks)}
        return Run(
            schema=SCHEMA,
            members=tuple(
                Member(
                    self._members[rank].name,
                    leaves[rank],
                    self._probers[rank].model,
                    tuple(one.rate for one in self._probers[rank].rails if one.rate),
                )
                for rank in ranks
            ),
            measured=tuple(
                msgspec.structs.replace(one, first=places[one.first], second=places[one.second])
                for one in self._measured
                if one.first in places and one.second in places
            ),
            seed=self._seed,
            leaf_source=self._leaf_source(leaves),
            expected=self._wanted.expected,
            inside=self._wanted.inside,
        )

    def _hdr_rails(self) -> tuple[int, ...]:
        rails = zip(*(one.rails for one in self._probers.values()), strict=False)
        return tuple(
            rail
            for rail, offers in enumerate(rails)
            if all((one.link_layer, one.rate) == ("InfiniBand", HDR_BYTES_PER_SECOND) for one in offers)
        )

    def _why_no_adapter_latency(self) -> str:
        if any(one.adapter_latency is not None for one in self._measured):
            return ""
        reasons: dict[str, list[str]] = {}
        for rank, one in sorted(self._probers.items()):
            reasons.setdefault(one.no_adapter_latency, []).append(self._members[rank].name)
        said = {reason: names for reason, names in reasons.items() if reason}
        if len(said) == 1 and len(reasons) == 1:
            return next(iter(said))
        return "; ".join(f"{', '.join(names[:8])}: {reason}" for reason, names in said.items()) or "no answer"

    def _leaf_source(self, leaves: Mapping[int, str]) -> LeafSource:
        return "none" if not any(leaves.values()) else "file" if self._wanted.leaves else "slurm"

    def _member_of(self, rank: int) -> ProbedMember:
        if rank not in self._probers:
            name = self._names[rank] if rank < len(self._names) else f"rank {rank}"
            return ProbedMember(rank=rank, name=name, state="absent")
        state, detail = self._out.get(rank, ("probed", ""))
        return ProbedMember(rank=rank, name=self._members[rank].name, state=state, detail=detail)


def _measured(number: int, pair: Pair, ends: Sequence[Sequence[RailReport]]) -> list[Measured]:
    """What both ends say of each rail: bytes count where they arrive."""
    found = []
    for rail, (first, second) in enumerate(zip(*ends, strict=False)):
        reasons = [one.failed for one in (first, second) if one.failed]
        if reasons:
            failed = next((one for one in reasons if one in _WORDS), reasons[0])
            found.append(Measured(number, pair.first, pair.second, rail, failed=failed))
            continue
        latencies = [one.latency for one in (first, second) if one.latency is not None]
        found.append(
            Measured(
                number, pair.first, pair.second, rail, forward=second.received, backward=first.received,
                latency=sum(latencies) / len(latencies) if latencies else None, transport=first.transport,
                adapter_latency=second.adapter_latency or first.adapter_latency,
            )
        )  # fmt: skip
    return found


def key_of_turn(key: bytes, turn: Turn) -> str:
    """By which the two ends of a pair know each other; hexadecimal."""
    return hmac.digest(key, f"{turn.nonce}/{turn.number}".encode(), "sha256").hex()

"""The store of a probe: gives each pair its turn, takes the measurements of both ends, and judges; member 0 hosts it.

The pairs are those of ``schedule``, which any member could compute. The store decides when: pairs of a wave measure at
once, and those of the next one begin when all have answered or their deadline has passed.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from commwatch.cluster import adapter_latency
from commwatch.cluster.channel import ChannelError
from commwatch.cluster.locate import Verdict, locate
from commwatch.cluster.messages import RailOffer, RailReport, Ready, Turn, Void
from commwatch.cluster.node_findings import Findings, findings_of
from commwatch.cluster.node_report import Ended, LeafSource, NodeReport, RunOutcome, skip_of
from commwatch.cluster.run_file import SCHEMA, Measured, Member, Run
from commwatch.cluster.schedule import MOST_PASSES, NO_LEAF, Pair, first_round, second_round, witness_round
from commwatch.cluster.store import Store
from commwatch.errors import ExitCode
from commwatch.probes import plan
from commwatch.probes.rank_plan import Backend, SkipReason

PAIR_DEADLINES: Final[Mapping[Backend, plan.Deadlines]] = {
    "tcp": plan.Deadlines(start=5.0, rendezvous=7.0, setup=4.0, measure=8.0),
    # torch takes seconds to import, and NCCL 45 s until it says of an InfiniBand path that it is dead.
    "gloo": plan.Deadlines(start=30.0, rendezvous=35.0, setup=10.0, measure=10.0),
    "nccl": plan.Deadlines(start=30.0, rendezvous=35.0, setup=50.0, measure=20.0),
    "simulated": plan.Deadlines(start=10.0, rendezvous=12.0, setup=10.0, measure=10.0),
}
"""Of the ranks of a pair, seconds; a rank waits for the other one a little longer than that may take to start."""
BAD_NODES: Final = ("Warning", "Critical")
"""How the diagnosis of a node begins that is not well; without a daemon it is unknown, and no fault."""
MOST_OCCUPIED_SECONDS: Final = 40.0
"""Of a GPU, for a run."""
HDR_BYTES_PER_SECOND: Final = 25e9
"""Of a port of InfiniBand HDR over 4 lanes: 200 Gbit/s."""
_GRACE_SECONDS = 8.0
"""For the ends of the ranks, and the way to the store."""
_WORDS: Final = ("refused", "filtered", "no_route")
"""Reasons of a failed pair that are more specific than a timeout."""
_HOST: Final = frozenset({"start", *get_args(SkipReason)})
"""Why a rank measured nothing, of its own node: a node short of CPU says ``starved`` of all that was late."""

State: TypeAlias = Literal["probed", "busy", "absent", "lost", "gave way"]


_OUTCOMES: Final[Mapping[State, RunOutcome]] = {
    "probed": "completed",
    "busy": "busy",
    "absent": "lost",
    "lost": "lost",
    "gave way": "gave_way",
}


class ProbedMember(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    name: str
    state: State
    """``busy``: its node was not free; ``lost``: it came and left, or did not answer in time."""
    detail: str = ""
    diagnosis: str = ""
    """The diagnosis by its node's daemon; empty: not requested."""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
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
        is_bad = any(one.diagnosis.startswith(BAD_NODES) for one in self.members)
        return ExitCode.FOUND if self.verdict.named or self.verdict.open or is_bad else ExitCode.OK


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line of member 0."""

    rounds: int = 3
    leaves: Mapping[str, str] = field(default_factory=dict)
    """By the name of the node; replaces the launchers' values."""
    expected: float | None = None
    inside: float | None = None
    pair_deadlines: Mapping[Backend, plan.Deadlines] = field(default_factory=lambda: PAIR_DEADLINES)


async def serve_probe(store: Store, names: Sequence[str], wanted: Wanted) -> ProbeResult:
    """Give the members of a probe their turns, judge the measurements, and send each member its node's report."""
    return await _Probe(store, names, wanted).result()


class _Probe:
    """The members of a probe: each waits for its turns, and answers each with what it measured."""

    def __init__(self, store: Store, names: Sequence[str], wanted: Wanted) -> None:
        self._store, self._names, self._wanted = store, names, wanted
        self._probers = {rank: one.prober for rank, one in sorted(store.members.items()) if one.prober is not None}
        self._rails = _rails_of_run([one.rails for one in self._probers.values()])
        self._ports: dict[int, tuple[int, ...]] = {}
        """Ports on which the members listen for their next turn, by rail."""
        self._out: dict[int, tuple[State, str]] = {
            rank: ("busy", one.busy) for rank, one in self._probers.items() if one.busy
        }
        """Members that are connected and take no further part, with the reason."""
        self._turns = 0
        self._nonce = secrets.token_hex(16)
        self._seed = secrets.token_hex(4)
        self._measured: list[Measured] = []
        self._occupied: dict[int, float] = {}

    # --- the rounds ---

    async def result(self) -> ProbeResult:
        ranks = list(self._probers)
        await asyncio.gather(*(self._store.request(rank, self._answer(rank), _GRACE_SECONDS) for rank in ranks))
        backend = self._one_backend()
        deadline = self._wanted.pair_deadlines[backend].total + _GRACE_SECONDS
        if not all(one.no_adapter_latency for one in self._probers.values()):
            deadline += adapter_latency.SECONDS
        leaves = self._leaves()
        met: list[Pair] = []
        # Suspects are measured until nothing more is open.
        for number in (1, 2, *[3] * MOST_PASSES):
            # Members by their places among those that are still here: nobody is paired with one that left.
            here = [rank for rank in ranks if not self._is_out(rank)]
            if len(here) < 2 or number > self._wanted.rounds:
                break
            pairs = self._pairs(number, here, [leaves[rank] for rank in here], met)
            if not pairs:
                continue
            met += pairs
            for _, wave in groupby(sorted(pairs, key=lambda one: one.wave), key=lambda one: one.wave):
                for measured in await asyncio.gather(*(self._turn(number, pair, deadline) for pair in wave)):
                    self._measured += measured
        run = self._run(ranks, leaves, backend)
        members = tuple(self._member_of(rank) for rank in range(self._store.size))
        result = ProbeResult(
            backend=backend, members=members, run=run, verdict=locate(run),
            occupied_seconds=round(max(self._occupied.values(), default=0.0), 3),
            hdr_rails=self._hdr_rails(),
            no_adapter_latency=self._why_no_adapter_latency(),
        )  # fmt: skip
        found = findings_of(run, result.verdict, [self._devices(rank) for rank in ranks])
        await self._store.send({
            rank: Ended(
                exit_code=result.exit_code, report=self._report(rank, place, result, found, leaves[rank])
            )
            for place, rank in enumerate(ranks)
        })  # fmt: skip
        return result

    async def _answer(self, rank: int) -> Ready:
        """The next answer of a member: its turn has ended, or it is ready for the first one."""
        ready = await self._store.members[rank].channel.receive(Ready)
        if len(ready.ports) != len(self._probers[rank].rails):
            raise ChannelError("an answer that no turn asked for")
        self._ports[rank] = ready.ports
        self._occupied[rank] = self._occupied.get(rank, 0.0) + ready.occupied_seconds
        if ready.gave_way:
            self._out.setdefault(rank, ("gave way", ready.gave_way))
        return ready

    async def _turn(self, of_round: int, pair: Pair, deadline: float) -> list[Measured]:
        """Let a pair measure, and return the results of both ends.

        They are empty if the ends have no rail in common, or one is lost; the other end is then released at once.
        """
        first, second = ranks = pair[:2]
        offered = [self._places(rank) for rank in ranks]
        shared = sorted(set(offered[0]) & set(offered[1]))
        if not shared or any(self._is_out(rank) for rank in ranks):
            return []
        self._turns += 1
        own, theirs = (tuple(map(places.index, shared)) for places in offered)
        turn = Turn(
            number=self._turns, round=of_round, end=0, peer=self._name(second), rails=own,
            addresses=tuple(self._probers[first].rails[rail].address for rail in own),
            ports=tuple(self._ports[first][rail] for rail in own), nonce=self._nonce,
            adapter_latency=not any(self._probers[rank].no_adapter_latency for rank in ranks),
        )  # fmt: skip
        other = msgspec.structs.replace(turn, end=1, peer=self._name(first), rails=theirs)

        waiting = {first, second}

        async def exchange(rank: int, own: Turn) -> Ready:
            await self._store.members[rank].channel.send(own)
            return await self._answer(rank)

        async def measured(rank: int, own: Turn) -> Ready | None:
            ready = await self._store.request(rank, exchange(rank, own), deadline)
            waiting.discard(rank)
            if self._is_out(rank):
                await self._store.send(dict.fromkeys(waiting, Void(number=own.number)))
            return ready

        ends = [one for one in await asyncio.gather(measured(first, turn), measured(second, other)) if one is not None]
        if len(ends) < 2 or any(one.turn != turn.number or one.gave_way for one in ends):
            return []
        # A rank that did not start says nothing of the network.
        late = [rank for rank, end in zip(ranks, ends, strict=True) if any(one.failed in _HOST for one in end.rails)]
        for rank in late:
            self._out.setdefault(rank, ("gave way", "not measured: host busy, its ranks did not start in time"))
        return [] if late else _measured(of_round, pair, shared, [one.rails for one in ends])

    def _is_out(self, rank: int) -> bool:
        return rank in self._out or not self._store.is_connected(rank)

    # --- the result of each member ---

    def _state(self, rank: int) -> tuple[State, str]:
        if rank in self._out:
            return self._out[rank]
        return ("probed", "") if self._store.is_connected(rank) else ("lost", self._store.lost[rank])

    def _name(self, rank: int) -> str:
        return self._store.members[rank].contact.name

    def _devices(self, rank: int) -> tuple[str, ...]:
        """By rail of the run."""
        return self._rails or tuple(one.name for one in self._probers[rank].rails)

    def _places(self, rank: int) -> list[int]:
        """What a member offers, as rails of the run."""
        names = [one.name for one in self._probers[rank].rails]
        return [self._rails.index(name) for name in names] if self._rails else list(range(len(names)))

    def _rates(self, rank: int) -> tuple[float, ...]:
        """By rail of the run, bytes per second; of one that the member lacks, which is never measured, its fastest."""
        rates = {place: one.rate for place, one in zip(self._places(rank), self._probers[rank].rails, strict=True)}
        fastest = max(rates.values(), default=0.0)
        return tuple(rates.get(place) or fastest for place in range(len(self._devices(rank)))) if fastest else ()

    def _report(self, rank: int, place: int, result: ProbeResult, found: Findings, leaf: str) -> NodeReport:
        """The report of the run on one member; its clock is its own."""
        state, detail = self._state(rank)
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
        free = [rank for rank in self._probers if not self._is_out(rank)]
        backends = [self._probers[rank].backend for rank in free]
        chosen: Backend = max(backends, key=lambda one: (backends.count(one), one), default="tcp")
        for rank in free:
            if (other := self._probers[rank].backend) != chosen:
                self._out[rank] = "busy", f"probes over {other}, most over {chosen}: --backend says which"
        return chosen

    def _leaves(self) -> dict[int, str]:
        given = self._wanted.leaves
        return {
            rank: given.get(self._name(rank), NO_LEAF) if given else one.leaf for rank, one in self._probers.items()
        }

    def _pairs(self, number: int, here: Sequence[int], leaves: Sequence[str], met: Iterable[Pair]) -> list[Pair]:
        places = {rank: place for place, rank in enumerate(here)}
        before = [Pair(places[one.first], places[one.second]) for one in met if {*one[:2]} <= places.keys()]
        rails = [len(self._probers[rank].rails) for rank in here]
        if number == 1:
            found = first_round(leaves, self._seed, rails)
        elif number == 2:
            found = second_round(leaves, self._seed, before, rails)
        else:
            verdict = locate(self._run(here, dict(zip(here, leaves, strict=True)), ""))
            times = [frozenset(one[:2]) for one in before]
            found = witness_round(leaves, self._seed, verdict.suspects, verdict.doubtful, times, verdict.sides, rails)
        found_pairs = [Pair(here[one.first], here[one.second], one.wave) for one in found]
        return [one for one in found_pairs if number < 3 or not any(self._is_spent(rank, met) for rank in one[:2])]

    def _is_spent(self, rank: int, met: Iterable[Pair]) -> bool:
        """Whether one more turn would hold its GPUs for too long."""
        turns = sum(rank in one[:2] for one in met)
        return self._occupied.get(rank, 0.0) * (turns + 1) > MOST_OCCUPIED_SECONDS * turns

    # --- what came of it ---

    def _run(self, ranks: Sequence[int], leaves: Mapping[int, str], backend: str) -> Run:
        places = {rank: place for place, rank in enumerate(ranks)}
        return Run(
            schema=SCHEMA,
            members=tuple(
                Member(
                    self._name(rank),
                    leaves[rank],
                    self._probers[rank].model,
                    self._rates(rank),
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
        hdr = [
            {
                place
                for place, one in zip(self._places(rank), prober.rails, strict=True)
                if (one.link_layer, one.rate) == ("InfiniBand", HDR_BYTES_PER_SECOND)
            }
            for rank, prober in self._probers.items()
        ]
        return tuple(sorted(set[int]().union(*hdr).intersection(*hdr)))

    def _why_no_adapter_latency(self) -> str:
        if any(one.adapter_latency is not None for one in self._measured):
            return ""
        reasons: dict[str, list[str]] = {}
        for rank, one in sorted(self._probers.items()):
            reasons.setdefault(one.no_adapter_latency, []).append(self._name(rank))
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
        state, detail = self._state(rank)
        diagnosis = self._probers[rank].diagnosis
        return ProbedMember(rank=rank, name=self._name(rank), state=state, detail=detail, diagnosis=diagnosis)


def _rails_of_run(offers: Sequence[Sequence[RailOffer]]) -> tuple[str, ...]:
    """Names of the rails, if all members offer the same ones in one order, or less: without a port that is down.

    Empty where names or their order differ: rails then meet in the order in which they are offered.
    """
    names = [tuple(one.name for one in of_member) for of_member in offers]
    most = max(names, key=len, default=())
    return most if all(one == tuple(name for name in most if name in one) for one in names) else ()


def _measured(number: int, pair: Pair, rails: Sequence[int], ends: Sequence[Sequence[RailReport]]) -> list[Measured]:
    """The measurements of each rail by both ends: bytes count where they arrive."""
    found = []
    for rail, first, second in zip(rails, *ends, strict=False):
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

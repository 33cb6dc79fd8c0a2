"""Why the ranks of a job wait for each other, from their dumps: a typed verdict in the words of Meta's analyser.

Words: ``comms/analyzer/if/NCCLAnalyzerVerdict.thrift`` of torchcomms. The ranks of a group are compared by the sequence
numbers of their collectives. ``pg_status`` is not used: its numbers count sends and receives too, so that a rank
that sent nothing would seem to be behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from commwatch.jobs.flight_recorder.recording import Group, Recording, Step

Kind: TypeAlias = Literal[
    "metadata_mismatch",  # ranks called different operations, or one with different sizes or types
    "deadlock",  # groups wait for each other
    "did_not_arrive",  # ranks did not call an operation that others wait in
    "unresponsive",  # a live process does not answer
    "missing_dump",  # all whose dump is there arrived; others left none
    "data_path",  # all ranks arrived, and the data does not
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""The likeliest cause first."""
SHORTEST_WAIT_SECONDS: Final = 10.0
"""An operation that others wait in for less is no hang, and dumps of a running job are not of one moment."""
CLOCKS_SECONDS: Final = 60.0
"""By which the clocks of two nodes may differ."""
_DEFAULT_GROUP: Final = "default_pg"
_MOST_GUESSED: Final = 65_536
_SAME_SIZE: Final = frozenset({"all_reduce", "allreduce", "allreduce_coalesced", "broadcast", "reduce"})
"""Operations of which inputs and outputs of all ranks are equally large."""
KNOWN_OPERATIONS: Final = _SAME_SIZE | {
    "_all_gather_base", "_broadcast_oop", "_reduce_oop", "_reduce_scatter_base", "all_gather", "all_gather_v",
    "all_gather_single", "all_gather_into_tensor_coalesced", "all_reduce_barrier", "all_to_all", "all_to_all_single",
    "all_to_all_v_single", "allgather", "alltoall", "barrier", "gather", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced", "reduce_scatter_v", "scatter",
}  # fmt: skip
"""Operations that are known: an unknown name is no evidence of a mismatch."""
_TYPES: Final = frozenset({
    "Float", "Half", "BFloat16", "Double", "Int", "Long", "Short", "Char", "Byte", "Bool", "ComplexFloat",
    "ComplexDouble", "Float8_e4m3fn", "Float8_e5m2",
})  # fmt: skip
"""Names of c10 that are compared; likewise."""


@dataclass(frozen=True, slots=True)
class RankDump:
    rank: int
    source: str
    """Path of the file, or the process."""
    taken: float
    """When it was written or answered, seconds since 1970."""
    recording: Recording


class Verdict(msgspec.Struct, frozen=True):
    """Why some ranks wait."""

    kind: Kind
    is_certain: bool
    """False where another reading of the same dumps is possible; ``detail`` says which."""
    ranks: tuple[int, ...]
    """That the others wait for, or that differ from most; empty of a data path and where no rank differs from most."""
    waiting: tuple[int, ...]
    group: str
    """Name and description of the process group; of a deadlock all its groups."""
    operation: str
    sequence_number: int | None
    """Of the operation in its group; None of sends and receives."""
    since: float
    """When the first of them called it, seconds since 1970, by the clock of its node."""
    detail: str
    """As a sentence."""
    frames: dict[str, tuple[str, ...]] = {}
    """By rank: where a rank that waits is, and the last call in the group of one that is waited for."""


class Analysis(msgspec.Struct, frozen=True):
    """What the dumps of a job say together."""

    ranks: tuple[int, ...]
    """Of the dumps that were compared."""
    verdicts: tuple[Verdict, ...]
    """The likeliest cause first; empty where no rank waits."""
    notes: tuple[str, ...]
    """What was set aside and why, as sentences."""
    contradicting: tuple[int, ...] = ()
    """Ranks that are not known, or not in a group, although there are dumps of them: these contradict each other, or
    those of other ranks."""


@dataclass(slots=True)
class _Front:
    """An operation in which ranks wait."""

    group: str
    step: Step
    members: tuple[int, ...]
    arrived: dict[int, Step]
    waiting: tuple[int, ...]
    absent: dict[int, Step | None]
    """Ranks that did not call it, each with its last call in the group."""
    is_listed: bool
    """Whether all members are known."""
    unknown: tuple[int, ...]
    """Members of which the dumps say nothing."""
    waits_for: set[int] = field(default_factory=set)
    """Places of the fronts that end first."""


def judge(dumps: Iterable[RankDump], unresponsive: Mapping[int, str] | None = None) -> Analysis:
    """Why the ranks of one job wait for each other.

    Args:
        dumps: of its ranks; several of one rank where it has several recorders.
        unresponsive: ranks whose live process gave no answer, with the reason.
    """
    notes: list[str] = []
    found = list(dumps)
    last_run = _of_one_run(found, notes)
    ranks = _by_rank(last_run, notes)
    contradicting = {one.rank for one in last_run} - ranks.keys()
    highest = max([*(one.rank for one in found), *(unresponsive or ())], default=0)
    groups = _by_group(ranks, highest, notes, contradicting)
    world = max((len(one.members) for one in groups if one.is_listed), default=0)
    for rank in [one for one in ranks if world and one >= world and not _is_member(one, groups)]:
        notes.append(f"The dump of rank {rank} is left out: the largest group has {world} ranks, and it is not in any.")
        del ranks[rank]
    fronts = [front for one in groups for front in _fronts(one, ranks, notes)]
    _connect(fronts)
    verdicts = [*_deadlocks(fronts), *(_verdict(one, unresponsive or {}) for one in fronts if not one.waits_for)]
    verdicts.sort(key=likelihood)
    return Analysis(tuple(sorted(ranks)), tuple(_distinct(verdicts)), tuple(notes), tuple(sorted(contradicting)))


def likelihood(verdict: Verdict) -> tuple[int, bool, float]:
    """What verdicts are sorted by, the likeliest cause first."""
    return KINDS.index(verdict.kind), not verdict.is_certain, verdict.since


# --- which dumps belong together ---


def _of_one_run(dumps: list[RankDump], notes: list[str]) -> list[RankDump]:
    """The dumps of the last run: those whose calls lie at the same time; others were left by an earlier one."""
    with_calls = sorted((one for one in dumps if one.recording.calls), key=lambda one: one.recording.oldest)
    end, begin = float("-inf"), 0
    for place, one in enumerate(with_calls):
        if one.recording.oldest > end + CLOCKS_SECONDS:
            begin = place
        end = max(end, one.recording.newest)
    notes.extend(
        f"{one.source} is left out: its calls are older than all calls of the other dumps, as of an earlier run."
        for one in with_calls[:begin]
    )
    return [one for one in dumps if not any(one is other for other in with_calls[:begin])]


def _by_rank(dumps: Iterable[RankDump], notes: list[str]) -> dict[int, list[RankDump]]:
    """The dumps by rank; of two with the same groups the later one, and neither where they disagree."""
    found: dict[int, list[RankDump]] = {}
    for dump in dumps:
        found.setdefault(dump.rank, []).append(dump)
    for rank, several in list(found.items()):
        kept: list[RankDump] = []
        for dump in sorted(several, key=lambda one: one.recording.newest):
            earlier = next((one for one in kept if _shared(one.recording, dump.recording)), None)
            if earlier is not None and _disagree(earlier.recording, dump.recording):
                notes.append(f"Rank {rank} is left out: {earlier.source} and {dump.source} disagree about its calls.")
                kept = []
                break
            kept = [one for one in kept if one is not earlier] + [dump]
        if kept:
            found[rank] = kept
        else:
            del found[rank]
    return dict(sorted(found.items()))


def _named(recording: Recording) -> dict[tuple[str, str], Group]:
    return {(one.name, one.description): one for one in recording.groups if one.steps}


def _shared(first: Recording, second: Recording) -> bool:
    return bool(_named(first).keys() & _named(second).keys())


def _disagree(first: Recording, second: Recording) -> bool:
    """Whether two dumps of a rank say different things of one call."""
    ours, theirs = _named(first), _named(second)
    for key in ours.keys() & theirs.keys():
        steps = {one.number: one for one in ours[key].steps}
        for step in theirs[key].steps:
            known = steps.get(step.number)
            if known is not None and (known.operations, known.created) != (step.operations, step.created):
                return True
    return False


@dataclass(slots=True)
class _Members:
    """A group over all ranks."""

    name: str
    members: tuple[int, ...]
    is_listed: bool
    """Whether the dumps list the members; else those that are known are taken."""
    by_rank: dict[int, Group]

    @property
    def label(self) -> str:
        """Name and description."""
        descriptions = Counter(one.description for one in self.by_rank.values() if one.description)
        description = descriptions.most_common(1)[0][0] if descriptions else ""
        return f"{self.name} ({description})" if description not in ("", "undefined") else self.name


def _by_group(
    ranks: dict[int, list[RankDump]], highest: int, notes: list[str], contradicting: set[int]
) -> list[_Members]:  # fmt: skip
    """The groups; of one name those with the same ranks, as a split makes groups of one name that share none.

    Ranks that are left out of one are added to ``contradicting``.
    """
    named: dict[str, dict[int, Group]] = {}
    for rank, dumps in ranks.items():
        for dump in dumps:
            for group in dump.recording.groups:
                known = named.setdefault(group.name, {}).get(rank)
                if known is None or not known.steps:
                    named[group.name][rank] = group
    return [one for name, by_rank in named.items() for one in _split(name, by_rank, highest, notes, contradicting)]


def _split(
    name: str, by_rank: dict[int, Group], highest: int, notes: list[str], contradicting: set[int]
) -> Iterator[_Members]:  # fmt: skip
    """The groups of one name; ``highest`` is the highest rank that is known."""
    lists = Counter(one.ranks for rank, one in by_rank.items() if rank in one.ranks)
    kept: list[tuple[int, ...]] = []
    listed: dict[int, tuple[int, ...]] = {}
    """By rank the one of ``kept`` that it is in."""
    for ranks, _ in lists.most_common():
        if listed.keys().isdisjoint(ranks):
            kept.append(ranks)
            listed.update(dict.fromkeys(ranks, ranks))
    odd = {rank for rank, one in by_rank.items() if rank in one.ranks and listed.get(rank) != one.ranks}
    if odd:
        contradicting |= odd
        notes.append(f"In group {name[:64]!r} {ranks_text(odd)} left out: other dumps list other ranks.")
    for ranks in kept:
        yield _Members(name, ranks, True, {one: by_rank[one] for one in ranks if one in by_rank and one not in odd})
    rest = {one: group for one, group in by_rank.items() if one not in odd and one not in listed}
    if rest and not kept:
        # The default group has all ranks, and they are numbered from 0 on.
        is_default = any(one.description == _DEFAULT_GROUP for one in rest.values())
        members = tuple(range(highest + 1)) if is_default and highest < _MOST_GUESSED else tuple(sorted(rest))
        yield _Members(name, members, False, rest)


def _is_member(rank: int, groups: Iterable[_Members]) -> bool:
    return any(rank in one.members for one in groups)


# --- where ranks wait ---


def _fronts(group: _Members, ranks: Mapping[int, Sequence[RankDump]], notes: list[str]) -> Iterator[_Front]:
    """The first operation in which ranks of a group wait, and its sends and receives in which one does."""
    yield from _exchanges(group, ranks)
    waits = {rank: one.waiting[0] for rank, one in group.by_rank.items() if rank in ranks and one.waiting}
    if not waits:
        return
    number = min(one.number for one in waits.values())
    waiting = {rank: one for rank, one in waits.items() if one.number == number}
    first = min(waiting.values(), key=lambda one: one.created)
    arrived: dict[int, Step] = {}
    absent: dict[int, Step | None] = {}
    unknown: list[int] = []
    for rank in group.members:
        mine = group.by_rank.get(rank)
        steps = {one.number: one for one in mine.steps} if mine else {}
        if number in steps:
            arrived[rank] = steps[number]
        elif rank not in ranks or min(one.taken for one in ranks[rank]) < first.created + SHORTEST_WAIT_SECONDS:
            unknown.append(rank)
        elif steps and max(steps) < number:
            absent[rank] = steps[max(steps)]
        elif not steps and mine is not None and _never_called(rank, mine, ranks[rank], first):
            absent[rank] = None
        elif not steps or min(steps) > number:
            unknown.append(rank)
    if _is_young(first, waiting, ranks):
        notes.append(
            f"{ranks_text(waiting)} waited in {first.operations[0]} {number} of group {group.label} for less than "
            f"{SHORTEST_WAIT_SECONDS:.0f} s when the dumps were written: that is no hang yet."
        )
        return
    yield _Front(
        group.label, first, group.members, arrived, tuple(sorted(waiting)), absent, group.is_listed, tuple(unknown)
    )


def _is_young(first: Step, waiting: Iterable[int], ranks: Mapping[int, Sequence[RankDump]]) -> bool:
    """Whether the dumps were written too early to show a hang."""
    return max(one.taken for rank in waiting for one in ranks[rank]) < first.created + SHORTEST_WAIT_SECONDS


def _never_called(rank: int, group: Group, dumps: Sequence[RankDump], first: Step) -> bool:
    """Whether a rank without a call in a group that it is in has made none since the others began to wait."""
    recordings = [one.recording for one in dumps]
    reaches_back = all(one.is_whole or 0 < one.oldest <= first.created for one in recordings)
    return rank in group.ranks and reaches_back and not any(one.is_partial for one in recordings)


def _exchanges(group: _Members, ranks: Mapping[int, Sequence[RankDump]]) -> Iterator[_Front]:
    """Sends and receives in which a rank waits, each with its other end."""
    ends: dict[tuple[int, int], dict[int, Step]] = {}
    for rank, one in group.by_rank.items():
        for step in one.exchanges:
            if (
                step.peer is None
                or not group.is_listed
                or max(step.peer.source, step.peer.destination) >= len(group.members)
            ):
                continue
            source, destination = group.members[step.peer.source], group.members[step.peer.destination]
            if rank == (source if step.operations[0] == "send" else destination):
                ends.setdefault((source, destination), {}).setdefault(rank, step)
    for pair, waiting in ends.items():
        first = min(waiting.values(), key=lambda one: one.created)
        if _is_young(first, waiting, ranks):
            continue
        others = [one for one in pair if one not in waiting]
        absent = {
            one: None for one in others
            if one in ranks and not any(dump.recording.is_partial for dump in ranks[one])
            and min(dump.taken for dump in ranks[one]) >= first.created + SHORTEST_WAIT_SECONDS
        }  # fmt: skip
        unknown = tuple(one for one in others if one not in absent)
        yield _Front(group.label, first, pair, dict(waiting), tuple(sorted(waiting)), dict(absent), True, unknown)


def _connect(fronts: Sequence[_Front]) -> None:
    """Find out which operations have to end before others: a rank that waits in one comes to the other only then."""
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for place, front in enumerate(fronts):
        for rank in front.waiting:
            by_rank.setdefault(rank, []).append((front.arrived[rank].order, place))
    for place, front in enumerate(fronts):
        for rank in front.absent:
            front.waits_for.update(other for _, other in by_rank.get(rank, ()) if other != place)
    for calls in by_rank.values():
        calls.sort()
        for (_, earlier), (_, later) in pairwise(calls):
            fronts[later].waits_for.add(earlier)


# --- verdicts ---


def _deadlocks(fronts: Sequence[_Front]) -> Iterator[Verdict]:
    try:
        TopologicalSorter({place: front.waits_for for place, front in enumerate(fronts)}).prepare()
    except CycleError as error:
        places = list(dict.fromkeys(error.args[1]))
        circle = [fronts[place] for place in places]
        first = min(circle, key=lambda one: one.step.created)
        is_certain = all(front.absent for front in circle)
        ways = "; ".join(
            f"{ranks_text(front.waiting)} in {front.step.operations[0]} {front.step.number} of group {front.group}"
            for front in circle
        )
        doubt = "" if is_certain else " All of them arrived: a slow network would leave the same traces."
        yield Verdict(
            kind="deadlock",
            is_certain=is_certain,
            ranks=tuple(sorted({rank for front in circle for rank in front.absent})),
            waiting=tuple(sorted({rank for front in circle for rank in front.waiting})),
            group=", ".join(front.group for front in circle),
            operation=first.step.operations[0],
            sequence_number=_sequence_number(first.step),
            since=first.step.created,
            detail=f"Groups wait for each other, whose operations the ranks call in different orders: {ways}.{doubt}",
            frames=_frames(circle),
        )


def _verdict(front: _Front, unresponsive: Mapping[int, str]) -> Verdict:
    """Why ranks wait in an operation whose ranks wait nowhere else."""
    differing = _mismatch(front)
    silent = {rank: unresponsive[rank] for rank in front.unknown if rank in unresponsive}
    kind: Kind
    is_certain, ranks = True, tuple(sorted(front.absent))
    call = f"{front.step.operations[0]} {front.step.number} of group {front.group}"
    if front.step.peer is not None:
        call = f"a {front.step.operations[0]} from rank {front.members[0]} to {front.members[1]} of group {front.group}"
    waiting = f"{ranks_text(front.waiting)} wait{'s' * (len(front.waiting) == 1)}"
    others = f" {ranks_text(front.unknown)} left no dump that can be compared." if front.unknown else ""
    if differing is not None:
        kind, (ranks, detail) = "metadata_mismatch", differing
    elif front.absent:
        kind, is_certain = "did_not_arrive", front.is_listed or not front.unknown
        detail = f"{ranks_text(ranks)} did not call {call}, in which {waiting}.{others}"
    elif silent:
        kind, is_certain, ranks = "unresponsive", False, tuple(sorted(silent))
        why = "; ".join(f"rank {rank}: {reason}" for rank, reason in sorted(silent.items()))
        detail = f"{waiting} in {call}, and {ranks_text(ranks)} did not answer ({why})."
    elif front.unknown:
        kind, is_certain, ranks = "missing_dump", False, tuple(sorted(front.unknown))
        detail = (
            f"{waiting} in {call}, and all whose dump can be compared arrived. "
            f"{ranks_text(ranks)} left none, and may not have arrived."
        )
    else:
        kind, is_certain = "data_path", front.is_listed
        known = "" if front.is_listed else " The dumps do not list the ranks of the group: one without a dump may lack."
        detail = f"All ranks called {call}, and it does not end for {ranks_text(front.waiting)}.{known}"
    return Verdict(
        kind=kind,
        is_certain=is_certain,
        ranks=ranks,
        waiting=front.waiting,
        group=front.group,
        operation=front.step.operations[0],
        sequence_number=_sequence_number(front.step),
        since=front.step.created,
        detail=detail,
        frames=_frames([front]),
    )


def _mismatch(front: _Front) -> tuple[tuple[int, ...], str] | None:
    """Ranks that differ from most in what they called, and a sentence; None where all agree, as far as is known."""
    if front.step.peer is not None:
        return None
    size = len(front.members) if front.is_listed else 0
    called = {rank: _called(step, size) for rank, step in front.arrived.items()}
    for part in range(3):  # the operation, then the types, then the sizes
        seen = {rank: one[part] for rank, one in called.items() if one[part]}
        counts = Counter(seen.values()).most_common()
        if len(counts) < 2:
            continue
        (usual, number), (_, next_number) = counts[0], counts[1]
        odd = tuple(sorted(rank for rank, one in seen.items() if one != usual)) if number > next_number else ()
        ways = "; ".join(
            f"{ranks_text([rank for rank, one in seen.items() if one == text])}: {text}" for text, _ in counts[:4]
        )
        return odd, f"At number {front.step.number} of group {front.group} the ranks do not do the same. {ways}."
    return None


def _called(step: Step, size: int) -> tuple[str, str, str]:
    """A call as operation, types and elements; each empty where it is not to be compared."""
    operations = step.operations
    if not all(one in KNOWN_OPERATIONS or one.endswith("coalesced") for one in operations):
        return "", "", ""
    inputs, outputs = step.elements
    types = " ".join(step.types) if len(step.types) == 1 and step.types[0] in _TYPES else ""
    if operations[0] in _SAME_SIZE and inputs != outputs:
        # No such call exists: its numbers are damaged, or it is of a kind that is not known here.
        return "", "", ""
    elements = ""
    if inputs and (operations[0] in _SAME_SIZE or (size and outputs == inputs * size) or inputs == outputs * size):
        elements = f"{operations[0]} of {inputs:,} elements"
    return " + ".join(operations), f"{operations[0]} of {types}" if types else "", elements


def _frames(fronts: Iterable[_Front]) -> dict[str, tuple[str, ...]]:
    """Where ranks are, by rank."""
    found: dict[str, tuple[str, ...]] = {}
    several = list(fronts)
    last_calls: list[tuple[int, Step | None]] = [call for one in several for call in one.arrived.items()]
    last_calls += [call for one in several for call in one.absent.items()]
    for rank, step in last_calls:
        if step is not None and step.frames:
            found.setdefault(str(rank), step.frames)
    return dict(sorted(found.items(), key=lambda one: int(one[0])))


def _sequence_number(step: Step) -> int | None:
    return step.number if step.peer is None else None


def _distinct(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """The verdicts without those that say of the same ranks the same of another group."""
    told: set[tuple[Kind, tuple[int, ...]]] = set()
    for one in verdicts:
        key = one.kind, one.ranks or one.waiting
        if key not in told:
            told.add(key)
            yield one


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``; of many only the first."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for one in numbers:
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    text = ", ".join(shown[:16]) + (f" and {len(shown) - 16} more runs" if len(shown) > 16 else "")
    return f"rank{'s' * (len(numbers) != 1)} {text}"

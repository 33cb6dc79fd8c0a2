"""A dump as it is judged: for each process group the last steps of the rank, and whether it waits in one.

A dump has no check sum. One whose numbers contradict each other is set aside, so that a damaged byte names no rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Final

import msgspec

from commwatch.jobs.flight_recorder.dump import Call, Dump, Frame
from commwatch.jobs.flight_recorder.pickle_walk import NoDump

KEPT_STEPS: Final = 100
"""Of each group: the last ones, in which ranks are compared."""
KEPT_FRAMES: Final = 16
KEPT_TYPES: Final = 4
_LONGEST_PLACE: Final = 256
"""Characters of a function, and of a file: the calls of a pickle can share a text of any length."""
_MOST_RANKS_TEXT: Final = 4 * 2**20
"""Characters of the lists of ranks of all groups; likewise."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}:([A-Za-z_]\w{0,63})(?: (\d{1,7})(->|<-)(\d{1,7}))?\Z")
"""``nccl:all_reduce``, ``nccl:send 1->2`` from 1 to 2, ``nccl:recv 2<-1`` likewise; numbers within the group."""
_P2P: Final = frozenset({"send", "recv"})
_MOST_BACK_NS: Final = 5 * 10**9
"""By which a call may be older than the one before it: several threads, and a clock that is being set."""
_FAMILIES: Final = (
    "reducescatter", "allgather", "barrier", "allreduce", "alltoall", "broadcast", "scatter", "gather", "reduce",
)  # fmt: skip
"""Kinds of collectives; of two that a name has, the first one."""
_BY_OTHERS: Final = frozenset({"_broadcast_oop", "_reduce_oop"})
"""Operations by which NCCL's process group does others, such as an all_gather of unequal tensors."""
_PYTHON_OF_TORCH: Final = "distributed_c10d.py"


class Peer(msgspec.Struct, frozen=True):
    """The two ends of a send or a receive, as places in the group's list of ranks."""

    source: int
    destination: int


class Step(msgspec.Struct, frozen=True):
    """A collective of one rank, or several that were issued as one; or a send or receive."""

    number: int
    """Sequence number in the group; the same on all ranks."""
    operations: tuple[str, ...]
    """Without the backend's name."""
    elements: tuple[int, int]
    """Of all inputs and of all outputs."""
    types: tuple[str, ...]
    """Of the elements; of several the first."""
    is_finished: bool
    created: float
    """Seconds since 1970, by the rank's node."""
    order: int
    """Place among all calls of the rank."""
    peer: Peer | None = None
    """Of a send or receive whose name has it."""
    frames: tuple[str, ...] = ()
    """``function file:line``, the innermost first; of the last step and of those in which the rank waits."""


class Group(msgspec.Struct, frozen=True):
    name: str
    description: str
    ranks: tuple[int, ...]
    """Empty where the dump does not list them."""
    steps: tuple[Step, ...]
    """Collectives, in order."""
    exchanges: tuple[Step, ...] = ()
    """Sends and receives in which the rank waits."""

    @property
    def waiting(self) -> tuple[Step, ...]:
        """The collectives in which the rank waits: those after the last finished one."""
        return _trailing(self.steps)


class Recording(msgspec.Struct, frozen=True):
    version: str
    library: str
    """Version of NCCL as ``2.28.9``; may be empty."""
    calls: int
    oldest: float
    """When its first and last calls were made, seconds since 1970; 0 without any."""
    newest: float
    is_whole: bool
    """Whether no call has been dropped from the ring."""
    is_partial: bool
    """Whether finished calls were left out when it was written (``TORCH_INCLUDE_ONLY_ACTIVE``)."""
    groups: tuple[Group, ...]
    rank: int | None = None
    """Where the dump itself names it."""


def condense(dump: Dump) -> Recording:
    """What a dump says.

    Raises:
        NoDump: its numbers contradict each other.
    """
    calls = dump.entries
    has_gaps = any(later.record_id != earlier.record_id + 1 for earlier, later in pairwise(calls))
    _check_order(dump)
    finished = _Finished(calls)
    dropped = bool(calls) and calls[0].record_id > 0
    is_partial = (
        has_gaps
        or (dropped and not any(finished(one) for one in calls))
        or (not calls and bool(dump.pg_status))
    )  # fmt: skip
    numbers_all = not dump.pg_status  # torchcomms: one count of all calls of a rank, sends and receives among them
    is_cut = numbers_all and (dropped or has_gaps)
    if is_cut and (len({one.process_group for one in calls}) > 1 or any(map(_is_exchange, calls))):
        raise NoDump("its numbers count the calls of all groups, and the first ones are gone: they cannot be compared")
    groups = tuple(_groups(dump, finished, is_numbered=not numbers_all or is_cut, has_gaps=has_gaps))
    return Recording(
        version=dump.version,
        library=dump.comm_lib_version,
        calls=len(calls),
        oldest=calls[0].time_created_ns / 1e9 if calls else 0.0,
        newest=calls[-1].time_created_ns / 1e9 if calls else 0.0,
        is_whole=not dropped and not is_partial,
        is_partial=is_partial,
        groups=groups,
        rank=dump.rank,
    )


class _Finished:
    """Whether a call is over.

    A recorder with device events sets the state; one without, such as gloo's, only retires the call. Of the first kind
    a call that is retired but not completed was given up.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self._timed = {_backend(one) for one in calls if one.state != "scheduled"}

    def __call__(self, call: Call) -> bool:
        return call.state == "completed" or (call.retired and _backend(call) not in self._timed)


def _backend(call: Call) -> str:
    return call.profiling_name.partition(":")[0]


def _operation(call: Call) -> str:
    return _operation_of(call.profiling_name)


@lru_cache(maxsize=4096)
def _operation_of(name: str) -> str:
    named = _NAME.match(name)
    if named is None:
        raise NoDump(f"{name[:64]!r} is no operation")
    return named[1]


def _peer(call: Call) -> Peer | None:
    named = _NAME.match(call.profiling_name)
    if named is None or named[3] is None:
        return None
    first, second = int(named[2]), int(named[4])
    return Peer(first, second) if named[3] == "->" else Peer(second, first)


def _check_order(dump: Dump) -> None:
    """Refuse a dump whose calls do not belong together.

    Raises:
        NoDump: see ``condense``.
    """
    names: dict[int, tuple[str, str]] = {}
    for call in dump.entries:
        if names.setdefault(call.pg_id, call.process_group) != call.process_group:
            raise NoDump(f"group {call.pg_id} has two names")
        if dump.pg_status and str(call.pg_id) not in dump.pg_status:
            raise NoDump(f"group {call.pg_id} of call {call.record_id} has no status")
        if call.is_p2p and _operation(call) not in _P2P and not _is_bracket(call):
            raise NoDump(f"call {call.record_id} is both a {_operation(call)} and a send or receive")
        if call.frames and _is_of_other_kind(call):
            raise NoDump(f"call {call.record_id} is a {_operation(call)}, but {call.frames[0].name} made it")
    for earlier, later in pairwise(dump.entries):
        if later.record_id <= earlier.record_id:
            raise NoDump(f"call {later.record_id} follows call {earlier.record_id}")
        if later.time_created_ns < earlier.time_created_ns - _MOST_BACK_NS:
            raise NoDump(f"call {later.record_id} is older than the one before it")
    if sum(len(config.ranks) for config in dump.pg_config.values()) > _MOST_RANKS_TEXT:
        raise NoDump("its groups list more ranks than a job has")


def _family(name: str) -> str:
    plain = name.replace("_", "").lower()
    return next((one for one in _FAMILIES if one in plain), "")


def _is_of_other_kind(call: Call) -> bool:
    """Whether torch's own Python function that made a call does something else."""
    frame, operation = call.frames[0], _operation(call)
    if not frame.filename.endswith(_PYTHON_OF_TORCH) or operation in _BY_OTHERS:
        return False
    made, found = _family(frame.name), _family(operation)
    return bool(made and found) and made != found


def _is_bracket(call: Call) -> bool:
    """Whether a call stands for the ones before it with its number, which were issued as one."""
    return call.profiling_name.endswith("coalesced")


def _groups(dump: Dump, finished: _Finished, *, is_numbered: bool, has_gaps: bool) -> Iterator[Group]:
    """The groups of a dump; those that it lists without a call too."""
    by_id: dict[int, list[tuple[int, Call]]] = {}
    for order, call in enumerate(dump.entries):
        by_id.setdefault(call.pg_id, []).append((order, call))
    last: dict[str, list[tuple[int, Call]]] = {}
    for calls in by_id.values():
        name, _ = calls[0][1].process_group
        earlier = last.get(name)
        if earlier is not None and (
            earlier[-1][0] > calls[0][0] or earlier[0][1].process_group != calls[0][1].process_group
        ):
            raise NoDump(f"two groups are called {name[:64]!r}")
        last[name] = calls  # a group that was made again: the later one counts
    for name, calls in last.items():
        config = dump.pg_config.get(name)
        collectives = [one for one in calls if not _is_exchange(one[1])]
        steps = list(_steps(collectives, finished, is_numbered=is_numbered, has_gaps=has_gaps))
        exchanges = list(
            _steps([one for one in calls if _is_exchange(one[1])], finished, is_numbered=True, has_gaps=True)
        )
        yield Group(
            name=name,
            description=calls[-1][1].process_group[1],
            ranks=_ranks(config.ranks) if config else (),
            steps=tuple(reversed(steps)),
            exchanges=tuple(one for one in reversed(exchanges) if not one.is_finished),
        )
    for name, config in dump.pg_config.items():
        if name and name not in last and (ranks := _ranks(config.ranks)):
            yield Group(name, config.desc, ranks, ())


def _is_exchange(call: Call) -> bool:
    return call.is_p2p or _operation(call) in _P2P


def _steps(
    calls: Sequence[tuple[int, Call]], finished: _Finished, *, is_numbered: bool, has_gaps: bool
) -> Iterator[Step]:
    """The last calls of one group, those of one number as one step, the last one first.

    Raises:
        NoDump: a number is missing or comes twice.
    """
    made: list[tuple[int, list[tuple[int, Call]]]]
    if is_numbered:
        made = [(number, list(same)) for number, same in groupby(calls, key=lambda one: _number(one[1]))]
    else:
        made = [(number, [one]) for number, one in enumerate(calls, start=1)]
    for (earlier, _), (later, _) in pairwise(made):
        if later <= earlier or (later != earlier + 1 and not has_gaps):
            raise NoDump(f"in group {calls[0][1].process_group[0][:64]!r} call {later} follows call {earlier}")
    for number, same in made[1:]:  # the ring may have dropped a part of the first one
        if len(same) > 1 and not _is_bracket(same[-1][1]) and not same[-1][1].is_p2p:
            raise NoDump(f"in group {calls[0][1].process_group[0][:64]!r} call {number} is there twice")
    waits = next((place for place, (_, same) in enumerate(reversed(made)) if finished(same[-1][1])), len(made))
    for place, (number, same) in enumerate(reversed(made[-max(KEPT_STEPS, waits) :])):
        yield _step(number, same, finished, has_frames=place <= waits)


def _number(call: Call) -> int:
    return call.p2p_seq_id if call.is_p2p else call.collective_seq_id


def _step(number: int, same: Sequence[tuple[int, Call]], finished: _Finished, *, has_frames: bool) -> Step:
    order, last = same[-1]
    first = same[0][1]
    frames = last.frames[:KEPT_FRAMES] if has_frames else []
    types = sorted({one for _, call in same for one in (*call.input_dtypes, *call.output_dtypes)})
    # Calls that were issued as one get no state of their own: that of the bracket counts.
    is_finished = finished(last) if _is_bracket(last) else all(finished(call) for _, call in same)
    return Step(
        number=number,
        operations=tuple(_operation(call) for _, call in same),
        elements=(
            _elements(call.input_sizes for _, call in same),
            _elements(call.output_sizes for _, call in same),
        ),
        types=tuple(types[:KEPT_TYPES]),
        is_finished=is_finished,
        created=first.time_created_ns / 1e9,
        order=order,
        peer=_peer(first),
        frames=tuple(map(_place, frames)),
    )


def _place(frame: Frame) -> str:
    return f"{frame.name[:_LONGEST_PLACE]} {frame.filename[-_LONGEST_PLACE:]}:{frame.line}"


def _elements(sizes: Iterable[Sequence[Sequence[int]]]) -> int:
    """Elements of all tensors of some calls, up to 2^62."""
    return min(sum(math.prod(tensor) for tensors in sizes for tensor in tensors), 2**62)


def _trailing(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps after the last one that is finished."""
    done = max((place for place, one in enumerate(steps) if one.is_finished), default=-1)
    return tuple(steps[done + 1 :])


@lru_cache(maxsize=8)  # all dumps of a job have the same few lists, which are long for many ranks
def _ranks(text: str) -> tuple[int, ...]:
    """The ranks of ``[0, 1, 2, 3]``; empty where the text is no such list."""
    inside = text.strip()[1:-1]
    parts = [one.strip() for one in inside.split(",")]
    if (
        text[:1] != "["
        or text[-1:] != "]"
        or not all(one.isascii() and one.isdigit() and len(one) < 8 for one in parts)
    ):
        return ()
    ranks = tuple(sorted(map(int, parts)))
    return ranks if len(set(ranks)) == len(ranks) else ()

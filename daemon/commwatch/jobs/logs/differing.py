"""Facts of NCCL's log in which the ranks of a job differ: the network plugin of their hosts, and the sizes of a call.

Sources: NCCL's lines at the level INFO (src/plugin/net.cc; src/enqueue.cc with ``NCCL_DEBUG_SUBSYS=COLL``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from commwatch.jobs.logs.kinds import Kinds
from commwatch.jobs.logs.transport import lines_with

_PLACE: Final = rb"([\w.-]{1,64}:\d{1,10}):\d{1,10} \[-?\d{1,10}\] "
"""Host and process before a message."""
_PLUGIN: Final = re.compile(
    _PLACE
    + rb"NCCL INFO (?:(NET/Plugin ?: (?:No plugin found|Using internal net|Could not find: [^\n]{0,200}\. Using int))"
    rb"|(?:NET/Plugin: Loaded net plugin |Plugin Path : \S|NET/OFI Initializing aws-ofi-nccl))"
)
_CALL: Final = re.compile(
    _PLACE
    + rb"NCCL INFO (AllReduce|Broadcast|Reduce|AllGather|ReduceScatter): opCount ([0-9a-f]{1,16}) sendbuff \S{1,20} "
    rb"recvbuff \S{1,20} count (\d{1,20}) datatype (\d{1,3}) op \d{1,3} root (\d{1,7}) comm (\w{1,20}) "
    rb"\[nranks=(\d{1,7})\]"
)
_MOST: Final = 4096
"""Hosts, and calls, that are kept."""
_SHOWN: Final = 4


class _Call(NamedTuple):
    name: str
    elements: int
    datatype: int
    root: int


class RankFacts:
    """The facts of one log; ``take`` each piece of it."""

    def __init__(self) -> None:
        self.with_plugin: set[str] = set()
        self.without_plugin: set[str] = set()
        self.calls: dict[tuple[int, int, str], _Call] = {}
        """By ranks of the communicator, number of the call in it, and process."""
        self.communicators: dict[tuple[int, str], set[str]] = {}
        """Addresses, two at most, by ranks and process: where one has several, the log does not say which belongs to
        which."""

    def take(self, body: bytes, kinds: Kinds) -> None:
        """Look at whole lines.

        Args:
            kinds: of the same lines.
        """
        for hint in (b"NET/Plugin", b"Plugin Path", b"aws-ofi-nccl"):
            for line in lines_with(body, hint) if kinds.may_hold(hint) else ():
                if (found := _PLUGIN.search(line)) is not None:
                    hosts = self.without_plugin if found[2] else self.with_plugin
                    if len(hosts) < _MOST:
                        hosts.add(found[1].rpartition(b":")[0].decode())
        for line in lines_with(body, b": opCount ") if kinds.may_hold(b": opCount ") else ():
            if len(self.calls) < _MOST and (one := _CALL.search(line)) is not None:
                process, ranks = one[1].decode(), int(one[8])
                communicators = self.communicators.setdefault((ranks, process), set())
                if len(communicators) < 2:
                    communicators.add(one[7].decode())
                call = _Call(one[2].decode(), int(one[4]), int(one[5]), int(one[6]))
                self.calls.setdefault((ranks, int(one[3], 16), process), call)


def differing_notes(logs: Sequence[RankFacts]) -> tuple[str, ...]:
    """In which the ranks of a job differ, as sentences."""
    return tuple(filter(None, (_plugins(logs), _sizes(logs))))


def _plugins(logs: Sequence[RankFacts]) -> str:
    having = set().union(*(log.with_plugin for log in logs))
    lacking = set().union(*(log.without_plugin for log in logs)) - having
    if not having or not lacking:
        return ""
    return (
        f"NCCL loaded a network plugin on {_few(having)} and none on {_few(lacking)}: ranks with different plugins do "
        "not reach each other. Install the same one on all nodes (LD_LIBRARY_PATH of the job finds it), or use none "
        "(NCCL_NET_PLUGIN=none)."
    )


def _sizes(logs: Sequence[RankFacts]) -> str:
    """The first call of the largest communicator that its ranks made in different ways; empty for none."""
    calls = {key: call for log in logs for key, call in log.calls.items()}
    several = {key for log in logs for key, found in log.communicators.items() if len(found) > 1}
    largest = max((ranks for ranks, _, _ in calls), default=0)
    by_number: dict[int, dict[str, _Call]] = {}
    for (ranks, number, process), call in calls.items():
        if ranks == largest and (ranks, process) not in several:
            by_number.setdefault(number, {})[process] = call
    for number, of_process in sorted(by_number.items()):
        if len(set(of_process.values())) > 1 and len(of_process) <= largest:
            kinds = dict.fromkeys(of_process.values())
            said = "; ".join(
                f"{one.name} of {one.elements:,} elements of type {one.datatype}, root {one.root}, on "
                + _few([process for process, call in of_process.items() if call == one])
                for one in list(kinds)[:_SHOWN]
            )
            return (
                f"Processes made call {number} of a communicator of {largest} ranks in different ways: {said}. If "
                "these are of one communicator, NCCL hangs or damages data: look at what makes the ranks differ there."
            )
    return ""


def _few(names: Iterable[str]) -> str:
    every = sorted(names)
    return ", ".join(every[:_SHOWN]) + (f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else "")

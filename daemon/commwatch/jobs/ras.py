"""NCCL's RAS: the answer of a job itself while it is suspected to be stuck. Blocks: for a process of its own.

Asking has crashed jobs, so it is bounded: on the node of rank 0 alone, NCCL 2.29.2 or later by the library that is
loaded, not within the first 10 minutes of a process, JSON alone, one connection, drained at once. MONITOR comes first:
it starts no collective in the job, and no version that must not be asked for a report knows it. Then one STATUS on the
same connection, so that the same process answers: those of one user share the port. Never the verbose one;
DIAGNOSTICS and CONTROL are never sent.

The protocol: ``src/ras/client_support.cc`` of NCCL. The counts of RAS are of launches: a hang of ranks that all
launched the same looks sound to it, so its answer never clears a suspicion.
"""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from commwatch.jobs.inspector.aggregate import OPERATIONS
from commwatch.jobs.ranks import read_rank, read_uptime
from commwatch.jobs.settings.facts import ProcessSettings
from commwatch.jobs.settings.process_environment import read_process_settings
from commwatch.jobs.settings.variables import known_variables
from commwatch.sources import files

Outcome: TypeAlias = Literal[
    "agree", "differ",  # a report; differ: ranks are missing, failed or behind
    "no_rank_0", "unread", "version", "off", "namespace", "address", "young", "other_user", "silent",  # was not asked
    "unreachable", "too_old", "protocol", "no_answer", "cut", "too_large", "unreadable", "other_job", "setting_up",
]  # fmt: skip
OUTCOMES: Final[dict[Outcome, str]] = {
    "agree": "shows no difference between the ranks, as it does in a hang of all alike",
    "differ": "shows a difference between the ranks",
    "no_rank_0": "was not asked: rank 0 is not on this node",
    "unread": "was not asked: the process of rank 0 cannot be read with the rights of the daemon",
    "version": "was not asked: the NCCL of rank 0 is not known to be 2.29.2 or later",
    "off": "was not asked: NCCL_RAS_ENABLE is 0",
    "namespace": "was not asked: rank 0 is in another network namespace",
    "address": "was not asked: NCCL_RAS_ADDR is no address of the loopback interface",
    "young": "was not asked: rank 0 has run for less than 10 min",
    "other_user": "was not asked: another user listens at its port",
    "silent": "was not asked: what listens at its address gave no answer within the last hour",
    "unreachable": "does not listen",
    "too_old": "does not know MONITOR, so it was not asked for a report",
    "protocol": "did not answer: another program listens there",
    "no_answer": "did not answer in time",
    "cut": "ended the connection before the answer was whole",
    "too_large": "gave an answer of more than 64 MiB, which was given up",
    "unreadable": "gave an answer that is no report",
    "other_job": "answered for another job of this user",
    "setting_up": "knows no communicator that is set up",
}
"""In words, behind *RAS*."""
HARMED: Final[frozenset[Outcome]] = frozenset({"protocol", "no_answer", "cut", "too_large", "unreadable"})
"""After these neither the job nor its address is asked for an hour."""

FIRST_VERSION: Final = (2, 29, 2)
"""Before it a report with a missing rank reads wrong memory of the job."""
YOUNG_SECONDS: Final = 600.0
LISTEN_SECONDS: Final = 2.0
"""For events of MONITOR."""
ANSWER_SECONDS: Final = 15.0
"""RAS itself gives up after 10 s."""
MOST_BYTES: Final = 64 << 20
_MOST_LINE: Final = 1024
_PORT: Final = 28028
_PIECE: Final = 1 << 16
_MOST_MEMORY, _MOST_CPU_SECONDS = 1 << 30, 10
_MOST_TROUBLES: Final = 4
_MOST_NAMED: Final = 16
_IN_PROGRESS: Final = 7
"""``ncclInProgress``; 0 is success."""
_DEAD: Final = b'"event": "PEER_DEAD"'
_LISTENS: Final = b"0A"
"""``TCP_LISTEN``."""
_SOCKETS_BYTES: Final = 1 << 20
"""Those that listen come first."""
_SERVER: Final = re.compile(rb"SERVER PROTOCOL \d{1,4}")

Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Id: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31)]


class Trouble(msgspec.Struct, frozen=True):
    """The trouble of one communicator; ranks are numbers within it, the first 16 of each kind."""

    size: int
    """Ranks of the communicator."""
    missing: tuple[int, ...] = ()
    """That do not answer."""
    dead: tuple[int, ...] = ()
    """Those of them whose process is taken for dead."""
    failed: tuple[int, ...] = ()
    """With an asynchronous error."""
    behind: tuple[int, ...] = ()
    """That launched fewer of an operation than most."""
    operation: str = ""
    """That operation, as in the labels of Inspector's metrics."""
    is_split: bool = False
    """Whether the ranks launched different numbers of it, and most of them not the highest: nobody is named."""

    def words(self) -> Iterator[str]:
        """Each kind in words."""
        living = tuple(rank for rank in self.missing if rank not in self.dead)
        for ranks, singular, plural in (
            (self.dead, "is taken for dead", "are taken for dead"),
            (living, "does not answer", "do not answer"),
            (self.failed, "has an asynchronous error", "have an asynchronous error"),
            (self.behind, f"has launched fewer {self.operation} than the others",
             f"have launched fewer {self.operation} than the others"),
        ):  # fmt: skip
            if ranks:
                named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
                yield f"{named} of {self.size} {singular if len(ranks) == 1 else plural}"
        if self.is_split:
            yield f"the {self.size} ranks have launched different numbers of {self.operation}"


class RasWord(msgspec.Struct, frozen=True):
    """The answer of RAS on a job, or the reason why there is none."""

    outcome: Outcome
    ranks: int = 0
    """Of the largest communicator."""
    communicators: int = 0
    unready: int = 0
    """Communicators that are being set up, whose records are empty."""
    died: int = 0
    """Processes that RAS reported as dead while it was listened to."""
    troubles: tuple[Trouble, ...] = ()
    """The largest communicators first."""
    behind_pids: tuple[int, ...] = ()
    """Processes of this node that are behind in any communicator; without one whose id a rank elsewhere has, too."""
    address: str = ""
    """Where it was asked: ``127.0.0.1:28028``; empty where it was not."""

    @property
    def words(self) -> str:
        """One sentence without its full stop."""
        if self.outcome != "differ":
            return f"RAS {OUTCOMES[self.outcome]}"
        words = [part for one in self.troubles for part in one.words()]
        words += [f"{self.died} processes died while it was asked"] if self.died else []
        return f"RAS: {'; '.join(words)}"

    def states(self) -> dict[str, int]:
        """Ranks by state, each in the communicator where most of them are in it; empty without a report."""
        if self.outcome not in ("agree", "differ"):
            return {}
        return {
            state: max((len(getattr(one, state)) for one in self.troubles), default=0)
            for state in ("missing", "dead", "failed", "behind")
        }


# --- what it answers ---


class _Status(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0


class _Rank(msgspec.Struct):
    rank: _Id
    host: str = ""
    pid: _Id = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, Number] = {}


class _MissingStatus(msgspec.Struct):
    considered_dead: bool = False


class _Missing(msgspec.Struct):
    rank: _Id
    host: str = ""
    pid: _Id = -1
    status: _MissingStatus = msgspec.field(default_factory=_MissingStatus)


class _Communicator(msgspec.Struct):
    hash: Annotated[str, Meta(pattern="^0x[0-9a-f]{1,16}$")]
    size: Number
    ranks: list[_Rank] = []
    missing_ranks: list[_Missing] = []


class _Report(msgspec.Struct):
    communicators: list[_Communicator]


def judge_report(content: bytes, pids: Collection[int], died: int = 0) -> RasWord:
    """The word of a report.

    Args:
        content: of the answer to STATUS, in JSON.
        pids: processes of the job on this node; a report without any of them is of another job.
        died: processes that MONITOR reported as dead.
    """
    try:
        report = msgspec.json.decode(content, type=_Report)
    except (ValueError, RecursionError):
        # A report is one object: without its end the connection was cut, and before 2.29.2 one was no JSON.
        return RasWord("unreadable" if content.rstrip().endswith(b"}") else "cut")
    ready = [one for one in report.communicators if one.size and int(one.hash, 16)]  # others are zero-filled
    if not ready:
        return RasWord("setting_up", unready=len(report.communicators))
    if not any(rank.pid in pids for one in ready for rank in one.ranks):
        return RasWord("other_job")
    ready.sort(key=lambda one: -one.size)
    troubles: list[Trouble] = []
    behind: set[int] = set()
    hosts: dict[int, set[str]] = {}  # by id of a process: a report has the ranks of all nodes, and ids come twice
    for one in ready:
        those = [(gone.pid, gone.host) for gone in one.missing_ranks]
        for pid, host in those + [(rank.pid, rank.host) for rank in one.ranks]:
            hosts.setdefault(pid, set()).add(host)
    for one in ready:
        operation, late, is_split = _behind(one.ranks)
        behind |= {rank.pid for rank in late if len(hosts[rank.pid]) == 1} & set(pids)
        trouble = Trouble(
            one.size,
            _named(rank.rank for rank in one.missing_ranks),
            _named(rank.rank for rank in one.missing_ranks if rank.status.considered_dead),
            _named(rank.rank for rank in one.ranks if rank.status.async_error not in (0, _IN_PROGRESS)),
            _named(rank.rank for rank in late),
            operation,
            is_split,
        )
        if trouble.missing or trouble.failed or operation:
            troubles.append(trouble)
    return RasWord(
        "differ" if troubles or died else "agree",
        ready[0].size, len(ready), len(report.communicators) - len(ready), died, tuple(troubles[:_MOST_TROUBLES]),
        tuple(sorted(behind)),
    )  # fmt: skip


def _named(ranks: Iterator[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))[:_MOST_NAMED]


def _behind(ranks: Sequence[_Rank]) -> tuple[str, list[_Rank], bool]:
    """An operation of which the ranks launched different numbers, the few that launched less than most, and whether
    there are none because most launched less; without a difference its name is empty."""
    split = ""
    running = [rank for rank in ranks if not rank.status.init_state]
    for operation in sorted({name for rank in running for name in rank.collective_counts}):
        counts = [rank.collective_counts.get(operation, 0) for rank in running]
        late = [rank for rank, count in zip(running, counts, strict=True) if count < max(counts)]
        if late and len(late) * 2 < len(running):
            return OPERATIONS.get(operation, "other"), late, False
        split = split or (OPERATIONS.get(operation, "other") if late else "")
    return split, [], bool(split)


# --- how it is asked ---


class _Failed(Exception):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome: Outcome = outcome


class _Client:
    """A connection to RAS in JSON."""

    def __init__(self, addresses: Sequence[tuple[str, int]], seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._content = b""
        for address in addresses:
            try:
                self._socket = socket.create_connection(address, self._left())
                break
            except OSError:
                continue
        else:
            raise _Failed("unreachable")

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def monitor(self, seconds: float) -> None:
        """Receive events for some seconds.

        Raises:
            _Failed: this version has no MONITOR, or the connection ended.
        """
        if _SERVER.fullmatch(self._ask(b"CLIENT PROTOCOL 2")) is None:
            raise _Failed("protocol")
        if self._ask(b"SET FORMAT json") != b"OK" or self._ask(b"MONITOR") != b"OK":
            raise _Failed("too_old")
        last, self._until = self._until, min(self._until, time.monotonic() + seconds)
        try:
            while True:
                self._receive()
        except _Failed as failed:
            if failed.outcome != "no_answer":  # the end of the time for it
                raise
        self._until = last

    def report(self) -> tuple[bytes, bytes]:
        """All events, and the report to its end.

        Raises:
            _Failed: there is none.
        """
        self._send(b"STATUS")
        pieces, size = [self._content], len(self._content)
        while piece := self._piece():
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise _Failed("too_large")
        content = b"".join(pieces)
        begin = max(0, content.rfind(b"{", 0, max(0, content.find(b'"nccl_version"'))))
        return content[:begin], content[begin:]

    def _ask(self, command: bytes) -> bytes:
        """The line that answers a command."""
        self._send(command)
        while b"\n" not in self._content:
            self._receive()
        line, _, self._content = self._content.partition(b"\n")
        return line.rstrip(b"\r")

    def _send(self, command: bytes) -> None:
        try:
            self._socket.sendall(command + b"\n")
        except OSError:
            raise _Failed("cut") from None

    def _receive(self) -> None:
        piece = self._piece()
        if not piece:
            raise _Failed("cut")
        self._content += piece
        if len(self._content) > _MOST_LINE * 1024 or (b"\n" not in self._content and len(self._content) > _MOST_LINE):
            raise _Failed("protocol" if b"\n" not in self._content else "too_large")

    def _piece(self) -> bytes:
        try:
            self._socket.settimeout(self._left())
            return self._socket.recv(_PIECE)
        except TimeoutError:
            raise _Failed("no_answer") from None
        except OSError:
            raise _Failed("cut") from None

    def _left(self) -> float:
        if (left := self._until - time.monotonic()) <= 0:
            raise _Failed("no_answer")
        return left


def ask(
    addresses: Sequence[tuple[str, int]], pids: Collection[int],
    listen_seconds: float = LISTEN_SECONDS, answer_seconds: float = ANSWER_SECONDS,
) -> RasWord:  # fmt: skip
    """Ask the RAS at an address about the job of some processes; blocks.

    Args:
        addresses: of one server, as far as its name has several.
        pids: of the job on this node.
        listen_seconds: for events, before a report is asked for.
        answer_seconds: that the connection may take beside that.
    """
    try:
        with _Client(addresses, answer_seconds + listen_seconds) as client:
            client.monitor(listen_seconds)
            events, report = client.report()
    except _Failed as failed:
        return RasWord(failed.outcome)
    return judge_report(report, pids, events.count(_DEAD))


# --- whether it is asked ---


def addresses_of(text: str) -> list[tuple[str, int]]:
    """The addresses of NCCL_RAS_ADDR, empty for the default; none where it is not on the loopback interface: a job does
    not decide whom the daemon talks to."""
    host, _, port = text.rpartition(":") if text else ("localhost", "", str(_PORT))
    if not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16:
        return []
    if host == "localhost":
        return [("127.0.0.1", int(port)), ("::1", int(port))]
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return []
    if address.is_unspecified:
        return [("127.0.0.1" if address.version == 4 else "::1", int(port))]
    return [(str(address), int(port))] if address.is_loopback else []


def reason_against(process: ProcessSettings, procfs: Path) -> Outcome | None:
    """Why the RAS of a rank 0 is not asked; None where it is."""
    values = {one.name: one.value for one in process.settings}
    sample, uptime = read_rank(procfs, process.pid or 0), read_uptime(procfs)
    if process.nccl_version is None or tuple(process.nccl_version) < FIRST_VERSION:
        return "version"
    if values.get("NCCL_RAS_ENABLE") == "0":
        return "off"
    if sample is None or uptime is None or not sample.state or not process.network_namespace:
        return "unread"
    if process.network_namespace != os.readlink(f"{procfs}/self/ns/net"):
        return "namespace"
    if not addresses_of(values.get("NCCL_RAS_ADDR") or ""):
        return "address"
    return "young" if uptime - sample.started < YOUNG_SECONDS else None


def _another_listens(procfs: Path, process: int, port: int) -> bool:
    """Whether a port is not that of the user of a process alone: anybody may listen there, and answer for the job."""
    users = files.parse_users(files.read_if_there(f"{procfs}/{process}/status"))
    listening = set()
    for name in ("tcp", "tcp6"):
        for line in (files.read_if_there(f"{procfs}/net/{name}", _SOCKETS_BYTES) or b"").splitlines()[1:]:
            words = line.split()
            if len(words) > 7 and words[3] == _LISTENS and words[1].endswith(b":%04X" % port):
                listening.add(words[7])
    return users is None or not listening <= {b"%d" % users.effective}


def ask_about(
    procfs: Path, pids: Collection[int], asker: Callable[..., RasWord] = ask, silent: Collection[str] = ()
) -> RasWord:
    """Ask the RAS of a job, if it may be asked; blocks.

    Args:
        pids: of the job on this node.
        asker: see ``ask``.
        silent: addresses that are not asked.
    """
    reading = read_process_settings(pids, known_variables(), procfs)
    first = next((one for one in reading.processes if one.rank == "0"), None)
    if first is None:
        return RasWord("unread" if reading.unread else "no_rank_0")
    if (why := reason_against(first, procfs)) is not None:
        return RasWord(why)
    address = next((one.value for one in first.settings if one.name == "NCCL_RAS_ADDR"), "")
    addresses = addresses_of(address or "")
    if _another_listens(procfs, first.pid or 0, addresses[0][1]):
        return RasWord("other_user")
    place = "{}:{}".format(*addresses[0])
    return RasWord("silent") if place in silent else msgspec.structs.replace(asker(addresses, pids), address=place)


def main(arguments: Sequence[str]) -> None:
    """Print the word as JSON; arguments: procfs, addresses that are not asked, and the ids of processes."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_SECONDS, _MOST_CPU_SECONDS))
    procfs, silent, *pids = arguments
    word = ask_about(Path(procfs), tuple(map(int, pids)), silent=silent.split(","))
    sys.stdout.write(msgspec.json.encode(word).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

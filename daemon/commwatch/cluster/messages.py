"""Messages between members and the store; every text and every list has a limit."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

import msgspec

Text = Annotated[str, msgspec.Meta(max_length=256)]
WORD = r"[A-Za-z0-9_.:%@+-]*"
"""Characters of names and addresses: these are part of commands that people copy into a shell."""
Word = Annotated[str, msgspec.Meta(max_length=256, pattern=f"^{WORD}\\Z")]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=1023)]

FailureCause = Literal[
    "refused", "filtered", "no_route", "name", "wrong_interface", "version", "mtu", "busy_port", "parts"
]
Cause = Literal[FailureCause, "clock"]
"""Clocks that differ are a note, and no failure."""
Direction = Literal["in", "out", ""]
Quantity = Annotated[float, msgspec.Meta(ge=1e-12, le=1e15)]
"""Bytes per second, or seconds."""
TriedPort = Literal["rendezvous", "ephemeral"]
PortKind = Literal[TriedPort, ""]
Result = Literal["open", "refused", "filtered", "no_route", "name", "stranger", "mtu", "busy_port"]

MOST_RAILS = 64
MOST_OUTCOMES = 400
"""Of one member: 20 partners with up to 2 addresses of 4 tries, and its tries to reach the store."""


def word_of(text: str) -> str:
    """The text as a word: other characters become underscores."""
    return "".join(one if re.fullmatch(WORD, one) else "_" for one in text)[:256]


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """An interface that is up, with its first address."""

    name: Word
    address: Word
    prefix: Annotated[int, msgspec.Meta(ge=0, le=128)]
    mtu: int = 0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which interface a library takes here; empty texts where it finds none."""

    interface: Word = ""
    address: Word = ""
    why: Word = ""
    """Of what follows from a variable, its name."""


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member listens."""

    rank: Rank
    name: Word
    token: Annotated[str, msgspec.Meta(min_length=16, max_length=16)]
    """The first message of its listeners, so that no other process's answer counts as its."""
    addresses: Annotated[tuple[Word, ...], msgspec.Meta(max_length=4)]
    """That others have to reach: NCCL's first, gloo's where it is another one."""
    ports: Annotated[tuple[Port, ...], msgspec.Meta(max_length=4)]
    """On each of them."""
    low: Port
    high: Port
    """Range from which its kernel takes ports."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a member."""

    whom: Rank
    result: Result
    kind: PortKind = "ephemeral"
    address: Text = ""
    port: Port = 0
    detail: Text = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a member's node."""

    versions: Annotated[dict[Text, Text], msgspec.Meta(max_length=64)]
    settings: Annotated[dict[Word, Text], msgspec.Meta(max_length=128)]
    """NCCL_* of the launcher."""
    parts: Annotated[dict[Text, Text], msgspec.Meta(max_length=64)]
    interfaces: Annotated[tuple[Interface, ...], msgspec.Meta(max_length=64)]
    nccl: Choice
    gloo: Choice
    own_name: Word
    own_addresses: Annotated[tuple[Word, ...], msgspec.Meta(max_length=16)]
    """To which its own name resolves."""
    master_addresses: Annotated[tuple[Word, ...], msgspec.Meta(max_length=16)] = ()
    """To which the name of the meeting place resolves."""


class RailOffer(msgspec.Struct, frozen=True, kw_only=True):
    name: Word
    """Interface or RDMA device."""
    address: Word
    """Where its listener is."""
    rate: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0
    """Bytes per second that it should carry; 0: not known."""
    link_layer: Word = ""
    """Of an RDMA device: ``InfiniBand`` or ``Ethernet``."""


class Prober(msgspec.Struct, frozen=True, kw_only=True):
    version: Word
    """Of commwatch."""
    backend: Literal["nccl", "gloo", "tcp", "simulated"]
    rails: Annotated[tuple[RailOffer, ...], msgspec.Meta(max_length=MOST_RAILS)] = ()
    leaf: Word = ""
    """As its launcher names it."""
    model: Text = ""
    """The properties that must be equal for nodes to be compared."""
    no_adapter_latency: Text = ""
    """Why the latency of its adapters cannot be measured; empty: it can."""
    busy: Text = ""
    """Why its node may not be probed now; empty: it may."""
    diagnosis: Text = ""
    """The diagnosis by the daemon of its node, in a line that begins with the word of the verdict; empty: not
    requested."""


class Join(msgspec.Struct, frozen=True, kw_only=True, tag="join"):
    """A member comes; the store answers a check with the roster, a probe with the first turn."""

    contact: Contact
    size: int
    """How many members its launcher promised."""
    prober: Prober | None = None
    """None: it comes for a check."""


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    """A member asks for the store's clock."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """All that a member found; the store answers with the verdict."""

    facts: Facts
    outcomes: Annotated[tuple[Outcome, ...], msgspec.Meta(max_length=MOST_OUTCOMES)]
    clock_seconds: float = 0.0
    """By how much its clock is ahead of the store's."""
    clock_error_seconds: float = 0.0
    """Half of the round trip."""


def has_addresses(join: Join | None, facts: Facts | None) -> bool:
    """Whether all that should be an address is one, and each subnet has bits for it."""
    addresses = [*(join.contact.addresses if join else ())]
    addresses += [one.address for one in join.prober.rails] if join and join.prober else []
    if facts is not None:
        chosen = [one.address for one in (facts.nccl, facts.gloo) if one.address]
        addresses += [*facts.own_addresses, *facts.master_addresses, *chosen]
    try:
        for address in addresses:
            ipaddress.ip_address(address)
        for one in facts.interfaces if facts else ():
            ipaddress.ip_network(f"{one.address}/{one.prefix}", strict=False)
    except ValueError:
        return False
    return True


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag="pong"):
    """The store's clock, seconds since 1970."""

    now: float


class Roster(msgspec.Struct, frozen=True, kw_only=True, tag="roster"):
    """Who has come by the end of the window."""

    contacts: tuple[Contact, ...]


class RailReport(msgspec.Struct, frozen=True, kw_only=True):
    latency: Quantity | None = None
    """Seconds of a small message, half of there and back, on its clock."""
    received: Quantity | None = None
    """Bytes per second that arrived."""
    adapter_latency: Quantity | None = None
    """Seconds of a small message between the adapters alone."""
    transport: Text = ""
    failed: Text = ""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """A member is through with its turn, and waits for the next one."""

    ports: Annotated[tuple[Port, ...], msgspec.Meta(max_length=MOST_RAILS)] = ()
    """On which it listens now, by rail."""
    turn: int = 0
    """That has ended; 0 before the first."""
    rails: Annotated[tuple[RailReport, ...], msgspec.Meta(max_length=MOST_RAILS)] = ()
    occupied_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """Of its GPUs, each."""
    gave_way: Text = ""
    """Why it takes no further part; its turn does not count."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """A member is to measure with another one."""

    number: int
    round: int
    end: Literal[0, 1]
    peer: str
    rails: tuple[int, ...]
    """The rails that are measured, as places in what this end offers."""
    addresses: tuple[str, ...]
    """Of end 0, by rail of the turn."""
    ports: tuple[int, ...]
    adapter_latency: bool
    """Whether both ends can measure that of their adapters."""
    nonce: str
    """Random bytes, from which both ends make the key of the turn."""


class Void(msgspec.Struct, frozen=True, kw_only=True, tag="void"):
    """The other end of a turn takes no further part: nothing is to be waited for."""

    number: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The member cannot take part."""

    reason: Text


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, as one line."""

    cause: Cause
    who: str
    """The node on which it is to be cured, or which is in the minority."""
    whom: str = ""
    """The other end; several where the same holds of all."""
    port: str = ""
    direction: Direction = ""
    """Of the connection as ``who`` sees it."""
    detail: str = ""
    cure: str = ""
    """A command for ``who``."""
    minor: bool = False
    """Said, and no failure: exit code 0."""
    ranks: tuple[int, ...] = ()
    """Ranks of all members that ``who`` represents."""

    @property
    def line(self) -> str:
        """Cause, who, whom, port, direction, what is seen, and the command that cures it."""
        arrow = {"in": " <- ", "out": " -> ", "": " with "}[self.direction]
        parts = [
            f"{self.cause}: {self.who}",
            f"{arrow}{self.whom}" if self.whom else "",
            f", port{'s' if '-' in self.port or ',' in self.port else ''} {self.port}" if self.port else "",
            f" ({self.direction})" if self.direction else "",
            f": {self.detail}" if self.detail else "",
            f"; on {self.who}: {self.cure}" if self.cure else "",
        ]
        return "".join(parts)


class Unreachable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other members between whom and this one a connection failed."""

    port_kind: TriedPort
    direction: Literal["in", "out"]
    """As this member sees it."""
    peers: Annotated[int, msgspec.Meta(ge=1, le=1023)]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    name: str
    state: Literal["checked", "absent", "lost"]
    """``lost``: it came, and did not report in time."""
    address: str = ""
    interface: str = ""
    unreachable: tuple[Unreachable, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag="verdict"):
    outcome: Literal["fine", "named", "too_few"]
    members: tuple[Member, ...]
    failures: tuple[Failure, ...]
    strangers: tuple[str, ...] = ()
    """Clients of the store that were not part of the run, with the way in which they were refused."""
    paths: int = 0
    """Connections that were tried."""
    seconds: float = 0.0

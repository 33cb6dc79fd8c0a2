"""Finds the transport between nodes in a job's log: a job that uses TCP where RDMA is possible is slow.

NCCL writes at the level INFO which network it uses and why (src/misc/ibvwrap.cc, src/transport/net_ib, net.cc,
src/init.cc; the EFA plugin in its own words). A job on one node uses no network whatever these lines say.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from commwatch.jobs.logs.categories import About, Category
from commwatch.jobs.logs.fallbacks import (
    FALLBACKS,
    HCA,
    NO_DEVICE,
    NO_GDR,
    NO_NVLS,
    NO_P2P,
    PROVIDER,
    REASONS,
    UNEXPLAINED,
    UNSEEN,
    WANTED,
    FallbackKind,
)
from commwatch.jobs.logs.kinds import Kinds

_LONGEST_LINE: Final = 1024
_LONGEST_KEPT: Final = 512
"""Characters of a line that are kept."""
_MOST_HITS: Final = 256
"""Lines of one kind that are looked at in a piece of a log."""
_MOST_CHANNELS: Final = 16
"""Networks of which a channel is kept; a log can name any number."""
_LARGEST_NODE: Final = 16
"""GPUs of the largest node: more ranks are on several nodes."""
_USUAL_NODE: Final = 8
_OF_NCCL: Final = b" NCCL "
_HOST: Final = re.compile(rb"(?:^|[\s\]>:])([\w.-]{1,64}):\d{1,10}:\d{1,10} \[-?\d{1,10}\]")
"""Linux gives a host no longer name."""
_RANKS: Final = re.compile(rb" n[rR]anks (\d{1,7})")
_NODES: Final = re.compile(rb" nNodes (\d{1,6})")
_INFINIBAND: Final = re.compile(rb"(?:\]|Using |Using \[\d{1,3}\])(?:ib\w{1,12}|ibp?\d\w{0,12}):")
_EMULATED: Final = re.compile(
    rb'<pci busid="[^"\n]{1,40}" class="0x0604[^>\n]{1,400} link_speed="2\.5 GT/s[^"\n]{0,12}" link_width="1"'
)
"""A bridge in a dump of NCCL's topology (NCCL_TOPO_DUMP_FILE): emulated ones in virtual machines look like this."""
_ENDS: Final = re.compile(rb" (\d{1,7})\[(\w{1,16})\] -> (\d{1,7})\[(\w{1,16})\]")
"""Ranks of a channel, with the number or bus of the GPU of each."""
_CHANNEL: Final = re.compile(rb" via NET/(\w[\w ]{0,23})/(\S{1,40})")


class _Mark(NamedTuple):
    """A line that decides, found by its bytes."""

    hint: bytes
    says: re.Pattern[bytes]


def _mark(hint: bytes, says: bytes) -> _Mark:
    return _Mark(hint, re.compile(says))


_MARKS: Final[dict[str, _Mark]] = {
    "socket": _mark(b"Socket", rb"Using (?:internal N|n)etwork Socket|NET/Socket : Using \["),
    "rdma": _mark(b"etwork ", rb"Using (?:internal N|n)etwork (?:IB|AWS Libfabric|GPUDirect-TCPX|gIB|UCX|NCCL RDMA)"),
    "no_library": _mark(b"libibverbs", rb"Failed to open libibverbs"),
    "not_opened": _mark(b"open", rb"ibv_open_device\w{0,12}\(?\)? ?failed|Unable to open device"),
    "no_device": _mark(b"device", rb"NET/IB ?: No device found|Net/IB: call to devices\(\) returned 0"),
    "disabled": _mark(b"NCCL_IB_DISABLE set", rb"NCCL_IB_DISABLE set by environment to [1-9]"),
    "chosen": _mark(b"NCCL_NET set", rb"NCCL_NET set by environment to [\"']?(?i:socket)"),
    "hca": _mark(b"NCCL_IB_HCA set", rb"NCCL_IB_HCA set (?:by environment )?to \S"),
    "provider": _mark(b"elected", rb"[Ss]elected [Pp]rovider is (?:tcp|sockets|udp)\b"),
    "wanted": _mark(
        b"NCCL_IB_", rb"NCCL_IB_(?:DISABLE set by environment to 0|(?!DISABLE)\w{1,40} set by environment)"
    ),
    "gdr": _mark(b"Direct RDMA", rb"GPU Direct RDMA Enabled for HCA"),
    "no_gdr": _mark(b"Direct RDMA", rb"GPU Direct RDMA Disabled for HCA"),
    "emulated": _mark(b" PCI[0.", rb"\+ PCI\[0\.\d{1,3}\] - (?:PCI|GPU)/"),
    "no_p2p": _mark(b"NCCL_P2P_DISABLE set", rb"NCCL_P2P_DISABLE set by environment to [1-9]"),
    "no_nvls": _mark(b"without NVLS", rb"Failed to bind NVLink SHARP.{1,300}Proceeding without NVLS support"),
    "started": _mark(b"Init COMPLETE", rb"Init COMPLETE"),
}
"""By name. A log without any of NCCL's lines is not searched for them."""
_LOOPBACK: Final = b"Using the loopback address as fallback"
"""Of Gloo, which then gives the other ranks an address that only its own node has."""


class Line(NamedTuple):
    number: int
    """From 1."""
    text: str
    """Its beginning."""


class Slow(NamedTuple):
    """Why a job that works is slow."""

    category: Category
    about: About
    line: Line

    @property
    def fallback(self) -> FallbackKind | None:
        """The kind of fallback; None of what is none, such as a table of nccl-tests."""
        return next((kind for kind, one in FALLBACKS.items() if self.about in one.abouts), None)


class TransportLines:
    """The lines of one log about its transport; ``take`` each piece of it in order."""

    def __init__(self) -> None:
        self.seen: dict[str, Line] = {}
        """The first line of each mark."""
        self.hosts: set[bytes] = set()
        self.ranks = 0
        self.nodes = 0
        self.joins_nodes = False
        """Whether a channel joins two nodes."""
        self.has_infiniband = False
        """Whether an interface of an InfiniBand adapter is named."""
        self.channels: dict[str, Line] = {}
        """The first channel over each network: ``Socket``, ``IB``, ``IB/GDRDMA``."""

    def take(self, body: bytes, number: int, kinds: Kinds | None = None) -> None:
        """Look at a piece of the log.

        Args:
            body: whole lines.
            number: of the first one.
            kinds: of the same lines, where the caller has them.
        """
        kinds = Kinds(body) if kinds is None else kinds
        is_dump = "emulated" not in self.seen and kinds.may_hold(b"<pci busid")
        if is_dump and (bridge := _EMULATED.search(body)) is not None:
            where = number + body.count(b"\n", 0, bridge.start())
            self.seen["emulated"] = _line(where, bridge[0])
        if "loopback" not in self.seen and (at := body.find(_LOOPBACK)) >= 0:
            self.seen["loopback"] = _line(number + body.count(b"\n", 0, at), _line_at(body, at))
        if not kinds.may_hold(_OF_NCCL):
            return
        for name, mark in _MARKS.items():
            may_hold = name not in self.seen and kinds.may_hold(mark.hint)
            if may_hold and (found := _first(body, mark, number)) is not None:
                self.seen[name] = found
        if not kinds.may_hold(b"etwork ", b"NET/", b" nranks ", b" nRanks "):
            return
        for hint in (b"sing network ", b"NET/Socket : ", b"sing internal N", b" nranks ", b" nRanks "):
            for line in lines_with(body, hint):
                if (host := _HOST.search(line)) is not None and len(self.hosts) < _MOST_HITS:
                    self.hosts.add(host[1])
                self.ranks = max([self.ranks, *(int(one) for one in _RANKS.findall(line))])
                self.nodes = max([self.nodes, *(int(one) for one in _NODES.findall(line))])
        for line in lines_with(body, b"NET/Socket : Using"):
            self.has_infiniband = self.has_infiniband or _INFINIBAND.search(line) is not None
        self._take_channels(body, number)

    def _take_channels(self, body: bytes, number: int) -> None:
        at = body.find(b" via NET/")
        for _ in range(_MOST_HITS):
            if at < 0:
                return
            line = _line_at(body, at)
            if (found := _CHANNEL.search(line)) is not None:
                kind = found[1].decode() + ("/GDRDMA" if b"GDRDMA" in found[2] else "")
                self._take_ends(line)
                if kind not in self.channels and len(self.channels) < _MOST_CHANNELS:
                    self.channels[kind] = _line(number + body.count(b"\n", 0, at), line)
            at = body.find(b" via NET/", at + 1)

    def _take_ends(self, line: bytes) -> None:
        """A channel over the network joins two nodes where both ends are the same GPU of theirs."""
        if (ends := _ENDS.search(line)) is not None:
            self.ranks = max(self.ranks, int(ends[1]) + 1, int(ends[3]) + 1)
            self.joins_nodes = self.joins_nodes or (ends[1] != ends[3] and ends[2] == ends[4])

    @property
    def is_between_nodes(self) -> bool:
        """Whether ranks of several nodes talk, as far as the lines of this log show it."""
        if len(self.hosts) > 1 or self.nodes > 1 or self.joins_nodes:
            return True
        # No job opens an adapter or a channel over the network for one node alone.
        opens = "not_opened" in self.seen or "no_gdr" in self.seen or bool(self.channels)
        return self.ranks > (_USUAL_NODE if opens else _LARGEST_NODE)


class Transport:
    """The transport by all logs of one job together."""

    def __init__(self, logs: list[TransportLines], has_geforce: bool = False) -> None:
        self._logs = logs
        self._has_geforce = has_geforce
        """Whether the job runs on GeForce cards, which have no GPUDirect RDMA."""

    @property
    def _hosts(self) -> set[bytes]:
        return set().union(*(log.hosts for log in self._logs))

    @property
    def is_between_nodes(self) -> bool:
        """Whether ranks of several nodes talk, as far as the lines show it."""
        return any(log.is_between_nodes for log in self._logs)

    @property
    def is_over_rdma(self) -> bool:
        """Whether NCCL's log shows that it uses RDMA."""
        return any("rdma" in log.seen for log in self._logs)

    @property
    def is_set_up(self) -> bool:
        """Whether NCCL's log shows that its communicators are complete."""
        return any("started" in log.seen for log in self._logs)

    def slow(self) -> tuple[int, Slow] | None:
        """The reason why the job is slow, and the index of its log; None if no log shows one.

        TCP between nodes is no fault if no log shows an RDMA adapter.
        """
        for at, log in enumerate(self._logs):
            if not log.is_between_nodes:
                continue
            if ("socket" in log.seen or "Socket" in log.channels) and "rdma" not in log.seen:
                found = _why_socket(log)
                if found is not None:
                    return at, found
            if "provider" in log.seen and "Socket" not in log.channels:
                return at, Slow("ib_setup", PROVIDER, log.seen["provider"])
            if "no_gdr" in log.seen and "Socket" not in log.channels and not self._has_gdr and not self._has_geforce:
                return at, Slow("ib_setup", NO_GDR, log.seen["no_gdr"])
        lost = ((at, Slow("nvls", NO_NVLS, log.seen["no_nvls"])) for at, log in enumerate(self._logs)
                if "no_nvls" in log.seen)  # fmt: skip
        return next(lost, None)

    def fallback(self) -> Slow | None:
        """Which faster transport the job left, on a node that has it; None where nothing says that it left one.

        Beside what makes a log slow by itself: TCP between nodes that have RDMA, whatever the log says of the reason.
        """
        if (found := self.slow()) is not None:
            return found[1]
        for log in self._logs:
            socket = log.seen.get("socket", log.channels.get("Socket"))
            if socket is not None and log.is_between_nodes and "rdma" not in log.seen and "IB" not in log.channels:
                line = log.seen.get("no_device")
                return Slow("ib_setup", UNEXPLAINED, socket) if line is None else Slow("ib_setup", UNSEEN, line)
        if not self._has_several_on_a_node:
            return None
        lines = (log.seen["no_p2p"] for log in self._logs if "no_p2p" in log.seen)
        return next((Slow("p2p", NO_P2P, line) for line in lines), None)

    @property
    def _has_gdr(self) -> bool:
        """Whether an adapter or a channel uses GPUDirect RDMA."""
        return any("gdr" in log.seen or "IB/GDRDMA" in log.channels for log in self._logs)

    @property
    def _has_several_on_a_node(self) -> bool:
        """Whether a node has more than one rank of the job."""
        ranks = max((log.ranks for log in self._logs), default=0)
        nodes = max([len(self._hosts), *(log.nodes for log in self._logs)])
        return ranks > max(nodes, 1) and (nodes > 1 or not self.is_between_nodes)

    def notes(self) -> tuple[str, ...]:
        """Notes on a job that works or only began."""
        seen = set().union(*(log.seen for log in self._logs))
        is_off = "no_gdr" in seen and not self._has_gdr and not self._has_geforce
        found = [self._between_nodes() or (_GDR_IS_OFF if is_off else "")]
        if "no_p2p" in seen and self._has_several_on_a_node:
            found.append(f"{NO_P2P.happened} {NO_P2P.next_step}")
        if "emulated" in seen:
            found.append(_EMULATED_LINK)
        return tuple(filter(None, found))

    def _between_nodes(self) -> str:
        if not self.is_between_nodes:
            return ""
        if any(one in log.seen for log in self._logs for one in ("disabled", "chosen")):
            return ""
        if any("socket" in log.seen or "Socket" in log.channels for log in self._logs):
            return OVER_TCP
        if any("IB" in log.channels for log in self._logs) and not self._has_gdr and not self._has_geforce:
            return (
                "Transfers between nodes go through memory of the host: no channel uses GPUDirect RDMA. On data centre "
                "GPUs load nvidia-peermem, or use a kernel and driver with DMA-BUF; GeForce cards have none."
            )
        return ""


def _why_socket(log: TransportLines) -> Slow | None:
    seen = log.seen
    for name, about in REASONS.items():
        if name in seen:
            return Slow("ib_setup", about, seen[name])
    if "no_device" not in seen:
        return None
    if "hca" in seen:
        return Slow("ib_setup", HCA, seen["hca"])
    if log.has_infiniband:
        return Slow("ib_setup", NO_DEVICE, seen["no_device"])
    return Slow("ib_setup", WANTED, seen["no_device"]) if "wanted" in seen else None


OVER_TCP: Final = (
    "The ranks of several nodes talk over TCP, since NCCL found no RDMA device. If the nodes have one (ls "
    "/sys/class/infiniband on the host), it is not in the container, and the job is slower than it could be; if they "
    "have none, all is well."
)
"""Whether such a job is slow depends on facts that its log does not have."""
_EMULATED_LINK: Final = (
    "NCCL takes a PCIe link for one below 1 GB/s, as the emulated switches of virtual machines say of themselves, and "
    "plans its rings by it. Where the GPUs' own links are wide (nvidia-smi --query-gpu=pcie.link.width.max), give it "
    "the true tree with NCCL_TOPO_FILE; clouds bring one for each type of machine."
)
_GDR_IS_OFF: Final = (
    "NCCL says that GPUDirect RDMA is off: what goes to other nodes passes through memory of the host. On data centre "
    "GPUs load nvidia-peermem, or use a kernel and driver with DMA-BUF; GeForce cards have none."
)


def _line(number: int, line: bytes) -> Line:
    return Line(number, line.decode(errors="replace").strip()[:_LONGEST_KEPT])


def _line_at(body: bytes, at: int) -> bytes:
    start = body.rfind(b"\n", 0, at) + 1
    end = body.find(b"\n", at)
    return body[max(start, at - _LONGEST_LINE) : min(end if end >= 0 else len(body), at + _LONGEST_LINE)]


def lines_with(body: bytes, hint: bytes) -> list[bytes]:
    """The first lines of a piece that hold some bytes, each cut to what is around them."""
    found: list[bytes] = []
    at = body.find(hint)
    while at >= 0 and len(found) < _MOST_HITS:
        found.append(_line_at(body, at))
        at = body.find(hint, at + len(hint))
    return found


def _first(body: bytes, mark: _Mark, number: int) -> Line | None:
    at = body.find(mark.hint)
    for _ in range(_MOST_HITS):
        if at < 0:
            return None
        line = _line_at(body, at)
        if _OF_NCCL in line and mark.says.search(line) is not None:
            return _line(number + body.count(b"\n", 0, at), line)
        at = body.find(mark.hint, at + 1)
    return None

"""Tables of nccl-tests and rccl-tests in a log: wrong results, bandwidth that falls as messages grow, a torn end.

Source: nccl-tests src/common.cu. Bandwidths are in GB/s (10⁹ bytes), sizes in bytes; the in-place columns follow the
out-of-place ones, and versions before 2.12 write an error where later ones count wrong values.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from commwatch.jobs.logs.categories import About
from commwatch.jobs.logs.kinds import Kinds
from commwatch.jobs.logs.transport import Line, Slow

FALL: Final = 3.0
"""Times by which the bus bandwidth of a larger message must be lower."""
_LEAST_RATE: Final = 0.1
"""GB/s of the best row from which a fall is one: a single rank has none at all."""
_LARGE_BYTES: Final = 2**20
"""From this size on a larger message is not slower in a sound system."""
_NETWORK_BYTES: Final = 2**26
"""From this size on bandwidth and not latency is measured between nodes."""
_TCP_RATE: Final = 2.0
"""GB/s of a message between nodes; one adapter of 100 Gb/s gives six times as much over RDMA."""
_HEADER: Final = re.compile(rb"\bsize\s{1,20}count\s{1,20}type\b.{0,120}busbw.{0,20}")
_ROW: Final = re.compile(
    rb"^ {0,8}(?:\[\S{1,20}\] ?|\S{1,40}: ?)?\s{0,20}(\d{1,16}) {1,20}\d{1,16} {1,20}\w{3,16} {1,20}"
    rb"(?:(?:sum|none|prod|min|max|avg|mulsum)\b(?: {1,20}-?\d{1,6})?|-?\d{1,6})"
    rb" {1,20}[\d.]{1,12} {1,20}[\d.]{1,12} {1,20}([\d.]{1,12}) {1,20}(\S{1,16})"
    rb"(?: {1,20}[\d.]{1,12} {1,20}[\d.]{1,12} {1,20}([\d.]{1,12}) {1,20}(\S{1,16}))?",
    re.MULTILINE,
)
_GPU: Final = re.compile(
    rb"Rank {1,4}(\d{1,7}) (?:Group {1,4}\d{1,7} )?Pid {1,8}\d{1,10} on {1,20}(\S{1,255}) device {1,4}\d{1,4} "
    rb"\[[^\]]{1,16}\] (.{1,80})"
)
_TEST: Final = re.compile(rb"\b([a-z_]{3,24})_perf\b")
_DEVICES: Final = re.compile(rb"Using devices")
_MOST_ROWS: Final = 1000
_MOST_RANKS: Final = 16384
_BAD_END: Final = re.compile(rb"Out of bounds values ?: ?(\d{1,12}) FAILED")
_END: Final = re.compile(rb"Avg bus bandwidth")
_RULES: Final = (_TEST, _DEVICES, _GPU, _HEADER, _ROW, _BAD_END, _END)


class _Row(NamedTuple):
    size_bytes: int
    bus_bandwidth: float
    """GB/s, the lower one of out of place and in place."""
    line: Line


class AllReduce(NamedTuple):
    gpu: str
    """Name of each GPU, as the driver gives it."""
    ranks: int
    size_bytes: int
    bus_bandwidth: float
    """Bytes per second."""
    line: Line


class Tables:
    """The rows of the last table in one log; ``take`` each piece of it in order."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._counts_wrong = False
        self._wrong: Line | None = None
        self._alone: Line | None = None
        self._has_ended = True
        self._test = b""
        """Name of the test without ``_perf``; empty where the log does not name it."""
        self._hosts: set[bytes] = set()
        self._gpus: list[str] = []
        """Name of the GPU of each rank."""
        self._first_ranks = 0
        """Processes that call themselves rank 0 of the table that follows."""

    def take(self, body: bytes, number: int, kinds: Kinds) -> None:
        """Look at a piece of the log.

        Args:
            body: whole lines.
            number: of the first one.
        """
        if self._has_ended and not kinds.may_hold(b"busbw", b"Using devices", b"_perf"):
            return
        found = [(one.start(), one) for rule in _RULES for one in rule.finditer(body)]
        counted = 0
        for at, one in sorted(found, key=lambda each: each[0]):
            number, counted = number + body.count(b"\n", counted, at), at
            self._take_one(one, number)

    def _take_one(self, one: re.Match[bytes], number: int) -> None:
        if one.re is _ROW:
            # The match begins behind the last line feed, and may have line feeds of its own before the size.
            self._take_row(one, number + one[0].count(b"\n", 0, one.start(1) - one.start()))
        elif one.re is _HEADER:
            self._rows, self._has_ended = [], False
            self._counts_wrong = b"#wrong" in one[0]
        elif one.re is _TEST:
            self._test = one[1]
        elif one.re is _DEVICES:
            self._hosts, self._gpus = set(), []
            if self._has_ended and self._rows:
                self._first_ranks = 0
        elif one.re is _GPU and len(self._gpus) < _MOST_RANKS:
            self._first_ranks += int(one[1]) == 0
            self._hosts.add(one[2])
            self._gpus.append(one[3].decode(errors="replace").strip())
        elif one.re is _BAD_END:
            self._wrong = self._wrong or Line(number, one[0].decode())
        elif one.re is _END:
            self._has_ended = True

    def _take_row(self, row: re.Match[bytes], number: int) -> None:
        rates = [float(rate) for rate in (row[2], row[4]) if rate is not None and rate.count(b".") <= 1]
        counts = [int(one) for one in (row[3], row[5]) if self._counts_wrong and one is not None and one.isdigit()]
        if self._has_ended or not rates or len(self._rows) >= _MOST_ROWS:
            return
        line = Line(number, row[0].strip().decode(errors="replace"))
        if self._first_ranks > 1 and not max(rates) and int(row[1]) >= _LARGE_BYTES:
            self._alone = self._alone or line
        self._rows.append(_Row(int(row[1]), min(rates), line))
        if sum(counts):
            self._wrong = self._wrong or line

    @property
    def all_reduce_on_one_node(self) -> AllReduce | None:
        """The largest message of an all_reduce over GPUs of one name on one node; None for every other table."""
        if self._test != b"all_reduce" or not self._rows or len(self._hosts) != 1 or len(set(self._gpus)) != 1:
            return None
        row = max(self._rows, key=lambda one: one.size_bytes)
        return AllReduce(self._gpus[0], len(self._gpus), row.size_bytes, row.bus_bandwidth * 1e9, row.line)

    @property
    def torn_at(self) -> int | None:
        """The size in bytes of the last row of a table that has no end; None for one that has."""
        return self._rows[-1].size_bytes if self._rows and not self._has_ended else None

    def damaged(self) -> Slow | None:
        """Wrong results, with the first line of them."""
        return None if self._wrong is None else Slow("other", _DAMAGED, self._wrong)

    def alone(self) -> Slow | None:
        """A table of processes that each ran alone, though they were started together."""
        return None if self._alone is None else Slow("usage", _ALONE, self._alone)

    def low_between_nodes(self) -> Slow | None:
        """Large messages over several nodes that are no faster than TCP over a port of Ethernet."""
        large = [row for row in self._rows if row.size_bytes >= _NETWORK_BYTES]
        best = max(large, key=lambda row: row.bus_bandwidth, default=None)
        if best is None or len(self._hosts) < 2 or not _LEAST_RATE <= best.bus_bandwidth < _TCP_RATE:
            return None
        about = About(
            "network",
            f"A bus bandwidth of {best.bus_bandwidth:g} GB/s at {best.size_bytes:,} bytes between "
            f"{len(self._hosts)} nodes is what TCP over a port of Ethernet gives.",
            _LOW_NETWORK,
        )
        return Slow("other", about, best.line)

    def falling(self, over_rdma: bool, between_nodes: bool) -> Slow | None:
        """Bandwidth that falls to a third or less while messages grow.

        Args:
            over_rdma: whether the log says that NCCL uses RDMA.
            between_nodes: whether ranks of several nodes talk.
        """
        best: _Row | None = None
        for row in self._rows:
            is_large = best is not None and row.size_bytes >= max(_LARGE_BYTES, best.size_bytes + 1)
            if (
                best is not None
                and is_large
                and best.bus_bandwidth >= _LEAST_RATE
                and row.bus_bandwidth * FALL <= best.bus_bandwidth
            ):
                about = About(
                    "network" if between_nodes else "host",
                    f"The bus bandwidth falls as the messages grow: from "
                    f"{best.bus_bandwidth:g} GB/s at {best.size_bytes:,} bytes to {row.bus_bandwidth:g} GB/s at "
                    f"{row.size_bytes:,} bytes.",
                    _FALLING_RDMA if over_rdma else _FALLING_NETWORK if between_nodes else _FALLING_NODE,
                )
                return Slow("ib_other" if over_rdma else "other", about, row.line)
            if best is None or row.bus_bandwidth > best.bus_bandwidth:
                best = row
        return None


_ALONE: Final = About("config",
    "Every process of the test ran alone, so that nothing was measured: several call themselves rank 0, and the bus "
    "bandwidth is 0.",
    "Build nccl-tests with MPI=1 (make MPI=1 MPI_HOME=...), with the MPI that mpirun or srun belongs to.")  # fmt: skip
_DAMAGED: Final = About("unknown", "The test found wrong values: data was damaged on its way between the GPUs.",
    "Stop training on these GPUs. Run the same test with NCCL_P2P_DISABLE=1: if it is right then, transfers between "
    "the GPUs go through an IOMMU or ACS that breaks them (on the host iommu=pt or off, ACS off at the bridges above "
    "them). If it is still wrong, test each pair alone to find the GPU, and with another version of NCCL.")  # fmt: skip
_FALLING_RDMA: Final = (
    "On RoCE look at flow control (PFC and ECN) of adapters and switches, and at their counters of discards, pauses "
    "and retransmissions while the test runs; on InfiniBand at symbol errors and congestion of the ports."
)
_FALLING_NETWORK: Final = (
    "Look at drops and retransmissions of the interface while the test runs (nstat, ethtool -S), and at MTU and flow "
    "control of the switch."
)
_LOW_NETWORK: Final = (
    "Run the test with NCCL_DEBUG=INFO: Using network Socket means TCP, and the lines before it why. If the nodes have "
    "no RDMA adapter (ls /sys/class/infiniband), the network is what limits the job: compare it with commwatch "
    "estimate; if they have one, commwatch cluster probe tries it."
)
_FALLING_NODE: Final = (
    "Look at the PCIe links of the GPUs under load (commwatch diagnose), at their clocks and power limits, and at "
    "errors of the links."
)

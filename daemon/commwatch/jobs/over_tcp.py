"""Jobs that move their payload over TCP although RDMA ports of the node are active, as the counters show it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from commwatch.config.thresholds import Thresholds
from commwatch.jobs.payload import payload_of
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.node.tracker import Tracker
from commwatch.sources import files
from commwatch_exporters.snapshot import Block, Series, Value
from commwatch_exporters.state_words import RDMA_ACTIVE

GROUP: Final = "job_over_tcp"
_NETWORK, _RDMA, _GPU = "network", "rdma", "nvml_gpu"
_SECONDS, _RATE = "commwatch_job_over_tcp_seconds", "commwatch_job_over_tcp_bytes_per_second"
_FUNCTIONS: Final = "commwatch_rdma_port_virtual_functions"
_ROUTE_BYTES: Final = 2**20
_UP: Final = 0x1
"""Flag of a route that can be used, of ``linux/route.h``."""
_IN_USE_RATIO: Final = 0.05
"""A GPU that computes for more of the time runs kernels: a rank that waits for the network does so all the time."""
_MAX_GAP_SECONDS: Final = 120.0
"""Readings further apart say nothing of the time between them."""


def default_interfaces(procfs: Path) -> frozenset[str]:
    """The interfaces of the default routes, of IPv4 before those of IPv6; empty where there is none, or none is shown.

    Source: ``/proc/net/route`` and ``ipv6_route``, of the network namespace of this process.
    """
    for name, parse in (("route", _interface_ipv4), ("ipv6_route", _interface_ipv6)):
        text = files.read_if_there(f"{procfs}/net/{name}", _ROUTE_BYTES) or b""
        lines = (line.decode("ascii", "replace").split() for line in text.splitlines())
        if found := frozenset(filter(None, map(parse, lines))):
            return found
    return frozenset()


def _interface_ipv4(words: list[str]) -> str:
    is_default = len(words) >= 8 and words[1] == words[7] == "00000000"
    return words[0] if is_default and _is_up(words[3]) else ""


def _interface_ipv6(words: list[str]) -> str:
    is_default = len(words) == 10 and words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo"
    return words[9] if is_default and _is_up(words[8]) else ""


def _is_up(flags: str) -> bool:
    try:
        return bool(int(flags, 16) & _UP)
    except ValueError:
        return False


class _Rates(NamedTuple):
    """Bytes per second of the node since the reading before."""

    transmit: float
    receive: float
    """Both of the interfaces of the default route."""
    rdma: float
    """Of all RDMA ports, both directions."""


class _Counted(NamedTuple):
    """A counter at its last reading."""

    time: float
    bytes: float
    rate: float | None
    """Bytes per second since the reading before it; None where there was none, or the counter began again."""


class OverTcp(Tracker):
    """Shows since when the traffic of a job goes over TCP.

    Whose traffic an interface carries is not known: the GPUs in use are named together, at the lowest one. Of processes
    whose launcher says that their job is on this node alone nothing is shown.
    """

    collectors = (_NETWORK,)

    def __init__(self, store: Store, thresholds: Thresholds, procfs: Path) -> None:
        super().__init__(store)
        store.declare(GROUP, [_NETWORK, _RDMA, _GPU], silent=(_SECONDS,), holds=(_RATE,))
        self._limits = thresholds
        self._procfs = procfs
        self._counted: dict[str, _Counted] = {}
        """By name of what is counted."""
        self._since: float | None = None
        """Monotonic seconds; None while it is not so."""
        self._read_at = float("-inf")

    def on_batch(self, outcome: Outcome) -> None:
        """Compare the traffic of the default route with that of RDMA since the reading before."""
        now, earlier = outcome.time, self._read_at
        self._read_at = now
        interfaces = self._interfaces()
        rates = self._rates(interfaces)
        in_use = self._gpus_in_use()
        pids = frozenset[int]().union(*in_use.values())
        is_local = bool(pids) and pids <= self._store.single_node
        is_not_so = rates is None or not in_use or is_local or not self._is_over_tcp(rates)
        if now - earlier > _MAX_GAP_SECONDS or is_not_so:
            self._since = None
        elif self._since is None:
            self._since = earlier
        # The time counts before the processes of a new job are listed, which may take a minute.
        gpus = [labels for labels, those in in_use.items() if those - self._store.single_node]
        if self._since is None or rates is None or not gpus:
            self._store.drop(GROUP, "")
            return
        labels = (*min(gpus, key=lambda one: int(one[0])), ",".join(sorted(interfaces)))
        shown: dict[Series, Value] = {
            (_SECONDS, labels): now - self._since, (_RATE, labels): rates.transmit + rates.receive,
        }  # fmt: skip
        self._store.show(GROUP, "", shown, now, outcome.collector.lifetime)

    def _is_over_tcp(self, rates: _Rates) -> bool:
        both = rates.transmit + rates.receive
        is_payload = min(rates.transmit, rates.receive) >= self._limits.job_over_tcp_bytes
        return is_payload and both >= self._limits.job_over_tcp_ratio * rates.rdma

    def pause(self) -> None:
        """What comes after is another time."""
        self._since = None
        self._store.drop_group(GROUP)

    def _interfaces(self) -> frozenset[str]:
        """Interfaces that are counted and carry the default route, themselves or as a part of a bond; empty while no
        RDMA port is active."""
        ports = self._store.group(_RDMA).values()
        states = (state for port in ports for _, state in port.samples("commwatch_rdma_port_state"))
        if RDMA_ACTIVE not in states:
            return frozenset()
        routes = default_interfaces(self._procfs)
        found: set[str] = set()
        bonds: set[str] = set()
        for device, block in self._store.group(_NETWORK).items():
            masters = {labels[3] for labels in block.labels("commwatch_ethernet_info")}
            if device and (device in routes or masters & routes):
                found.add(device)
                bonds |= masters
        return frozenset(found - bonds)  # a bond that is counted as well has the bytes of its parts

    def _rates(self, interfaces: frozenset[str]) -> _Rates | None:
        """None where something was not read, or for the first time."""
        transmit, receive = (
            [
                self._rate(f"{device} {way}", block.time, block.get(f"commwatch_ethernet_{way}_bytes_total", device))
                for device, block in self._store.group(_NETWORK).items()
                if device in interfaces
            ]
            for way in ("transmit", "receive")
        )
        ports = self._store.group(_RDMA).items()
        rdma = [self._rate(f"rdma {device}", one.time, _moved_by_rdma(one)) for device, one in ports if device]
        sums = [_sum(one) for one in (transmit, receive, rdma)]
        if not interfaces or None in sums:
            return None
        return _Rates(*(one or 0.0 for one in sums))

    def _rate(self, name: str, time: float, moved: Value) -> float | None:
        """Bytes per second between the last two readings, of which the later may have been there the last time: readers
        of one interval come in any order."""
        if moved is None:
            self._counted.pop(name, None)
            return None
        before = self._counted.get(name)
        if before is None or time > before.time:
            rate = None
            if before is not None and moved >= before.bytes:
                rate = (moved - before.bytes) / (time - before.time)
            before = self._counted[name] = _Counted(time, moved, rate)
        return before.rate

    def _gpus_in_use(self) -> dict[tuple[str, ...], frozenset[int]]:
        """Labels of the GPUs that compute, with the processes on them that are known."""
        found = {}
        for device, block in self._store.group(_GPU).items():
            labels = block.layout.series[0][1][:2] if block.layout.series else ()
            use = block.get("commwatch_gpu_utilization_ratio", *labels)
            if use is not None and use > _IN_USE_RATIO:
                found[labels] = frozenset(self._store.occupants.get(device, ()))
        return found


def _moved_by_rdma(port: Block) -> Value:
    """Bytes that a port has moved; None where virtual functions of its adapter, which are not read, may move more."""
    return None if any(port.samples(_FUNCTIONS)) else payload_of(port)


def _sum(rates: list[float | None]) -> float | None:
    return None if not rates or None in rates else sum(one for one in rates if one is not None)

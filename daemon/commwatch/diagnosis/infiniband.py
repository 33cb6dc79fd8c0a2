"""The InfiniBand branch: state, rate, addresses, MTU and errors of each RDMA port, and all ports together; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Final, NamedTuple

import msgspec

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.known import Known
from commwatch.findings.facts import Facts
from commwatch.findings.rules.components import port_of
from commwatch.findings.rules.rdma import why_down
from commwatch.findings.rules.rule_set import Quantity
from commwatch.node.topology.sysfs import natural
from commwatch.units import format_percent
from commwatch_exporters.node.model import Gpu, GpuDirectWay, Inventory, RdmaPort, Source
from commwatch_exporters.node.parts import Parts
from commwatch_exporters.state_words import (
    RDMA_ACTIVE,
    RDMA_LINK_UP,
    RDMA_PHYSICAL_STATES,
    RDMA_STATES,
    ROCE_ROUTED,
    word_of,
)

_ROCE_HEADERS: Final = 40 + 8 + 12 + 4 + 28 + 4
"""Bytes of a RoCE packet that the kernel sets aside: GRH, UDP, BTH, XRC, atomics, check sum (``iboe_get_mtu`` in
``include/rdma/ib_addr.h``)."""
_MTUS: Final = (4096, 2048, 1024, 512, 256)
"""Of the InfiniBand transport, in bytes."""
_BEST_MTU: Final = _MTUS[0]
_STABLE = "the fastest that was stable here, or that its equals have"
_SIBLINGS = "the fastest port of the same adapter model"
_TRANSPORT = "the largest of the InfiniBand transport"
_SIBLINGS_MIN = 2
"""With one sibling it is not known which of the two is at fault."""
_WAYS = {"peermem": "nvidia_peermem", "dma_buf": "dma-buf of the open kernel module"}
_check = partial(Check, "infiniband")


def infiniband(known: Known) -> Iterator[Check]:
    """All checks of the branch, from what the daemon exposes; one line where the node has no RDMA port."""
    facts = known.facts
    ports = ports_of(facts.node)
    if not ports:
        yield _no_ports(facts)
        return
    for port in ports:
        yield _state(known, port)
        if port.link_layer == "InfiniBand":
            yield _subnet_manager(known, port)
        if port.state == RDMA_ACTIVE:
            yield _rate(known, port, ports)
            yield _mtu(port, ports)
            yield _gid(known, port)
            yield from _troubles(known, port)
    yield from _together(known, ports)


def _judged(known: Known, port: RdmaPort, check: Check, quantity: Quantity) -> Check:
    return judged(check, known.matched, quantity, port_of(port).parts)


def _no_ports(facts: Facts) -> Check:
    here = facts.node.part(Source, "rdma").available
    verdict: CheckVerdict = "does not apply" if here == 0 else "not measured"
    detail = "this node has no RDMA adapter" if here == 0 else "no RDMA port is among the metrics"
    return _check("RDMA ports", verdict, detail=detail)


def _state(known: Known, port: RdmaPort) -> Check:
    what, where = "state of the port", name_of(port)
    if port.state is None:
        # The name alone is kept of a port that is gone; so it is while ports are not read.
        check = _check(what, "not measured", where, detail="its state was not read")
        return _judged(known, port, check, "rdma_port_state")
    if port.state == RDMA_ACTIVE:
        return _check(what, "passed", where, "active", "active")
    far = "" if port.physical_state is None else f"physical state: {word_of(RDMA_PHYSICAL_STATES, port.physical_state)}"
    if port.link_layer == "Ethernet":
        # It is "disabled" of every RoCE port without a link; of an expected one the finding has the reason.
        far = "" if port.expected == 1 else why_down(port)
    required = "active" if port.expected == 1 else ""
    check = _check(what, "notice", where, word_of(RDMA_STATES, port.state), required, detail=far)
    return _judged(known, port, check, "rdma_port_state")


def _subnet_manager(known: Known, port: RdmaPort) -> Check:
    what, where = "subnet manager (LID)", name_of(port)
    try:
        lid = int(port.sm_lid, 16)
    except ValueError:
        return _check(what, "not measured", where, detail="sm_lid was not read")
    if lid:
        return _check(what, "passed", where, port.sm_lid, "not 0x0", "sysfs sm_lid")
    if port.physical_state != RDMA_LINK_UP:
        return _check(what, "not measured", where, detail="the link is not up")
    check = _check(
        what, "notice", where, port.sm_lid, "not 0x0", "sysfs sm_lid",
        "the link is up, and no subnet manager set it up",
        "Run sminfo on a healthy node of the fabric: if no subnet manager answers, tell the network team; if one does, "
        "look in its log for this port.",
    )  # fmt: skip
    return _judged(known, port, check, "subnet_manager")


def _rate(known: Known, port: RdmaPort, ports: Sequence[RdmaPort]) -> Check:
    what, where = "rate of the link", name_of(port)
    speed = port.speed_bytes_per_second
    if speed is None:
        detail = "the kernel gives no rate, or one that this driver cannot have"
        return _check(what, "not measured", where, detail=detail)
    alike = (one for one in ports if one != port and _model_of(one) == _model_of(port))
    learned, fastest = port.speed_expected_bytes_per_second, _fastest(alike)
    measured = _gbit(speed)
    if learned is not None and speed < learned:
        check = _check(what, "notice", where, measured, _gbit(learned), _STABLE)
        return _judged(known, port, check, "rdma_speed")
    if fastest is not None and speed < fastest:
        return _check(
            what, "notice", where, measured, _gbit(fastest), _SIBLINGS,
            "other ports of this model run faster", "Look whether this port is meant to be slower: a split cable, or "
            "a port of the switch that is.",
        )  # fmt: skip
    if learned is None and fastest is None:
        detail = "the expected rate is not learned yet, and there is no other port of this model"
        return _check(what, "not measured", where, measured, detail=detail)
    most = max(one for one in (learned, fastest) if one is not None)
    return _check(what, "passed", where, measured, _gbit(most), _STABLE if most == learned else _SIBLINGS)


def _fastest(ports: Iterable[RdmaPort]) -> float | None:
    speeds = (port.speed_bytes_per_second for port in ports)
    return max((speed for speed in speeds if speed is not None), default=None)


def _gbit(speed: float) -> str:
    return f"{speed * 8 / 1e9:g} Gbit/s"


def _mtu(port: RdmaPort, ports: Sequence[RdmaPort]) -> Check:
    what, where = "MTU of the port", name_of(port)
    if port.link_layer == "InfiniBand":
        detail = "the kernel does not show it in sysfs; ibv_devinfo gives active_mtu"
        return _check(what, "not measured", where, required=f"{_BEST_MTU} bytes", source=_TRANSPORT, detail=detail)
    if port.link_layer != "Ethernet":
        return _check(what, "does not apply", where, detail="neither InfiniBand nor RoCE")
    bytes_sent = port.network_interface.mtu_bytes
    if bytes_sent is None:
        detail = f"the MTU of {port.interface or 'its interface'} was not read"
        return _check(what, "not measured", where, required=f"{_BEST_MTU} bytes", source=_TRANSPORT, detail=detail)
    mtu = _roce_mtu(bytes_sent)
    detail = f"what fits into the {bytes_sent:.0f} bytes of {port.interface}"
    if mtu == _BEST_MTU:
        return _check(what, "passed", where, f"{mtu} bytes", f"{_BEST_MTU} bytes", _TRANSPORT, detail)
    alike = (one.network_interface.mtu_bytes for one in ports if _model_of(one) == _model_of(port))
    if len({_roce_mtu(one) for one in alike if one}) > 1:
        detail = f"{detail}; other ports of this model have another"
    return _check(
        what, "notice", where, "none" if mtu is None else f"{mtu} bytes", f"{_BEST_MTU} bytes", _TRANSPORT, detail,
        "Set the interface and all switches on the way to 4200 bytes or more (9000 is usual), on all nodes alike.",
    )  # fmt: skip


def _gid(known: Known, port: RdmaPort) -> Check:
    what, where = "address (GID)", name_of(port)
    if port.gids is None:
        return _check(what, "not measured", where, detail="the GID table was not read")
    if not port.gids:
        return _judged(known, port, _check(what, "notice", where, "none", "one", "the GID table"), "rdma_address")
    indexes = port.gid_indexes
    if port.link_layer != "Ethernet":
        index = indexes.get("infiniband")
        measured = f"{port.gids:.0f} in the table" if index is None else f"index {index:.0f}"
        return _check(what, "passed", where, measured, "one")
    if not indexes:
        return _check(what, "not measured", where, detail="the kind of its GIDs is not known, as of iWARP")
    required = "RoCE v2 with an IP address"
    source = "NCCL: version 2 and IPv4 unless NCCL_IB_ROCE_VERSION_NUM and NCCL_IB_ADDR_FAMILY say otherwise"
    kind = next((one for one in ROCE_ROUTED if one in indexes), None)
    if kind is None:
        kinds = ", ".join(one.replace("_", " ") for one in indexes)
        bond = f"; that of {port.interface}'s bond may" if port.network_interface.master else ""
        check = _check(what, "notice", where, kinds, required, source, f"its interface has no IP address{bond}")
        return _judged(known, port, check, "rdma_address")
    measured = f"{'IPv4' if kind == 'roce_v2_ipv4' else 'IPv6'} at index {indexes[kind]:.0f}"
    if kind != "roce_v2_ipv4":
        detail = "NCCL looks for IPv4 first: NCCL_IB_ADDR_FAMILY=AF_INET6 where the network is of IPv6 alone"
        return _check(what, "notice", where, measured, required, source, detail)
    detail = f"NCCL 2.21 and later find it; earlier ones need NCCL_IB_GID_INDEX={indexes[kind]:.0f}"
    return _check(what, "passed", where, measured, required, source, detail)


# --- the ports ---


def _roce_mtu(interface_mtu: float) -> int | None:
    """Bytes of data in a RoCE packet for what the interface can send; None where not even the smallest fits."""
    return next((mtu for mtu in _MTUS if interface_mtu - _ROCE_HEADERS >= mtu), None)


def ports_of(node: Parts) -> list[RdmaPort]:
    """All ports that are here or should be, by name."""
    columns = (RdmaPort.info, RdmaPort.state, RdmaPort.expected)
    found = {port for column in columns for port, _ in node.each(column)}
    return sorted(found, key=lambda port: (natural(port.device), natural(port.number)))


def name_of(port: RdmaPort) -> str:
    """``mlx5_0``, or ``mlx5_0 port 2`` where the adapter has several."""
    alone = sum(one.device == port.device for one in ports_of(port.node)) == 1
    return port.device if alone else f"{port.device} port {port.number}"


def _model_of(port: RdmaPort) -> tuple[str, str]:
    """The key of ports that should be alike."""
    return port.hca_type, port.link_layer


def _peak_use(port: RdmaPort) -> float | None:
    """Highest sample of the last minute in either direction, as a share of the speed; None where it was not read."""
    both = (port.transmit_utilization_peak_ratio, port.receive_utilization_peak_ratio)
    return max((one for one in both if one is not None), default=None)


# --- how their counters moved ---


class _Trouble(NamedTuple):
    what: str
    quantity: Quantity
    counts: Callable[[RdmaPort], Iterable[float | None]]
    """Counters of the port or its interface; one of them has to be read for anything to be seen."""


_TROUBLES = (
    _Trouble(
        "errors of the link, last hour",
        "rdma_errors",
        lambda port: (port.symbol_errors, port.receive_errors, port.icrc_errors),
    ),
    _Trouble(
        "packets sent again or dropped",
        "rdma_losses",
        lambda port: (
            port.ack_timeouts, port.packet_sequence_errors, port.retransmitted_packets, port.port_transmit_discards,
        ),
    ),
    _Trouble(
        "congestion (ECN, CNP, credit, pause)",
        "rdma_congestion",
        lambda port: (
            port.ecn_marked, port.cnp_handled, port.port_transmit_wait_ticks,
            port.network_interface.global_receive_pause_seconds,
            *port.network_interface.pfc_receive_pause_seconds.values(),
        ),
    ),
)  # fmt: skip


def _troubles(known: Known, port: RdmaPort) -> Iterator[Check]:
    """One check for each kind of problem: found, or looked for and absent."""
    parts = {f"rdma_port/{port.device}/{port.number}"}
    if port.interface:
        parts.add(f"interface/{port.interface}")
    for trouble in _TROUBLES:
        check = _check(trouble.what, "not measured", name_of(port), required="nothing beyond the thresholds")
        found = judged(check, known.matched, trouble.quantity, parts)
        yield _nothing(known, port, trouble, check) if found is check else found


def _nothing(known: Known, port: RdmaPort, trouble: _Trouble, check: Check) -> Check:
    if why := _why_not_evaluated(known, port, trouble):
        return msgspec.structs.replace(check, required="", detail=why)
    if port.virtual_functions and trouble.quantity != "rdma_errors":  # the link is that of all of them
        detail = f"{_unread_functions(port)}; the port itself counted none"
        return msgspec.structs.replace(check, required="", detail=detail)
    return msgspec.structs.replace(
        check, measured="nothing", verdict="passed", source="thresholds.yaml, watched by the daemon"
    )


def _unread_functions(port: RdmaPort) -> str:
    return f"the {port.virtual_functions:.0f} virtual functions of its adapter are not read"


def _why_not_evaluated(known: Known, port: RdmaPort, trouble: _Trouble) -> str:
    """Why a trouble would not have been seen; empty where it would."""
    if known.findings.looked_at is None:
        return "the daemon has not looked yet"
    if failed := known.matched.failed_of(trouble.quantity):
        return failed
    if any(count is not None for count in trouble.counts(port)):
        return ""
    return "this adapter has none of the counters that would show it, or they were not read"


# --- all ports together ---


def _together(known: Known, ports: Sequence[RdmaPort]) -> Iterator[Check]:
    yield _count(known)
    yield _layers(ports)
    yield _gpudirect(known)
    yield _shares(known, ports)


def _count(known: Known) -> Check:
    what = "active RDMA ports"
    inventory = known.facts.node.part(Inventory, "rdma_port")
    present, expected = inventory.present, inventory.expected
    if present is None:
        return _check(what, "not measured", detail="not all ports were read")
    if expected is None:
        return _check(what, "not measured", "", f"{present:.0f}", detail="the expected number is not learned yet")
    verdict: CheckVerdict = "notice" if present < expected else "passed"
    source = "the most that was stable here, or the configuration"
    check = _check(what, verdict, "", f"{present:.0f}", f"at least {expected:.0f}", source)
    if verdict == "passed":
        return check
    ports = {f"rdma_port/{port.device}/{port.number}" for port, _ in known.facts.each(RdmaPort.expected)}
    return judged(check, known.matched, "rdma_port_count", ports)


def _layers(ports: Sequence[RdmaPort]) -> Check:
    what = "one link layer on all active ports"
    counts = Counter(port.link_layer for port in ports if port.state == RDMA_ACTIVE and port.link_layer)
    measured = ", ".join(f"{count} {layer}" for layer, count in counts.most_common())
    if not counts:
        return _check(what, "not measured", detail="no port is active, or its link layer was not read")
    if len(counts) == 1:
        return _check(what, "passed", "", measured, "one", "NCCL user guide")
    return _check(
        what, "notice", "", measured, "one", "NCCL user guide",
        "NCCL looks at all active ports; those that it uses should be of one kind",
        "Name the ports of the GPU network in NCCL_IB_HCA, each with = before the list.",
    )  # fmt: skip


def _gpudirect(known: Known) -> Check:
    facts = known.facts
    what = "adapters reach GPU memory (GPUDirect RDMA)"
    if not any(facts.each(Gpu.info)):
        return _check(what, "does not apply", detail="no GPU is known")
    found = {way.name: flag for way, flag in facts.each(GpuDirectWay.available)}
    ways = [words for way, words in _WAYS.items() if found.get(way) == 1]
    required, source = "one way", "NCCL user guide"
    if ways:
        return _check(what, "passed", "", " and ".join(ways), required, source)
    if len(found) < len(_WAYS):
        return _check(what, "not measured", required=required, source=source, detail="the modules were not all read")
    detail = "all traffic to other nodes is copied through the memory of the host"
    check = _check(what, "notice", "", "none", required, source, detail)
    return judged(check, known.matched, "gpudirect")


def _rail_groups(known: Known, ports: Sequence[RdmaPort]) -> list[list[RdmaPort]]:
    """Active ports of one model on cards with as many ports, as many for each GPU or as many GPUs for each, with those
    that are down or without.

    Others lead to storage, or manage the board; where no GPU is known, any may be rails.
    """
    cards = {port: port.address.rpartition(".")[0] for port in ports}
    on_card = Counter(filter(None, cards.values()))
    alike: dict[tuple[str, str, int], list[RdmaPort]] = {}
    for port in ports:
        alike.setdefault((*_model_of(port), on_card[cards[port]]), []).append(port)
    gpus = sum(1 for _ in known.facts.each(Gpu.info))
    found = []
    for group in alike.values():
        active = [port for port in group if port.state == RDMA_ACTIVE]
        if not gpus or any(not number % gpus or not gpus % number for number in (len(group), len(active))):
            found.append(active)
    return found


def _shares(known: Known, ports: Sequence[RdmaPort]) -> Check:
    """Whether one rail carries much less than its siblings, at the busiest moment of the last minute."""
    what = "traffic even over the rails"
    if split := next((port for port in ports if port.virtual_functions), None):
        return _check(what, "not measured", name_of(split), detail=_unread_functions(split))
    groups = _rail_groups(known, ports)
    if all(len(group) <= _SIBLINGS_MIN for group in groups):
        detail = "there are not three active ports of one model to compare, as many for each GPU"
        return _check(what, "does not apply", detail=detail)
    uses = [{name_of(port): use for port in group if (use := _peak_use(port)) is not None} for group in groups]
    rail_groups = [group for group in uses if len(group) > _SIBLINGS_MIN]
    if not rail_groups:
        return _check(what, "not measured", detail="the use of the ports was not read")
    low, in_use = known.thresholds.nvlink_sibling_low_ratio, known.thresholds.nvlink_sibling_in_use_ratio
    required = f"at least {format_percent(low)} of the median"
    source = "nvlink_sibling_low_ratio"
    compared = [group for group in rail_groups if median(group.values()) >= in_use]
    if not compared:
        detail = f"the rails are hardly used: less than {format_percent(in_use)} of their capacity in the last minute"
        return _check(what, "not measured", required=required, source=source, detail=detail)
    shares = {
        name: use / median(other for one, other in group.items() if one != name)
        for group in compared
        for name, use in group.items()
    }
    slowest = min(shares, key=shares.__getitem__)
    measured = f"{format_percent(shares[slowest])} of the median"
    if shares[slowest] >= low:
        return _check(what, "passed", slowest, measured, required, source)
    return _check(
        what, "notice", slowest, measured, required, source,
        "a job on part of the GPUs uses part of the rails; one that uses all waits for the slowest",
        f"Look at errors and rate of {slowest}, and at what it is cabled to.",
    )  # fmt: skip

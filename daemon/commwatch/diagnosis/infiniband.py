"""The InfiniBand branch: state, rate, addresses, MTU, errors and congestion of each RDMA port, and all together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.rails import rails
from commwatch.diagnosis.rdma_ports import BEST_MTU, model_of, name_of, ports_of, roce_mtu
from commwatch.diagnosis.rdma_troubles import troubles
from commwatch.findings.facts import Facts
from commwatch.findings.rules.rule_set import Quantity
from commwatch_exporters.node.model import RdmaPort, Source
from commwatch_exporters.state_words import RDMA_ACTIVE, RDMA_LINK_UP, RDMA_PHYSICAL_STATES, RDMA_STATES, word_of

_STABLE = "the fastest that was stable here"
_SIBLINGS = "the fastest port of the same adapter model"
_TRANSPORT = "the largest of the InfiniBand transport"
_ROUTED = ("roce_v2_ipv4", "roce_v2_ipv6")


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
            yield from troubles(known, port)
    yield from rails(known, ports)


def _check(
    port: RdmaPort, what: str, verdict: CheckVerdict, measured: str = "", required: str = "", source: str = "",
    detail: str = "", next_step: str = "",
) -> Check:  # fmt: skip
    return Check(
        branch="infiniband", what=what, where=name_of(port), measured=measured, required=required, verdict=verdict,
        source=source, detail=detail, next_step=next_step,
    )  # fmt: skip


def _judged(known: Known, port: RdmaPort, check: Check, quantity: Quantity) -> Check:
    return judged(check, known.matched, quantity, (f"rdma_port/{port.device}/{port.number}",))


def _no_ports(facts: Facts) -> Check:
    here = facts.node.part(Source, "rdma").available
    verdict: CheckVerdict = "does not apply" if here == 0 else "not measured"
    detail = "this node has no RDMA adapter" if here == 0 else "no RDMA port is among the metrics"
    return Check(branch="infiniband", what="RDMA ports", verdict=verdict, detail=detail)


def _state(known: Known, port: RdmaPort) -> Check:
    what = "state of the port"
    if port.state is None:
        # The name alone is kept of a port that is gone; so it is while ports are not read.
        check = _check(port, what, "not measured", detail="its state was not read")
        return _judged(known, port, check, "rdma_port_state")
    if port.state == RDMA_ACTIVE:
        return _check(port, what, "passed", "active", "active")
    words = [] if port.physical_state is None else [
        f"physical state: {word_of(RDMA_PHYSICAL_STATES, port.physical_state)}"]  # fmt: skip
    if port.expected != 1:
        words.append("it was not active here for the learning time")
    if port.physical_state is not None and port.physical_state != RDMA_LINK_UP and port.expected != 1:
        words[-1] += ": not cabled, or not needed"
    required = "active" if port.expected == 1 else ""
    check = _check(port, what, "notice", word_of(RDMA_STATES, port.state), required, detail="; ".join(words))
    return _judged(known, port, check, "rdma_port_state")


def _subnet_manager(known: Known, port: RdmaPort) -> Check:
    what = "subnet manager (LID)"
    try:
        lid = int(port.sm_lid, 16)
    except ValueError:
        return _check(port, what, "not measured", detail="sm_lid was not read")
    if lid:
        return _check(port, what, "passed", port.sm_lid, "not 0x0", "sysfs sm_lid")
    if port.physical_state != RDMA_LINK_UP:
        return _check(port, what, "not measured", detail="the link is not up")
    check = _check(
        port, what, "notice", port.sm_lid, "not 0x0", "sysfs sm_lid", "the link is up, and no subnet manager set it up",
        "See whether a subnet manager runs in this fabric: sminfo.",
    )  # fmt: skip
    return _judged(known, port, check, "subnet_manager")


def _rate(known: Known, port: RdmaPort, ports: Sequence[RdmaPort]) -> Check:
    what = "rate of the link"
    speed = port.speed_bytes_per_second
    if speed is None:
        return _check(
            port, what, "not measured", detail="the kernel gives no rate, or one that this driver cannot have"
        )
    alike = (one for one in ports if one != port and model_of(one) == model_of(port))
    learned, fastest = port.speed_expected_bytes_per_second, _fastest(alike)
    measured = _gbit(speed)
    if learned is not None and speed < learned:
        check = _check(port, what, "notice", measured, _gbit(learned), _STABLE)
        return _judged(known, port, check, "rdma_speed")
    if fastest is not None and speed < fastest:
        return _check(
            port, what, "notice", measured, _gbit(fastest), _SIBLINGS,
            "other ports of this model run faster", "Look whether this port is meant to be slower: a split cable, or "
            "a port of the switch that is.",
        )  # fmt: skip
    if learned is None and fastest is None:
        detail = "the expected rate is not learned yet, and there is no other port of this model"
        return _check(port, what, "not measured", measured, detail=detail)
    most = max(one for one in (learned, fastest) if one is not None)
    return _check(port, what, "passed", measured, _gbit(most), _STABLE if most == learned else _SIBLINGS)


def _fastest(ports: Iterable[RdmaPort]) -> float | None:
    speeds = (port.speed_bytes_per_second for port in ports)
    return max((speed for speed in speeds if speed is not None), default=None)


def _gbit(speed: float) -> str:
    return f"{speed * 8 / 1e9:g} Gbit/s"


def _mtu(port: RdmaPort, ports: Sequence[RdmaPort]) -> Check:
    what = "MTU of the port"
    if port.link_layer == "InfiniBand":
        detail = "the kernel does not show it in sysfs; ibv_devinfo gives active_mtu"
        return _check(port, what, "not measured", required=f"{BEST_MTU} bytes", source=_TRANSPORT, detail=detail)
    if port.link_layer != "Ethernet":
        return _check(port, what, "does not apply", detail="neither InfiniBand nor RoCE")
    bytes_sent = port.network_interface.mtu_bytes
    if bytes_sent is None:
        detail = f"the MTU of {port.interface or 'its interface'} was not read"
        return _check(port, what, "not measured", required=f"{BEST_MTU} bytes", source=_TRANSPORT, detail=detail)
    mtu = roce_mtu(bytes_sent)
    detail = f"what fits into the {bytes_sent:.0f} bytes of {port.interface}"
    if mtu == BEST_MTU:
        return _check(port, what, "passed", f"{mtu} bytes", f"{BEST_MTU} bytes", _TRANSPORT, detail)
    alike = (one.network_interface.mtu_bytes for one in ports if model_of(one) == model_of(port))
    if len({roce_mtu(one) for one in alike if one}) > 1:
        detail = f"{detail}; other ports of this model have another"
    return _check(
        port, what, "notice", "none" if mtu is None else f"{mtu} bytes", f"{BEST_MTU} bytes", _TRANSPORT, detail,
        "Set the interface and all switches on the way to 4200 bytes or more (9000 is usual), on all nodes alike.",
    )  # fmt: skip


def _gid(known: Known, port: RdmaPort) -> Check:
    what = "address (GID)"
    if port.gids is None:
        return _check(port, what, "not measured", detail="the GID table was not read")
    if not port.gids:
        return _judged(known, port, _check(port, what, "notice", "none", "one", "the GID table"), "rdma_address")
    indexes = port.gid_indexes
    if port.link_layer != "Ethernet":
        index = indexes.get("infiniband")
        measured = f"{port.gids:.0f} in the table" if index is None else f"index {index:.0f}"
        return _check(port, what, "passed", measured, "one")
    if not indexes:
        return _check(port, what, "not measured", detail="the kind of its GIDs is not known, as of iWARP")
    required = "RoCE v2 with an IP address"
    source = "NCCL: version 2 and IPv4 unless NCCL_IB_ROCE_VERSION_NUM and NCCL_IB_ADDR_FAMILY say otherwise"
    kind = next((one for one in _ROUTED if one in indexes), None)
    if kind is None:
        kinds = ", ".join(one.replace("_", " ") for one in indexes)
        bond = f"; that of {port.interface}'s bond may" if port.network_interface.master else ""
        check = _check(port, what, "notice", kinds, required, source, f"its interface has no IP address{bond}")
        return _judged(known, port, check, "rdma_address")
    measured = f"{'IPv4' if kind == 'roce_v2_ipv4' else 'IPv6'} at index {indexes[kind]:.0f}"
    if kind != "roce_v2_ipv4":
        detail = "NCCL looks for IPv4 first: NCCL_IB_ADDR_FAMILY=AF_INET6 where the network is of IPv6 alone"
        return _check(port, what, "notice", measured, required, source, detail)
    detail = f"NCCL 2.21 and later find it; earlier ones need NCCL_IB_GID_INDEX={indexes[kind]:.0f}"
    return _check(port, what, "passed", measured, required, source, detail)

"""The RDMA ports of a node together: how many, of which kind, whether they reach GPU memory and share the traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.judged import judged
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.rdma_ports import model_of, name_of, peak_use
from commwatch.units import format_percent
from commwatch_exporters.node.model import Gpu, GpuDirectWay, Inventory, RdmaPort
from commwatch_exporters.state_words import RDMA_ACTIVE

_SIBLINGS_MIN = 2
"""With one sibling it is not known which of the two is at fault."""
_WAYS = {"peermem": "nvidia_peermem", "dma_buf": "dma-buf of the open kernel module"}


def rails(known: Known, ports: Sequence[RdmaPort]) -> Iterator[Check]:
    """What only all ports together show."""
    yield _count(known)
    yield _layers(ports)
    yield _gpudirect(known)
    yield _shares(known, ports)


def _check(
    what: str, verdict: CheckVerdict, measured: str = "", required: str = "", source: str = "", detail: str = "",
    next_step: str = "", where: str = "",
) -> Check:  # fmt: skip
    return Check(
        branch="infiniband", what=what, where=where, measured=measured, required=required, verdict=verdict,
        source=source, detail=detail, next_step=next_step,
    )  # fmt: skip


def _count(known: Known) -> Check:
    what = "active RDMA ports"
    inventory = known.facts.node.part(Inventory, "rdma_port")
    present, expected = inventory.present, inventory.expected
    if present is None:
        return _check(what, "not measured", detail="not all ports were read")
    if expected is None:
        return _check(what, "not measured", f"{present:.0f}", detail="the expected number is not learned yet")
    verdict: CheckVerdict = "notice" if present < expected else "passed"
    source = "the most that was stable here, or the configuration"
    check = _check(what, verdict, f"{present:.0f}", f"at least {expected:.0f}", source)
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
        return _check(what, "passed", measured, "one", "NCCL user guide")
    return _check(
        what, "notice", measured, "one", "NCCL user guide",
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
        return _check(what, "passed", " and ".join(ways), required, source)
    if len(found) < len(_WAYS):
        return _check(what, "not measured", required=required, source=source, detail="the modules were not all read")
    check = _check(
        what, "notice", "none", required, source, "all traffic to other nodes is copied through the memory of the host"
    )
    return judged(check, known.matched, "gpudirect")


def _shares(known: Known, ports: Sequence[RdmaPort]) -> Check:
    """Whether one rail carries much less than its siblings, at the busiest moment of the last minute."""
    what = "traffic even over the rails"
    groups: dict[tuple[str, str], dict[str, float]] = {}
    for port in ports:
        use = peak_use(port)
        if port.state == RDMA_ACTIVE and use is not None:
            groups.setdefault(model_of(port), {})[name_of(port)] = use
    rail_groups = [group for group in groups.values() if len(group) > _SIBLINGS_MIN]
    if not rail_groups:
        alike = max(Counter(model_of(port) for port in ports if port.state == RDMA_ACTIVE).values(), default=0)
        if alike <= _SIBLINGS_MIN:
            return _check(what, "does not apply", detail="there are not three active ports of one model to compare")
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
        return _check(what, "passed", measured, required, source, where=slowest)
    return _check(
        what, "notice", measured, required, source,
        "a job on part of the GPUs uses part of the rails; one that uses all waits for the slowest",
        f"Look at errors and rate of {slowest}, and at what it is cabled to.", slowest,
    )  # fmt: skip

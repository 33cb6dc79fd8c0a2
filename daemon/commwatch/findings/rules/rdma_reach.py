"""RDMA: ports that NCCL cannot address, and adapters that cannot reach the memory of GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import port_of
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import Gpu, GpuDirectWay, Interface, RdmaPort
from commwatch_exporters.state_words import RDMA_ACTIVE, ROCE_ROUTED

_WAYS = frozenset({"peermem", "dma_buf"})
_OPENS_AFTER = 600.0
"""Seconds: addresses and modules come after the boot."""


def without_address(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Active ports without any GID, and RoCE ports that NCCL would take and whose GIDs have no IP address.

    NCCL takes the fastest ports. A port of a bond has its address at the bond.
    """
    active = {port for port, state in facts.each(RdmaPort.state) if state == RDMA_ACTIVE}
    speeds = {port: speed for port, speed in facts.each(RdmaPort.speed_bytes_per_second) if port in active}
    fastest = max(speeds.values(), default=0.0)
    for port, count in facts.each(RdmaPort.gids):
        if port not in active:
            continue
        if not count:
            yield Match("rdma_port_without_address", port_of(port), (Evidence("GIDs of the port", "none"),))
        elif port.link_layer == "Ethernet" and speeds.get(port) == fastest and not port.network_interface.master:
            kinds = port.gid_indexes
            if kinds and not any(kind in kinds for kind in ROCE_ROUTED):
                names = ", ".join(kind.replace("_", " ") for kind in kinds)
                yield Match("rdma_port_without_address", port_of(port), (Evidence("GIDs of the port", names),))


def no_gpu_direct(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Nodes with GPUs and active RDMA ports on which neither way to the memory of GPUs is there."""
    if not any(state == RDMA_ACTIVE for _, state in facts.each(RdmaPort.state)) or not any(facts.each(Gpu.info)):
        return
    known = {way.name: flag for way, flag in facts.each(GpuDirectWay.available)}
    if known.keys() >= _WAYS and not any(known.values()):
        evidence = (Evidence("nvidia_peermem", "not loaded"), Evidence("dma-buf of the driver", "not there"))
        yield Match("gpudirect_unavailable", Component("node", ""), evidence)


RDMA_REACH = RuleSet(
    name="RDMA addresses and GPU memory",
    codes=(
        FindingCode(
            name="rdma_port_without_address",
            title="RDMA port has no address for NCCL",
            severity="info",
            role="fault",
            quantities=("rdma_address",),
            meaning="An active port without a GID reaches nobody; NCCL looks for RoCE v2 with an IP address, and jobs "
            "that take this port fail or fall back to TCP.",
            next_step="Give the interface an IP address if NCCL is to use this port, else leave it out with "
            "NCCL_IB_HCA. No GID at all: reload the driver.",
            opens_after=_OPENS_AFTER,
        ),
        FindingCode(
            name="gpudirect_unavailable",
            title="Adapters cannot reach GPU memory",
            severity="info",
            role="fault",
            quantities=("gpudirect",),
            meaning="Neither nvidia_peermem nor dma-buf of the open kernel module is there: all traffic to other nodes "
            "is copied through host memory.",
            next_step="Load nvidia_peermem (modprobe nvidia-peermem), or install the driver's open kernel modules.",
            opens_after=_OPENS_AFTER,
        ),
    ),
    rules=(
        Rule(
            without_address,
            ("rdma_port_without_address",),
            reads=(
                RdmaPort.state,
                RdmaPort.gids,
                RdmaPort.gid_indexes,
                RdmaPort.speed_bytes_per_second,
                RdmaPort.info,
                Interface.info,
            ),
        ),
        Rule(no_gpu_direct, ("gpudirect_unavailable",), reads=(GpuDirectWay.available, Gpu.info, RdmaPort.state)),
    ),
)

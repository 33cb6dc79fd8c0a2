"""Jobs: what NCCL and torch write into their logs about trouble."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.gpu_ways import WAYS, GpuWays, by_nvlink, ways_of
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, DAY, HOUR, FindingCode, Rule, RuleSet
from commwatch.jobs.logs.categories import SIDES, Side
from commwatch.jobs.logs.fallbacks import FALLBACKS, FallbackKind
from commwatch_exporters.node.model import (
    Gpu,
    Interface,
    LogCategory,
    NamedDevice,
    PcieDevice,
    RdmaPort,
    SilentRank,
    TransportFallback,
)
from commwatch_exporters.state_words import RDMA_ACTIVE

_SIDES: Mapping[str, Side] = {str(category): side for category, side in SIDES.items()}
"""By label: a page may hold categories of another version."""
_FALLBACKS: Mapping[str, FallbackKind] = {kind: kind for kind in FALLBACKS}
"""So for kinds of fallback."""
_WITHIN_NODE: frozenset[FallbackKind] = frozenset({"nvls_lost", "p2p_disabled"})
HARDWARE: frozenset[Side] = frozenset({"network", "nvlink", "gpu", "host"})
_OF_THE_JOB: frozenset[Side] = frozenset({"config", "program"})
_WAITING = frozenset({"timeout", "remote", "ib_rnr", "ib_remote_access"})
"""Categories in which a process gave up on another one: they show that something is wrong, not what."""

_PORTS = (RdmaPort.info, RdmaPort.expected)
_INTERFACES = (Interface.info, Interface.expected)
NETWORK = (*WAYS, *_PORTS, *_INTERFACES)
"""Columns that ``network_parts`` reads."""


def side_of(category: str) -> Side:
    return _SIDES.get(category, "unknown")


def errors(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Several errors of a kind in a short time on the side of network, NVLink, GPU or host."""
    least = thresholds.nccl_log_errors_min
    # Changes are kept for a day: a longer window is cut to that.
    window = min(thresholds.nccl_log_errors_window_seconds, DAY)
    for category, count in _counts(facts, window):
        side = side_of(category)
        if side in HARDWARE and count >= least:
            evidence = Evidence(f"errors in the last {window / 60:g} min", count, "", least, "nccl_log_errors_min")
            component = _component(category, _parts(facts, side, window))
            yield Match("nccl_errors", component, (evidence,), f"on the side of: {side}")


def waiting(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Calls that gave up waiting for another process; with the GPU of the rank for which all others waited."""
    for category, count in _counts(facts, HOUR):
        if category in _WAITING:
            parts: frozenset[str] = frozenset()
            evidence = [Evidence("errors in the last hour", count)]
            if category == "timeout":
                silent = _silent_gpus(facts)
                evidence += [Evidence(f"times that only GPU{gpu} was silent", times) for gpu, times in silent.items()]
                parts = _of_gpus(facts, silent)
            yield Match("nccl_timeouts", _component(category, parts), tuple(evidence))


def _silent_gpus(facts: Facts) -> dict[str, float]:
    """How often one GPU alone was silent, by its NVML index: ranks have the numbers of CUDA, in PCI order."""
    gpus = facts.derived(ways_of).gpus
    by_rank = dict(enumerate(sorted(gpus, key=gpus.__getitem__)))
    silent = facts.rises(SilentRank.incidents, HOUR)
    return {by_rank.get(int(rank.number), rank.number): times for rank, times in silent}


def _of_gpus(facts: Facts, indexes: Iterable[str]) -> frozenset[str]:
    """The parts by which these GPUs reach others and the host."""
    ways = facts.derived(ways_of)
    addresses = [ways.gpus[index] for index in indexes if index in ways.gpus]
    return frozenset(map(by_nvlink, addresses)).union(*map(ways.to_host, addresses))


def of_the_job(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Errors that a job brings along: its settings, its container, its program."""
    for category, count in _counts(facts, HOUR):
        side = side_of(category)
        if side in _OF_THE_JOB:
            evidence = (Evidence("errors in the last hour", count),)
            yield Match("nccl_job_errors", _component(category), evidence, f"on the side of: {side}")


def fallbacks(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs that left a transport which this node has; the counter has none of others."""
    for one, logs in facts.rises(TransportFallback.logs, HOUR):
        if (kind := _FALLBACKS.get(one.kind)) is None:
            continue
        fallback = FALLBACKS[kind]
        if kind in _WITHIN_NODE:
            parts = _parts(facts, "nvlink", HOUR)
            has: tuple[Evidence, ...] = ()
        else:
            parts = network_parts(facts)
            active = sum(state == RDMA_ACTIVE for _, state in facts.each(RdmaPort.state))
            has = (Evidence("active RDMA ports of this node", active),) if active else ()
        evidence = (Evidence("logs in the last hour", logs), *has)
        detail = f"{fallback.abouts[0].happened} {fallback.step}"
        yield Match("nccl_transport_fallback", _component(kind, parts), evidence, detail)


def over_tcp(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Jobs whose payload goes over TCP beside active RDMA ports."""
    for gpu, interface, seconds in facts.each_keyed(Gpu.job_over_tcp_seconds):
        limit = thresholds.job_over_tcp_seconds
        if seconds >= limit:
            name = f"jobs from GPU{gpu.index} on, over {interface}"
            component = Component("process", f"{gpu.address}/{interface}", name, network_parts(facts))
            time = Evidence(
                f"time of traffic over {interface} alone", seconds, "seconds", limit, "job_over_tcp_seconds"
            )
            rates = [
                Evidence(f"traffic over {interface}, more than ten times that of RDMA", rate, "bytes_per_second")
                for _, interface, rate in facts.each_keyed(Gpu.job_over_tcp_bytes_per_second)
            ]
            yield Match("job_over_tcp", component, (time, *rates), since=facts.now - seconds)


def _counts(facts: Facts, window: float) -> Iterable[tuple[str, float]]:
    return ((category.name, count) for category, count in facts.rises(LogCategory.errors, window))


def _component(category: str, parts: frozenset[str] = frozenset()) -> Component:
    return Component("log", category, f"NCCL logs, {category}", parts)


def _parts(facts: Facts, side: str, window: float) -> frozenset[str]:
    """The parts that can cause errors of a side; empty for the whole node, also if nothing is known."""
    ways = facts.derived(ways_of)
    if side == "network":
        return _named(facts, ways, window) or network_parts(facts)
    addresses = ways.gpus.values()
    if side == "host":
        return frozenset()
    links = frozenset(by_nvlink(address) for address in addresses)
    return links if side == "nvlink" else links.union(*(ways.to_host(address) for address in addresses))


def _named(facts: Facts, ways: GpuWays, window: float) -> frozenset[str]:
    """The RDMA devices that lines of the last seconds name, their interfaces and their PCIe links."""
    names = {device.name for device, _ in facts.rises(NamedDevice.errors, window)}
    ports = [port for port, _ in facts.each(RdmaPort.info) if port.device in names]
    own = names | {port.interface for port in ports if port.interface}
    return frozenset(own).union(*(ways.to_host(port.address) for port in ports if port.address))


def network_parts(facts: Facts) -> frozenset[str]:
    """RDMA devices and network interfaces that are or should be here, and the PCIe links of adapters."""
    ways = facts.derived(ways_of)
    ports = {port.device for column in _PORTS for port, _ in facts.each(column)}
    interfaces = {interface.name for column in _INTERFACES for interface, _ in facts.each(column)}
    adapters = [device.address for device, _ in facts.each(PcieDevice.info) if device.role == "nic"]
    return frozenset(ports | interfaces).union(*(ways.to_host(address) for address in adapters))


JOBS = RuleSet(
    name="Jobs",
    codes=(
        FindingCode(
            name="nccl_errors",
            title="Jobs report NCCL errors",
            severity="warning",
            role="symptom",
            meaning="Job logs hold several errors of one kind within minutes that points at network, NVLink, GPU or "
            "host, not the job. Such jobs may fail.",
            next_step="Run journalctl -u commwatch --since -1h -g 'logs of jobs': it names the job's log; then run "
            "commwatch diagnose --log FILE on it: it shows what happened first. Check the causes listed.",
            alert="CommwatchNcclErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nccl_timeouts",
            title="Jobs gave up waiting",
            severity="info",
            role="symptom",
            meaning="A process waited for a peer until a timeout, or its peer vanished. The fault may be on another "
            "node.",
            next_step="Check the causes listed and the job's other nodes; commwatch diagnose --log finds the first "
            "event.",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nccl_job_errors",
            title="Job fails by its settings or program",
            severity="info",
            role="symptom",
            meaning="A job's log holds errors of its settings, container or program. The node is not at fault.",
            next_step="Notify the job's owner; commwatch diagnose --log explains the line.",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nccl_transport_fallback",
            title="A job left the fast transport",
            severity="warning",
            role="fault",
            meaning="The log of a job shows that it runs without RDMA, GPUDirect or NVLink, which this node has: it is "
            "slow. The log is written when a job starts, so that the finding closes after an hour although the job "
            "may go on.",
            next_step="Run journalctl -u commwatch --since -1h -g 'faster transport': it names the job's log. Check in "
            "the job's container what the finding names; commwatch diagnose --log FILE shows the line.",
            alert="CommwatchNcclTransportFallback",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="job_over_tcp",
            title="Jobs move their payload over TCP, not RDMA",
            severity="info",
            role="symptom",
            meaning="For 90 s the default route has carried at least ten times as much as all active RDMA ports, in "
            "both directions, while GPUs computed. A job that left RDMA does that; so does another busy program. Once "
            "a job's log says so, it is a warning.",
            next_step="Search the job's log for the transport (NCCL_DEBUG=INFO; commwatch diagnose --log), and check "
            "/dev/infiniband and libibverbs in its container.",
            opens_after=0.0,
        ),
    ),
    rules=(
        Rule(
            errors,
            ("nccl_errors",),
            reads=(LogCategory.errors, NamedDevice.errors),
            details=NETWORK,
            thresholds=("nccl_log_errors_min", "nccl_log_errors_window_seconds"),
        ),
        Rule(
            waiting,
            ("nccl_timeouts",),
            reads=(LogCategory.errors,),
            details=(SilentRank.incidents, *WAYS),
        ),
        Rule(of_the_job, ("nccl_job_errors",), reads=(LogCategory.errors,)),
        Rule(
            fallbacks,
            ("nccl_transport_fallback",),
            reads=(TransportFallback.logs,),
            details=(RdmaPort.state, *NETWORK),
        ),
        Rule(
            over_tcp,
            ("job_over_tcp",),
            reads=(Gpu.job_over_tcp_seconds,),
            details=(Gpu.job_over_tcp_bytes_per_second, *NETWORK),
            thresholds=("job_over_tcp_seconds",),
        ),
    ),
    windows={
        LogCategory.errors: DAY,
        NamedDevice.errors: DAY,
        SilentRank.incidents: HOUR,
        TransportFallback.logs: HOUR,
    },
    events=frozenset({LogCategory.errors, NamedDevice.errors, SilentRank.incidents}),
)

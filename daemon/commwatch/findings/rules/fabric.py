"""The fabric of NVSwitches as the GPUs see it, and the services that run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Evidence, Match
from commwatch.findings.rules.components import gpu_of, pair_of, service_of
from commwatch.findings.rules.nvlink import of_all_gpus
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import Gpu, PeerAccess, Service
from commwatch_exporters.state_words import (
    FABRIC_CONFIGURATIONS,
    FABRIC_HEALTH,
    FABRIC_JOINING,
    FABRIC_STATES,
    P2P_STATES,
    word_of,
)

_UNHEALTHY, _LIMITED = 2, 3
"""Of ``Gpu.fabric_health``."""

FAULTS: Mapping[str, tuple[str, str]] = {
    "route_unhealthy": ("fabric_unhealthy", "a route is unhealthy"),
    "degraded_bandwidth": ("fabric_limited", "bandwidth is degraded"),
    "route_recovery": ("fabric_recovering", "a route is being recovered"),
    "access_timeout_recovery": ("fabric_recovering", "recovering from an access timeout"),
}
"""Meaning of each check of ``Gpu.fabric_faults``; the two on partition and fabric manager are evaluated separately."""

_NOTHING_WRONG = 1
_FABRIC_MANAGER, _SUBNET_MANAGER = "nvidia-fabricmanager", "nvlsm"

_NO_PARTITION = 4
"""Of ``Gpu.fabric_incorrect_configuration``."""

_JOIN_TAKES = 60.0
"""Seconds for which a GPU may be joining after a start or a reset before that is a finding."""


def health(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs whose place in the fabric is unhealthy, limited, or being recovered."""
    evidence_of: dict[tuple[str, Gpu], list[Evidence]] = {}
    for gpu, verdict in facts.each(Gpu.fabric_health):
        code = {_UNHEALTHY: "fabric_unhealthy", _LIMITED: "fabric_limited"}.get(int(verdict))
        if code is not None:
            words = word_of(FABRIC_HEALTH, verdict)
            evidence_of[code, gpu] = [Evidence("the driver's verdict", words)]
    for gpu, check, flag in facts.each_keyed(Gpu.fabric_faults):
        if flag == 1 and check in FAULTS:
            code, words = FAULTS[check]
            evidence_of.setdefault((code, gpu), []).append(Evidence("fabric", words))
    for (code, gpu), evidence in evidence_of.items():
        yield Match(code, gpu_of(gpu), tuple(evidence))


def _has_peers(facts: Facts) -> bool:
    """Whether two GPUs or more are of a fabric: a single one passed to a virtual machine joins none and needs none."""
    return sum(1 for _, state in facts.each(Gpu.fabric_state) if state) > 1


def _waits_for_partitions(facts: Facts) -> bool:
    """Whether the fabric manager shares the NVSwitches among virtual machines: a GPU joins the fabric once a partition
    with it is activated, and is no fault before."""
    return bool(facts.node.part(Service, _FABRIC_MANAGER).fabric_mode)


def not_joined(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs that have not joined the fabric, or failed to."""
    if not _has_peers(facts):
        return
    is_waiting = _waits_for_partitions(facts)
    for gpu, state in facts.each(Gpu.fabric_state):
        if state in FABRIC_JOINING and not is_waiting:
            evidence = Evidence("joining the fabric", word_of(FABRIC_STATES, state))
            yield Match("fabric_not_joined", gpu_of(gpu), (evidence,))
    for gpu, status in facts.each(Gpu.fabric_status):
        if status:
            evidence = Evidence("NVML return code of joining the fabric", status)
            yield Match("fabric_not_joined", gpu_of(gpu), (evidence,), "joining the fabric failed")


def misconfigured(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs that the fabric does not serve because of how it is configured."""
    if not _has_peers(facts):
        return
    is_waiting = _waits_for_partitions(facts)
    evidence_of: dict[Gpu, list[Evidence]] = {}
    for gpu, reason in facts.each(Gpu.fabric_incorrect_configuration):
        if reason > _NOTHING_WRONG and not (is_waiting and reason == _NO_PARTITION):
            words = word_of(FABRIC_CONFIGURATIONS, reason)
            evidence_of.setdefault(gpu, []).append(Evidence("configuration", words))
    for gpu, check, flag in facts.each_keyed(Gpu.fabric_faults):
        if flag == 1 and check == "partition_not_assigned" and not is_waiting:
            evidence_of.setdefault(gpu, []).append(Evidence("partition", "not assigned"))
    for gpu, evidence in evidence_of.items():
        yield Match("fabric_misconfigured", gpu_of(gpu), tuple(evidence))


def services(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """The services without which the fabric does not work, or does not start again.

    nvidia-imex is none of them: a scheduler may start it for each job and end it with the job.
    """
    running = {service.name: flag for service, flag in facts.each(Service.running)}
    manager = [Evidence("process", "not running")] if running.get(_FABRIC_MANAGER) == 0 else []
    checks = facts.each_keyed(Gpu.fabric_faults)
    cut_off = sum(flag for _, check, flag in checks if check == "fabric_manager_disconnected")
    if cut_off:
        manager.append(Evidence("GPUs that have lost their connection to it", cut_off))
    if manager:
        yield Match("fabric_manager_down", service_of(_FABRIC_MANAGER), tuple(manager))
    if running.get(_SUBNET_MANAGER) == 0:
        evidence = Evidence("process, seen running before", "not running")
        yield Match("fabric_service_down", service_of(_SUBNET_MANAGER), (evidence,))


def unreachable(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs of one NVSwitch fabric that the driver does not let talk over NVLink although their links are there.

    GPUs that are split by MIG have no such status, and those of different partitions refuse each other. Refused pairs
    are laid to the GPUs with most of them, to the node where all GPUs have as many, and a single pair to itself: which
    of its GPUs is at fault is not known.
    """
    if _waits_for_partitions(facts):
        return  # which GPUs are in one partition is not known
    wired = {gpu for gpu, links in facts.each(Gpu.nvlink_switch_links) if links}
    refused: dict[frozenset[Gpu], str] = {}
    for access, status in facts.each(PeerAccess.status):
        if status and access.capability == "nvlink":
            pair = frozenset((access.gpu, access.peer))
            if pair <= wired:
                refused[pair] = word_of(P2P_STATES, status)
    unexplained = set(refused)
    while unexplained:
        counts = Counter(gpu for pair in unexplained for gpu in pair)
        most = max(counts.values())
        culprits = {gpu for gpu, count in counts.items() if count == most}
        if most == 1:
            for pair in unexplained:
                yield Match("nvlink_p2p_refused", pair_of(*pair), (_reasons(refused, [pair]),))
            return
        if culprits == wired:
            every = of_all_gpus("", frozenset(gpu.address for gpu in wired))
            evidence = Evidence("pairs of GPUs that do not reach each other over NVLink", len(refused))
            yield Match("nvlink_p2p_refused", every, (evidence, _reasons(refused, refused)))
            return
        for culprit in culprits:
            pairs = [pair for pair in refused if culprit in pair]
            evidence = Evidence("GPUs that it does not reach over NVLink", len(pairs))
            yield Match("nvlink_p2p_refused", gpu_of(culprit), (evidence, _reasons(refused, pairs)))
            unexplained.difference_update(pairs)


def _reasons(refused: Mapping[frozenset[Gpu], str], pairs: Iterable[frozenset[Gpu]]) -> Evidence:
    return Evidence("the driver's reason", ", ".join(sorted({refused[pair] for pair in pairs})))


FABRIC = RuleSet(
    name="Fabric",
    codes=(
        FindingCode(
            name="fabric_unhealthy",
            title="The fabric is unhealthy",
            severity="critical",
            role="fault",
            meaning="Jobs that use NVLink here fail, hang or run slower.",
            next_step="Drain the node; once it is free, run commwatch pause and reset all GPUs and NVSwitches "
            "together. Again: restart the fabric manager, then call the vendor.",
            alert="CommwatchFabricUnhealthy",
        ),
        FindingCode(
            name="fabric_limited",
            title="The fabric has limited capacity",
            severity="warning",
            role="fault",
            meaning="Part of the fabric's bandwidth is missing for this GPU. Jobs that use NVLink here run slower.",
            next_step="Drain the node; once it is free, run commwatch pause and reset all GPUs and NVSwitches "
            "together.",
            alert="CommwatchFabricDegraded",
        ),
        FindingCode(
            name="fabric_recovering",
            title="The fabric is being recovered",
            severity="warning",
            role="fault",
            meaning="The fabric repairs a route or a timed-out access. Jobs that use NVLink here may stall.",
            next_step="Leave the node in service. If it lasts another 10 min, drain the node; once it is free, run "
            "commwatch pause and reset all GPUs and NVSwitches together.",
            alert="CommwatchFabricDegraded",
        ),
        FindingCode(
            name="fabric_not_joined",
            title="GPU has not joined the fabric",
            severity="critical",
            role="fault",
            quantities=("nvlinks", "nvlink_fabric"),
            meaning="Jobs do not start on this GPU (CUDA: system not ready), or do not reach it over NVLink.",
            next_step="Drain the node; run systemctl status nvidia-fabricmanager (of a virtual machine: on its host): "
            "it must run and have the driver's version. Once the node is free, restart it, or run commwatch pause and "
            "reset the GPUs.",
            alert="CommwatchFabricNotJoined",
            opens_after=_JOIN_TAKES,
        ),
        FindingCode(
            name="fabric_misconfigured",
            title="Fabric is misconfigured for this GPU",
            severity="warning",
            role="fault",
            meaning="The NVLink fabric is set up wrongly for this GPU. Jobs do not reach it over NVLink.",
            next_step="Drain the node; once it is free, run commwatch pause and reset the GPU if nvidia-smi nvlink -s "
            "shows inactive links, else correct this in the fabric manager's configuration, or in the software that "
            "assigns partitions.",
            alert="CommwatchFabricMisconfigured",
        ),
        FindingCode(
            name="fabric_manager_down",
            title="Fabric manager is down or lost GPUs",
            severity="warning",
            role="fault",
            meaning="No GPU can join the fabric, and no link fault is handled. Jobs that use NVLink here may end, or "
            "not start.",
            next_step="Drain the node; once it is free, systemctl restart nvidia-fabricmanager. Again: check that it "
            "has exactly the driver's version (journalctl -u nvidia-fabricmanager).",
            alert="CommwatchFabricServiceDown",
        ),
        FindingCode(
            name="fabric_service_down",
            title="Fabric service is down",
            severity="warning",
            role="fault",
            meaning="Without nvlsm the fabric has no subnet manager. Jobs that use NVLink here may end, or not start.",
            next_step="Drain the node; once it is free, restart it with systemctl. Again: its log says why it ended "
            "(journalctl -u SERVICE).",
            alert="CommwatchFabricServiceDown",
        ),
        FindingCode(
            name="nvlink_p2p_refused",
            title="Driver refuses NVLink to other GPUs",
            severity="warning",
            role="fault",
            quantities=("nvlink_peers",),
            meaning="Links are active, but the driver refuses NVLink to other GPUs. Jobs run much slower: NCCL takes "
            "PCIe or host memory instead.",
            next_step="Drain the node; once it is free, check that all GPUs have joined the fabric in one partition "
            "(nvidia-smi -q), restart the fabric manager, then run commwatch pause and reset all GPUs and NVSwitches "
            "together.",
            alert="CommwatchNvlinkP2pRefused",
        ),
    ),
    rules=(
        Rule(
            health,
            ("fabric_unhealthy", "fabric_limited", "fabric_recovering"),
            reads=(Gpu.fabric_health, Gpu.fabric_faults),
        ),
        Rule(
            not_joined,
            ("fabric_not_joined",),
            reads=(Gpu.fabric_state, Gpu.fabric_status, Service.fabric_mode),
        ),
        Rule(
            misconfigured,
            ("fabric_misconfigured",),
            reads=(
                Gpu.fabric_state,
                Gpu.fabric_incorrect_configuration,
                Gpu.fabric_faults,
                Service.fabric_mode,
            ),
        ),
        Rule(services, ("fabric_manager_down", "fabric_service_down"), reads=(Service.running, Gpu.fabric_faults)),
        Rule(
            unreachable,
            ("nvlink_p2p_refused",),
            reads=(Gpu.nvlink_switch_links, PeerAccess.status, Service.fabric_mode),
        ),
    ),
)

"""GPUs: lost, not answering, in need of a reset, or with limited clocks while they communicate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import gpu_of
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch.node.gpu_state import LOST, MISSING, NOT_ANSWERING, NOT_LISTED, RESET_REQUIRED
from commwatch_exporters.node.model import Gpu
from commwatch_exporters.state_words import GPU_STATES, RECOVERY_ACTIONS, RECOVERY_REQUIRED, word_of

_CODES: Mapping[float, str] = {
    NOT_ANSWERING: "gpu_not_answering",
    LOST: "gpu_lost",
    RESET_REQUIRED: "gpu_reset_required",
    MISSING: "gpu_missing",
    NOT_LISTED: "gpu_not_listed",
}
"""By state of the GPU."""

CALLS_FAIL = "calls of the driver about it"
"""Evidence of a GPU that answers every call with an error, as opposed to one whose calls do not return."""

SLOWDOWNS: Mapping[str, str] = {
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "too hot, by the driver",
    "hw_thermal_slowdown": "too hot, by the hardware",
    "hw_power_brake_slowdown": "power brake from outside",
}
"""Reasons that slow communication down. The power cap and set clocks are how a healthy GPU works."""
POWER_BRAKE = "hw_power_brake_slowdown"
OF_CHASSIS = frozenset({POWER_BRAKE, "hw_slowdown"})
"""Reasons that a power brake sets: hardware slowdown can be either of the two below it."""


def states(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs that are not as the driver should find them."""
    for gpu, state in facts.each(Gpu.state):
        if state in _CODES:
            logged = [Evidence("kernel log since the boot", reason) for reason in gpu.init_failed]
            why = logged if state in (MISSING, NOT_LISTED) else ()
            calls = () if gpu.calls_failing_since is None else (Evidence(CALLS_FAIL, "all fail"),)
            seen = Evidence("GPU state", word_of(GPU_STATES, state))
            places = ", ".join(sorted(gpu.possible_addresses))
            where = (Evidence("its PCI address is one of", places),) if places else ()
            yield Match(_CODES[state], gpu_of(gpu), (seen, *where, *calls, *why), since=gpu.calls_failing_since)


def recovery(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs for which the driver asks that something be done."""
    for gpu, action in facts.each(Gpu.recovery_action):
        if action:
            words = word_of(RECOVERY_ACTIONS, action)
            code = "gpu_recovery_needed" if action in RECOVERY_REQUIRED else "gpu_recovery_other"
            yield Match(code, gpu_of(gpu), (Evidence("what the driver asks for", words),), words)


def slowed(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs whose clocks are limited while they communicate, or while they work if their traffic is not read.

    A power brake on all GPUs is one fault of the chassis.
    """
    flags: dict[Gpu, dict[str, float]] = {}
    for gpu, reason, flag in facts.each_keyed(Gpu.clocks_event_reasons):
        flags.setdefault(gpu, {})[reason] = flag
    of_chassis = len(flags) > 1 and all(one.get(POWER_BRAKE) == 1 for one in flags.values())
    uses = {gpu: use for gpu in flags if (use := _use(gpu, thresholds)) is not None}
    if of_chassis and uses:
        words = f"{SLOWDOWNS[POWER_BRAKE]}, on all {len(flags)} GPUs"
        evidence = (Evidence("clocks held by", words), next(iter(uses.values())))
        yield Match("gpu_slowed_down", Component("node", ""), evidence, words)
    for gpu, use in uses.items():
        known = OF_CHASSIS if of_chassis else ()
        reasons = [SLOWDOWNS[one] for one, flag in flags[gpu].items() if flag == 1 and one in SLOWDOWNS.keys() - known]
        if reasons:
            words = ", ".join(sorted(reasons))
            yield Match("gpu_slowed_down", gpu_of(gpu), (Evidence("clocks held by", words), use), words)


def _use(gpu: Gpu, thresholds: Thresholds) -> Evidence | None:
    """That a GPU communicates, or that it works where its traffic is not read; None where neither is so."""
    nvlink = (gpu.nvlink_transmit_utilization_peak_ratio, gpu.nvlink_receive_utilization_peak_ratio)
    pcie = (gpu.pcie_transmit_utilization_peak_ratio, gpu.pcie_receive_utilization_peak_ratio)
    peaks = [peak for peak in (*nvlink, *pcie) if peak is not None]
    least = thresholds.gpu_communicates_ratio
    if peaks and max(peaks) >= least:
        return Evidence(
            "highest use of NVLink or PCIe in the last minute", max(peaks), "ratio", least, "gpu_communicates_ratio"
        )
    # Samples of PCIe, which have no count, miss most of a minute: little in them does not show that little was moved.
    if gpu.pcie_transmit_bytes is not None or any(peak is not None for peak in nvlink):
        return None
    return Evidence("GPU", "busy") if gpu.busy == 1 else None


def _speed_judged(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    """Whether the GPU is in use, or nothing holds its clocks: that no reason holds is seen in idle as well."""
    all_gpus = {gpu for gpu, _, _ in facts.each_keyed(Gpu.clocks_event_reasons)}
    gpus = {facts.node.part(Gpu, component.key)} if component.key else all_gpus
    is_held = any(
        flag == 1 and reason in SLOWDOWNS for gpu in gpus for reason, flag in gpu.clocks_event_reasons.items()
    )
    return not is_held or any(_use(gpu, thresholds) is not None for gpu in gpus)


GPU = RuleSet(
    name="GPU",
    codes=(
        FindingCode(
            name="gpu_not_answering",
            title="GPU does not answer",
            severity="critical",
            role="fault",
            quantities=("gpus",),
            meaning="Driver calls for this GPU do not return, or all of them fail. A job on it may fail or hang.",
            next_step="Drain the node. Kill no process in state D (see ps). If the GPU stays silent, power cycle the "
            "node once no other job runs there.",
            alert="CommwatchGpuNotAnswering",
        ),
        FindingCode(
            name="gpu_lost",
            title="GPU is lost",
            severity="critical",
            role="fault",
            quantities=("gpus",),
            meaning="The driver cannot reach the GPU over PCIe. A job on it cannot go on; a reset does not help.",
            next_step="Drain the node; once it is free, power cycle it. Again: have GPU, slot and power inspected.",
            alert="CommwatchGpuLost",
            replaces=("gpu_not_answering", "gpu_not_listed"),
        ),
        FindingCode(
            name="gpu_reset_required",
            title="GPU needs a reset",
            severity="critical",
            role="fault",
            quantities=("gpus",),
            meaning="The driver refuses the GPU until it is reset. No job can start on it.",
            next_step="Drain the node; once it is free, run commwatch pause and reset the GPU (nvidia-smi "
            "--gpu-reset), with NVSwitches all GPUs together. Check the preceding Xid.",
            alert="CommwatchGpuLost",
        ),
        FindingCode(
            name="gpu_missing",
            title="GPU is missing",
            severity="critical",
            role="fault",
            quantities=("gpus",),
            meaning="A known GPU is not on the driver's list. Jobs do not start, or run on fewer.",
            next_step="Drain the node; once it is free, power cycle it. Again: have GPU, slot and power inspected. "
            "Only if it was taken out on purpose, run commwatch inventory accept.",
            alert="CommwatchGpuLost",
        ),
        FindingCode(
            name="gpu_not_listed",
            title="GPU is not listed by the driver",
            severity="critical",
            role="fault",
            quantities=("gpus",),
            meaning="The GPU is on the PCI bus and bound to the NVIDIA driver, which could not start it. Jobs do not "
            "start, or run on fewer GPUs.",
            next_step="Drain the node; once it is free, run nvidia-bug-report.sh, then power cycle it. Again: have "
            "GPU, slot and power inspected. To leave it out, unbind it from the driver.",
            alert="CommwatchGpuNotListed",
        ),
        FindingCode(
            name="gpu_recovery_needed",
            title="Driver requests a GPU recovery",
            severity="critical",
            role="fault",
            meaning="After an error the driver requests a reset, a reboot or a drain. Until then jobs on it, "
            "or their peer-to-peer traffic, fail.",
            next_step="Drain the node; once it is free, run commwatch pause and do it. Check the preceding Xid.",
            alert="CommwatchGpuRecoveryNeeded",
            replaces=("gpu_recovery_other",),
        ),
        FindingCode(
            name="gpu_recovery_other",
            title="Driver requests another recovery",
            severity="warning",
            role="fault",
            meaning="The driver requests the recovery of the IMEX domain, or an action whose number this "
            "version does not know (NVML field 230).",
            next_step="IMEX domain: drain its nodes; run systemctl status nvidia-imex on them; once they are free, "
            "restart it on all of them. Unknown number: run nvidia-smi -q, which names the action; for a reset or "
            "reboot, drain the node; once it is free, do it.",
            alert="CommwatchGpuRecoveryOther",
        ),
        FindingCode(
            name="gpu_slowed_down",
            title="GPU is slowed down while communicating",
            severity="warning",
            role="fault",
            meaning="Heat, the board or a power brake reduces the clocks. Jobs run slower: every collective waits for "
            "this GPU.",
            next_step="Run nvidia-smi and compare temperature and power of the GPUs; then check fans and power "
            "supplies. A power brake comes from chassis or power supplies (ipmitool sdr).",
            alert="CommwatchGpuSlowedDown",
        ),
    ),
    rules=(
        Rule(
            states,
            ("gpu_not_answering", "gpu_lost", "gpu_reset_required", "gpu_missing", "gpu_not_listed"),
            reads=(Gpu.state,),
            details=(Gpu.init_failed, Gpu.calls_failing_since, Gpu.possible_addresses),
        ),
        Rule(recovery, ("gpu_recovery_needed", "gpu_recovery_other"), reads=(Gpu.recovery_action,)),
        Rule(
            slowed,
            ("gpu_slowed_down",),
            reads=(
                Gpu.clocks_event_reasons,
                Gpu.nvlink_transmit_utilization_peak_ratio,
                Gpu.nvlink_receive_utilization_peak_ratio,
                Gpu.pcie_transmit_utilization_peak_ratio,
                Gpu.pcie_receive_utilization_peak_ratio,
                Gpu.pcie_transmit_bytes,
                Gpu.busy,
            ),
            thresholds=("gpu_communicates_ratio",),
        ),
    ),
    judged={"gpu_slowed_down": _speed_judged},
)

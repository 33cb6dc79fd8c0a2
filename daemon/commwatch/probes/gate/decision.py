"""Whether a probe may start now: a pure decision over facts that others have gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from commwatch.node.gpus_now import GpuFacts
from commwatch.probes.plan import CyclePlan, Skipped
from commwatch.probes.rank_plan import SkipReason

MEMORY_LIMIT_BYTES = 2**30
MEMORY_LIMIT_SHARE = 0.02
"""Below either of these a GPU counts as free: what a display server takes, and less than a job does."""


class SchedulerAnswer(NamedTuple):
    """A scheduler's report on this node."""

    state: Literal["free", "busy", "unknown"]
    detail: str = ""
    """For the operator: the job, or the reason why its presence is unknown, with the remedy."""


class SchedulerFacts(NamedTuple):
    """Reports of this node's schedulers; None for one that the gate does not require, or that the operator leaves out
    (``--ignore-scheduler``)."""

    slurm: SchedulerAnswer | None = None
    kubernetes: SchedulerAnswer | None = None


_NO_COLLECTIVES = (
    "a recording has no collectives; with --simulate.faults FILE, which may be empty, they are simulated on its parts"
)


@dataclass(frozen=True, slots=True)
class GateFacts:
    enabled: bool = True
    """By ``probes.enabled`` and ``probes.gate``."""
    is_recording: bool = False
    """The node is a recording, and no file of faults is named."""
    maintenance: str = ""
    """Reason of the maintenance in force; empty without one."""
    starved: str = ""
    """The resource that the node lacks, in words; empty while it lacks none."""
    hold_seconds: float = 0.0
    """Remaining seconds of a hold on the node for a job (``commwatch yield``); 0 if there is none."""
    other_backend: str = ""
    """Backend of the earlier results under the probe's name, if it differs."""
    no_torch: str = ""
    """Why ranks cannot import torch, as far as it is known; empty if they can."""
    missing_gpus: tuple[int, ...] = ()
    """NVML indexes of the GPUs that the probe names and the driver does not have."""
    stuck: tuple[str, ...] = ()
    """Processes that sit in the kernel, in words."""
    scheduler: SchedulerFacts | None = None
    """None: not asked."""
    initial_pid_namespace: bool | None = True
    """Whether we see the processes of the whole node; None where that cannot be known."""
    gpus: tuple[GpuFacts, ...] = ()
    """All of the node, also those that the probe leaves out: a job on them shares links with it."""
    within_budget: bool = True


SCHEDULER_SKIPS: frozenset[SkipReason] = frozenset({"scheduler_busy", "scheduler_unknown"})
"""Reasons that hold for every probe of the node."""
GPU_SKIPS: frozenset[SkipReason] = frozenset(
    {"foreign_pid_namespace", "gpu_unknown", "gpu_busy", "gpu_memory_used", "compute_mode", "mig"}
)
"""Reasons that hold for every one that needs its GPUs."""


class Skip(NamedTuple):
    """Why a probe does not start."""

    reason: SkipReason
    detail: str
    """For the operator: which GPU, which job."""

    def as_result(self, now: float) -> Skipped:
        """The result of the cycle that does not start; ``now`` in seconds since 1970."""
        return Skipped(finished_at=now, reason=self.reason, detail=self.detail)


def decide(plan: CyclePlan, facts: GateFacts) -> Skip | None:
    """None if the probe may start; then its plan has ranks and steps.

    A gloo probe touches no GPU and asks for nothing about them. A simulated probe disturbs no job: only the GPUs of its
    own node, a hold and the budget can prevent it. The launcher finds out whether another process runs a cycle, by
    taking the lock.
    """
    backend = plan.backend
    return (
        decide_before_asking(plan, facts)
        or (_schedulers(facts.scheduler) if backend != "simulated" else None)
        or (_namespace(facts) if backend == "nccl" else None)
        or (None if plan.on_host else _gpus(facts.gpus))
        or (None if facts.within_budget else Skip("budget", "the GPUs' share of time for probes is used up"))
    )


def decide_before_asking(plan: CyclePlan, facts: GateFacts) -> Skip | None:
    """The reasons against a probe that depend on neither GPUs nor schedulers, so that these need not be asked."""
    return _switched_off(facts) or _cannot_run(plan, facts)


def _switched_off(facts: GateFacts) -> Skip | None:
    if not facts.enabled:
        return Skip(
            "disabled", _NO_COLLECTIVES if facts.is_recording else "probes are switched off in the configuration"
        )
    if facts.maintenance:
        return Skip("maintenance", f"the daemon is paused: {facts.maintenance}")
    if facts.hold_seconds > 0:
        detail = f"the node is held for a job for another {facts.hold_seconds:.0f} s; commwatch yield --end ends that"
        return Skip("yielded", detail)
    return None


def _cannot_run(plan: CyclePlan, facts: GateFacts) -> Skip | None:
    backend = plan.backend
    if facts.starved:
        return Skip("starved", facts.starved)
    if facts.other_backend:
        detail = f"this name stands for results of {facts.other_backend}, not {backend}; give the probe another name"
        return Skip("backend_changed", detail)
    if backend == "gloo" and plan.measure == "host_copies":
        return Skip("no_gpu_backend", "there is no GPU whose copies from and to the host could be measured")
    if backend in ("nccl", "gloo") and facts.no_torch:
        return Skip("no_torch", facts.no_torch)
    if not plan.on_host and facts.missing_gpus:
        missing = ", ".join(map(str, facts.missing_gpus))
        return Skip("gpu_unknown", f"the probe names GPU {missing}, which the driver does not have")
    if not plan.on_host and not plan.devices:
        return Skip("no_gpu_backend", f"no GPU is here for a {backend} probe")
    if not plan.steps:
        return Skip("single_gpu", "one rank has nobody to talk to; set ranks to 2 to check sums on one GPU")
    if facts.stuck:
        return Skip("previous_stuck", f"in the kernel since an earlier cycle or reading: {', '.join(facts.stuck)}")
    return None


def _schedulers(facts: SchedulerFacts | None) -> Skip | None:
    if facts is None:
        return Skip("scheduler_unknown", "the schedulers of this node were not asked")
    asked = [one for one in facts if one is not None]
    # A job that is known of says more than a scheduler that gives no answer.
    for answer in asked:
        if answer.state == "busy":
            return Skip("scheduler_busy", answer.detail)
    return next((Skip("scheduler_unknown", one.detail) for one in asked if one.state == "unknown"), None)


def _namespace(facts: GateFacts) -> Skip | None:
    if facts.initial_pid_namespace:
        return None
    return Skip("foreign_pid_namespace", "processes of this node are hidden from us; run in the host's PID namespace")


def _gpus(gpus: tuple[GpuFacts, ...]) -> Skip | None:
    if not gpus:
        return Skip("gpu_unknown", "no GPU could be read")
    return next((skip for gpu in gpus if (skip := _gpu(gpu))), None)


def _gpu(gpu: GpuFacts) -> Skip | None:
    name = f"GPU {gpu.device}"
    if gpu.mig:
        return Skip("mig", f"{name} is split by MIG")
    # Ahead of the mode, which a job may have set: without a job it keeps the probe from a free node.
    if gpu.compute_processes or gpu.busy:
        return Skip("gpu_busy", f"{name} {_use(gpu)}")
    if gpu.compute_mode not in (None, "default"):
        return Skip("compute_mode", f"{name} is in compute mode {gpu.compute_mode}")
    if gpu.memory_used_bytes is not None and gpu.memory_used_bytes >= _memory_limit(gpu):
        return Skip("gpu_memory_used", f"{name} has {gpu.memory_used_bytes / 2**20:.0f} MiB in use")
    unread = [fact for fact in _MUST_BE_READ if getattr(gpu, fact) is None]
    return Skip("gpu_unknown", f"{name} is not known to be free: {', '.join(unread)} not read") if unread else None


def _use(gpu: GpuFacts) -> str:
    if not gpu.compute_processes:
        return "did work a moment ago"
    named = f" ({', '.join(map(str, gpu.processes[:_NAMED_PROCESSES]))})" if gpu.processes else ""
    return f"has {gpu.compute_processes} compute process{'es' if gpu.compute_processes > 1 else ''}{named}"


def _memory_limit(gpu: GpuFacts) -> float:
    return max(MEMORY_LIMIT_BYTES, MEMORY_LIMIT_SHARE * (gpu.memory_size_bytes or 0))


_MUST_BE_READ = ("busy", "compute_processes", "memory_used_bytes", "compute_mode", "mig")
_NAMED_PROCESSES = 4

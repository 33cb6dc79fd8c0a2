"""Whether a probe may start now: a pure decision over facts that others have gathered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from commwatch.probes.plan import Backend, SkipReason

Gate: TypeAlias = Literal["auto", "slurm", "kubernetes", "idle", "off"]

MEMORY_LIMIT_BYTES = 2**30
"""Memory in use on a GPU that is still free: what a display server takes, and less than a job does."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of one GPU; None for what was not read, which never counts as free."""

    device: str
    """PCI address, for the message."""
    busy: bool | None = None
    compute_processes: int | None = None
    memory_used_bytes: int | None = None
    """Without the driver's own reserve."""
    compute_mode: str | None = None
    """``default``, ``exclusive_process``, ``exclusive_thread`` or ``prohibited``."""
    mig: bool | None = None


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """What is known of the schedulers of this node."""

    slurmd: bool = False
    kubelet: bool = False
    slurm_jobs: int | None = None
    """Slurm jobs with a step on this node; None where that cannot be told."""


@dataclass(frozen=True, slots=True)
class GateFacts:
    """All that the decision rests on."""

    enabled: bool = True
    maintenance: str = ""
    """Reason of the maintenance in force; empty without one."""
    other_backend: str = ""
    """Backend of the results that the probe's name already stands for, where it is another one."""
    torch_installed: bool = True
    stuck_processes: int = 0
    scheduler: SchedulerFacts = field(default_factory=SchedulerFacts)
    initial_pid_namespace: bool | None = True
    """Whether we see the processes of the whole node; None where that cannot be told."""
    gpus: tuple[GpuFacts, ...] = ()
    within_budget: bool = True


class Skip(NamedTuple):
    """Why a probe does not start."""

    reason: SkipReason
    detail: str
    """For the operator: which GPU, which job."""


def decide(gate: Gate, backend: Backend, ranks: int, facts: GateFacts) -> Skip | None:
    """None if the probe may start.

    A gloo probe touches no GPU and asks for nothing about them. A simulated probe harms nobody: only the GPUs of its
    own node and the budget can hold it back.

    Args:
        gate: the configured gate; ``idle`` asks no scheduler.
        backend: what the ranks run on.
        ranks: how many there would be.
        facts: gathered just now.
    """
    return (
        _switched_off(gate, facts)
        or _cannot_run(backend, ranks, facts)
        or (_scheduler(gate, facts.scheduler) if backend != "simulated" else None)
        or (_namespace(facts) if backend == "nccl" else None)
        or (_gpus(facts.gpus) if backend != "gloo" else None)
        or (None if facts.within_budget else Skip("budget", "the GPUs' share of time for probes is used up"))
    )


def _switched_off(gate: Gate, facts: GateFacts) -> Skip | None:
    if not facts.enabled or gate == "off":
        return Skip("disabled", "probes are switched off in the configuration")
    if facts.maintenance:
        return Skip("maintenance", f"the daemon is paused: {facts.maintenance}")
    return None


def _cannot_run(backend: Backend, ranks: int, facts: GateFacts) -> Skip | None:
    if facts.other_backend:
        detail = f"this name stands for results of {facts.other_backend}, not {backend}; give the probe another name"
        return Skip("backend_changed", detail)
    if backend != "simulated" and not facts.torch_installed:
        return Skip("no_torch", "torch is not installed; install commwatch[probe]")
    if backend != "gloo" and not facts.gpus:
        return Skip("no_gpu_backend", f"no GPU is here for a {backend} probe")
    if ranks < 2:
        return Skip("single_gpu", "one rank has nobody to talk to; set ranks to 2 to check sums on one GPU")
    if facts.stuck_processes:
        return Skip("previous_stuck", f"{facts.stuck_processes} rank processes of an earlier cycle sit in the kernel")
    return None


def _scheduler(gate: Gate, facts: SchedulerFacts) -> Skip | None:
    if gate == "slurm" or (gate == "auto" and facts.slurmd):
        if facts.slurm_jobs is None:
            return Skip("scheduler_unknown", "Slurm keeps no job cgroups here, so a running job could not be seen")
        if facts.slurm_jobs:
            return Skip("scheduler_busy", f"{facts.slurm_jobs} Slurm jobs run on this node")
    if gate == "kubernetes" or (gate == "auto" and facts.kubelet):
        return Skip("scheduler_unknown", "this version cannot ask the kubelet whether its GPUs are allocated")
    return None


def _namespace(facts: GateFacts) -> Skip | None:
    if facts.initial_pid_namespace:
        return None
    return Skip("foreign_pid_namespace", "processes of this node are hidden from us; run in the host's PID namespace")


def _gpus(gpus: tuple[GpuFacts, ...]) -> Skip | None:
    return next((skip for gpu in gpus if (skip := _gpu(gpu))), None)


def _gpu(gpu: GpuFacts) -> Skip | None:
    name = f"GPU {gpu.device}"
    if gpu.mig:
        return Skip("mig", f"{name} is split by MIG")
    if gpu.compute_mode not in (None, "default"):
        return Skip("compute_mode", f"{name} is in compute mode {gpu.compute_mode}")
    if gpu.compute_processes or gpu.busy:
        how = f"has {gpu.compute_processes} compute processes" if gpu.compute_processes else "did work a moment ago"
        return Skip("gpu_busy", f"{name} {how}")
    if gpu.memory_used_bytes is not None and gpu.memory_used_bytes > MEMORY_LIMIT_BYTES:
        return Skip("gpu_memory_used", f"{name} has {gpu.memory_used_bytes / 2**20:.0f} MiB in use")
    unread = [fact for fact in _MUST_BE_READ if getattr(gpu, fact) is None]
    return Skip("gpu_unknown", f"{name} is not known to be free: {', '.join(unread)} not read") if unread else None


_MUST_BE_READ = ("busy", "compute_processes", "memory_used_bytes", "compute_mode", "mig")

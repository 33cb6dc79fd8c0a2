"""When a probe may start: a table of what is known and what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from commwatch.config.settings import Probe, Probes
from commwatch.node.gpus_now import GpuFacts
from commwatch.probes.gate.decision import (
    GateFacts,
    SchedulerAnswer,
    SchedulerFacts,
    decide,
    decide_before_asking,
)
from commwatch.probes.plan import CyclePlan, Measure
from commwatch.probes.rank_plan import Backend
from commwatch.probes.workload import plan_cycle
from support.passes import in_one_pass

FREE_GPU = GpuFacts(
    "0000:17:00.0", busy=False, compute_processes=0, memory_used_bytes=0, compute_mode="default", mig=False,
    memory_size_bytes=80 * 2**30, processes=(),
)  # fmt: skip
FREE = GateFacts(gpus=(FREE_GPU, replace(FREE_GPU, device="0000:3d:00.0")), scheduler=SchedulerFacts())

IDLE = SchedulerAnswer("free")
BUSY = SchedulerAnswer("busy", "Slurm job 17 runs on this node")
SILENT = SchedulerAnswer("unknown", "scontrol gave no answer in 5 s")
SLURM = SchedulerFacts(slurm=IDLE)
IN_A_CONTAINER = GateFacts(initial_pid_namespace=False, missing_gpus=(0,), scheduler=SchedulerFacts())
SIMULATED = replace(FREE, no_torch="none here", scheduler=None, initial_pid_namespace=False)


def plan(
    backend: Backend = "nccl", ranks: int = 2, measure: Measure = "all_reduce", devices: int | None = None
) -> CyclePlan:
    """A cycle over this number of ranks, with a GPU for each unless ``devices`` says how many there are."""
    gpus = tuple(f"GPU-{number}" for number in range(ranks if devices is None else devices))
    return plan_cycle("x", Probe(measure=measure, ranks=ranks), Probes(), backend=backend, devices=gpus)


def asked(**changes: Any) -> GateFacts:
    """A free node but for some schedulers."""
    return replace(FREE, scheduler=SchedulerFacts(**changes))


def second(**changes: Any) -> GateFacts:
    """A free node but for its second GPU, which decides as the first one would."""
    return replace(FREE, gpus=(FREE_GPU, replace(FREE_GPU, device="0000:3d:00.0", **changes)))


def used(used_bytes: int, size_bytes: int | None) -> GateFacts:
    return second(memory_used_bytes=used_bytes, memory_size_bytes=size_bytes)


NAMED = "0000:3d:00.0"
CASES: list[tuple[GateFacts, dict[str, Any], str | None, str]] = [
    (FREE, {}, None, ""),
    # One thing against a probe on an otherwise free node is enough, and is named.
    (replace(FREE, enabled=False), {}, "disabled", "configuration"),
    (replace(FREE, maintenance="driver-upgrade"), {}, "maintenance", "driver-upgrade"),
    (replace(FREE, hold_seconds=0.1), {}, "yielded", "commwatch yield --end"),
    (replace(FREE, other_backend="gloo"), {}, "backend_changed", "results of gloo"),
    (replace(FREE, no_torch="none here"), {}, "no_torch", "none here"),
    (replace(FREE, gpus=()), {}, "gpu_unknown", "no GPU could be read"),
    (replace(FREE, missing_gpus=(5, 7)), {}, "gpu_unknown",
     "the probe names GPU 5, 7, which the driver does not have"),
    (replace(FREE, stuck=("rank process 4711 on GPU-1",)), {}, "previous_stuck", "rank process 4711 on GPU-1"),
    (replace(FREE, initial_pid_namespace=False), {}, "foreign_pid_namespace", ""),
    (replace(FREE, initial_pid_namespace=None), {}, "foreign_pid_namespace", ""),
    (replace(FREE, within_budget=False), {}, "budget", ""),
    # What was not read does not count as free.
    (second(busy=True), {}, "gpu_busy", NAMED),
    (second(compute_processes=1), {}, "gpu_busy", NAMED),
    (second(compute_processes=2, processes=(4711, 4712)), {}, "gpu_busy", "2 compute processes (4711, 4712)"),
    (second(compute_mode="exclusive_process"), {}, "compute_mode", NAMED),
    (second(compute_mode="prohibited"), {}, "compute_mode", NAMED),
    (second(compute_mode="exclusive_process", compute_processes=1), {}, "gpu_busy", NAMED),
    (second(mig=True), {}, "mig", NAMED),
    *((second(**{fact: None}), {}, "gpu_unknown", NAMED)
      for fact in ("busy", "compute_processes", "memory_used_bytes", "compute_mode", "mig")),
    # A GPU is free below 1 GiB or below 2 % of its memory, whichever is more.
    (used(2**30 - 1, 24 * 2**30), {}, None, ""),
    (used(2**30, 24 * 2**30), {}, "gpu_memory_used", NAMED),
    (used(2**30, None), {}, "gpu_memory_used", NAMED),
    (used(int(0.02 * 192e9) - 1, 192_000_000_000), {}, None, ""),
    (used(int(0.02 * 192e9), 192_000_000_000), {}, "gpu_memory_used", NAMED),
    # Every scheduler that has a say must have the node free; without any it is, and unasked it is not known.
    (replace(FREE, scheduler=None), {}, "scheduler_unknown", "were not asked"),
    (asked(slurm=IDLE), {}, None, ""),
    (asked(slurm=BUSY), {}, "scheduler_busy", BUSY.detail),
    (asked(slurm=SILENT), {}, "scheduler_unknown", SILENT.detail),
    (asked(kubernetes=IDLE), {}, None, ""),
    (asked(kubernetes=BUSY), {}, "scheduler_busy", BUSY.detail),
    (asked(kubernetes=SILENT), {}, "scheduler_unknown", SILENT.detail),
    (asked(slurm=IDLE, kubernetes=BUSY), {}, "scheduler_busy", BUSY.detail),
    # The one that knows of a job says more than one without an answer.
    (asked(slurm=SILENT, kubernetes=BUSY), {}, "scheduler_busy", BUSY.detail),
    # A process that no scheduler knows of is still somebody's.
    (replace(second(busy=True), scheduler=SLURM), {}, "gpu_busy", ""),
    # A node with one GPU is not probed unless two ranks are configured.
    *((FREE, {"ranks": 1, "measure": measure}, "single_gpu", "")
      for measure in ("all_reduce", "pairs", "scaling")),
    *((FREE, {"ranks": 2, "measure": measure, "devices": 1}, None, "")
      for measure in ("all_reduce", "pairs", "scaling")),
    # Copies from and to the host need one rank; gloo, which has no GPU, has none of them.
    (FREE, {"ranks": 1, "measure": "host_copies"}, None, ""),
    (GateFacts(), {"ranks": 0, "measure": "host_copies"}, "no_gpu_backend", ""),
    (FREE, {"measure": "host_copies", "backend": "gloo"}, "no_gpu_backend", ""),
    # A gloo probe runs without a GPU and in a container, but not beside a job or under a hold.
    (IN_A_CONTAINER, {"backend": "gloo"}, None, ""),
    (replace(IN_A_CONTAINER, gpus=(replace(FREE_GPU, busy=True),)), {"backend": "gloo"}, None, ""),
    (replace(IN_A_CONTAINER, scheduler=SchedulerFacts(slurm=BUSY)), {"backend": "gloo"}, "scheduler_busy", ""),
    (replace(IN_A_CONTAINER, no_torch="none here"), {"backend": "gloo"}, "no_torch", ""),
    (replace(IN_A_CONTAINER, hold_seconds=60), {"backend": "gloo"}, "yielded", ""),
    (replace(IN_A_CONTAINER, starved="of CPU"), {"backend": "gloo"}, "starved", "of CPU"),
    # A simulated node needs no torch and asks no scheduler, but its busy GPUs or a hold keep a probe back.
    (SIMULATED, {"backend": "simulated"}, None, ""),
    (replace(SIMULATED, gpus=(replace(FREE_GPU, busy=True),)), {"backend": "simulated"}, "gpu_busy", ""),
    (replace(SIMULATED, hold_seconds=60), {"backend": "simulated"}, "yielded", ""),
]  # fmt: skip
"""What is known, the plan, and why it is skipped; ``None``: it may start. The detail has the last text."""


@in_one_pass("facts, planned, reason, says", CASES)
def test_a_probe_starts_on_a_node_that_is_known_to_be_free(
    facts: GateFacts, planned: dict[str, Any], reason: str | None, says: str
) -> None:
    """One fact against it is enough; the operator reads which one."""
    skip = decide(plan(**planned), facts)

    assert (None if skip is None else skip.reason) == reason
    assert skip is None or says in skip.detail


@in_one_pass("measure", get_args(Measure))
@in_one_pass("backend", get_args(Backend))
@in_one_pass("ranks", [0, 1, 2, 3])
@in_one_pass("devices", [0, 1, 2])
def test_what_may_start_has_ranks_and_steps(measure: Measure, backend: Backend, ranks: int, devices: int) -> None:
    """Whatever the number of GPUs and ranks, a plan in which nothing would be measured is a skip with a reason."""
    cycle = plan(backend, ranks, measure, devices)

    skip = decide(cycle, FREE)

    if skip is None:
        assert cycle.ranks > 0
        assert cycle.steps
        assert cycle.devices or cycle.on_host
    else:
        assert skip.reason in ("no_gpu_backend", "single_gpu")


def test_some_reasons_need_no_question() -> None:
    """A hold, a pause or starvation holds whatever others say; a busy GPU must have been looked at."""
    unasked = replace(FREE, gpus=(), scheduler=None)

    assert decide_before_asking(plan(), unasked) is None
    for changes in ({"hold_seconds": 1.0}, {"maintenance": "swap"}, {"starved": "of CPU"}, {"no_torch": "none here"}):
        facts = replace(unasked, **changes)
        assert decide_before_asking(plan(), facts) == decide(plan(), facts) is not None

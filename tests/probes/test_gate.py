"""When a probe may start: a table of what is known and what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from commwatch.config.settings import Probe, Probes
from commwatch.node.gpus_now import GpuFacts
from commwatch.probes.gate.decision import (
    Gate,
    GateFacts,
    SchedulerAnswer,
    SchedulerFacts,
    Skip,
    decide,
    decide_before_asking,
)
from commwatch.probes.plan import CyclePlan, Measure
from commwatch.probes.rank_plan import Backend
from commwatch.probes.workload import plan_cycle
from support.passes import in_one_pass

FREE_GPU = GpuFacts(
    "0000:17:00.0",
    busy=False,
    compute_processes=0,
    memory_used_bytes=0,
    compute_mode="default",
    mig=False,
    memory_size_bytes=80 * 2**30,
    processes=(),
)
FREE = GateFacts(gpus=(FREE_GPU, replace(FREE_GPU, device="0000:3d:00.0")))

IDLE = SchedulerAnswer("free")
BUSY = SchedulerAnswer("busy", "Slurm job 17 runs on this node")
SILENT = SchedulerAnswer("unknown", "scontrol gave no answer in 5 s")
SLURM = SchedulerFacts(slurmd=True, slurm=IDLE)
KUBERNETES = SchedulerFacts(kubelet=True, kubernetes=IDLE)


def plan(
    backend: Backend = "nccl", ranks: int = 2, measure: Measure = "all_reduce", devices: int | None = None
) -> CyclePlan:
    """A cycle over so many ranks, with a GPU for each unless ``devices`` says how many there are."""
    gpus = tuple(f"GPU-{number}" for number in range(ranks if devices is None else devices))
    return plan_cycle("x", Probe(measure=measure, ranks=ranks), Probes(), backend=backend, devices=gpus)


def reason(
    facts: GateFacts,
    gate: Gate = "auto",
    backend: Backend = "nccl",
    ranks: int = 2,
    measure: Measure = "all_reduce",
    devices: int | None = None,
) -> str | None:
    skip = decide(gate, plan(backend, ranks, measure, devices), facts)
    return None if skip is None else skip.reason


def test_a_free_node_is_probed() -> None:
    """Nothing stands against a probe on free GPUs."""
    assert reason(FREE) is None


@in_one_pass(
    "changes, expected",
    [
        ({"enabled": False}, "disabled"),
        ({"maintenance": "driver-upgrade"}, "maintenance"),
        ({"hold_seconds": 0.1}, "yielded"),
        ({"other_backend": "gloo"}, "backend_changed"),
        ({"no_torch": "none here"}, "no_torch"),
        ({"gpus": ()}, "gpu_unknown"),
        ({"missing_gpus": (5,)}, "gpu_unknown"),
        ({"stuck": ("rank process 4711 on GPU-1",)}, "previous_stuck"),
        ({"initial_pid_namespace": False}, "foreign_pid_namespace"),
        ({"initial_pid_namespace": None}, "foreign_pid_namespace"),
        ({"within_budget": False}, "budget"),
    ],
)
def test_each_fact_alone_closes_the_gate(changes: dict[str, Any], expected: str) -> None:
    """One thing against a probe on an otherwise free node is enough, and is named."""
    assert reason(replace(FREE, **changes)) == expected


@in_one_pass(
    "changes, expected",
    [
        ({"busy": True}, "gpu_busy"),
        ({"compute_processes": 1}, "gpu_busy"),
        ({"compute_mode": "exclusive_process"}, "compute_mode"),
        ({"compute_mode": "prohibited"}, "compute_mode"),
        ({"mig": True}, "mig"),
        ({"busy": None}, "gpu_unknown"),
        ({"compute_processes": None}, "gpu_unknown"),
        ({"memory_used_bytes": None}, "gpu_unknown"),
        ({"compute_mode": None}, "gpu_unknown"),
        ({"mig": None}, "gpu_unknown"),
    ],
)
def test_one_gpu_that_is_not_known_to_be_free_is_enough(changes: dict[str, Any], expected: str) -> None:
    """The second of two GPUs decides as the first one would; what was not read does not count as free."""
    gpus = (FREE_GPU, replace(FREE_GPU, device="0000:3d:00.0", **changes))

    skip = decide("auto", plan(), replace(FREE, gpus=gpus))

    assert skip is not None
    assert skip.reason == expected
    assert "0000:3d:00.0" in skip.detail


@pytest.mark.parametrize(
    ("used", "size", "expected"),
    [
        (2**30 - 1, 24 * 2**30, None),
        (2**30, 24 * 2**30, "gpu_memory_used"),
        (2**30, None, "gpu_memory_used"),
        (int(0.02 * 192e9) - 1, 192_000_000_000, None),  # 3.84 GB: above 1 GiB, below 2 %
        (int(0.02 * 192e9), 192_000_000_000, "gpu_memory_used"),
    ],
)
def test_memory_in_use_at_its_edges(used: int, size: int | None, expected: str | None) -> None:
    """A GPU is free below 1 GiB or below 2 % of its memory, whichever is more."""
    gpu = replace(FREE_GPU, memory_used_bytes=used, memory_size_bytes=size)

    assert reason(replace(FREE, gpus=(FREE_GPU, gpu))) == expected


def test_processes_are_named() -> None:
    """The operator learns which process to look at."""
    gpu = replace(FREE_GPU, compute_processes=2, processes=(4711, 4712))

    skip = decide("idle", plan(), replace(FREE, gpus=(gpu,)))

    assert skip is not None
    assert skip.detail == "GPU 0000:17:00.0 has 2 compute processes (4711, 4712)"


@in_one_pass(
    "gate, scheduler, expected",
    [
        ("auto", SLURM, None),
        ("auto", replace(SLURM, slurm=BUSY), "scheduler_busy"),
        ("auto", replace(SLURM, slurm=SILENT), "scheduler_unknown"),
        ("auto", replace(SLURM, slurm=None), "scheduler_unknown"),
        ("auto", KUBERNETES, None),
        ("auto", replace(KUBERNETES, kubernetes=BUSY), "scheduler_busy"),
        ("auto", replace(KUBERNETES, kubernetes=SILENT), "scheduler_unknown"),
        ("auto", replace(KUBERNETES, kubernetes=None), "scheduler_unknown"),
        ("auto", SchedulerFacts(slurm=BUSY), None),  # no slurmd runs here
        ("idle", replace(SLURM, slurm=BUSY), None),
        ("idle", replace(KUBERNETES, kubernetes=BUSY), None),
        ("slurm", SchedulerFacts(), "scheduler_unknown"),
        ("slurm", SchedulerFacts(slurm=IDLE), None),
        ("slurm", SchedulerFacts(slurm=BUSY), "scheduler_busy"),
        ("slurm", replace(KUBERNETES, slurm=IDLE, kubernetes=BUSY), None),
        ("kubernetes", SchedulerFacts(), "scheduler_unknown"),
        ("kubernetes", SchedulerFacts(kubernetes=IDLE), None),
        ("kubernetes", SchedulerFacts(kubernetes=BUSY), "scheduler_busy"),
        ("slurm", SchedulerFacts(ignored=True), None),
        ("auto", replace(SLURM, slurm=BUSY, ignored=True), None),
        ("off", SchedulerFacts(), "disabled"),
    ],
)
def test_schedulers(gate: Gate, scheduler: SchedulerFacts, expected: str | None) -> None:
    """``auto`` heeds the schedulers that run here, a named gate that one alone, ``idle`` none, ``off`` never opens."""
    assert reason(replace(FREE, scheduler=scheduler), gate) == expected


def test_a_job_says_more_than_a_scheduler_without_an_answer() -> None:
    """Where both run, the one that knows of a job is quoted, in its own words."""
    both = SchedulerFacts(slurmd=True, kubelet=True, slurm=SILENT, kubernetes=BUSY)

    assert decide("auto", plan(), replace(FREE, scheduler=both)) == ("scheduler_busy", BUSY.detail)


def test_a_busy_gpu_closes_the_gate_of_an_unallocated_node() -> None:
    """A process that no scheduler knows of is still somebody's."""
    busy = replace(FREE, scheduler=SLURM, gpus=(replace(FREE_GPU, busy=True),))

    assert reason(busy) == "gpu_busy"


@pytest.mark.parametrize("measure", ["all_reduce", "pairs", "scaling"])
def test_one_rank_has_nobody_to_talk_to(measure: Measure) -> None:
    """A node with one GPU is not probed unless two ranks are configured."""
    one = replace(FREE, gpus=(FREE_GPU,))

    assert reason(one, ranks=1, measure=measure) == "single_gpu"
    assert reason(one, ranks=2, measure=measure, devices=1) is None


def test_copies_from_and_to_the_host_need_one_gpu() -> None:
    """One rank suffices for them; gloo, which has no GPU, has none of them."""
    one = replace(FREE, gpus=(FREE_GPU,))

    assert reason(one, ranks=1, measure="host_copies") is None
    assert reason(GateFacts(), ranks=0, measure="host_copies") == "no_gpu_backend"
    assert reason(one, ranks=2, measure="host_copies", backend="gloo") == "no_gpu_backend"


@in_one_pass("measure", get_args(Measure))
@in_one_pass("backend", get_args(Backend))
@in_one_pass("ranks", [0, 1, 2, 3])
@in_one_pass("devices", [0, 1, 2])
def test_what_may_start_has_ranks_and_steps(measure: Measure, backend: Backend, ranks: int, devices: int) -> None:
    """Whatever the number of GPUs and ranks, a plan in which nothing would be measured is a skip with a reason."""
    cycle = plan(backend, ranks, measure, devices)

    skip = decide("auto", cycle, FREE)

    if skip is None:
        assert cycle.ranks > 0
        assert cycle.steps
        assert cycle.devices or cycle.on_host
    else:
        assert skip.reason in ("no_gpu_backend", "single_gpu")


def test_a_gpu_that_the_probe_names_and_the_node_lacks_is_named() -> None:
    """A probe over GPUs 0 and 5 is not one over GPU 0 and whatever else is here."""
    skip = decide("auto", plan(), replace(FREE, missing_gpus=(5, 7)))

    assert skip == Skip("gpu_unknown", "the probe names GPU 5, 7, which the driver does not have")


def test_what_sits_in_the_kernel_is_named() -> None:
    """The operator learns which process, and on which GPU."""
    skip = decide("auto", plan(), replace(FREE, stuck=("rank process 4711 on GPU-1",)))

    assert skip is not None
    assert "rank process 4711 on GPU-1" in skip.detail


def test_some_reasons_need_no_question() -> None:
    """A hold, a pause or starvation holds whatever others say; a busy GPU must have been looked at."""
    unasked = replace(FREE, gpus=(), scheduler=SchedulerFacts(slurmd=True))

    assert decide_before_asking("auto", plan(), unasked) is None
    for changes in ({"hold_seconds": 1.0}, {"maintenance": "swap"}, {"starved": "of CPU"}, {"no_torch": "none here"}):
        facts = replace(unasked, **changes)
        assert decide_before_asking("auto", plan(), facts) == decide("auto", plan(), facts) is not None


def test_gloo_asks_nothing_of_gpus() -> None:
    """A gloo probe runs without a GPU and in a container, but not beside a job or under a hold."""
    facts = GateFacts(initial_pid_namespace=False, missing_gpus=(0,))

    assert reason(facts, backend="gloo") is None
    assert reason(replace(facts, gpus=(replace(FREE_GPU, busy=True),)), backend="gloo") is None
    assert reason(replace(facts, scheduler=replace(SLURM, slurm=BUSY)), backend="gloo") == "scheduler_busy"
    assert reason(replace(facts, no_torch="none here"), backend="gloo") == "no_torch"
    assert reason(replace(facts, hold_seconds=60), backend="gloo") == "yielded"
    assert reason(replace(facts, starved="the node is starved of CPU"), backend="gloo") == "starved"


def test_a_simulated_probe_heeds_its_own_gpus_only() -> None:
    """A simulated node needs no torch and asks no scheduler, but its busy GPUs or a hold keep a probe back."""
    facts = replace(FREE, no_torch="none here", scheduler=SchedulerFacts(kubelet=True), initial_pid_namespace=False)

    assert reason(facts, backend="simulated") is None
    assert reason(replace(facts, gpus=(replace(FREE_GPU, busy=True),)), backend="simulated") == "gpu_busy"
    assert reason(replace(facts, hold_seconds=60), backend="simulated") == "yielded"

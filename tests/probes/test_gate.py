"""When a probe may start: a table of what is known and what follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commwatch.probes.gate import MEMORY_LIMIT_BYTES, Gate, GateFacts, GpuFacts, SchedulerFacts, decide
from commwatch.probes.plan import Backend

FREE_GPU = GpuFacts(
    "0000:17:00.0", busy=False, compute_processes=0, memory_used_bytes=0, compute_mode="default", mig=False
)
FREE = GateFacts(gpus=(FREE_GPU, replace(FREE_GPU, device="0000:3d:00.0")))
SLURM = SchedulerFacts(slurmd=True, slurm_jobs=0)


def reason(facts: GateFacts, gate: Gate = "auto", backend: Backend = "nccl", ranks: int = 2) -> str | None:
    skip = decide(gate, backend, ranks, facts)
    return None if skip is None else skip.reason


def test_a_free_node_is_probed() -> None:
    """Nothing stands against a probe on free GPUs."""
    assert reason(FREE) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"enabled": False}, "disabled"),
        ({"maintenance": "driver-upgrade"}, "maintenance"),
        ({"other_backend": "gloo"}, "backend_changed"),
        ({"torch_installed": False}, "no_torch"),
        ({"gpus": ()}, "no_gpu_backend"),
        ({"stuck_processes": 1}, "previous_stuck"),
        ({"initial_pid_namespace": False}, "foreign_pid_namespace"),
        ({"initial_pid_namespace": None}, "foreign_pid_namespace"),
        ({"within_budget": False}, "budget"),
    ],
)
def test_each_fact_alone_closes_the_gate(changes: dict[str, Any], expected: str) -> None:
    """One thing against a probe on an otherwise free node is enough, and is named."""
    assert reason(replace(FREE, **changes)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"busy": True}, "gpu_busy"),
        ({"compute_processes": 1}, "gpu_busy"),
        ({"memory_used_bytes": MEMORY_LIMIT_BYTES}, None),
        ({"memory_used_bytes": MEMORY_LIMIT_BYTES + 1}, "gpu_memory_used"),
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
def test_one_gpu_that_is_not_known_to_be_free_is_enough(changes: dict[str, Any], expected: str | None) -> None:
    """The second of two GPUs decides as the first one would; what was not read does not count as free."""
    gpus = (FREE_GPU, replace(FREE_GPU, device="0000:3d:00.0", **changes))

    skip = decide("auto", "nccl", 2, replace(FREE, gpus=gpus))

    assert (skip and skip.reason) == expected
    assert skip is None or "0000:3d:00.0" in skip.detail


@pytest.mark.parametrize(
    ("gate", "scheduler", "expected"),
    [
        ("auto", SLURM, None),
        ("auto", replace(SLURM, slurm_jobs=1), "scheduler_busy"),
        ("auto", replace(SLURM, slurm_jobs=None), "scheduler_unknown"),
        ("auto", SchedulerFacts(kubelet=True), "scheduler_unknown"),
        ("auto", SchedulerFacts(slurm_jobs=1), None),  # cgroups that a former slurmd left
        ("idle", replace(SLURM, slurm_jobs=1), None),
        ("idle", SchedulerFacts(kubelet=True), None),
        ("slurm", SchedulerFacts(), "scheduler_unknown"),
        ("slurm", SchedulerFacts(slurm_jobs=0), None),
        ("slurm", SchedulerFacts(slurm_jobs=2), "scheduler_busy"),
        ("kubernetes", SchedulerFacts(), "scheduler_unknown"),
        ("off", SchedulerFacts(), "disabled"),
    ],
)
def test_schedulers(gate: Gate, scheduler: SchedulerFacts, expected: str | None) -> None:
    """``auto`` asks the schedulers that run here, a named gate that one alone, ``idle`` none, ``off`` never opens."""
    assert reason(replace(FREE, scheduler=scheduler), gate) == expected


def test_a_busy_gpu_closes_the_gate_of_an_unallocated_node() -> None:
    """A process that no scheduler knows of is still somebody's."""
    busy = replace(FREE, scheduler=SLURM, gpus=(replace(FREE_GPU, busy=True),))

    assert reason(busy) == "gpu_busy"


def test_one_rank_has_nobody_to_talk_to() -> None:
    """A node with one GPU is not probed unless two ranks are configured."""
    one = replace(FREE, gpus=(FREE_GPU,))

    assert reason(one, ranks=1) == "single_gpu"
    assert reason(one, ranks=2) is None


def test_gloo_asks_nothing_of_gpus() -> None:
    """A gloo probe runs without a GPU and in a container, but not beside a job."""
    facts = GateFacts(initial_pid_namespace=False)

    assert reason(facts, backend="gloo") is None
    assert reason(replace(facts, gpus=(replace(FREE_GPU, busy=True),)), backend="gloo") is None
    assert reason(replace(facts, scheduler=replace(SLURM, slurm_jobs=1)), backend="gloo") == "scheduler_busy"
    assert reason(replace(facts, torch_installed=False), backend="gloo") == "no_torch"


def test_a_simulated_probe_heeds_its_own_gpus_only() -> None:
    """A simulated node needs no torch and asks no scheduler, but its busy GPUs hold a probe back."""
    facts = replace(FREE, torch_installed=False, scheduler=SchedulerFacts(kubelet=True), initial_pid_namespace=False)

    assert reason(facts, backend="simulated") is None
    assert reason(replace(facts, gpus=(replace(FREE_GPU, busy=True),)), backend="simulated") == "gpu_busy"

"""Plans, environments and samplings of a cycle."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch import config
from commwatch.analysis.bus_bandwidth import algorithm_bandwidth, bus_bandwidth
from commwatch.config import Size
from commwatch.probes.environment import rank_environment
from commwatch.probes.plan import Backend, choose_backend, plan_cycle
from commwatch.probes.sampling import BANDWIDTH, LATENCY, Sampling, affordable
from probes.cycles import cycle_plan

LIMITS = config.Probes()
TWO_GPUS = ("GPU-a", "GPU-b")


@pytest.mark.parametrize(
    ("configured", "simulated", "driver", "expected"),
    [
        ("auto", False, True, "nccl"),
        ("auto", False, False, "gloo"),
        ("gloo", False, True, "gloo"),
        ("nccl", False, False, "nccl"),
        ("nccl", True, False, "simulated"),
    ],
)
def test_choice_of_backend(
    configured: Literal["auto", "nccl", "gloo"], simulated: bool, driver: bool, expected: Backend
) -> None:
    """gloo is used where it is configured or no driver is here; a node that does not exist is simulated."""
    assert choose_backend(config.Probe(backend=configured), simulated=simulated, driver=driver) == expected


@pytest.mark.parametrize(
    ("backend", "devices", "ranks", "size", "timed"),
    [("nccl", TWO_GPUS, 2, 64 * 2**20, 0.1), ("gloo", (), 2, 4 * 2**20, 2.0), ("simulated", TWO_GPUS, 2, 2**26, 0.1)],
)
def test_defaults_by_backend(backend: Backend, devices: tuple[str, ...], ranks: int, size: int, timed: float) -> None:
    """One rank for each GPU, or two without; sizes and time as the backend suits."""
    plan = plan_cycle("x", config.Probe(), LIMITS, backend=backend, devices=devices)

    assert (plan.ranks, plan.latency_bytes, plan.bandwidth_bytes, plan.timed_seconds) == (ranks, 8, size, timed)
    assert plan.gpus == len(devices)
    assert not plan.shares_gpus


def test_more_ranks_than_gpus_share_them() -> None:
    """Two ranks on one GPU are two hosts to NCCL, and meet over the loopback."""
    plan = plan_cycle("x", config.Probe(ranks=2), LIMITS, backend="nccl", devices=("GPU-a",))

    environments = [rank_environment(plan, rank, Path("/private"), {}) for rank in range(2)]

    assert plan.shares_gpus
    assert [plan.rank_plan(rank, "file").device for rank in range(2)] == [0, 0]
    assert environments[0]["NCCL_HOSTID"] != environments[1]["NCCL_HOSTID"]
    assert environments[0]["NCCL_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize(("size", "rounded"), [(1, 4), (4, 4), (8, 8), (9, 12)])
def test_sizes_are_whole_elements(size: int, rounded: int) -> None:
    """Buffers hold 32-bit floats, and what is reported is what is sent."""
    probe = config.Probe(latency_bytes=Size(size), bandwidth_bytes=Size(size))

    plan = plan_cycle("x", probe, LIMITS, backend="gloo", devices=())

    assert (plan.latency_bytes, plan.bandwidth_bytes) == (rounded, rounded)


def test_environment_of_an_nccl_rank() -> None:
    """Only the chosen GPUs are visible, RAS is off, warnings go to the private folder, and nothing is inherited."""
    own = {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/cuda",
        "NCCL_ALGO": "Tree",
        "CUDA_VISIBLE_DEVICES": "7",
        "HOME": "/root",
    }

    environment = rank_environment(cycle_plan(backend="nccl"), 1, Path("/private"), own)

    assert environment["PATH"] == "/bin"
    assert environment["LD_LIBRARY_PATH"] == "/cuda"
    assert environment["HOME"] == "/private"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert environment["NCCL_RAS_ENABLE"] == "0"
    assert environment["NCCL_DEBUG_FILE"] == "/private/rank1.nccl"
    assert "NCCL_ALGO" not in environment
    assert "NCCL_HOSTID" not in environment


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """64 MiB over eight A100 in 584 µs is 115 GB/s, and 201 GB/s on the bus; for two ranks both are the same."""
    assert algorithm_bandwidth(64 * 2**20, 584e-6) == pytest.approx(114.9e9, rel=1e-3)
    assert bus_bandwidth(8, 64 * 2**20, 584e-6) == pytest.approx(201.1e9, rel=1e-3)
    assert bus_bandwidth(2, 1000, 1e-3) == algorithm_bandwidth(1000, 1e-3)


def test_fast_calls_are_sampled_in_full() -> None:
    """On NVLink all calls of a cycle take a small part of the time they may."""
    assert affordable(LATENCY, 15e-6, 0.025) == LATENCY
    assert affordable(BANDWIDTH, 374e-6, 0.075) == BANDWIDTH


@pytest.mark.parametrize("call_seconds", [1.0, 0.075])
def test_one_call_is_always_made(call_seconds: float) -> None:
    """A call that takes the whole budget is timed once: without it a slow path would have no result at all."""
    assert affordable(BANDWIDTH, call_seconds, 0.075) == Sampling(warmup=0, calls=1, timings=1)


@given(
    st.sampled_from([LATENCY, BANDWIDTH]),
    st.floats(min_value=1e-6, max_value=0.1),
    st.floats(min_value=1e-3, max_value=2.0),
)
def test_calls_keep_to_their_budget(wanted: Sampling, call_seconds: float, budget: float) -> None:
    """All calls together take at most the budget, but for the one timing that is always made."""
    sampling = affordable(wanted, call_seconds, budget)

    calls = sampling.warmup + sampling.timings * (sampling.calls + 1)
    assert calls * call_seconds <= budget * (1 + 1e-9) or sampling == Sampling(0, 1, 1)
    assert sampling.calls <= wanted.calls
    assert sampling.timings <= wanted.timings

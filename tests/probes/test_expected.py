"""What an all-reduce is expected to give, and from where."""

from __future__ import annotations

from typing import Any

import pytest

from commwatch.analysis.expected import Expected, expected_bus_bandwidth

MIB = 2**20


def expected(**changes: Any) -> Expected | None:
    values: dict[str, Any] = {
        "configured": None,
        "backend": "nccl",
        "gpu_name": "NVIDIA H100 80GB HBM3",
        "nvlinks_per_gpu": 18,
        "ranks": 8,
        "size_bytes": 64 * MIB,
    }
    return expected_bus_bandwidth(**(values | changes))


def test_configured_wins_everywhere() -> None:
    """The operator's number stands above table and model, and is all there is for gloo."""
    for changes in ({}, {"backend": "gloo", "gpu_name": None}, {"gpu_name": "NVIDIA A100-SXM4-80GB"}):
        found = expected(configured=5e9, **changes)

        assert found is not None
        assert (found.bytes_per_second, found.source) == (5e9, "configured")


@pytest.mark.parametrize(
    ("name", "size_mib", "gigabytes"),
    [("NVIDIA A100-SXM4-80GB", 64, 201), ("NVIDIA A100-SXM4-40GB", 8192, 235), ("NVIDIA H20", 32, 300)],
)
def test_published_results_come_before_the_model(name: str, size_mib: int, gigabytes: float) -> None:
    """A size of the table gives the table's own number."""
    found = expected(gpu_name=name, size_bytes=size_mib * MIB)

    assert found is not None
    assert found.source == "reference"
    assert found.bytes_per_second == pytest.approx(gigabytes * 1e9)


def test_between_two_published_sizes() -> None:
    """16 MiB is halfway between 8 and 32 MiB on the logarithmic axis."""
    found = expected(gpu_name="NVIDIA A100-SXM4-80GB", size_bytes=16 * MIB)

    assert found is not None
    assert found.bytes_per_second == pytest.approx((91 + 157) / 2 * 1e9)


@pytest.mark.parametrize("changes", [{"ranks": 4}, {"size_bytes": MIB // 2}])
def test_the_table_says_nothing_beyond_itself(changes: dict[str, Any]) -> None:
    """Another number of ranks, or a size outside of the table, is left to the model."""
    found = expected(gpu_name="NVIDIA A100-SXM4-80GB", nvlinks_per_gpu=12, **changes)

    assert found is not None
    assert found.source == "model"


def test_model_of_the_ring() -> None:
    """H100: 8.4 µs and 14 steps of 3.4 µs, then 1.75 times 64 MiB at 18 links of 20.6 GB/s."""
    found = expected()

    assert found is not None
    seconds = 8.4e-6 + 14 * 3.4e-6 + 1.75 * 64 * MIB / (18 * 20.6e9)
    assert found.source == "model"
    assert found.bytes_per_second == pytest.approx(1.75 * 64 * MIB / seconds)


@pytest.mark.parametrize(
    ("name", "links", "size_mib", "measured"),
    [
        ("NVIDIA A100", 12, 64, 201e9),
        ("NVIDIA A100", 12, 1024, 230e9),
        ("NVIDIA H100", 18, 32, 300e9),  # measured on H20, which has the same links
    ],
)
def test_model_is_near_what_was_measured(name: str, links: int, size_mib: int, measured: float) -> None:
    """Where a published result is known for the same links, the model is within 10 % of it."""
    modelled = expected(gpu_name=name, nvlinks_per_gpu=links, size_bytes=size_mib * MIB)

    assert modelled is not None
    assert modelled.source == "model"
    assert modelled.bytes_per_second == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "gloo"},
        {"gpu_name": "NVIDIA A10"},
        {"gpu_name": "NVIDIA H2000"},
        {"gpu_name": None},
        {"nvlinks_per_gpu": 0},
        {"nvlinks_per_gpu": None},
        {"ranks": 1},
    ],
)
def test_nothing_is_made_up(changes: dict[str, Any]) -> None:
    """gloo, PCIe paths, unknown GPUs and single ranks have no expectation."""
    assert expected(**changes) is None


def test_a_simulated_node_is_expected_to_do_what_its_gpus_do() -> None:
    """A simulated probe is judged as that of a real node with the same GPUs."""
    assert expected(backend="simulated") == expected(backend="nccl")

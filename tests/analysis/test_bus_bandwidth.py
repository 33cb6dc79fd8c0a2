"""From times to bandwidths, against the convention of nccl-tests."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.probes.rank_plan import Operation
from commwatch.probes.results.bus_bandwidth import bus_bandwidth, factor
from support.passes import in_one_pass

MIB = 2**20


@in_one_pass(
    "operation, two, eight",
    [
        ("all_reduce", 1, 1.75),
        ("all_gather", 0.5, 0.875),
        ("reduce_scatter", 0.5, 0.875),
        ("all_to_all", 0.5, 0.875),
        ("broadcast", 1, 1),
        ("send_recv", 1, 1),
        ("host_to_device", 1, 1),
        ("device_to_host", 1, 1),
    ],
)
def test_factors(operation: str, two: float, eight: float) -> None:
    """The table of nccl-tests over two and eight ranks."""
    assert (factor(operation, 2), factor(operation, 8)) == (two, eight)


def test_every_operation_has_a_factor() -> None:
    """Nothing that a probe times lacks one; what it does not time has none, nor has a collective of nobody."""
    assert all(factor(operation, 4) > 0 for operation in get_args(Operation))
    with pytest.raises(ValueError, match="gather_nothing"):
        factor("gather_nothing", 4)
    with pytest.raises(ValueError, match="0 ranks"):
        factor("all_reduce", 0)


@in_one_pass("size, seconds, gigabytes", [(64 * MIB, 584e-6, 201), (1024 * MIB, 8.16e-3, 230), (8 * MIB, 162e-6, 91)])
def test_published_times_give_the_published_bandwidths(size: int, seconds: float, gigabytes: float) -> None:
    """Eight A100: the table of SuperBench has both."""
    assert bus_bandwidth("all_reduce", 8, size, seconds) == pytest.approx(gigabytes * 1e9, rel=0.01)


@given(
    st.sampled_from(get_args(Operation)),
    st.integers(min_value=2, max_value=512),
    st.integers(min_value=1, max_value=2**40),
    st.floats(min_value=1e-6, max_value=100.0),
)
def test_factors_grow_with_the_ranks_and_have_an_end(operation: str, ranks: int, size: int, seconds: float) -> None:
    """Never above 2 for an all-reduce, nor above 1 for anything else; an all-reduce is a gather and a scatter."""
    here, more = factor(operation, ranks), factor(operation, ranks + 1)

    assert 0.5 <= here <= more <= (2 if operation == "all_reduce" else 1)
    assert factor("all_reduce", ranks) == factor("all_gather", ranks) + factor("reduce_scatter", ranks)
    assert bus_bandwidth(operation, ranks, size, seconds) * seconds == pytest.approx(here * size)

"""The layout to choose: surely the most work, and the simplest of those close to it."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from commwatch.diagnosis.estimate.model.choice import CLOSE_RATIO, choose, doubling
from commwatch.diagnosis.estimate.model.gpus import gpu_figures, operations
from commwatch.diagnosis.estimate.model.span import Span, exactly
from commwatch.diagnosis.estimate.model.step import estimate_step
from commwatch.diagnosis.estimate.model.training import Fabric, Layout, Training, model_state
from commwatch.units import parse_rate

TRAINING = Training(parameters=1_500_000_000, compute=exactly(1.03), micro_batches=2)
SLOW = Span(parse_rate("8.74Gbit/s"), parse_rate("9.28Gbit/s"))
ASKED = Layout("zero3", 2, 2)


def chosen(training: Training, asked: Layout, fabric: Fabric, memory: int | None = None) -> Layout | None:
    found = choose(training, asked, fabric, memory).chosen
    return None if found is None else found.layout


def test_two_nodes_over_a_slow_network_are_one_too_many() -> None:
    """The published case: one node with DDP, whether or not the rate within the node is known."""
    for in_node in (exactly(10e9), Span(6e9, math.inf)):
        assert chosen(TRAINING, ASKED, Fabric({2: in_node}, SLOW)) == Layout("ddp", 2, 1)


def test_a_fast_network_makes_the_second_node_worth_it() -> None:
    """The same run at 400 Gbit/s."""
    assert chosen(TRAINING, ASKED, Fabric({2: exactly(10e9)}, exactly(50e9))) == Layout("ddp", 2, 2)


def test_a_model_state_that_does_not_fit_is_split() -> None:
    """On the same GPUs, with as many bytes sent; what was too large is named."""
    found = choose(TRAINING, ASKED, Fabric({2: exactly(10e9)}, SLOW), 23028 * 2**20)

    assert found.chosen is not None
    assert found.chosen.layout == Layout("zero1", 2, 1)
    assert found.too_large == (Layout("ddp", 2, 1),)


def test_nothing_is_chosen_where_nothing_fits() -> None:
    """Instead of what would run out of memory."""
    found = choose(TRAINING, ASKED, Fabric({2: exactly(10e9)}, SLOW), 4 * 10**9)

    assert found.chosen is None


def test_gpus_that_reach_each_other_slowly_are_not_joined() -> None:
    """100 ms alone, 30 s with eight: one GPU does more."""
    slow = Fabric({8: exactly(0.1e9)})

    found = choose(replace(TRAINING, compute=exactly(0.1)), Layout("ddp", 8), slow, None)

    assert found.chosen is not None
    assert found.chosen.layout.total_gpus == 1
    assert found.larger is not None
    assert found.larger.speedup.high < 1


@given(
    st.floats(min_value=1e-3, max_value=100),
    st.floats(min_value=1e7, max_value=1e12),
    st.floats(min_value=1e7, max_value=1e12),
    st.integers(1, 8),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(10**9, 10**12)),
)
def test_what_is_chosen_fits_and_is_close_to_the_best(
    compute: float, in_node: float, network: float, gpus: int, nodes: int, memory: int | None
) -> None:
    """At its slow end it does nine tenths of what was asked for, at least, where that fits."""
    training = replace(TRAINING, compute=exactly(compute))
    asked = Layout("zero3", gpus, nodes)

    fabric = Fabric({gpus: exactly(in_node)}, exactly(network))

    found = choose(training, asked, fabric, memory)

    asked_fits = memory is None or model_state(training, asked).left(memory) > 0
    if found.chosen is None:
        assert not asked_fits
        return
    assert memory is None or model_state(training, found.chosen.layout).left(memory) > 0
    assert found.chosen.layout.total_gpus <= asked.total_gpus
    if asked_fits and asked.total_gpus > 1:
        here = estimate_step(training, asked, fabric)
        assert here is not None
        assert found.chosen.speedup.low >= CLOSE_RATIO * here.speedup.low * (1 - 1e-9)


def test_doubling_ends_at_the_limit() -> None:
    """Also where the limit is no power of two."""
    assert [doubling(limit) for limit in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


def test_gpus_are_found_by_whole_words() -> None:
    """An A10G is not an A10, and a model of several sizes has no memory."""
    a10, a10g, a100 = (gpu_figures(name) for name in ("NVIDIA A10", "NVIDIA A10G", "NVIDIA A100-PCIE-40GB"))

    assert a10 is not None
    assert a10.memory_bytes == 23028 * 2**20
    assert a10g is not None
    assert a10g.flops_per_second == 70e12
    assert a100 is not None
    assert a100.memory_bytes is None
    assert gpu_figures("NVIDIA A1000") is None


def test_computing_takes_six_operations_for_each_parameter_and_token() -> None:
    """7 B parameters, all of them trained, nothing computed again."""
    assert operations(7 * 10**9, 7 * 10**9, recomputes=False) == 42 * 10**9

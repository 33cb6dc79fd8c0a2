"""What a step takes: published figures, volumes of each strategy, and what can never happen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.diagnosis.estimate.model.choice import scaling
from commwatch.diagnosis.estimate.model.span import Span, exactly
from commwatch.diagnosis.estimate.model.step import Bottleneck, StepEstimate, estimate_step, over_one_node
from commwatch.diagnosis.estimate.model.training import (
    RESERVE_BYTES,
    STRATEGIES,
    Activations,
    Fabric,
    Layout,
    Precision,
    StrategyName,
    Training,
    model_state,
)
from commwatch.units import parse_parameters, parse_rate

NINE = parse_rate("9Gbit/s")
A10 = Training(parameters=parse_parameters("1.5B"), compute=exactly(1.03), micro_batches=2)
"""The published run: forward 0.357 s and backward 0.673 s on one node."""
A10_NETWORK = Span(parse_rate("8.74Gbit/s"), parse_rate("9.28Gbit/s"))


def step_of(training: Training, layout: Layout, fabric: Fabric) -> StepEstimate:
    found = estimate_step(training, layout, fabric)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("strategy", "gradients", "low", "high"),
    [
        ("zero3", None, 4.0, 6.0),
        ("fsdp", None, 4.0, 6.0),
        ("zero3", "fp32", 5.333, 8.0),
        ("ddp", None, 2.667, 4.0),
        ("zero1", None, 2.667, 4.0),
        ("zero2", None, 2.667, 4.0),
        ("fsdp-grad-op", None, 2.667, 4.0),
        ("hsdp", None, 2.667, 2.667),
    ],
)
def test_seconds_on_the_wire_over_9_gigabit(
    strategy: StrategyName, gradients: Precision | None, low: float, high: float
) -> None:
    """3 GB over two nodes of two GPUs, reckoned by hand; nothing takes time within a node."""
    training = replace(A10, micro_batches=1, gradient_precision=gradients)

    found = step_of(training, Layout(strategy, 2, 2), Fabric({2: exactly(math.inf)}, exactly(NINE)))

    assert found.step_traffic.seconds.low == pytest.approx(low, rel=1e-3)
    assert found.step_traffic.seconds.high == pytest.approx(high, rel=1e-3)


@pytest.mark.parametrize("in_node", [Span(6e9, math.inf), exactly(10e9)])
def test_the_published_pair_of_a10_nodes(in_node: Span) -> None:
    """What was observed lies within: 3.1 to 4.1 s of communication a micro-batch, 8.68 s a step, 0.57 of one node."""
    fabric = Fabric({2: in_node}, A10_NETWORK)

    both = step_of(A10, Layout("zero3", 2, 2), fabric)
    one = step_of(A10, Layout("zero3", 2), fabric)

    waits = both.micro_batch_waiting_seconds
    assert waits.holds(3.1)
    assert waits.holds(4.1)
    assert both.step_seconds.holds(8.68)
    assert one.step_seconds.holds(2.46)
    assert both.bottleneck == Bottleneck("network", certain=True)
    assert over_one_node(both, one).holds(2 * 2.46 / 8.68)
    assert over_one_node(both, one).high < 1


def test_a_billion_of_ten_to_the_eight_would_have_hidden_it() -> None:
    """The published mistake: with a tenth of the parameters the same network looks sufficient."""
    fabric = Fabric({2: exactly(10e9)}, A10_NETWORK)

    wrong = step_of(replace(A10, parameters=A10.parameters // 10), Layout("zero3", 2, 2), fabric)

    assert not wrong.micro_batch_waiting_seconds.holds(3.1)
    assert wrong.bottleneck == Bottleneck("computing", certain=True)


def test_eight_gpus_that_reach_each_other_slowly() -> None:
    """100 ms alone: a preflight gets the step time to expect from the measured bus bandwidth."""
    training = Training(parameters=parse_parameters("7B"), compute=exactly(0.1))

    found = step_of(training, Layout("ddp", 8), Fabric({8: exactly(0.82e9)}))

    assert found.step_seconds.low == pytest.approx(1.75 * 14 / 0.82)
    assert found.step_seconds.high == pytest.approx(0.1 + 1.75 * 14 / 0.82)
    assert found.bottleneck == Bottleneck("in_node", certain=True)
    assert found.speedup.high < 1


def test_accumulation_spares_ddp_and_not_zero3() -> None:
    """With four micro-batches DDP still sums once; ZeRO-3 gathers and scatters each time."""
    fabric = Fabric({2: exactly(10e9)}, exactly(NINE))
    once, often = (replace(A10, micro_batches=count) for count in (1, 4))

    def sent(training: Training, strategy: StrategyName) -> float:
        return step_of(training, Layout(strategy, 2, 2), fabric).step_traffic.ring_seconds

    assert sent(often, "ddp") == sent(once, "ddp")
    assert sent(often, "zero3") == pytest.approx(4 * sent(once, "zero3"))
    assert sent(often, "zero2") == pytest.approx(2.5 * sent(once, "zero2"))


def test_tensor_parallel_shares_the_work_of_a_node() -> None:
    """Four all-reduces each layer that nothing hides; a GPU computes its part of the micro-batch."""
    training = replace(A10, micro_batches=1, activations=Activations(tokens=4096, hidden=8192, layers=80))

    found = step_of(training, Layout("tp", 4), Fabric({4: exactly(300e9)}))

    seconds = 320 * 1.5 * 4096 * 8192 * 2 / 300e9
    assert found.compute_seconds == exactly(1.03 / 4)
    assert found.waiting_seconds.low == found.waiting_seconds.high == pytest.approx(seconds)
    assert found.speedup.low == pytest.approx(1.03 / (1.03 / 4 + seconds))
    assert estimate_step(replace(training, activations=None), Layout("tp", 4), Fabric({4: exactly(300e9)})) is None


def test_a_mixture_of_experts_exchanges_tokens_in_place_of_half_of_the_all_reduces() -> None:
    """Each GPU sends its part of the tokens to 8 experts each and back, at the bandwidth of an all-to-all if known."""
    training = replace(A10, micro_batches=1, activations=Activations(4096, 8192, 80, experts_per_token=8))
    call = 4096 * 8192 * 2

    def waiting(all_to_all: Span | None) -> float:
        return step_of(
            training, Layout("tp", 4), Fabric({4: exactly(300e9)}, all_to_all=all_to_all)
        ).waiting_seconds.low

    summed, exchanged = 160 * 1.5 * call, 320 * 0.75 * 8 * call / 4
    assert waiting(None) == pytest.approx((summed + exchanged) / 300e9)
    assert waiting(exactly(150e9)) == pytest.approx(summed / 300e9 + exchanged / 150e9)


def test_a_rate_that_is_not_known_gives_no_estimate() -> None:
    """Neither of the network nor over more GPUs than were measured; one GPU needs none."""
    assert estimate_step(A10, Layout("ddp", 2, 2), Fabric({2: exactly(1e9)})) is None
    assert estimate_step(A10, Layout("ddp", 4), Fabric({2: exactly(1e9)})) is None
    assert step_of(A10, Layout("ddp", 1), Fabric({})).step_seconds == exactly(2.06)


def test_fewer_gpus_than_measured_take_the_next_larger_number() -> None:
    """The rate of 4 counts for 3, that of 8 does not."""
    fabric = Fabric({2: exactly(3e9), 4: exactly(2e9), 8: exactly(1e9)})

    assert [fabric.among(gpus, "all_reduce") for gpus in (2, 3, 8, 9)] == [
        exactly(3e9),
        exactly(2e9),
        exactly(1e9),
        None,
    ]


def test_scaling_shows_gpus_then_nodes() -> None:
    """Doubling, and the layout asked for; several nodes only where the network is known."""
    layout = Layout("ddp", 6, 3)
    fabric = Fabric({6: exactly(10e9)}, exactly(NINE))

    shown = [(one.layout.nodes, one.layout.gpus_per_node) for one in scaling(A10, layout, fabric, 4)]
    alone = [one.layout.nodes for one in scaling(A10, layout, replace(fabric, network=None), 4)]

    assert shown == [(1, 1), (1, 2), (1, 4), (1, 6), (2, 6), (3, 6), (4, 6)]
    assert alone == [1, 1, 1, 1]


# --- memory ---


@pytest.mark.parametrize(
    ("strategy", "gigabytes"),
    [("ddp", 24), ("zero1", 10.5), ("zero2", 8.25), ("zero3", 6), ("hsdp", 12), ("tp", 12)],
)
def test_model_state_of_each_strategy(strategy: StrategyName, gigabytes: float) -> None:
    """1.5 B parameters, bf16 with fp32 Adam: 2 + 2 + 12 bytes each, over two nodes of two GPUs."""
    assert model_state(A10, Layout(strategy, 2, 2)).total == gigabytes * 10**9


def test_model_state_of_other_optimizers() -> None:
    """Moments in the precision of the parameters, momentum alone, and fp32 without a copy."""
    pure, sgd, fp32 = (
        replace(A10, optimizer="adam-pure"),
        replace(A10, optimizer="sgd"),
        replace(A10, precision="fp32"),
    )

    assert [model_state(one, Layout("ddp", 1)).total for one in (pure, sgd, fp32)] == [
        12 * 10**9,
        18 * 10**9,
        24 * 10**9,
    ]


def test_what_is_left_of_the_memory() -> None:
    """After the model state and what the CUDA context and NCCL take."""
    state = model_state(A10, Layout("zero3", 2, 2))

    assert state.left(24 * 10**9) == 18 * 10**9 - RESERVE_BYTES
    assert state.left(6 * 10**9) == -RESERVE_BYTES


# --- what can never happen ---

rates = st.floats(min_value=1e6, max_value=1e12)
factors = st.floats(min_value=1, max_value=1e3)
layouts = st.builds(Layout, st.sampled_from(sorted(STRATEGIES)), st.integers(1, 16), st.integers(1, 64))


@st.composite
def spans(draw: st.DrawFn) -> Span:
    first, second = draw(rates), draw(rates)
    return Span(min(first, second), max(first, second))


trainings = st.builds(
    Training,
    parameters=st.integers(10**6, 10**12),
    compute=st.floats(min_value=1e-3, max_value=1e3).map(exactly),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    gradient_precision=st.sampled_from([None, "fp32"]),
    micro_batches=st.integers(1, 64),
    activations=st.builds(Activations, st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 200)),
)


def no_slower(one: Span, other: Span) -> bool:
    """At both ends, but for the last bits."""
    return one.low <= other.low * (1 + 1e-9) + 1e-12 and one.high <= other.high * (1 + 1e-9) + 1e-12


@given(trainings, layouts, spans(), spans())
def test_the_hierarchical_bound_is_never_above_the_flat_ring(
    training: Training, layout: Layout, in_node: Span, network: Span
) -> None:
    """Shares and efficiencies lie between 0 and 1, and no GPU does more than when it is alone."""
    found = step_of(training, layout, Fabric({16: in_node}, network))

    for one in found.sent:
        assert one.seconds.low <= one.seconds.high
    computing = training.compute.low * training.micro_batches / (layout.gpus_per_node if layout.strategy == "tp" else 1)
    assert found.step_seconds.low >= computing * (1 - 1e-9)
    assert 0 <= found.waiting_ratio.low <= found.waiting_ratio.high <= 1
    assert 0 <= found.efficiency.low <= found.efficiency.high <= 1
    assert found.step_seconds.high == pytest.approx(found.waiting_seconds.high + computing)


@given(trainings, layouts, spans(), spans(), factors, factors)
def test_more_bandwidth_is_never_slower(
    training: Training, layout: Layout, in_node: Span, network: Span, in_node_factor: float, network_factor: float
) -> None:
    """In the node, between nodes, or both."""
    before = step_of(training, layout, Fabric({16: in_node}, network))

    faster = step_of(training, layout, Fabric({16: in_node.times(in_node_factor)}, network.times(network_factor)))

    assert no_slower(faster.step_seconds, before.step_seconds)
    assert no_slower(faster.waiting_seconds, before.waiting_seconds)
    assert no_slower(faster.step_traffic.seconds, before.step_traffic.seconds)


@given(trainings, layouts, spans(), spans(), st.integers(1, 10**12))
def test_more_parameters_are_never_faster(
    training: Training, layout: Layout, in_node: Span, network: Span, more: int
) -> None:
    """And never need less memory."""
    fabric, larger = Fabric({16: in_node}, network), replace(training, parameters=training.parameters + more)

    assert no_slower(step_of(training, layout, fabric).step_seconds, step_of(larger, layout, fabric).step_seconds)
    assert model_state(training, layout).total <= model_state(larger, layout).total


@given(trainings, layouts, spans(), spans(), st.integers(1, 16))
def test_more_nodes_never_make_a_step_shorter(
    training: Training, layout: Layout, in_node: Span, network: Span, more: int
) -> None:
    """The work of a step grows with them; so N nodes do at most N times the work of one."""
    fabric = Fabric({16: in_node}, network)
    one = step_of(training, replace(layout, nodes=1), fabric)
    several = step_of(training, replace(layout, nodes=1 + more), fabric)

    assert no_slower(one.step_seconds, several.step_seconds)
    assert over_one_node(several, one).high <= 1 + more

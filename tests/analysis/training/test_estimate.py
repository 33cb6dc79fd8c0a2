"""The time of a training step, the choice of its layout, and results that are impossible."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.errors import UsageError
from support.estimates import estimated
from support.examples import examples
from support.passes import in_one_pass

TWO_BY_TWO = "--parameters 1.5B --step-time 1.03s --gpus 2 --nodes 2"
A10 = f"{TWO_BY_TWO} --micro-batches 2"
"""The published run: forward 0.357 s and backward 0.673 s on one node."""
A10_NETWORK = "--network 8.74Gbit/s 9.28Gbit/s"
WITHIN, BETWEEN = "--intra-node 10GB/s", "--network 9Gbit/s"
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "tp")
FEW = 5e-3
"""Relative: what the messages of all layers together may add to the volumes."""


def layout(strategy: str, gpus: int, nodes: int) -> tuple[str, int, int]:
    return strategy, gpus, nodes


def chosen(words: str) -> tuple[str, int, int] | None:
    found = estimated(words).choice
    return None if found is None else (found.strategy, found.gpus_per_node, found.nodes)


# --- times ---


@in_one_pass(
    "options, low, high",
    [
        ("--strategy zero3", 4.0, 6.0),
        ("--strategy fsdp", 4.0, 6.0),
        ("--strategy zero3 --gradient-precision fp32", 5.333, 8.0),
        ("--strategy ddp", 2.667, 4.0),
        ("--strategy zero1", 2.667, 4.0),
        ("--strategy zero2", 2.667, 4.0),
        ("--strategy fsdp-grad-op", 2.667, 4.0),
        ("--strategy hsdp", 2.667, 2.667),
    ],
)
def test_seconds_on_the_wire_over_9_gigabit(options: str, low: float, high: float) -> None:
    """3 GB over two nodes of two GPUs, reckoned by hand; nearly nothing takes time within a node."""
    found = estimated(f"{TWO_BY_TWO} {options} {BETWEEN} --intra-node 1000000GB/s")

    assert found.communication_seconds.low == pytest.approx(low, rel=FEW)
    assert found.communication_seconds.high == pytest.approx(high, rel=FEW)


def test_the_published_pair_of_a10_nodes_does_less_than_one() -> None:
    """The observed times lie within: 2.46 s a step on one node, 8.68 s on two, which is 0.57 of the work."""
    found = estimated(f"{A10} --strategy zero3 {A10_NETWORK} {WITHIN}")
    [one] = [point for point in found.scaling if (point.nodes, point.gpus_per_node) == (1, 2)]
    [both] = [point for point in found.scaling if point.nodes == 2]

    assert one.step_seconds.holds(2.46)
    assert both.speedup_over_one_node_ratio is not None
    assert both.speedup_over_one_node_ratio.holds(2 * 2.46 / 8.68)


def test_a_billion_of_ten_to_the_eight_would_have_hidden_it() -> None:
    """The published mistake: with a tenth of the parameters the same network looks sufficient."""
    wrong = estimated(f"{A10.replace('1.5B', '150M')} --strategy zero3 {A10_NETWORK} {WITHIN}")

    assert not wrong.waiting_per_micro_batch_seconds.holds(3.1)
    assert (wrong.bottleneck.part, wrong.bottleneck.certain) == ("computing", True)


def test_eight_gpus_that_reach_each_other_slowly() -> None:
    """100 ms alone: the step time to expect from the measured bus bandwidth."""
    found = estimated("--parameters 7B --step-time 100ms --gpus 8 --intra-node 0.82GB/s")

    assert found.step_seconds.low == pytest.approx(1.75 * 14 / 0.82, rel=FEW)
    assert found.step_seconds.high == pytest.approx(0.1 + 1.75 * 14 / 0.82, rel=FEW)
    assert (found.bottleneck.part, found.bottleneck.certain) == ("in_node", True)
    assert found.scaling[-1].speedup_ratio.high < 1


@in_one_pass("strategy, factor", [("ddp", 1.0), ("zero2", 2.5), ("zero3", 4.0)])
def test_accumulation_spares_ddp_and_not_zero3(strategy: str, factor: float) -> None:
    """With four micro-batches DDP still sums once; ZeRO-3 gathers and scatters each time."""
    once, often = (
        estimated(f"{TWO_BY_TWO} --strategy {strategy} --micro-batches {count} {BETWEEN} {WITHIN}") for count in (1, 4)
    )

    assert often.communication_seconds.high == pytest.approx(factor * once.communication_seconds.high)


def test_tensor_parallel_shares_the_work_of_a_node() -> None:
    """Four all-reduces each layer that nothing hides; a GPU computes its part of the micro-batch."""
    found = estimated(
        "--parameters 1.5B --step-time 1.03s --strategy tp --gpus 4 --tokens 4096 --hidden 8192 --layers 80 "
        "--intra-node 30GB/s"
    )

    seconds = 320 * 1.5 * 4096 * 8192 * 2 / 30e9
    assert found.compute_seconds.low == found.compute_seconds.high == 1.03 / 4
    assert found.waiting_seconds.low == pytest.approx(seconds, rel=1e-2)
    assert found.scaling[-1].speedup_ratio.high == pytest.approx(1.03 / (1.03 / 4 + seconds), rel=1e-2)


def test_scaling_shows_gpus_then_nodes() -> None:
    """Doubling, also where the limit is no power of two; several nodes only where the network is known."""
    joined = estimated(f"--parameters 1.5B --step-time 1s --gpus 6 --nodes 3 {BETWEEN} {WITHIN}")
    alone = estimated(f"--parameters 1.5B --step-time 1s --gpus 6 {WITHIN}")

    within = [(1, 1), (1, 2), (1, 4), (1, 6)]
    assert [(one.nodes, one.gpus_per_node) for one in joined.scaling] == [*within, (2, 6), (3, 6), (4, 6), (8, 6)]
    assert [(one.nodes, one.gpus_per_node) for one in alone.scaling] == within


# --- memory ---


@in_one_pass(
    "options, gigabytes",
    [
        ("--strategy ddp", 24),
        ("--strategy zero1", 10.5),
        ("--strategy zero2", 8.25),
        ("--strategy zero3", 6),
        ("--strategy hsdp", 12),
        ("--strategy tp --tokens 4096 --hidden 4096 --layers 32", 12),
        ("--optimizer adam-pure", 12),
        ("--optimizer sgd", 18),
        ("--precision fp32", 24),
    ],
)
def test_model_state_of_each_strategy_and_optimizer(options: str, gigabytes: float) -> None:
    """1.5 B parameters over two nodes of two GPUs, bf16 with fp32 Adam by default: 2 + 2 + 12 bytes."""
    assert estimated(f"{TWO_BY_TWO} {options} {BETWEEN} {WITHIN}").memory.total_bytes == gigabytes * 10**9


@pytest.mark.parametrize(("gigabytes", "left"), [(24, 18), (6, 0)])
def test_what_is_left_of_the_memory(gigabytes: int, left: int) -> None:
    """After the model state and what the CUDA context and NCCL take; below 0 it does not fit."""
    memory = estimated(f"{TWO_BY_TWO} --strategy zero3 {BETWEEN} {WITHIN} --gpu-memory {gigabytes}GB").memory

    assert memory.reserved_bytes > 0
    assert memory.left_bytes == left * 10**9 - memory.reserved_bytes


def test_gpus_are_found_by_whole_words() -> None:
    """An A10G is not an A10, and a model of several sizes has no memory."""
    words = "--parameters 1B --tokens 4096 --mfu 50% --gpus 1 --gpu"
    a10, a10g, a100 = (estimated(f"{words} '{name}'") for name in ("NVIDIA A10", "A10G", "NVIDIA A100"))

    assert a10.memory.gpu_bytes == 23028 * 2**20
    assert a10g.compute_seconds.low == pytest.approx(6 * 10**9 * 4096 / (0.5 * 70e12))
    assert a100.memory.gpu_bytes is None
    with pytest.raises(UsageError, match="'NVIDIA A1000' is not known"):
        estimated(f"{words} 'NVIDIA A1000'")


# --- choice ---


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(f"{A10_NETWORK} {WITHIN}", layout("ddp", 2, 1), id="two nodes over a slow network are too many"),
        pytest.param(f"{A10_NETWORK}", layout("ddp", 2, 1), id="likewise where the rate within a node is not known"),
        pytest.param(f"--network 400Gbit/s {WITHIN}", layout("ddp", 2, 2), id="a fast one makes the second worth it"),
        pytest.param(
            f"{A10_NETWORK} {WITHIN} --gpu-memory 24146MB", layout("zero1", 2, 1), id="what does not fit is split"
        ),
        pytest.param(f"{A10_NETWORK} {WITHIN} --gpu-memory 4GB", None, id="nothing fits"),
    ],
)
def test_the_simplest_of_the_best_layouts_is_chosen(options: str, expected: tuple[str, int, int] | None) -> None:
    """Of those that fit into the memory."""
    assert chosen(f"{A10} --strategy zero3 {options}") == expected


def test_gpus_that_reach_each_other_slowly_are_not_joined() -> None:
    """100 ms alone, 30 s with eight: one GPU does more, and the answer names what the larger one does."""
    words = "--parameters 1.5B --step-time 100ms --gpus 8 --intra-node 0.1GB/s"

    assert chosen(words) == layout("ddp", 1, 1)
    assert any(
        one.startswith("What was asked for, one node × 8 GPUs, DDP, does 0.0") for one in estimated(words).verdict
    )


@examples(50)
@given(
    st.floats(min_value=1e-3, max_value=100),
    st.floats(min_value=1e7, max_value=1e12),
    st.floats(min_value=1e7, max_value=1e12),
    st.integers(1, 8),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(1, 1000)),
)
def test_what_is_chosen_fits_and_is_close_to_the_best(
    compute: float, in_node: float, network: float, gpus: int, nodes: int, memory: int | None
) -> None:
    """At its slow end it does nine tenths of what was asked for, at least, where that fits."""
    common = (
        f"--parameters 1.5B --micro-batches 2 --step-time {compute:.6f}s --network {network:.0f}B/s "
        f"--intra-node {in_node:.0f}B/s {f'--gpu-memory {memory}GB' if memory else ''}"
    )
    asked = estimated(f"{common} --strategy zero3 --gpus {gpus} --nodes {nodes}")

    if asked.choice is None:
        assert not fits(asked)
        return
    best = estimated(
        f"{common} --strategy {asked.choice.strategy} --gpus {asked.choice.gpus_per_node} --nodes {asked.choice.nodes}"
    )
    assert fits(best)
    assert best.layout.gpus_per_node * best.layout.nodes <= gpus * nodes
    if fits(asked) and gpus * nodes > 1:
        assert speedup(best) >= 0.9 * speedup(asked) * (1 - 1e-9)


def fits(answer: Any) -> bool:
    return bool(answer.memory.left_bytes is None or answer.memory.left_bytes > 0)


def speedup(answer: Any) -> Any:
    """At the slow end, of the layout that was asked for."""
    asked = answer.layout
    return next(
        one.speedup_ratio.low
        for one in answer.scaling
        if (one.nodes, one.gpus_per_node) == (asked.nodes, asked.gpus_per_node)
    )


# --- what can never happen ---

rates = st.floats(min_value=1e6, max_value=1e12)
factors = st.floats(min_value=1, max_value=1e3)


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a run, by name; those of rates are ranges."""
    return {
        "parameters": draw(st.integers(10**6, 10**12)),
        "step-time": f"{draw(st.floats(min_value=1e-3, max_value=1e3)):.6f}s",
        "precision": draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        "gradient-precision": draw(st.sampled_from(["bf16", "fp32"])),
        "micro-batches": draw(st.integers(1, 64)),
        "tokens": draw(st.integers(1, 10**5)), "hidden": draw(st.integers(1, 10**5)),
        "layers": draw(st.integers(1, 200)),
        "strategy": draw(st.sampled_from(STRATEGIES)), "gpus": draw(st.integers(1, 16)),
        "nodes": draw(st.integers(1, 64)),
        "intra-node": (draw(rates), draw(rates)), "network": (draw(rates), draw(rates)),
    }  # fmt: skip


def of(run: dict[str, Any], **changes: Any) -> Any:
    options = {**run, **{name.replace("_", "-"): value for name, value in changes.items()}}
    for name in ("intra-node", "network"):
        options[name] = " ".join(f"{rate:.0f}B/s" for rate in options[name])
    return estimated(" ".join(f"--{name} {value}" for name, value in options.items()))


def no_slower(one: Any, other: Any, but_for: float = 1e-9) -> bool:
    """At both ends, but for the last bits or for a small part."""
    ends = ((one.low, other.low), (one.high, other.high))
    return all(here <= there * (1 + but_for) + 1e-12 for here, there in ends)


@examples(50)
@given(runs())
def test_the_hierarchical_bound_is_never_above_the_flat_ring(run: dict[str, Any]) -> None:
    """Shares and efficiencies lie between 0 and 1, and no GPU does more than when it is alone."""
    found = of(run)

    for one in found.transfers:
        assert one.seconds.low <= one.seconds.high
    computing = found.compute_seconds.low * found.micro_batches
    assert found.step_seconds.low >= computing * (1 - 1e-9)
    assert 0 <= found.waiting_ratio.low <= found.waiting_ratio.high <= 1
    assert 0 <= found.efficiency_ratio.low <= found.efficiency_ratio.high <= 1
    assert found.step_seconds.high == pytest.approx(found.waiting_seconds.high + computing)


@examples(50)
@given(runs(), factors, factors)
def test_more_bandwidth_is_never_slower(run: dict[str, Any], in_node: float, network: float) -> None:
    """In the node, between nodes, or both."""
    faster = {"intra-node": in_node, "network": network}
    # From 100 Gbit/s on another latency is assumed, of RDMA; it is the lower one.
    changed = {name: tuple(factor * rate for rate in run[name]) for name, factor in faster.items()}

    before, after = of(run), of({**run, **changed})

    assert no_slower(after.step_seconds, before.step_seconds)
    assert no_slower(after.waiting_seconds, before.waiting_seconds)
    assert no_slower(after.communication_seconds, before.communication_seconds)


@examples(50)
@given(runs(), st.integers(1, 10**12))
def test_more_parameters_are_never_faster(run: dict[str, Any], more: int) -> None:
    """And never need less memory."""
    fewer, larger = of(run), of(run, parameters=run["parameters"] + more)

    assert no_slower(fewer.step_seconds, larger.step_seconds)
    assert fewer.memory.total_bytes <= larger.memory.total_bytes


@examples(50)
@given(runs())
def test_more_nodes_never_make_a_step_shorter(run: dict[str, Any]) -> None:
    """The work of a step grows with them; so N nodes do at most N times the work of one."""
    points = [one for one in of(run).scaling if one.gpus_per_node == run["gpus"]]

    assert points[0].nodes == 1
    for fewer, several in pairwise(points):
        assert no_slower(fewer.step_seconds, several.step_seconds, but_for=FEW)
        assert several.speedup_over_one_node_ratio is not None
        assert several.speedup_over_one_node_ratio.high <= several.nodes * (1 + 1e-9)

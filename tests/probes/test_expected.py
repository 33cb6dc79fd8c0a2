"""What the steps of a probe are expected to give, and from where."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.topology.reach import GpuPaths, GpuReach
from commwatch.probes.rank_plan import Backend, Operation, Step
from commwatch.probes.results.expected import Expected, expected_latency, expected_of_pair, expected_of_step
from probes.results import COLLECTIVES, step
from support.passes import in_one_pass

MIB = 2**20
GIB = 2**30
NVLINK_STEP, PCIE_STEP, BASE = 3.4e-6, 5.7e-6, 8.4e-6


def paths_of(count: int, name: str, pairs: dict[tuple[int, int], GpuReach], switch: float = 0.0) -> GpuPaths:
    """GPUs of one model with what lies between them."""
    both = pairs | {(second, first): reach for (first, second), reach in pairs.items()}
    return GpuPaths(
        addresses=tuple(f"0000:{rank:02x}:00.0" for rank in range(count)),
        names=(f"NVIDIA {name}",) * count,
        pairs=both,
        switch_rates=(switch,) * count,
        host_rates=(48e9,) * (count - 1) + (None,),
    )


def switched(name: str = "H100 80GB HBM3", count: int = 8, rate: float = 18 * 20.6e9) -> GpuPaths:
    """All behind NVSwitches."""
    reach = GpuReach("NV18", 18, rate, "18 NVLinks", through_switches=True)
    return paths_of(count, name, dict.fromkeys(combinations(range(count), 2), reach), rate)


def joined(count: int = 4) -> GpuPaths:
    """Four links between every two, without switches."""
    reach = GpuReach("NV4", 4, 80e9, "4 NVLinks")
    return paths_of(count, "A100-SXM4-80GB", dict.fromkeys(combinations(range(count), 2), reach))


def pcie(rate: float, *, up: tuple[str, str] | None = None, ends: tuple[int, int]) -> GpuReach:
    """A way over PCIe: the links of both GPUs, and those above two switches where it leaves them."""
    links = tuple((f"gpu{end}", 24e9) for end in ends) + tuple((name, rate) for name in up or ())
    return GpuReach("NODE" if up else "PIX", 0, min(one for _, one in links), f"PCIe {rate / 1e9:g}", links)


def two_switches(uplink: float = 24e9, bridge: float = 0.0) -> GpuPaths:
    """Ranks 0 and 2 behind one switch, 1 and 3 behind another; each two may have a bridge."""
    pairs = {}
    for ends in combinations(range(4), 2):
        near = ends in ((0, 2), (1, 3))
        if near and bridge:
            pairs[ends] = GpuReach("NV4", 4, bridge, "4 NVLinks")
        else:
            pairs[ends] = pcie(uplink, up=None if near else ("switch0", "switch1"), ends=ends)
    return paths_of(4, "GeForce RTX 3090", pairs)


def expected(
    paths: GpuPaths | None,
    operation: Operation = "all_reduce",
    size: int = 64 * MIB,
    members: tuple[int, ...] | None = None,
    **changes: Any,
) -> Expected | None:
    everyone = tuple(range(len(paths.addresses))) if paths is not None else (0, 1)
    of = step(operation, "bandwidth", size, *(everyone if members is None else members))
    values: dict[str, Any] = {"configured": None, "backend": "nccl"}
    return expected_of_step(of, paths, **(values | changes))


def rate(found: Expected | None, source: str = "model") -> float:
    assert found is not None
    assert found.source == source
    return found.bytes_per_second


def test_configured_wins_everywhere() -> None:
    """The operator's number stands above table and model, and is all there is for gloo."""
    for found in (
        expected(switched(), configured=5e9),
        expected(switched("A100-SXM4-80GB"), configured=5e9),
        expected(None, configured=5e9, backend="gloo"),
        expected(switched(), "host_to_device", members=(0,), configured=5e9),
    ):
        assert rate(found, "configured") == 5e9


@in_one_pass(
    "name, size, gigabytes",
    [
        ("A100-SXM4-80GB", 64 * MIB, 166.6),
        ("A100-SXM4-40GB", 16 * GIB, 231.6),
        ("H20", 32 * MIB, 300),
        ("H100 80GB HBM3", 64 * MIB, 361.8),
        ("H100 80GB HBM3", 8 * GIB, 478.9),
        ("H200", 64 * MIB, 368.1),
        ("H200", 4 * GIB, 477.4),
        ("B200", 64 * MIB, 419),
        ("B200", 8 * GIB, 835),
    ],
)
def test_published_results_come_before_the_model(name: str, size: int, gigabytes: float) -> None:
    """A size of the table gives the table's own number."""
    assert rate(expected(switched(name), size=size), "reference") == pytest.approx(gigabytes * 1e9)


def test_between_two_published_sizes() -> None:
    """16 MiB is halfway between 8 and 32 MiB on the logarithmic axis."""
    found = expected(switched("A100-SXM4-80GB"), size=16 * MIB)

    assert rate(found, "reference") == pytest.approx((90 + 132.8) / 2 * 1e9)


@pytest.mark.parametrize(
    "changes",
    [
        {"members": (0, 1, 2, 3)},
        {"size": MIB // 2},
        {"size": 17 * GIB},
        {"operation": "all_gather"},
        {"operation": "broadcast"},
    ],
)
def test_the_table_says_nothing_beyond_itself(changes: dict[str, Any]) -> None:
    """Another number of ranks, a size outside of the table, or another operation is left to the model."""
    assert rate(expected(switched("A100-SXM4-80GB"), **changes)) > 0


def test_published_results_are_of_gpus_with_nvlink_among_all() -> None:
    """Eight H100 in pairs on bridges are not those of the table."""
    bridges = {
        ends: GpuReach("NV12", 12, 240e9, "bridge") if ends[1] == ends[0] ^ 1 else pcie(48e9, ends=ends)
        for ends in combinations(range(8), 2)
    }

    assert rate(expected(paths_of(8, "H100 80GB HBM3", bridges), size=8 * GIB)) < 24e9


@pytest.mark.parametrize(
    ("operation", "steps", "factor"),
    [("all_reduce", 14, 1.75), ("all_gather", 7, 0.875), ("reduce_scatter", 7, 0.875), ("broadcast", 7, 1)],
)
def test_model_of_the_ring(operation: Operation, steps: int, factor: float) -> None:
    """Links of an H100, nothing published: 8.4 µs and the steps of 3.4 µs, then the bytes at 18 links of 20.6 GB/s."""
    seconds = BASE + steps * NVLINK_STEP + factor * 64 * MIB / (18 * 20.6e9)

    assert rate(expected(switched("H800"), operation)) == pytest.approx(factor * 64 * MIB / seconds)


@pytest.mark.parametrize(
    ("name", "each", "size", "measured"),
    [
        ("A100", 12 * 20e9, 64 * MIB, 201e9),
        ("A100", 12 * 20e9, 1024 * MIB, 230e9),
        ("H800", 18 * 20.6e9, 32 * MIB, 300e9),  # measured on H20, which has the links of an H100
    ],
)
def test_model_is_near_what_was_measured(name: str, each: float, size: int, measured: float) -> None:
    """Where a published result is known for the same links, the model is within 10 % of it."""
    assert rate(expected(switched(name, rate=each), size=size)) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("members", "gigabytes"), [((0, 1), 80), ((1, 3), 80), ((0, 1, 2), 160), ((0, 1, 2, 3), 240)])
def test_few_of_many_have_the_links_among_themselves(members: tuple[int, ...], gigabytes: float) -> None:
    """Of twelve links of an A100 only those to the members count: four for each."""
    count = len(members)
    factor = 2 * (count - 1) / count
    seconds = BASE + 2 * (count - 1) * NVLINK_STEP + factor * GIB / (gigabytes * 1e9)

    assert rate(expected(joined(), size=GIB, members=members)) == pytest.approx(factor * GIB / seconds)


def test_a_ring_over_pcie_takes_the_best_order() -> None:
    """Ranks 0, 2, 1, 3 leave each switch once; the slower uplink is the slowest hop."""
    seconds = BASE + 6 * PCIE_STEP + 1.5 * 64 * MIB / 12e9

    found = expected(two_switches(uplink=12e9))

    assert rate(found) == pytest.approx(1.5 * 64 * MIB / seconds)
    assert found is not None
    assert "PCIe 12" in found.basis


def test_bridges_do_not_carry_a_ring_over_all() -> None:
    """Two pairs on bridges: a ring over four crosses PCIe, one over a pair does not."""
    paths = two_switches(bridge=48e9)

    assert rate(expected(paths, size=GIB)) == pytest.approx(24e9, rel=0.01)
    assert rate(expected(paths, size=GIB, members=(0, 2))) == pytest.approx(48e9, rel=0.01)
    assert rate(expected(paths, size=GIB, members=(0, 1))) == pytest.approx(24e9, rel=0.01)


@pytest.mark.parametrize(
    ("paths", "seconds"),
    [
        (switched(count=4), 0.75 * GIB / (18 * 20.6e9)),
        (joined(), GIB / 4 / 80e9),
        # Two ranks behind each switch send a quarter each to two on the other side: four shares over each uplink.
        (two_switches(), 4 * GIB / 4 / 24e9),
        (two_switches(bridge=48e9), 4 * GIB / 4 / 24e9),
        (two_switches(uplink=48e9), 3 * GIB / 4 / 24e9),
    ],
)
def test_all_to_all_is_limited_by_the_busiest_link(paths: GpuPaths, seconds: float) -> None:
    """Every rank sends a quarter of the bytes to each other one, all at the same time."""
    assert rate(expected(paths, "all_to_all", size=GIB)) == pytest.approx(0.75 * GIB / seconds, rel=0.01)


def test_copies_are_expected_to_reach_the_planning_rate_of_pcie() -> None:
    """In both directions; where a link is not known, nothing is said."""
    for operation in ("host_to_device", "device_to_host"):
        assert rate(expected(switched(), operation, members=(3,))) == 48e9
        assert expected(switched(), operation, members=(7,)) is None


def test_a_pair_is_expected_to_reach_what_lies_between() -> None:
    """Start, one step, and the bytes over the way of this pair; the same in both directions."""
    paths = two_switches(uplink=12e9, bridge=48e9)
    near, far = (expected_of_pair(pair, 16 * MIB, paths, configured=None, backend="nccl") for pair in ((2, 0), (1, 0)))

    assert rate(near) == pytest.approx(16 * MIB / (BASE + NVLINK_STEP + 16 * MIB / 48e9))
    assert rate(far) == pytest.approx(16 * MIB / (BASE + PCIE_STEP + 16 * MIB / 12e9))
    assert expected_of_pair((0, 1), MIB, paths, configured=None, backend="gloo") is None
    assert expected_of_pair((0, 9), MIB, paths, configured=None, backend="nccl") is None
    assert rate(expected_of_pair((0, 9), MIB, None, configured=1e9, backend="gloo"), "configured") == 1e9


def test_several_pairs_at_once_are_expected_to_do_as_the_slowest() -> None:
    """One step with a bridged pair and one over PCIe."""
    paths = two_switches(uplink=12e9, bridge=48e9)
    pairs = Step(
        operation="send_recv", purpose="bandwidth", size_bytes=MIB, members=(0, 1, 2, 3), pairs=((0, 2), (1, 3))
    )
    mixed = Step(operation="send_recv", purpose="bandwidth", size_bytes=MIB, members=(0, 1), pairs=((0, 1),))

    slow, fast = (rate(expected_of_step(of, paths, configured=None, backend="nccl")) for of in (mixed, pairs))

    assert slow < 12e9 < fast
    lost = GpuPaths(paths.addresses, paths.names, {(0, 2): paths.pairs[0, 2]}, paths.switch_rates, ())
    assert expected_of_step(pairs, lost, configured=None, backend="nccl") is None


@pytest.mark.parametrize(
    ("paths", "changes"),
    [
        (None, {}),
        (switched(), {"backend": "gloo"}),
        (switched(), {"members": (0,)}),
        (switched(), {"members": (7, 8)}),
        (paths_of(2, "H100 80GB HBM3", {(0, 1): GpuReach("?", 0, None, "not read")}), {}),
        (paths_of(2, "H100 80GB HBM3", {(0, 1): GpuReach("?", 0, None, "not read")}), {"operation": "all_to_all"}),
    ],
)
def test_nothing_is_made_up(paths: GpuPaths | None, changes: dict[str, Any]) -> None:
    """gloo, unknown ways, GPUs that are not here and single ranks have no expectation."""
    assert expected(paths, **changes) is None


def test_nothing_is_expected_of_a_latency() -> None:
    """A small collective is held against its own history."""
    of = step("all_reduce", "latency", 8, *range(8))

    assert expected_of_step(of, switched(), configured=5e9, backend="nccl") is None


def test_different_gpus_are_not_those_of_the_table() -> None:
    """A node with one other card is left to the model."""
    paths = switched("A100-SXM4-80GB")
    other = GpuPaths(paths.addresses, (*paths.names[:7], "NVIDIA H20"), paths.pairs, paths.switch_rates, ())

    assert rate(expected(paths), "reference") > 0
    assert rate(expected(other)) > 0


def test_a_simulated_node_is_expected_to_do_what_its_gpus_do() -> None:
    """A simulated probe is judged as that of a real node with the same GPUs."""
    assert expected(switched(), backend="simulated") == expected(switched(), backend="nccl")


def test_only_a_model_is_no_firm_ground() -> None:
    """Configured and published numbers may make a streak."""
    assert [Expected(1.0, source, "").is_firm for source in ("configured", "reference", "model")] == [
        True, True, False,
    ]  # fmt: skip


@given(
    st.sampled_from(COLLECTIVES),
    st.integers(min_value=1, max_value=GIB),
    st.floats(min_value=1e9, max_value=1e12),
    st.floats(min_value=1.0, max_value=10.0),
)
def test_faster_links_never_lower_the_expectation(operation: Operation, size: int, each: float, by: float) -> None:
    """More rate means more is expected, and never as much as the links nominally have."""
    slow, fast = (rate(expected(switched("none", 4, one), operation, size)) for one in (each, each * by))

    assert 0 < slow <= fast
    assert slow < each


@given(
    st.sampled_from(COLLECTIVES),
    st.integers(min_value=1, max_value=GIB),
    st.integers(min_value=1, max_value=GIB),
    st.sampled_from([switched("none"), joined(), two_switches(), two_switches(bridge=48e9)]),
)
def test_more_bytes_never_lower_the_expectation(operation: Operation, size: int, more: int, paths: GpuPaths) -> None:
    """The time to start is shared by more bytes; they take longer all the same."""
    small, large = (rate(expected(paths, operation, one)) for one in (size, size + more))

    assert small <= large * (1 + 1e-12)
    assert size / small <= (size + more) / large


@given(st.integers(min_value=1, max_value=GIB), st.integers(min_value=0, max_value=3), st.integers(1, 3))
def test_a_pair_is_expected_to_do_the_same_both_ways(size: int, source: int, to: int) -> None:
    """And a group of two rings no more than its pair sends."""
    paths, destination = two_switches(uplink=12e9, bridge=48e9), (source + to) % 4
    forth, back = (
        rate(expected_of_pair(pair, size, paths, configured=None, backend="nccl"))
        for pair in ((source, destination), (destination, source))
    )

    assert forth == back
    members = (min(source, destination), max(source, destination))
    assert rate(expected(paths, "all_reduce", size, members)) <= forth


@pytest.mark.parametrize(
    ("paths", "operation", "size", "microseconds", "source"),
    [
        (switched(), "all_reduce", 8, 12.5, "reference"),
        (switched("A100-SXM4-80GB"), "all_reduce", 8, 34.7, "reference"),
        (switched("B200"), "all_reduce", 8, 6.6 + 6 * 0.6, "model"),
        (switched(), "all_gather", 32, 6.6 + 7 * 0.6, "model"),
        (joined(), "all_reduce", 8, 6.6 + 4 * 0.6, "model"),
        (two_switches(), "all_reduce", 8, 6.6 + 4 * 1.0, "model"),
    ],
)
def test_a_small_call_has_an_expected_latency(
    paths: GpuPaths, operation: Operation, size: int, microseconds: float, source: str
) -> None:
    """Published for all-reduces of 8 GPUs behind NVSwitches, else by the steps of protocol LL; the origin is named."""
    small = step(operation, "latency", size, *range(len(paths.addresses)))

    found = expected_latency(small, paths, backend="nccl")

    assert found is not None
    assert found.seconds == pytest.approx(microseconds * 1e-6)
    assert found.source == source
    assert found.basis


@pytest.mark.parametrize(
    ("paths", "backend", "size"), [(None, "nccl", 8), (switched(), "gloo", 8), (switched(), "nccl", 2048)]
)
def test_no_latency_is_made_up(paths: GpuPaths | None, backend: Backend, size: int) -> None:
    """gloo measures the host, paths may not be known, and of larger calls the size counts."""
    assert expected_latency(step("all_reduce", "latency", size, *range(8)), paths, backend=backend) is None

"""What the steps of a probe are expected to give, and from where."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.topology.reach import GpuPaths, GpuReach
from commwatch.probes.rank_plan import Operation
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
    return expected_of_step(of, paths, **changes)


def rate(found: Expected | None, source: str = "model") -> float:
    assert found is not None
    assert found.source == source
    return found.bytes_per_second


BRIDGES = {
    ends: GpuReach("NV12", 12, 240e9, "bridge") if ends[1] == ends[0] ^ 1 else pcie(48e9, ends=ends)
    for ends in combinations(range(8), 2)
}
OTHER_CARD = replace(switched("A100-SXM4-80GB"), names=("NVIDIA A100-SXM4-80GB",) * 7 + ("NVIDIA H20",))
UNREAD = paths_of(2, "H100 80GB HBM3", {(0, 1): GpuReach("?", 0, None, "not read")})
A100 = switched("A100-SXM4-80GB")
H800 = switched("H800")
"""Nothing is published of it, and it has the links of an H100."""


def ring(step_seconds: float, steps: int, factor: float, size: int, each: float) -> float:
    """Bus bandwidth by NCCL's constants: the start and the steps, then the bytes at the rate of the links."""
    return factor * size / (BASE + steps * step_seconds + factor * size / each)


CASES: list[tuple[GpuPaths | None, dict[str, Any], str, float, float]] = [
    # The operator's number stands above table and model, and is all there is for gloo.
    (switched(), {"configured": 5e9}, "configured", 5e9, 0),
    (A100, {"configured": 5e9}, "configured", 5e9, 0),
    (None, {"configured": 5e9}, "configured", 5e9, 0),
    (switched(), {"operation": "host_to_device", "members": (0,), "configured": 5e9}, "configured", 5e9, 0),
    # A size of the table gives the table's own number; 16 MiB is halfway between 8 and 32 MiB in the logarithm.
    *((switched(name), {"size": size}, "reference", gigabytes * 1e9, 1e-6) for name, size, gigabytes in (
        ("A100-SXM4-80GB", 64 * MIB, 166.6), ("A100-SXM4-80GB", 16 * MIB, (90 + 132.8) / 2),
        ("A100-SXM4-40GB", 16 * GIB, 231.6), ("H20", 32 * MIB, 300), ("H100 80GB HBM3", 64 * MIB, 361.8),
        ("H100 80GB HBM3", 8 * GIB, 478.9), ("H200", 64 * MIB, 368.1), ("H200", 4 * GIB, 477.4),
        ("B200", 64 * MIB, 419), ("B200", 8 * GIB, 835),
    )),
    # Another number of ranks, a size outside of the table, another operation or another card is left to the model.
    (A100, {"members": (0, 1, 2, 3)}, "model", 300e9, 0.5),
    (A100, {"size": MIB // 2}, "model", 20e9, 0.5),
    (A100, {"size": 17 * GIB}, "model", 370e9, 0.05),
    (OTHER_CARD, {}, "model", 300e9, 0.1),
    # Eight H100 in pairs on bridges are not those of the table: a ring over all crosses PCIe.
    (paths_of(8, "H100 80GB HBM3", BRIDGES), {"size": 8 * GIB}, "model", 24e9, 0.01),
    *((H800, {"operation": operation}, "model", ring(NVLINK_STEP, steps, factor, 64 * MIB, 18 * 20.6e9), 1e-6)
      for operation, steps, factor in (
          ("all_reduce", 14, 1.75), ("all_gather", 7, 0.875), ("reduce_scatter", 7, 0.875), ("broadcast", 7, 1),
      )),
    # Where a published result is known for the same links, the model is within 10 % of it.
    (switched("A100", rate=12 * 20e9), {"size": 64 * MIB}, "model", 201e9, 0.1),
    (switched("A100", rate=12 * 20e9), {"size": 1024 * MIB}, "model", 230e9, 0.1),
    (H800, {"size": 32 * MIB}, "model", 300e9, 0.1),  # measured on H20
    # Of twelve links of an A100 only those to the members count: four for each.
    *((joined(), {"size": GIB, "members": members}, "model",
       ring(NVLINK_STEP, 2 * (count - 1), 2 * (count - 1) / count, GIB, rate), 1e-6)
      for members, count, rate in (
          ((0, 1), 2, 80e9), ((1, 3), 2, 80e9), ((0, 1, 2), 3, 160e9), ((0, 1, 2, 3), 4, 240e9),
      )),
    # Ranks 0, 2, 1, 3 leave each switch once; the slower uplink is the slowest hop.
    (two_switches(uplink=12e9), {}, "model", ring(PCIE_STEP, 6, 1.5, 64 * MIB, 12e9), 1e-6),
    # Two pairs on bridges: a ring over four crosses PCIe, one over a pair does not.
    (two_switches(bridge=48e9), {"size": GIB}, "model", 24e9, 0.01),
    (two_switches(bridge=48e9), {"size": GIB, "members": (0, 2)}, "model", 48e9, 0.01),
    (two_switches(bridge=48e9), {"size": GIB, "members": (0, 1)}, "model", 24e9, 0.01),
    # Every rank sends a quarter of the bytes to each other one, all at the same time: the busiest link decides. Two
    # ranks behind each switch send a quarter each to two on the other side: four shares over each uplink.
    *((paths, {"operation": "all_to_all", "size": GIB}, "model", 0.75 * GIB / seconds, 0.01) for paths, seconds in (
        (switched(count=4), 0.75 * GIB / (18 * 20.6e9)), (joined(), GIB / 4 / 80e9), (two_switches(), GIB / 24e9),
        (two_switches(bridge=48e9), GIB / 24e9), (two_switches(uplink=48e9), 0.75 * GIB / 24e9),
    )),
    # Copies reach the planning rate of PCIe in both directions.
    (switched(), {"operation": "host_to_device", "members": (3,)}, "model", 48e9, 0),
    (switched(), {"operation": "device_to_host", "members": (3,)}, "model", 48e9, 0),
]  # fmt: skip
"""Paths, the step, and what is expected of it: source and bytes per second, with how near."""


@in_one_pass("paths, changes, source, bytes_per_second, near", CASES)
def test_a_step_is_expected_to_reach_what_is_configured_published_or_modelled(
    paths: GpuPaths | None, changes: dict[str, Any], source: str, bytes_per_second: float, near: float
) -> None:
    """In that order."""
    assert rate(expected(paths, **changes), source) == pytest.approx(bytes_per_second, rel=near)


@in_one_pass(
    "paths, changes",
    [
        (None, {}),
        (switched(), {"members": (0,)}),
        (switched(), {"members": (7, 8)}),
        (switched(), {"operation": "host_to_device", "members": (7,)}),
        (UNREAD, {}),
        (UNREAD, {"operation": "all_to_all"}),
    ],
)
def test_nothing_is_made_up(paths: GpuPaths | None, changes: dict[str, Any]) -> None:
    """Unknown ways, GPUs that are not here and single ranks have no expectation; a latency has a history."""
    assert expected(paths, **changes) is None
    of = step("all_reduce", "latency", 8, *range(8))
    assert expected_of_step(of, switched(), 5e9) is None


def test_the_basis_of_a_model_names_the_slowest_hop() -> None:
    """For the operator."""
    found = expected(two_switches(uplink=12e9))

    assert found is not None
    assert "PCIe 12" in found.basis


def test_a_pair_is_expected_to_reach_what_lies_between() -> None:
    """Start, one step, and the bytes over the way of this pair; the same in both directions."""
    paths = two_switches(uplink=12e9, bridge=48e9)
    near, far = (expected_of_pair(pair, 16 * MIB, paths) for pair in ((2, 0), (1, 0)))

    assert rate(near) == pytest.approx(16 * MIB / (BASE + NVLINK_STEP + 16 * MIB / 48e9))
    assert rate(far) == pytest.approx(16 * MIB / (BASE + PCIE_STEP + 16 * MIB / 12e9))
    assert expected_of_pair((0, 9), MIB, paths) is None
    assert rate(expected_of_pair((0, 9), MIB, None, 1e9), "configured") == 1e9


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
    forth, back = (rate(expected_of_pair(pair, size, paths)) for pair in ((source, destination), (destination, source)))

    assert forth == back
    members = (min(source, destination), max(source, destination))
    assert rate(expected(paths, "all_reduce", size, members)) <= forth


@in_one_pass(
    "paths, operation, size, microseconds, source",
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

    found = expected_latency(small, paths)

    assert found is not None
    assert found.seconds == pytest.approx(microseconds * 1e-6)
    assert found.source == source
    assert found.basis


@in_one_pass("paths, size", [(None, 8), (switched(), 2048)])
def test_no_latency_is_made_up(paths: GpuPaths | None, size: int) -> None:
    """Paths may not be known, and of larger calls the size counts."""
    assert expected_latency(step("all_reduce", "latency", size, *range(8)), paths) is None

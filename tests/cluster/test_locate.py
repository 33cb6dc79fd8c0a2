"""Which part of the network is named, from what pairs of nodes measured."""

from __future__ import annotations

import ast
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from benchmarks import cluster_generator
from benchmarks.cluster_generator import MIXED, Cluster, Conditions, Fault, cluster_of, with_faults
from benchmarks.cluster_verdict import is_about, is_right, play
from hypothesis import given
from hypothesis import strategies as some

from commwatch.cluster.locate import Named, Verdict, locate
from commwatch.cluster.run_file import SCHEMA, Measured, Member, Rail, Run, encode_run
from commwatch.config.settings import Config
from support.command_line import run_command
from support.examples import examples
from support.passes import in_one_pass

GBIT = 1e9 / 8
QUIET = Conditions(noise=0.01, spikes=0.0, latency_noise=0.01)


def run_of(names: Iterable[str], measured: Iterable[Measured], **others: object) -> Run:
    """A run without groups."""
    return Run(SCHEMA, tuple(map(Member, names)), tuple(measured), **others)  # type: ignore[arg-type]


def two_nodes(values: Iterable[tuple[Rail, float, float]], **others: object) -> Run:
    """Rail, forward and backward of a pair, measured twice."""
    measured = [
        Measured(number, 0, 1, rail, forward, backward) for number in (1, 2) for rail, forward, backward in values
    ]
    return run_of(("gpu01", "gpu02"), measured, **others)


def said(verdict: Verdict) -> list[tuple[object, ...]]:
    """Kind, fault, elements, rails and direction of what is named."""
    return [(one.kind, one.fault, one.elements, one.rails, one.direction) for one in verdict.named]


def with_fault(*faults: Fault, nodes: int = 64, leaf_size: int = 16) -> Verdict:
    """A quiet cluster of four rails with these faults."""
    random = Random(0)  # noqa: S311 - the same case each time
    cluster = cluster_of(nodes, QUIET, random, rails=4, leaf_size=leaf_size)
    return play(Cluster(cluster.leaf_of, 4, list(faults), QUIET, random), "run")[1]


@in_one_pass(
    "fault, named",
    [
        (Fault("nic", 5, 0, 2, True, False, 0.7), ("nic", "bandwidth", ("node5",), (2,), "out")),
        (Fault("nic", 5, 0, 2, False, True, 0.7), ("nic", "bandwidth", ("node5",), (2,), "in")),
        (Fault("nic", 5, 0, 2, True, True, 0.7), ("nic", "bandwidth", ("node5",), (2,), "both")),
        (Fault("node", 9, 0, 0, True, True, 0.7), ("node", "bandwidth", ("node9",), (0, 1, 2, 3), "both")),
        (Fault("leaf", 20, 1, 3, True, True, 0.7), ("leaf", "bandwidth", ("leaf1",), (3,), "both")),
        (Fault("uplink", 20, 1, 3, True, False, 0.7), ("uplink", "bandwidth", ("leaf1",), (3,), "out")),
        (Fault("uplink", 20, 1, 3, True, True, 0.7), ("uplink", "bandwidth", ("leaf1",), (3,), "both")),
        (Fault("dead", 5, 0, 2, True, True, 0.0), ("nic", "failed", ("node5",), (2,), "both")),
    ],
)
def test_each_part_is_named_by_kind_rail_and_direction(fault: Fault, named: tuple[object, ...]) -> None:
    """And nothing else is; partners are cleared by whom they were good with."""
    verdict = with_fault(fault)

    assert said(verdict) == [named]
    assert verdict.open == ()


def test_a_node_that_reaches_nobody_is_named_with_the_reason() -> None:
    """All its rails failed; who waited for it is not named."""
    verdict = with_fault(*(Fault("dead", 9, 0, rail, True, True, 0.0) for rail in range(4)))

    assert said(verdict) == [("node", "failed", ("node9",), (0, 1, 2, 3), "both")]
    assert verdict.named[0].reason == "timeout"


def test_one_way_between_two_leaves_is_counted_and_not_named() -> None:
    """Both ends are good elsewhere: a cable of a spine, one way of many."""
    verdict = with_fault(Fault("path", 0, 0, 1, True, True, 0.5, other_leaf=2))

    assert verdict.named == ()
    assert verdict.paths > 0


@in_one_pass("nodes", [3, 4, 5, 6, 7, 8])
@in_one_pass("kind", ["nic", "node"])
def test_small_clusters_name_the_node_too(nodes: int, kind: str) -> None:
    """From three nodes on, without groups."""
    named = ("nic", (2,)) if kind == "nic" else ("node", (0, 1, 2, 3))

    for place in range(nodes):
        verdict = with_fault(Fault(kind, place, 0, 2, True, True, 0.7), nodes=nodes, leaf_size=nodes)
        assert [(one.kind, one.rails, one.elements) for one in verdict.named] == [(*named, (f"node{place}",))]


_VALUES = some.none() | some.floats(1e-12, 1e15)


@examples(100)
@given(
    some.lists(some.tuples(some.sampled_from(["", "x", "y"]), some.sampled_from(["", "m"])), min_size=2, max_size=6),
    some.lists(
        some.tuples(
            some.integers(1, 3), some.integers(0, 5), some.integers(0, 5), some.none() | some.integers(0, 2), _VALUES,
            _VALUES, _VALUES, _VALUES, some.sampled_from(["", "NET/IB", "NET/Socket"]),
            some.sampled_from(["", "refused"]),
        ),
        max_size=20,
    ),
    _VALUES,
    _VALUES,
)  # fmt: skip
def test_any_run_has_a_verdict_that_can_be_shown(
    members: list[tuple[str, str]], rows: list[Any], expected: float | None, inside: float | None
) -> None:
    """Whatever was measured; each part that is named belongs to the run."""
    count = len(members)
    measured = tuple(Measured(*row) for row in rows if row[1] < count and row[2] < count and row[1] != row[2])
    listed = tuple(Member(f"n{place}", leaf, model) for place, (leaf, model) in enumerate(members))
    run = Run(SCHEMA, listed, measured, expected=expected, inside=inside)

    verdict = locate(run)

    known = {one.name for one in listed} | {one.leaf for one in listed}
    assert all(set(one.elements) <= known for one in (*verdict.named, *verdict.open))
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as out:
        file = Path(folder, "run.json")
        file.write_bytes(encode_run(run))
        run_command(Config(), "cluster", "locate", str(file))
    assert len(out.getvalue().splitlines()) >= 2


@in_one_pass("leaf_size", [1, 2, 3])
def test_a_nic_of_a_small_leaf_is_not_its_uplink(leaf_size: int) -> None:
    """Fewer than three nodes say nothing of what is above them."""
    verdict = with_fault(Fault("nic", 5, 5 // leaf_size, 2, True, True, 0.7), nodes=12, leaf_size=leaf_size)

    assert said(verdict) == [("nic", "bandwidth", ("node5",), (2,), "both")]


def test_latency_of_a_node_is_named() -> None:
    """All its small messages take twice as long, at full bandwidth."""
    pairs = [(1, 0, 1), (1, 2, 3), (1, 4, 5), (2, 0, 2), (2, 1, 4), (2, 3, 5), (3, 0, 4), (3, 0, 3)]
    measured = [
        Measured(number, first, second, 0, 50e9, 50e9, latency=4e-6 if first == 0 else 2e-6)
        for number, first, second in pairs
    ]

    verdict = locate(run_of("abcdef", measured))

    assert said(verdict) == [("nic", "latency", ("a",), (0,), "both")]
    assert verdict.named[0].ratio == pytest.approx(2.0)


def test_latencies_that_spread_evenly_name_no_one() -> None:
    """Four nodes over TCP on a busy host, as they were measured: one that sends slowly, and latencies of 7 to 39 µs."""
    rates = [(1, 0, 2, 120e6, 120e6, 12.9e-6), (1, 1, 3, 85e6, 120e6, 9.6e-6), (2, 0, 3, 121e6, 121e6, 13.0e-6),
             (2, 1, 2, 84e6, 120e6, 6.8e-6), (3, 0, 1, 120e6, 84e6, 19.8e-6), (3, 2, 3, 120e6, 120e6, 6.9e-6),
             (3, 0, 2, 120e6, 120e6, 39.0e-6)]  # fmt: skip
    measured = [Measured(number, a, b, 0, there, back, latency=latency) for number, a, b, there, back, latency in rates]

    assert said(locate(run_of("abcd", measured))) == [("nic", "bandwidth", ("b",), (0,), "out")]


# --- networks that are not ideal ---


def judged_with(
    faults: Sequence[Fault], tiers: Sequence[tuple[int, float]], *, nodes: int = 64, is_told: bool = True,
    rails: int = 4,
) -> Verdict:  # fmt: skip
    """A quiet cluster with leaves of 8 nodes and slower paths between larger groups."""
    random = Random(1)  # noqa: S311 - the same case each time
    cluster = cluster_of(nodes, QUIET, random, rails=rails, leaf_size=8, tiers=tiers)
    return play(replace(cluster, faults=list(faults)), "run", is_told=is_told)[1]


NIC = Fault("nic", 5, 0, 2, True, False, 0.7)


@in_one_pass(
    "size, share, is_told",
    [(32, 0.8, True), (32, 0.5, True), (16, 0.8, True), (32, 0.8, False), (32, 0.5, False)],
)
def test_slower_paths_name_nobody_and_hide_no_nic(size: int, share: float, is_told: bool) -> None:
    """A tapered spine, and islands; a NIC that is as slow as the path is seen among its like alone."""
    healthy = judged_with([], [(size, share)], is_told=is_told)
    faulty = judged_with([NIC], [(size, share)], is_told=is_told)

    assert (healthy.named, healthy.open) == ((), ())
    assert healthy.slower is not None
    assert healthy.slower.ratio == pytest.approx(share / (0.96 if is_told or share == 0.8 else 1.0), rel=0.05)
    assert said(faulty) == [("nic", "bandwidth", ("node5",), (2,), "out")]


def test_an_even_fabric_has_no_slower_paths() -> None:
    """Also with faults that slow whole nodes."""
    faults = [Fault("node", node, node // 8, 0, True, True, 0.7) for node in (3, 20, 40)]

    verdict = judged_with(faults, [])

    assert verdict.slower is None
    assert [one.elements for one in verdict.named] == [("node20",), ("node3",), ("node40",)]


def test_two_islands_are_said_with_their_nodes() -> None:
    """Where enough pairs agree; nobody had told."""
    slower = judged_with([], [(32, 0.5)], is_told=False).slower

    assert slower is not None
    assert [set(one) for one in slower.islands] == [
        {f"node{node}" for node in range(first, first + 32)} for first in (0, 32)
    ]


@pytest.mark.parametrize(("slow", "kind"), [(1, "node"), (8, "network")])
def test_nodes_that_met_nobody_but_over_slower_paths_stay_open(slow: int, kind: str) -> None:
    """It may be they or their paths; of many it is one line."""
    nodes = [f"n{place}" for place in range(16)]
    pairs = [(a, b) for a in range(16) for b in range(a + 1, 16) if (a + b) % 4 in (0, 1)]
    bad = {pair for pair in pairs if pair[0] < slow or (pair[0] < 8) != (pair[1] < 8)}
    rates = {pair: 25e9 if pair in bad else 50e9 for pair in pairs}
    measured = [Measured(2, *pair, rail, rate, rate) for pair, rate in rates.items() for rail in range(4)]

    verdict = locate(run_of(nodes, measured))

    assert verdict.named == ()
    assert [(one.kind, one.elements) for one in verdict.open] == [(kind, ("n0",) if slow == 1 else ())]


def test_four_pods_are_no_two_islands() -> None:
    """The paths are slower, and that is all that is known."""
    slower = judged_with([], [(16, 0.5)]).slower

    assert slower is not None
    assert slower.islands == ()


def small(values: Mapping[tuple[int, int], tuple[float, float]], nodes: int) -> Verdict:
    """Pairs of few nodes on one rail of eight, forward and backward as a share; all other rails are good."""
    measured = [
        Measured(1, *pair, rail, *((50e9 * there, 50e9 * back) if rail == 0 else (50e9, 50e9)))
        for pair, (there, back) in values.items()
        for rail in range(8)
    ]
    return locate(run_of("abcd"[:nodes], measured))


ONE = {(0, 1): (0.05, 1.0), (0, 2): (0.05, 1.0), (0, 3): (0.05, 1.0), (1, 2): (1.0, 1.0), (1, 3): (1.0, 1.0)}


@in_one_pass(
    "values, named",
    [
        ({**ONE, (2, 3): (1.0, 1.0)}, ["a"]),
        ({**ONE, (2, 3): (0.6, 0.4)}, ["a"]),
        ({**ONE, (1, 2): (0.05, 0.05), (1, 3): (0.05, 0.05), (2, 3): (1.0, 1.0), (0, 1): (0.05, 0.05)}, ["a", "b"]),
        ({**ONE, (0, 2): (1.0, 1.0), (0, 3): (1.0, 1.0), (2, 3): (1.0, 1.0)}, []),
    ],
)
def test_a_dip_between_two_others_leaves_no_slow_nic_of_four_nodes_open(
    values: dict[tuple[int, int], tuple[float, float]], named: list[str]
) -> None:
    """Nor does a second slow one; a single slow pair of good nodes names nobody."""
    assert [one.elements[0] for one in small(values, 4).named] == named


def test_of_three_nodes_the_pair_that_decides_is_measured_again() -> None:
    """A slow NIC beside one dip: nothing is named yet, and all three are suspects; then it is."""
    once = {(0, 1): (0.5, 1.0), (0, 2): (0.5, 1.0), (1, 2): (0.5, 0.5)}
    measured = [Measured(1, *pair, 0, 50e9 * there, 50e9 * back) for pair, (there, back) in once.items()]
    measured += [Measured(1, *pair, rail, 50e9, 50e9) for pair in once for rail in range(1, 8)]
    again = [Measured(3, 1, 2, 0, 50e9, 50e9), Measured(3, 0, 1, 0, 25e9, 50e9), Measured(3, 0, 2, 0, 25e9, 50e9)]

    first, second = locate(run_of("abc", measured)), locate(run_of("abc", [*measured, *again]))

    assert (first.named, {one.member for one in first.suspects}) == ((), {0, 1, 2})
    assert said(second) == [("nic", "bandwidth", ("a",), (0,), "out")]


# --- published cases ---


def test_five_published_pairs_name_node_644() -> None:
    """nccl-tests issue 106; its maintainer named 644 too. Of 284 and 678 a witness would have to say."""
    pairs = {(644, 699): 49.36, (632, 641): 88.36, (284, 678): 49.28, (641, 644): 49.30, (404, 699): 86.81}
    nodes = sorted({node for pair in pairs for node in pair})
    measured = [
        Measured(1, nodes.index(first), nodes.index(second), both=value * 1e9)
        for (first, second), value in pairs.items()
    ]

    verdict = locate(run_of([f"se02gn{node}" for node in nodes], measured))

    assert said(verdict) == [("node", "bandwidth", ("se02gn644",), (None,), "both")]
    assert verdict.named[0].ratio == pytest.approx(49.33 / 87.6, abs=0.01)
    assert [one.elements for one in verdict.open] == [("se02gn284", "se02gn678")]


def test_two_nodes_at_the_rate_of_their_network_have_no_slow_part() -> None:
    """DeepSpeed issue 5770: 8.74 and 9.28 Gbit/s over 10 Gbit/s, and 20 GB/s within a node: the network itself."""
    verdict = locate(two_nodes([(0, 8.74 * GBIT, 9.28 * GBIT)], expected=10 * GBIT, inside=20e9))

    assert (verdict.named, verdict.open) == ((), ())
    assert verdict.whole is not None
    assert verdict.whole.is_bottleneck
    assert verdict.whole.node == pytest.approx(9.01 * GBIT)


def test_two_nodes_below_what_their_network_should_carry_are_named_as_a_pair() -> None:
    """nccl issue 2409: 216 to 231 GB/s over 8 rails where 470 is due; two nodes cannot say which of them it is."""
    verdict = locate(two_nodes([(rail, 27e9, 28.9e9) for rail in range(8)], expected=470e9 / 8))

    assert said(verdict) == [("pair", "bandwidth", ("gpu01", "gpu02"), tuple(range(8)), "both")]
    assert verdict.whole is not None
    assert not verdict.whole.is_bottleneck


def test_a_rail_over_a_socket_beside_infiniband_is_named() -> None:
    """One rail of two nodes; and with more nodes, the one whose rail it is."""
    transports = {0: "NET/IB", 1: "NET/Socket"}
    two = locate(run_of("ab", [Measured(1, 0, 1, rail, 5e9, 5e9, transport=name) for rail, name in transports.items()]))
    pairs = [(1, 0, 1), (1, 2, 3), (2, 0, 2), (2, 1, 3), (3, 0, 3)]
    measured = [
        Measured(number, first, second, rail, 5e9, 5e9, transport=transports[int(first == 0 and rail == 1)])
        for number, first, second in pairs
        for rail in (0, 1)
    ]
    more = locate(run_of("abcd", measured))

    assert said(two) == [("pair", "transport", ("a", "b"), (1,), "both")]
    assert said(more) == [("nic", "transport", ("a",), (1,), "both")]
    assert {one.reason for one in (*two.named, *more.named)} == {"NET/Socket"}
    assert locate(two_nodes([(0, 1e9, 1e9)])).named == (), "a network without InfiniBand is no fault"


@pytest.mark.parametrize(
    ("transport", "rates", "expected", "found", "reason"),
    [
        ("NET/Socket", (50e9,), None, "transport", "NET/Socket"),
        ("NET/IB", (50e9,), None, "bandwidth", "expected"),
        ("NET/Socket", (), 50e9, "bandwidth", "expected"),
    ],
)
@pytest.mark.parametrize("nodes", [2, 4])
def test_sockets_that_all_pairs_take_beside_rdma_adapters_are_named(
    nodes: int, transport: str, rates: tuple[float, ...], expected: float | None, found: str, reason: str
) -> None:
    """As in a pod without /dev/infiniband; not as a slow network."""
    members = tuple(Member(f"gpu{place}", rates=rates) for place in range(nodes))
    pairs = itertools.combinations(range(nodes), 2)
    measured = tuple(Measured(1, first, second, 0, 4e9, 4e9, transport=transport) for first, second in pairs)

    named = locate(Run(SCHEMA, members, measured, expected=expected)).named

    assert [(one.fault, one.reason) for one in named] == [(found, reason)]


def test_nodes_of_another_model_are_held_against_their_like() -> None:
    """Half of the cluster has slower NICs."""
    members = tuple(Member(f"n{place}", model="old" if place < 6 else "new") for place in range(12))
    pairs = [(1, 0, 1), (1, 2, 3), (1, 4, 5), (1, 6, 7), (1, 8, 9), (1, 10, 11)]
    pairs += [(2, 0, 2), (2, 1, 4), (2, 3, 5), (2, 6, 8), (2, 7, 10), (2, 9, 11)]
    measured = [Measured(n, a, b, 0, 10e9 if a < 6 else 50e9, 10e9 if a < 6 else 50e9) for n, a, b in pairs]

    assert locate(Run(SCHEMA, members, tuple(measured))).named == ()


# --- how often it is right: a guard; docs/engineering/accuracy.md has the figures ---


def judged(count: int, faults: int, busy: float, congestion: float) -> list[tuple[Cluster, tuple[Named, ...]]]:
    """Clusters of 256 nodes and what is named in them."""
    found = []
    for seed in range(count):
        random = Random(seed)  # noqa: S311 - the same cases each time
        cluster = cluster_of(256, Conditions(congestion=congestion), random, rails=4, busy=busy)
        cluster = with_faults(cluster, faults, 0.7, MIXED)
        found.append((cluster, play(cluster, str(seed))[1].named))
    return found


def share(values: Iterable[bool]) -> float:
    """Of those that hold."""
    listed = list(values)
    return sum(listed) / len(listed)


def test_faults_of_all_kinds_are_named_in_a_busy_cluster() -> None:
    """Loss of 30 %, half of the nodes busy, 10 % of the ways between leaves with other traffic."""
    runs = [
        ([one for one in cluster.faults if one.kind != "path"], named) for cluster, named in judged(12, 4, 0.5, 0.1)
    ]
    cases = [(fault, named) for faults, named in runs for fault in faults]

    assert share(any(is_about(one, fault) for one in named) for fault, named in cases) >= 0.95
    assert share(any(is_right(one, fault) for one in named) for fault, named in cases) >= 0.93
    assert share(any(is_about(one, fault) for fault in faults) for faults, named in runs for one in named) >= 0.95


def test_a_healthy_busy_cluster_names_nobody() -> None:
    """In 12 runs with moments in which a way stands still."""
    assert [named for _, named in judged(12, 0, 0.5, 0.1) if named] == []


def test_the_generator_knows_nothing_of_the_judge() -> None:
    """It imports nothing of commwatch."""
    tree = ast.parse(Path(cluster_generator.__file__).read_text())
    modules = [one.module or "" for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)]
    modules += [name.name for one in ast.walk(tree) if isinstance(one, ast.Import) for name in one.names]

    assert modules
    assert not [one for one in modules if "commwatch" in one]

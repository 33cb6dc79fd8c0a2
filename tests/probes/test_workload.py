"""The backend of a probe, and the steps of its cycles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal, get_args

from hypothesis import given
from hypothesis import strategies as st

from commwatch.config import settings as config
from commwatch.config.settings import Size
from commwatch.probes.plan import CyclePlan, Measure
from commwatch.probes.rank_plan import Backend, Operation, Step
from commwatch.probes.workload import choose_backend, plan_cycle
from support.examples import examples
from support.passes import in_one_pass

MIB = 2**20
LIMITS = config.Probes()


def plan(
    measure: Measure, gpus: int, backend: Backend = "nccl", shared_links: Any = None, **settings: Any
) -> CyclePlan:
    """A plan over so many GPUs, or so many ranks with gloo."""
    if backend == "gloo":
        settings.setdefault("ranks", gpus)
    devices = tuple(f"GPU-{number}" for number in range(gpus))
    probe = config.Probe(measure=measure, **settings)
    return plan_cycle("x", probe, LIMITS, backend=backend, devices=devices, shared_links=shared_links)


@in_one_pass(
    "configured, simulated, driver, expected",
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


def test_a_rank_for_each_gpu() -> None:
    """Each GPU is occupied by one rank; gloo has two ranks and occupies none."""
    made = plan("all_reduce", 3)
    gloo = plan_cycle("x", config.Probe(), LIMITS, backend="gloo", devices=("GPU-a",))

    assert (made.ranks, made.gpus, made.shares_gpus) == (3, 3, False)
    assert [made.rank_plan(rank, "file").device for rank in range(3)] == [0, 1, 2]
    assert (gloo.ranks, gloo.gpus, gloo.devices, gloo.shares_gpus) == (2, 0, (), False)
    assert gloo.rank_plan(1, "file").device is None


@in_one_pass("operation", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
def test_a_collective_has_a_small_and_a_large_call(operation: Measure) -> None:
    """Both are over all ranks."""
    steps = plan(operation, 4).steps

    assert [(step.operation, step.purpose, step.members) for step in steps] == [
        (operation, "latency", (0, 1, 2, 3)),
        (operation, "bandwidth", (0, 1, 2, 3)),
    ]


@in_one_pass(
    "measure, backend, size, seconds",
    [
        ("all_reduce", "nccl", 64 * MIB, 0.1),
        ("all_to_all", "simulated", 64 * MIB, 0.1),
        ("scaling", "nccl", 64 * MIB, 0.1),
        ("training", "nccl", 25 * MIB, 0.1),
        ("training", "gloo", 4 * MIB, 2.0),
        ("pairs", "nccl", 16 * MIB, 0.1),
        ("host_copies", "simulated", 16 * MIB, 0.1),
        ("all_reduce", "gloo", 4 * MIB, 2.0),
        ("pairs", "gloo", 4 * MIB, 2.0),
    ],
)
def test_default_sizes(measure: Measure, backend: Backend, size: int, seconds: float) -> None:
    """Size and time are those that suit measure and backend; a configured size wins."""
    default = plan(measure, 2, backend)
    configured = plan(measure, 2, backend, bandwidth_bytes=Size(MIB))

    assert (default.bandwidth_bytes, default.timed_seconds) == (size, seconds)
    assert configured.bandwidth_bytes == MIB


@given(
    st.sampled_from([one for one in get_args(Measure) if one != "host_copies"]),
    st.integers(min_value=2, max_value=9),
    st.integers(min_value=1, max_value=100),
)
def test_each_rank_has_whole_elements(measure: Measure, ranks: int, size: int) -> None:
    """Sizes are rounded up, by less than one element of each rank, and sizes of all ranks together divide by them."""
    for step in plan(measure, ranks, latency_bytes=Size(size), bandwidth_bytes=Size(size)).steps:
        of_all: tuple[Operation, ...] = ("all_gather", "reduce_scatter", "all_to_all")
        whole = 4 * ranks if step.operation in of_all else 4
        assert step.size_bytes % whole == 0
        assert size <= step.size_bytes < size + whole


def test_pairs_of_four() -> None:
    """Each round is latency and bandwidth from either side, then bandwidth both ways at once."""
    steps = plan("pairs", 4).steps

    first = [(step.purpose, step.pairs, step.both_ways, step.clocks) for step in steps[:5]]
    there, back = ((0, 3), (1, 2)), ((3, 0), (2, 1))
    assert first == [
        ("latency", there, False, (0, 1)),
        ("latency", back, False, (3, 2)),
        ("bandwidth", there, False, (3, 2)),
        ("bandwidth", back, False, (0, 1)),
        ("bandwidth", there + back, True, (3, 2, 0, 1)),
    ]
    assert len(steps) == 3 * 5


@given(st.integers(min_value=2, max_value=9), st.sampled_from([None, lambda *_: frozenset({"socket"})]))
def test_every_ordered_pair_is_measured_once_in_each_way(ranks: int, shared_links: Any) -> None:
    """Latency, bandwidth and bandwidth both ways have every ordered pair once, also where all share a link."""
    steps = plan("pairs", ranks, shared_links=shared_links).steps

    everyone = sorted((one, two) for one in range(ranks) for two in range(ranks) if one != two)
    for purpose, both_ways in (("latency", False), ("bandwidth", False), ("bandwidth", True)):
        chosen = [one for one in steps if (one.purpose, one.both_ways) == (purpose, both_ways)]
        assert sorted(pair for one in chosen for pair in one.pairs) == everyone
    for step in steps:
        assert step.members == tuple(sorted({rank for pair in step.pairs for rank in pair}))
        if shared_links:
            assert len(step.members) == 2


def rounds(steps: Sequence[Step]) -> list[tuple[tuple[int, int], ...]]:
    """The pairs of each round, the smaller rank first."""
    return [tuple(pair for pair in one.pairs if pair[0] < pair[1]) for one in steps if one.both_ways]


@given(st.integers(min_value=2, max_value=64))
def test_there_is_no_round_too_many(count: int) -> None:
    """Nobody has two partners in a round; of an odd number one rank is idle in each and each one once."""
    found = rounds(plan("pairs", count).steps)

    assert len(found) == (count if count % 2 else count - 1)
    for one in found:
        ranks = [rank for pair in one for rank in pair]
        assert len(ranks) == len(set(ranks)) == count // 2 * 2


@examples(40)  # each draws the links of up to 120 pairs
@given(st.data(), st.integers(min_value=2, max_value=16))
def test_pairs_of_a_round_share_no_link(data: st.DataObject, count: int) -> None:
    """Whatever the links, all pairs are measured, and no link is used twice at a time."""
    kinds = st.frozensets(st.sampled_from(["switch", "socket", "bridge"]))
    links = {pair: data.draw(kinds) for pair in combinations(range(count), 2)}
    found = rounds(plan("pairs", count, shared_links=lambda *ends: links[min(ends), max(ends)]).steps)

    assert sorted(pair for one in found for pair in one) == sorted(links)
    for one in found:
        used = [link for pair in one for link in links[pair]]
        assert len(used) == len(set(used))


def test_pairs_through_one_link_take_turns() -> None:
    """Three pairs through one socket link and one beside it: three rounds, the free pair in the first."""
    between_sockets = {(0, 7), (1, 6), (2, 5)}

    def shared(one: int, two: int) -> frozenset[str]:
        return frozenset({"socket"} if (min(one, two), max(one, two)) in between_sockets else ())

    found = rounds(plan("pairs", 8, shared_links=shared).steps)

    assert found[:3] == [((0, 7), (3, 4)), ((1, 6),), ((2, 5),)]
    assert len(found) == 7 + 2


def test_gpus_copy_one_after_another() -> None:
    """Each GPU copies from and to the host alone; with one GPU too, and once for each GPU whatever the ranks."""
    steps = plan("host_copies", 2).steps

    assert [(step.operation, step.purpose, step.members) for step in steps] == [
        ("host_to_device", "bandwidth", (0,)),
        ("device_to_host", "bandwidth", (0,)),
        ("host_to_device", "bandwidth", (1,)),
        ("device_to_host", "bandwidth", (1,)),
    ]
    assert len(plan("host_copies", 1).steps) == 2
    assert plan("host_copies", 1, ranks=2).ranks == 1


@in_one_pass(
    "ranks, counts",
    [(2, [2]), (3, [2, 3]), (4, [2, 4]), (6, [2, 4, 6]), (8, [2, 4, 8]), (9, [2, 4, 8, 9])],
)
def test_scaling_doubles_the_ranks(ranks: int, counts: list[int]) -> None:
    """The large all_reduce runs over the first 2, 4, 8, ... ranks, and over all."""
    steps = plan("scaling", ranks).steps

    assert [step.members for step in steps] == [tuple(range(count)) for count in counts]
    assert {(step.operation, step.purpose) for step in steps} == {("all_reduce", "bandwidth")}


@in_one_pass("measure", get_args(Measure))
def test_there_is_no_step_where_nothing_can_be_measured(measure: Measure) -> None:
    """One rank has nobody to talk to, and gloo no GPU to copy to."""
    alone = plan(measure, 1, "nccl" if measure != "host_copies" else "gloo")

    assert alone.steps == ()
    assert (alone.latency_bytes, alone.bandwidth_bytes) == (0, 0)


def test_deadlines_and_time_come_from_the_limits() -> None:
    """What the configuration says of all probes holds for each of them."""
    limits = config.Probes(
        start_deadline=config.Duration(1),
        rendezvous_deadline=config.Duration(2),
        setup_deadline=config.Duration(3),
        measure_deadline=config.Duration(4),
        kernel_time=config.Duration(0.05),
    )

    made = plan_cycle("x", config.Probe(), limits, backend="nccl", devices=("GPU-a", "GPU-b"))

    deadlines = made.deadlines
    assert (deadlines.start, deadlines.rendezvous, deadlines.setup, deadlines.measure) == (1, 2, 3, 4)
    assert made.timed_seconds == 0.05

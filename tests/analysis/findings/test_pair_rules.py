"""What the pair matrix finds: slow pairs, near ones slower than far ones, suspects, and all slow together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import TypeAlias

import pytest

from commwatch.findings.causes import join
from commwatch.findings.finding import Component, Match
from support.facts import Numbers, codes_of, facts_of, seen_in, shipped
from support.findings import incident, incidents
from support.machines import CARDS, HGX, NVSWITCH, SWITCHES, four_cards, four_on_nvswitch, identities, merged
from support.passes import in_one_pass

Rows: TypeAlias = dict[tuple[str, ...], float]
Ways: TypeAlias = Mapping[tuple[int, int], float]
EXPECTED = 1e10
LIMITS = shipped()
LOW = LIMITS.probe_bandwidth_utilization_low_ratio


def matrix(ways: Ways | None = None, others: float = EXPECTED, backend: str = "nccl", ends: int = 4) -> Numbers:
    """Bytes per second of every ordered pair: those given, and the same for all others."""
    rates = dict.fromkeys(permutations(range(ends), 2), others) | dict(ways or {})
    rows: dict[tuple[str, ...], float] = {
        (str(source), str(target), backend): rate for (source, target), rate in rates.items()
    }
    return {
        "commwatch_pair_bandwidth_bytes_per_second": rows,
        "commwatch_pair_expected_bandwidth_bytes_per_second": dict.fromkeys(rows, EXPECTED),
    }


def seen(*numbers: Numbers) -> list[Match]:
    facts = facts_of(merged(*numbers))
    return seen_in(facts)


def pair(first: int, second: int, addresses: tuple[str, ...] = CARDS) -> str:
    return f"pair/{addresses[first]}-{addresses[second]}"


def test_a_pair_below_the_mark_is_slow() -> None:
    """In its slower direction, whichever that is; at the mark it is not."""
    assert seen(four_cards(), matrix({(2, 0): LOW * EXPECTED})) == []
    for way in ((0, 2), (2, 0)):
        [found] = seen(four_cards(), matrix({way: (LOW - 0.01) * EXPECTED}))
        assert (found.code, found.component.identity) == ("pair_slow", pair(0, 2))
        assert found.component.name == "GPU0-GPU2"
        assert found.evidence[0].value == pytest.approx(LOW - 0.01)


def test_a_pair_stays_itself_under_a_new_numbering() -> None:
    """Whichever of its GPUs the driver counts first."""
    for addresses in (CARDS[:2], CARDS[1::-1]):
        [found] = seen(identities(addresses), matrix({}, others=1e9, ends=2))
        assert (found.component.identity, found.component.name) == (pair(0, 1), "GPU0-GPU1")


def test_the_parts_of_a_pair_are_those_on_its_way() -> None:
    """Over NVSwitches no PCIe, and no other GPU."""
    [found] = seen(four_on_nvswitch(), matrix({(1, 3): 1e9}))

    assert found.component.parts == {f"{HGX[1]}/nvlink", f"{HGX[3]}/nvlink", f"{NVSWITCH}/nvlink"}


def test_ranks_of_gloo_are_no_gpus() -> None:
    """Their pairs are processes of one host, even where the numbers look like those of GPUs."""
    assert seen(four_cards(), matrix({(0, 2): 1e9}, backend="gloo")) == []


def test_what_is_not_known_is_not_slow() -> None:
    """A pair without an expectation, a pair whose GPU is not on the page, a node without a matrix."""
    bare: Numbers = {"commwatch_pair_bandwidth_bytes_per_second": {("0", "2", "nccl"): 1.0}}

    assert seen(four_cards(), bare) == []
    assert seen(identities(CARDS[:2]), matrix({(0, 3): 1e9}, ends=4)) == []
    assert seen(four_cards()) == []


def test_most_pairs_slow_are_one_finding() -> None:
    """From more than half on; half of them are still pairs of their own."""
    three = {(0, 2): 1e9, (0, 3): 1e9, (1, 2): 1e9}

    assert codes_of(seen(four_cards(), matrix(three))) == [
        ("pair_slow", pair(0, 2)), ("pair_slow", pair(0, 3)), ("pair_slow", pair(1, 2))
    ]  # fmt: skip
    [found] = seen(four_cards(), matrix({**three, (1, 3): 1e9}))
    assert (found.code, found.component.identity, found.detail) == ("pairs_all_slow", "node", "4 of 6 pairs")


def test_the_only_pair_says_nothing_of_the_host() -> None:
    """Two GPUs: one of them, their link and the host look alike, and the finding says so."""
    [found] = seen(identities(CARDS[:2]), matrix({}, others=1e9, ends=2))

    assert (found.code, found.component.identity) == ("pair_slow", pair(0, 1))
    assert found.detail == "the only pair: GPU, link or host; commwatch probe host_copies tells more"


def test_one_slow_gpu_of_three_is_not_the_host() -> None:
    """It is part of two pairs of three; the host is named once the third is slow as well."""
    of_one = {(0, 1): 1e9, (0, 2): 1e9}

    found = seen(identities(CARDS[:3]), matrix(of_one, ends=3))
    assert codes_of(found) == [("pair_slow", pair(0, 1)), ("pair_slow", pair(0, 2))]
    assert [one.detail for one in found] == ["", ""]
    assert codes_of(seen(identities(CARDS[:3]), matrix({**of_one, (2, 1): 1e9}, ends=3))) == [
        ("pairs_all_slow", "node")
    ]


def test_near_pairs_that_are_slower_than_far_ones() -> None:
    """Four cards in pairs under one switch each: both pairs are named with what the far ones carry."""
    slow = {(0, 1): 7e9, (1, 0): 7.1e9, (2, 3): 7e9, (3, 2): 7e9}
    found = seen(four_cards(), matrix(slow))

    assert codes_of(found) == [("pair_nearer_slower", pair(0, 1)), ("pair_nearer_slower", pair(2, 3))]
    assert [fact.value for fact in found[0].evidence] == [pytest.approx(0.7), 7e9, EXPECTED]


def test_a_near_pair_far_below_its_mark_is_a_slow_pair_with_a_cause() -> None:
    """Both are seen, and told as one finding."""
    both = seen(four_cards(), matrix({(0, 1): 3e9}))
    told = join(incidents(both, 0.0))

    assert codes_of(both) == [("pair_slow", pair(0, 1)), ("pair_nearer_slower", pair(0, 1))]
    assert [(one.code, [cause.code for cause in one.causes]) for one in told] == [("pair_slow", ["pair_nearer_slower"])]


def test_a_near_pair_may_be_a_little_slower() -> None:
    """From 85 % of the usual far pair on it is the noise of probes."""
    near = LIMITS.pair_nearer_low_ratio * EXPECTED

    assert seen(four_cards(), matrix({(0, 1): near})) == []
    assert codes_of(seen(four_cards(), matrix({(0, 1): near - 1e7}))) == [("pair_nearer_slower", pair(0, 1))]


def test_near_means_nothing_without_the_bridges() -> None:
    """Where the PCI tree was not read no pair is nearer; pairs over NVLink are not compared by it."""
    slow = {(0, 1): 8e9, (1, 0): 8e9}

    assert seen(identities(CARDS), matrix(slow)) == []
    assert seen(four_on_nvswitch(), matrix(slow)) == []
    unread: Numbers = {"commwatch_nvlink_link_expected": {("0", CARDS[0], "0"): 1.0, ("1", CARDS[1], "0"): 1.0}}
    assert seen(four_cards(), unread, matrix(slow)) == []


def suspect(kind: str, element: str, confidence: float = 0.9) -> Numbers:
    return {"commwatch_suspect_ratio": {(kind, element): confidence}}


@in_one_pass(
    "kind, element, parts",
    [
        ("gpu", "GPU3", {f"{CARDS[3]}/nvlink", f"{CARDS[3]}/pcie"}),
        ("link_group", "GPU3", {f"{CARDS[3]}/nvlink"}),
        ("pcie_switch", SWITCHES[1], {f"{SWITCHES[1]}/pcie"}),
        ("pcie_link", CARDS[3], {f"{CARDS[3]}/pcie"}),
        ("numa_node", "NUMA0", set()),
        ("node", "node0", set()),
        ("gpu", "GPU9", set()),
    ],
)
def test_a_suspect_has_its_parts(kind: str, element: str, parts: set[str]) -> None:
    """What is not known to be less is the whole node."""
    [found] = seen(four_cards(), suspect(kind, element))

    assert (found.code, found.component.identity) == ("part_suspect", f"part/{kind}/{element}")
    assert found.component.parts == parts
    assert found.component.words == {"pcie_switch": f"PCIe switch {element}", "pcie_link": f"PCIe link {element}",
                                     "link_group": f"NVLinks of {element}"}.get(kind, element)  # fmt: skip
    assert found.evidence[0].value == 0.9


def test_a_suspect_stands_for_its_pairs() -> None:
    """A slow pair that it is on the way of is not told beside it, another one is."""
    slow = {(0, 3): 1e9, (0, 2): 1e9}

    assert codes_of(seen(four_cards(), matrix(slow), suspect("gpu", "GPU3"))) == [
        ("pair_slow", pair(0, 2)),
        ("part_suspect", "part/gpu/GPU3"),
    ]
    assert codes_of(seen(four_cards(), matrix(slow), suspect("node", "node0"))) == [("part_suspect", "part/node/node0")]


def test_a_suspect_is_named_from_one_half_on() -> None:
    """Below it another part explains the slow pairs about as well; it then stands for no pair either."""
    least, slow = LIMITS.suspect_confidence_min, matrix({(0, 3): 1e9})

    assert codes_of(seen(four_cards(), slow, suspect("gpu", "GPU3", least))) == [("part_suspect", "part/gpu/GPU3")]
    assert codes_of(seen(four_cards(), slow, suspect("gpu", "GPU3", least - 0.01))) == [("pair_slow", pair(0, 3))]


def test_a_pair_that_is_suspected_itself_is_a_slow_pair() -> None:
    """Thrice slower than it was, although above the mark; not once more as a part."""
    [found] = seen(four_cards(), matrix({(0, 3): 0.7 * EXPECTED}), suspect("pair", "GPU0-GPU3"))

    assert (found.code, found.component.identity) == ("pair_slow", pair(0, 3))
    assert [fact.value for fact in found.evidence] == [0.7 * EXPECTED, 0.9]


def test_a_probe_is_slow_by_a_near_pair_and_then_by_the_part_that_the_pair_shares() -> None:
    """The pair comes first: it can be avoided at once. Without a probe the pair is told, with the part as its cause."""
    seen_both = seen(four_cards(), matrix({(0, 1): 3e9}), suspect("pcie_switch", SWITCHES[0]))
    near, part = incidents(seen_both, 0.0)
    probe = incident("probe_bandwidth_low", Component("probe", "all_reduce"), 0.0)

    [told] = join([probe, near, part])
    assert [cause.code for cause in told.causes] == ["pair_nearer_slower", "part_suspect"]
    [alone] = join([near, part])
    assert (alone.code, [cause.code for cause in alone.causes]) == ("pair_nearer_slower", ["part_suspect"])


def test_a_slow_pair_explains_what_goes_among_gpus_alone() -> None:
    """Copies to the host use the same links, and the pair says nothing of them."""
    [slow] = seen(four_cards(), matrix({(0, 3): 1e9}))
    [all_slow] = seen(four_cards(), matrix(others=1e9))
    to_host = frozenset(f"{part}/pcie" for part in (CARDS[3], "0000:62:01.0", SWITCHES[1], "0000:60:01.0"))
    told = join(
        incident(code, component, 0.0, slow.evidence)
        for code, component in (
            (slow.code, slow.component),
            ("probe_bandwidth_low", Component("probe", "all_reduce", "", all_slow.component.parts)),
            ("probe_bandwidth_low", Component("probe", "host_copies", "", to_host)),
        )
    )

    assert [(one.component.key, [cause.code for cause in one.causes]) for one in told] == [
        ("all_reduce", ["pair_slow"]), ("host_copies", [])
    ]  # fmt: skip

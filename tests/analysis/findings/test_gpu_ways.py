"""The parts that traffic between GPUs uses, as the page has them: those of a slow pair, and of all pairs."""

from __future__ import annotations

from itertools import permutations

import pytest

from support.facts import Numbers, codes_by, facts_of, seen_by
from support.machines import CARDS, HGX, NVSWITCH, SWITCHES, bridges, four_cards, four_on_nvswitch, identities, merged


def matrix(*slow: tuple[int, int], ends: int = 4) -> Numbers:
    """All pairs as fast as they should be but some."""
    ways = {(str(one), str(two), "nccl"): 4e9 if (one, two) in slow else 1e10
            for one, two in permutations(range(ends), 2)}  # fmt: skip
    expected = "commwatch_pair_expected_bandwidth_bytes_per_second"
    return {"commwatch_pair_bandwidth_bytes_per_second": ways, expected: dict.fromkeys(ways, 1e10)}


def parts(numbers: Numbers, first: int, second: int) -> frozenset[str]:
    """Those on the way of a pair that is slow."""
    [match] = seen_by("pair_slow", facts_of(merged(numbers, matrix((first, second)))))
    return match.component.parts


def are_near(numbers: Numbers, first: int, second: int) -> bool:
    """Whether a pair is compared with those that have to go through the CPU."""
    return codes_by("pair_nearer_slower", facts_of(merged(numbers, matrix((first, second))))) != []


def direct_links(ends: dict[tuple[str, str], str]) -> Numbers:
    rows: dict[tuple[str, ...], float] = {
        (str(CARDS.index(gpu)), gpu, link, "3.0", "gpu" if far else "", far, "0"): 1.0
        for (gpu, link), far in ends.items()
    }
    expected: dict[tuple[str, ...], float] = {(str(CARDS.index(gpu)), gpu, link): 1.0 for gpu, link in ends}
    return {"commwatch_nvlink_info": rows, "commwatch_nvlink_link_expected": expected}


BRIDGED = merged(four_cards(), direct_links(
    {(CARDS[0], "0"): CARDS[1], (CARDS[0], "1"): CARDS[2], (CARDS[1], "4"): CARDS[0], (CARDS[2], "2"): CARDS[0]}
))  # fmt: skip
ONE_END = merged(four_cards(), direct_links({(CARDS[0], "0"): CARDS[1]}))
UNKNOWN = merged(four_cards(), direct_links({(CARDS[0], "0"): "", (CARDS[1], "4"): ""}))
PCIE_0_1 = {f"{part}/pcie" for part in (CARDS[0], CARDS[1], "0000:22:00.0", "0000:22:01.0", SWITCHES[0])}
PCIE_0_2 = {f"{part}/pcie" for part in (
    CARDS[0], "0000:22:00.0", SWITCHES[0], "0000:20:01.0", CARDS[2], "0000:62:00.0", SWITCHES[1], "0000:60:01.0"
)}  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "pair", "expected"),
    [
        pytest.param(four_cards(), (0, 1), PCIE_0_1, id="under one switch, without the root port above"),
        pytest.param(four_cards(), (0, 2), PCIE_0_2, id="across the CPU, all above both but the host bridges"),
        pytest.param(identities(CARDS), (0, 1), {f"{one}/pcie" for one in CARDS[:2]}, id="bridges that are not known"),
        pytest.param(
            four_on_nvswitch(), (0, 3), {f"{part}/nvlink" for part in (HGX[0], HGX[3], NVSWITCH)}, id="on NVSwitches"
        ),
        pytest.param(
            BRIDGED, (0, 1), {f"{CARDS[0]}/nvlink/0", f"{CARDS[1]}/nvlink/4"}, id="the links between the two alone"
        ),
        pytest.param(ONE_END, (0, 1), {f"{CARDS[0]}/nvlink/0", f"{CARDS[1]}/nvlink"}, id="one end knows the link"),
        pytest.param(ONE_END, (1, 0), {f"{CARDS[0]}/nvlink/0", f"{CARDS[1]}/nvlink"}, id="the other way round"),
        pytest.param(UNKNOWN, (0, 2), PCIE_0_2 | {f"{CARDS[0]}/nvlink/0"}, id="a link may lead anywhere"),
    ],
)  # fmt: skip
def test_a_pair_uses_the_parts_on_its_way(numbers: Numbers, pair: tuple[int, int], expected: set[str]) -> None:
    """Over NVLink no PCIe, and over PCIe no link that is known to lead elsewhere."""
    assert parts(numbers, *pair) == expected


def test_a_pair_without_a_bridge_goes_over_pcie() -> None:
    """Links to a third GPU are not on its way."""
    assert all("nvlink" not in part for part in parts(BRIDGED, 1, 3))


@pytest.mark.parametrize(
    ("parents", "near"),
    [
        pytest.param({CARDS[0]: "down", CARDS[1]: "down", "down": "up", "up": "pci0000:20"}, True, id="a switch"),
        pytest.param({CARDS[0]: "root", CARDS[1]: "root", "root": "pci0000:20"}, False, id="a root port, of the CPU"),
        pytest.param({CARDS[0]: "one", "one": "two", "two": "one", CARDS[1]: "one"}, True, id="a circle, which ends"),
    ],
)  # fmt: skip
def test_near_pairs_share_a_switch(parents: dict[str, str], near: bool) -> None:
    """The others go through the CPU. Bridges in a circle, which no PCI tree has, do no harm."""
    far = {CARDS[2]: "pci0000:60", CARDS[3]: "pci0000:60"}

    assert are_near(merged(identities(CARDS), bridges({**parents, **far})), 0, 1) == near


def test_all_gpus_use_what_every_pair_uses() -> None:
    """Where all are slow, it is a finding of the node with all parts of the traffic among GPUs."""
    [found] = seen_by("pairs_all_slow", facts_of(merged(four_cards(), matrix(*permutations(range(4), 2)))))

    assert {"peers", *(f"{card}/pcie" for card in (*CARDS, *SWITCHES))} <= found.component.parts

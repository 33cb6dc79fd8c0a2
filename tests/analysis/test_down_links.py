"""Links that are down: which of them are one fault, as the rule for them says it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations
from typing import TypeAlias

from commwatch.findings.finding import Match
from support.facts import Numbers, facts_of, seen_by
from support.passes import in_one_pass

Link: TypeAlias = tuple[str, str]
"""PCI address of the GPU, and number of the link."""
Ends: TypeAlias = Mapping[Link, tuple[str, str, str]]
"""Where links lead: kind, address, and number there."""

GPUS = tuple(f"0000:{number:02x}:00.0" for number in range(4))
SWITCHES = ("0000:a0:00.0", "0000:a1:00.0")
EXPECTED = [(gpu, str(link)) for gpu in GPUS for link in range(4)]
FABRIC = {(gpu, link): ("switch", SWITCHES[int(link) % 2], "") for gpu, link in EXPECTED}
UNKNOWN: Ends = {}


def links(*numbers: int, gpus: tuple[str, ...] = GPUS) -> list[Link]:
    return [(gpu, str(number)) for gpu in gpus for number in numbers]


def faults(expected: Collection[Link], down: Collection[Link], ends: Ends) -> list[Match]:
    """The findings of the rule about links that should be up and links that are down."""
    gpus = sorted({gpu for gpu, _ in [*expected, *down]})
    index = {gpu: str(number) for number, gpu in enumerate(gpus)}
    numbers: Numbers = {
        "commwatch_nvlink_link_expected": {(index[gpu], gpu, link): 1.0 for gpu, link in expected},
        "commwatch_nvlink_link_state": {(index[gpu], gpu, link): 0.0 if (gpu, link) in down else 1.0
                                        for gpu, link in [*expected, *down]},
        "commwatch_nvlink_info": {(index[gpu], gpu, link, "4.0", *end): 1.0 for (gpu, link), end in ends.items()},
    }  # fmt: skip
    return seen_by("nvlink_down", facts_of(numbers))


def told(found: list[Match]) -> list[str]:
    """Component of each, with how many links and which."""
    return [f"{one.component.identity}: {one.detail}" for one in found]


def of_link(gpu: int, number: int, far: tuple[int, int] | None = None) -> str:
    other = f"; its other end is link {far[1]} of {GPUS[far[0]]}" if far is not None else ""
    return f"nvlink/{GPUS[gpu]}/{number}: the link is inactive{other}"


ONE, OTHER = GPUS[:1], GPUS[1:2]
CASES: Mapping[str, tuple[list[Link], Ends, list[str]]] = {
    "a link": (links(2, gpus=ONE), FABRIC, [of_link(0, 2)]),
    "half of the links of a GPU": (links(0, 1, gpus=ONE), FABRIC, [of_link(0, 0), of_link(0, 1)]),
    "most of the links of a GPU": (
        links(0, 1, 2, gpus=ONE), FABRIC, [f"gpu/{GPUS[0]}: 3 of 4 links are inactive: 0, 1, 2"]),
    "all links of a GPU, and one of another": (
        links(0, 1, 2, 3, gpus=ONE) + links(2, gpus=OTHER), FABRIC,
        [f"gpu/{GPUS[0]}: 4 of 4 links are inactive: 0, 1, 2, 3", of_link(1, 2)]),
    "one number on all GPUs": (links(1), FABRIC, [f"nvswitch/{SWITCHES[1]}: link 1 of all GPUs: inactive"]),
    "all numbers of an NVSwitch": (links(1, 3), FABRIC, [f"nvswitch/{SWITCHES[1]}: links 1, 3 of all GPUs: inactive"]),
    "one number on all GPUs but one": (links(1, gpus=GPUS[:3]), FABRIC, [of_link(gpu, 1) for gpu in range(3)]),
    "an NVSwitch that is not known": (links(1), UNKNOWN, ["node: link 1 of all GPUs: inactive"]),
    "a GPU and an NVSwitch": (
        links(1) + links(0, 2, 3, gpus=ONE), FABRIC,
        [f"nvswitch/{SWITCHES[1]}: link 1 of all GPUs: inactive",
         f"gpu/{GPUS[0]}: 3 of 4 links are inactive: 0, 2, 3"]),
    "all links of all GPUs": (links(0, 1, 2, 3), FABRIC, ["node: links 0, 1, 2, 3 of all GPUs: inactive"]),
    "nothing": ([], FABRIC, []),
    "what is not expected": ([(GPUS[0], "9")], FABRIC, []),
}  # fmt: skip


@in_one_pass("name", CASES)
def test_links_that_are_down_make_one_fault_of_one_part(name: str) -> None:
    """Of the link, its GPU, the NVSwitch or the node."""
    down, ends, expected = CASES[name]

    assert told(faults(EXPECTED, down, ends)) == expected


PAIRED = [(GPUS[0], "0"), (GPUS[0], "1"), (GPUS[1], "0"), (GPUS[2], "0")]
ENDS = {
    (GPUS[0], "0"): ("gpu", GPUS[1], "0"), (GPUS[1], "0"): ("gpu", GPUS[0], "0"),
    (GPUS[0], "1"): ("gpu", GPUS[2], "0"), (GPUS[2], "0"): ("gpu", GPUS[0], "1"),
}  # fmt: skip


@in_one_pass(
    "expected, down, words",
    [
        (PAIRED, [(GPUS[0], "0"), (GPUS[1], "0")], [of_link(0, 0, (1, 0))]),
        (PAIRED, PAIRED, ["node: links 0, 1 of all GPUs: inactive"]),
        ([*PAIRED, (GPUS[1], "5")], PAIRED, [f"gpu/{GPUS[0]}: 2 of 2 links are inactive: 0, 1"]),
    ],
)
def test_both_ends_of_a_link_between_two_gpus_are_one_link(
    expected: list[Link], down: list[Link], words: list[str]
) -> None:
    """Also the ends that other GPUs have of the links of a GPU that has lost most of its own."""
    assert told(faults(expected, down, ENDS)) == words


def board(each: Mapping[tuple[int, int], int]) -> list[tuple[Link, Link]]:
    """The links between GPUs by their ends, numbered in order: the same number between each two."""
    numbers = dict.fromkeys(GPUS, 0)
    found = []
    for (one, two), count in each.items():
        for _ in range(count):
            ends = [(gpu, str(numbers[gpu])) for gpu in (GPUS[one], GPUS[two])]
            found.append((ends[0], ends[1]))
            for gpu, _ in ends:
                numbers[gpu] += 1
    return found


ALIKE = dict.fromkeys(combinations(range(4), 2), 2)
"""Links between each two of four GPUs."""
TO_LAST = (4, 5, 8, 9, 10, 11)
"""Places of those to the last of them."""


@in_one_pass(
    "each, unread, gone, words",
    [
        (ALIKE, [1], (), [of_link(0, 1, (1, 1))]),
        (ALIKE, [1, 11], (), [of_link(0, 1, (1, 1)), of_link(2, 5, (3, 5))]),
        # two links of one GPU, both links of a pair
        (ALIKE, [1, 3], (), [of_link(0, 1), of_link(0, 3), of_link(1, 1), of_link(2, 1)]),
        (ALIKE, [0, 1], (), [of_link(gpu, number) for gpu in range(2) for number in range(2)]),
        # a board of which a GPU was never here: each other lacks its links to it
        (ALIKE, [1], (3,), ["node: links 4, 5 of all GPUs: inactive", of_link(0, 1), of_link(1, 1)]),
        # a GPU of which no link was ever up, and two, which take the links of the others to them along
        (ALIKE, TO_LAST, (), [f"gpu/{GPUS[3]}: 6 of 6 links are inactive: 0, 1, 2, 3, 4, 5"]),
        (ALIKE, range(2, 12), (), [f"gpu/{GPUS[gpu]}: 6 of 6 links are inactive: 0, 1, 2, 3, 4, 5" for gpu in (2, 3)]),
        # numbers of links that differ, two GPUs alone, a ring without one of its GPUs
        ({**ALIKE, (0, 1): 3}, [1], (), [of_link(0, 1), of_link(1, 1)]),
        ({(0, 1): 4}, [1], (), [of_link(0, 1), of_link(1, 1)]),
        ({(0, 2): 1, (0, 3): 1, (1, 2): 1, (1, 3): 1}, [], (2,), [of_link(0, 0), of_link(1, 0)]),
    ],
)  # fmt: skip
def test_both_ends_of_a_link_that_was_never_up_are_one_where_the_board_proves_it(
    each: Mapping[tuple[int, int], int], unread: Collection[int], gone: tuple[int, ...], words: list[str]
) -> None:
    """The driver does not say where it leads; the other links of the two GPUs show that one lacks between them."""
    pairs = board(each)
    absent = {GPUS[place] for place in gone}
    never_up = [pair for place, pair in enumerate(pairs) if place in unread or absent & {pair[0][0], pair[1][0]}]
    ends: dict[Link, tuple[str, str, str]] = {}
    for near, far in [pair for pair in pairs if pair not in never_up]:
        ends |= {near: ("gpu", *far), far: ("gpu", *near)}
    here = [end for pair in pairs for end in pair if end[0] not in absent]
    down = [end for pair in never_up for end in pair if end[0] not in absent]

    assert told(faults(here, down, ends)) == words


def test_the_links_of_a_gpu_are_its_own_first() -> None:
    """Though the far ends belong to a GPU with a lower address."""
    ends = {
        (GPUS[2], link): ("gpu", GPUS[0], link) for link in "01"
    } | {(GPUS[0], link): ("gpu", GPUS[2], link) for link in "01"}  # fmt: skip
    expected = [*ends, (GPUS[0], "5"), (GPUS[0], "6"), (GPUS[0], "7"), (GPUS[1], "5")]

    assert told(faults(expected, list(ends), ends)) == [f"gpu/{GPUS[2]}: 2 of 2 links are inactive: 0, 1"]


def test_two_gpus_share_links_and_no_nvswitch() -> None:
    """One number on both is two faults, as long as nothing says that it is one."""
    two = GPUS[:2]

    assert told(faults(links(0, 1, 2, gpus=two), links(1, gpus=two), UNKNOWN)) == [of_link(0, 1), of_link(1, 1)]


def test_one_number_of_links_between_gpus_is_no_nvswitch() -> None:
    """Though it is down on all GPUs."""
    ring = [(gpu, link) for gpu in GPUS[:3] for link in ("0", "1", "2", "3")]
    ends = {(GPUS[0], "0"): ("gpu", GPUS[1], "0"), (GPUS[1], "0"): ("gpu", GPUS[0], "0")}

    assert told(faults(ring, links(0, gpus=GPUS[:3]), ends)) == [of_link(0, 0, (1, 0)), of_link(2, 0)]


def test_the_switch_of_a_link_is_named() -> None:
    """So that what the switch says of it is known as the same."""
    [fault] = faults(EXPECTED, links(2, gpus=ONE), FABRIC)

    assert SWITCHES[0] in fault.component.parts


def test_links_of_a_gpu_that_is_gone_are_its_own_by_what_its_peers_say() -> None:
    """It reads none of its links; each of three peers has lost a third of its own."""
    names = [f"0000:{number:02x}:00.0" for number in range(10, 14)]
    ends: dict[Link, tuple[str, str, str]] = {}
    for number, pair in enumerate(combinations(names, 2)):
        for lane in range(4):
            first, second = (pair[0], f"{number}{lane}"), (pair[1], f"{number}{lane}")
            ends[first], ends[second] = ("gpu", *second), ("gpu", *first)
    down = [link for link, far in ends.items() if far[1] == names[0]]

    found = faults(ends.keys(), down, ends)

    assert told(found) == [f"gpu/{names[0]}: 12 links of other GPUs that lead to it are inactive"]
    assert found[0].component.parts == {names[0], *(f"{gpu}/nvlink/{number}" for gpu, number in down)}

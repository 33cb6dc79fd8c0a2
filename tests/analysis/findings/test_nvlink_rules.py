"""NVLink: links that are down, dark, reduced, or that carry less than those beside them."""

from __future__ import annotations

import pytest

from commwatch.findings.codes import CODES
from support.facts import Numbers, facts_of, is_judged, seen_by
from support.passes import in_one_pass

GPU0 = ("0", "0000:17:00.0")
LINKS = [(*GPU0, f"{link}") for link in range(4)]
STATE = "commwatch_nvlink_link_state"
EXPECTED = "commwatch_nvlink_link_expected"
CAPACITY = 4 * 25e9
"""Bytes per second of the four links together."""


def links(*states: int, expected: int = 4) -> Numbers:
    """The first links of a GPU, of which so many are expected."""
    return {
        STATE: dict(zip(LINKS, map(float, states), strict=False)),
        EXPECTED: dict.fromkeys(LINKS[:expected], 1.0),
    }


@pytest.mark.parametrize(("state", "words"), [(0, "inactive"), (3, "active with traffic disabled")])
def test_an_expected_link_without_traffic_is_down(state: int, words: str) -> None:
    """Inactive, or with its traffic disabled."""
    [match] = seen_by("nvlink_down", facts_of(links(1, state, 1, 1)))

    assert (match.code, match.component.identity) == ("nvlink_down", "nvlink/0000:17:00.0/1")
    assert words in match.detail


def test_a_link_that_sleeps_or_was_not_learned_is_not_down() -> None:
    """Sleep is normal in idle; what was never there cannot be lost."""
    assert seen_by("nvlink_down", facts_of(links(2, 1, 1, 1))) == []
    assert seen_by("nvlink_down", facts_of(links(0, 0, 0, 0, expected=0))) == []
    assert seen_by("nvlink_down", facts_of({EXPECTED: {LINKS[0]: 1}})) == []


def test_links_that_are_down_are_one_finding_of_the_part_that_they_make_up() -> None:
    """Most links of a GPU are the GPU; one number on all GPUs is the NVSwitch, or the node where none is known."""
    gpus = [(f"{number}", f"0000:{number:x}7:00.0") for number in range(3)]
    info = {
        (*gpu, f"{link}", "4.0", "switch", f"0000:a{link}:00.0", "0"): 1.0 for gpu in gpus for link in range(4)
    }  # fmt: skip

    def found(down_ones: set[tuple[int, int]], known: bool = True) -> list[tuple[str, str]]:
        states = {
            (*gpu, f"{link}"): float((place, link) not in down_ones)
            for place, gpu in enumerate(gpus) for link in range(4)
        }  # fmt: skip
        numbers: Numbers = {
            STATE: states,
            EXPECTED: dict.fromkeys(states, 1.0),
            "commwatch_nvlink_info": info if known else {},
        }
        return [(one.component.identity, one.detail) for one in seen_by("nvlink_down", facts_of(numbers))]

    number = {(place, 2) for place in range(3)}
    assert found({(1, 0), (1, 1), (1, 3)}) == [("gpu/0000:17:00.0", "3 of 4 links are inactive: 0, 1, 3")]
    assert found(number) == [("nvswitch/0000:a2:00.0", "link 2 of all GPUs: inactive")]
    assert found(number, known=False) == [("node", "link 2 of all GPUs: inactive")]
    assert found({(place, link) for place in range(3) for link in range(4)}) == [
        ("node", "links 0, 1, 2, 3 of all GPUs: inactive")
    ]


@in_one_pass(
    "numbers, dark",
    [
        (links(0, 0, 0, 0, expected=0), 4),
        (links(0, 1, 0, 1, expected=0), 2),
        (links(0, 0, 0, 0, expected=2), 2),
        (links(0, 0, 0, 0), None),  # they were up, or the board has them: they are down
        (links(1, 2, 3, 1, expected=0), None),
        ({EXPECTED: {LINKS[0]: 1.0}}, None),
        ({**links(0, 1, 1, 1), "commwatch_expected": {("nvlink",): 4.0}}, None),
        ({**links(0, 1, 1, 1, expected=0), "commwatch_expected": {("nvlink",): 4.0}}, None),  # which ones is not read
    ],
)
def test_links_that_were_never_seen_up_are_told_once_for_each_gpu(numbers: Numbers, dark: int | None) -> None:
    """As without a bridge; nobody is paged."""
    found = seen_by("nvlink_never_up", facts_of(numbers))

    assert [(one.component.identity, one.evidence[0].value) for one in found] == (
        [] if dark is None else [("gpu/0000:17:00.0", dark)]
    )
    assert CODES["nvlink_never_up"].severity == "info"


def test_a_reduced_bandwidth_mode_is_told_in_words() -> None:
    """0 is full."""
    mode = "commwatch_nvlink_bandwidth_mode"

    assert [one.detail for one in seen_by("nvlink_reduced", facts_of({mode: {GPU0: 3}}))] == ["half"]
    assert seen_by("nvlink_reduced", facts_of({mode: {GPU0: 0}})) == []
    assert seen_by("nvlink_reduced", facts_of({})) == []


def test_chip_to_chip_links_that_are_not_up_are_told() -> None:
    """All of one GPU together."""
    dark: Numbers = {"commwatch_c2c_link_up": {(*GPU0, "0"): 0, (*GPU0, "1"): 1, (*GPU0, "2"): 0}}

    [match] = seen_by("c2c_down", facts_of(dark))
    assert match.evidence[0].value == "0, 2"
    assert seen_by("c2c_down", facts_of({"commwatch_c2c_link_up": {(*GPU0, "0"): 1}})) == []


def shares(slowest: float, siblings: float, direction: str = "transmit") -> Numbers:
    """What link 1 and its siblings carried in the last minute, in parts of their capacity."""
    place = (*GPU0, direction)
    return {
        **links(1, 1, 1, 1),
        "commwatch_nvlink_capacity_bytes_per_second": {GPU0: CAPACITY},
        "commwatch_nvlink_slowest_link": {place: 1},
        "commwatch_nvlink_slowest_link_bytes_per_second": {place: slowest * 25e9},
        "commwatch_nvlink_sibling_bytes_per_second": {place: siblings * 25e9},
    }


@pytest.mark.parametrize(("direction", "word"), [("transmit", "sent"), ("receive", "received")])
def test_a_link_below_its_siblings_is_found(direction: str, word: str) -> None:
    """Just below 60 % of their median is, 60 % is not."""
    [match] = seen_by("nvlink_below_siblings", facts_of(shares(0.299, 0.5, direction)))

    assert (match.code, match.component.identity) == ("nvlink_below_siblings", "gpu/0000:17:00.0")
    assert match.evidence[0].what == f"{word} over link 1 in the last minute"
    assert seen_by("nvlink_below_siblings", facts_of(shares(0.301, 0.5, direction))) == []


def test_siblings_that_are_hardly_used_say_nothing() -> None:
    """Their median must be above 10 % of what they can carry."""
    assert len(seen_by("nvlink_below_siblings", facts_of(shares(0.0, 0.101)))) == 1
    assert seen_by("nvlink_below_siblings", facts_of(shares(0.0, 0.099))) == []


@in_one_pass(
    "missing",
    [
        "commwatch_nvlink_capacity_bytes_per_second",
        "commwatch_nvlink_link_expected",
        "commwatch_nvlink_slowest_link_bytes_per_second",
        "commwatch_nvlink_sibling_bytes_per_second",
    ],
)
def test_without_what_it_takes_to_compare_nothing_is_said(missing: str) -> None:
    """What the links can carry, and what they do carry."""
    partly = {metric: series for metric, series in shares(0.1, 0.5).items() if metric != missing}

    assert seen_by("nvlink_below_siblings", facts_of(partly)) == []


def test_an_idle_node_does_not_say_that_the_link_is_well_again() -> None:
    """The finding stays until a job uses the siblings."""
    [match] = seen_by("nvlink_below_siblings", facts_of(shares(0.1, 0.5)))

    assert not is_judged(match, facts_of(shares(0.0, 0.0)))
    assert not is_judged(match, facts_of({}))
    assert is_judged(match, facts_of(shares(0.5, 0.5)))

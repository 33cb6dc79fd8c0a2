"""PCIe links: lanes that were lost, links that stay slow under load, adapters and switches, and what a slot lacks."""

from __future__ import annotations

import pytest

from commwatch.findings.codes import CODES
from support.facts import Numbers, codes_by, facts_of, is_judged, seen_by
from support.passes import in_one_pass

ADDRESS = "0000:17:00.0"
GPU0 = ("0", ADDRESS)
IDENTITY = f"pcie_link/{ADDRESS}"
LANES = "commwatch_pcie_link_width_lanes"
EXPECTED = "commwatch_pcie_link_width_expected_lanes"
DEGRADED = "commwatch_pcie_link_degraded"
DEVICE_DEGRADED = "commwatch_pcie_device_link_degraded"
INFO: Numbers = {"commwatch_gpu_info": {(*GPU0, "GPU-1", "", "H100", "Hopper"): 1.0}}


@in_one_pass("lanes, codes", [(16, []), (15, ["pcie_width_dropped"]), (8, ["pcie_width_dropped"])])
def test_lanes_that_were_stable_and_are_lost_page(lanes: int, codes: list[str]) -> None:
    """One lane is enough."""
    found = seen_by("pcie_width_dropped", facts_of({LANES: {GPU0: lanes}, EXPECTED: {GPU0: 16}}))

    assert [one.code for one in found] == codes
    assert all((one.component.identity, one.evidence[0].threshold) == (IDENTITY, 16) for one in found)


def test_lanes_that_were_not_learned_or_not_read_are_not_lost() -> None:
    """Only what was there can be lost."""
    assert seen_by("pcie_width_dropped", facts_of({LANES: {GPU0: 8}})) == []
    assert seen_by("pcie_width_dropped", facts_of({EXPECTED: {GPU0: 16}})) == []


def test_a_link_that_stays_slow_under_load_is_found() -> None:
    """The evidence has the generations; the width is another finding."""
    numbers: Numbers = {
        DEGRADED: {(*GPU0, "generation"): 1, (*GPU0, "width"): 1},
        "commwatch_pcie_link_generation": {GPU0: 3},
        "commwatch_pcie_link_generation_max": {GPU0: 5},
    }

    [match] = seen_by("pcie_generation_low", facts_of(numbers))
    assert (match.code, match.component.identity) == ("pcie_generation_low", IDENTITY)
    assert (match.evidence[0].value, match.evidence[0].threshold) == (3, 5)
    assert seen_by("pcie_generation_low", facts_of({DEGRADED: {(*GPU0, "generation"): 0}})) == []


def test_an_idle_gpu_says_nothing_of_its_speed() -> None:
    """Neither that the link is slow nor that it is well again."""
    [match] = seen_by("pcie_generation_low", facts_of({DEGRADED: {(*GPU0, "generation"): 1}}))
    idle = facts_of({DEGRADED: {(*GPU0, "width"): 0}})

    assert seen_by("pcie_generation_low", idle) == []
    assert not is_judged(match, idle)
    assert is_judged(match, facts_of({DEGRADED: {(*GPU0, "generation"): 0}}))


@pytest.mark.parametrize(
    ("aspect", "code", "metric"),
    [
        ("width", "pcie_device_narrow", "commwatch_pcie_device_link_width_lanes"),
        ("generation", "pcie_device_slow", "commwatch_pcie_device_link_generation"),
    ],
)
def test_links_of_adapters_are_found_by_aspect(aspect: str, code: str, metric: str) -> None:
    """With what the link has now, where that is read."""
    bad: Numbers = {DEVICE_DEGRADED: {("0000:1a:00.0", "nic", aspect): 1}}

    assert codes_by("pcie_device_narrow", facts_of(bad)) == [(code, "pcie_link/0000:1a:00.0")]
    [match] = seen_by("pcie_device_narrow", facts_of({**bad, metric: {("0000:1a:00.0",): 4}}))
    assert match.evidence[0].value == 4
    assert seen_by("pcie_device_narrow", facts_of({DEVICE_DEGRADED: {("0000:1a:00.0", "nic", aspect): 0}})) == []


def test_a_link_above_a_switch_touches_all_that_stands_below() -> None:
    """A slow probe of a GPU below it can have its cause there."""
    tree = [("0000:15:00.0", "switch_port", "0000:14:00.0"), ("0000:16:00.0", "switch_port", "0000:15:00.0"),
            (ADDRESS, "gpu", "0000:16:00.0"), ("0000:99:00.0", "gpu", "0000:98:00.0")]  # fmt: skip
    infos = {(device, role, parent, "0", "0x10de", "0x2330"): 1.0 for device, role, parent in tree}
    bad = {DEVICE_DEGRADED: {("0000:15:00.0", "switch_port", "width"): 1.0}}

    [match] = seen_by("pcie_device_narrow", facts_of({**bad, "commwatch_pcie_device_info": infos}))
    assert match.component.parts == {"0000:15:00.0", "0000:16:00.0", ADDRESS}


def slot(lanes: float, own_lanes: float, generation: float, own_generation: float) -> Numbers:
    return {
        **INFO,
        LANES: {GPU0: lanes},
        "commwatch_pcie_device_link_width_max_lanes": {(ADDRESS,): own_lanes},
        "commwatch_pcie_link_generation_max": {GPU0: generation},
        "commwatch_pcie_gpu_link_generation_max": {GPU0: own_generation},
    }


def test_a_slot_that_gives_less_than_the_gpu_can_use_is_information() -> None:
    """By lanes, by generation, or both; nobody is woken."""
    assert CODES["pcie_below_maximum"].severity == "info"
    assert seen_by("pcie_below_maximum", facts_of(slot(16, 16, 5, 5))) == []
    for numbers, what in ((slot(8, 16, 5, 5), ["lanes"]), (slot(16, 16, 4, 5), ["generation"])):
        [match] = seen_by("pcie_below_maximum", facts_of(numbers))
        assert [one.what for one in match.evidence] == what
    assert seen_by("pcie_below_maximum", facts_of(INFO)) == []


def test_a_gpu_of_a_newer_generation_than_its_host_is_no_remark() -> None:
    """A B200 at generation 5 is as every host runs it; at 4, or beside an equal one at 6, it is not."""
    assert seen_by("pcie_below_maximum", facts_of(slot(16, 16, 5, 6))) == []
    assert len(seen_by("pcie_below_maximum", facts_of(slot(16, 16, 4, 6)))) == 1

    name = next(iter(INFO["commwatch_gpu_info"]))
    equal = ("1", "0000:18:00.0")
    numbers = slot(16, 16, 5, 6)
    beside: Numbers = {
        **numbers,
        "commwatch_gpu_info": {**INFO["commwatch_gpu_info"], (*equal, *name[2:]): 1.0},
        "commwatch_pcie_link_generation_max": {GPU0: 5, equal: 6},
        "commwatch_pcie_gpu_link_generation_max": {GPU0: 6, equal: 6},
    }
    assert codes_by("pcie_below_maximum", facts_of(beside)) == [("pcie_below_maximum", f"pcie_link/{ADDRESS}")]


def test_a_link_that_has_always_been_narrower_than_both_ends_is_information() -> None:
    """What was learned counts: lanes lost since then are a fault of their own."""
    both: Numbers = {**INFO, "commwatch_pcie_link_width_max_lanes": {GPU0: 16}}

    assert len(seen_by("pcie_below_maximum", facts_of({**both, LANES: {GPU0: 8}, EXPECTED: {GPU0: 8}}))) == 1
    assert seen_by("pcie_below_maximum", facts_of({**both, LANES: {GPU0: 8}, EXPECTED: {GPU0: 16}})) == []

"""The parts that traffic between GPUs uses, as the page has them."""

from __future__ import annotations

from commwatch.findings.rules.gpu_ways import GpuWays, ways_of
from support.facts import Numbers, facts_of
from support.machines import CARDS, HGX, NVSWITCH, SWITCHES, bridges, four_cards, four_on_nvswitch, gpus, merged


def ways(numbers: Numbers) -> GpuWays:
    return ways_of(facts_of(numbers))


def direct_links(ends: dict[tuple[str, str], str]) -> Numbers:
    rows: dict[tuple[str, ...], float] = {
        (str(CARDS.index(gpu)), gpu, link, "3.0", "gpu" if far else "", far, "0"): 1.0
        for (gpu, link), far in ends.items()
    }
    expected: dict[tuple[str, ...], float] = {(str(CARDS.index(gpu)), gpu, link): 1.0 for gpu, link in ends}
    return {"commwatch_nvlink_info": rows, "commwatch_nvlink_link_expected": expected}


def test_a_pair_under_one_switch_uses_what_is_below_and_the_switch() -> None:
    """The root port above is not on its way."""
    found = ways(four_cards())

    assert found.share_switch(CARDS[0], CARDS[1])
    assert not found.meet_at_cpu(CARDS[0], CARDS[1])
    assert found.pair(CARDS[0], CARDS[1]) == {
        f"{part}/pcie" for part in (CARDS[0], CARDS[1], "0000:22:00.0", "0000:22:01.0", SWITCHES[0])
    }


def test_a_pair_across_the_cpu_uses_all_above_both() -> None:
    """Both switches and root ports are on its way, the host bridges are no parts."""
    found = ways(four_cards())

    assert found.meet_at_cpu(CARDS[0], CARDS[2])
    assert not found.share_switch(CARDS[0], CARDS[2])
    assert found.pair(CARDS[0], CARDS[2]) == {
        f"{part}/pcie"
        for part in (CARDS[0], "0000:22:00.0", SWITCHES[0], "0000:20:01.0",
                     CARDS[2], "0000:62:00.0", SWITCHES[1], "0000:60:01.0")
    }  # fmt: skip


def test_cards_at_one_root_port_share_no_switch() -> None:
    """A root port is part of the CPU."""
    found = ways(merged(gpus(CARDS), bridges({CARDS[0]: "root", CARDS[1]: "root", "root": "pci0000:20"})))

    assert not found.share_switch(CARDS[0], CARDS[1])
    assert found.meet_at_cpu(CARDS[0], CARDS[1])


def test_nothing_is_said_of_bridges_that_are_not_known() -> None:
    """Without the PCI tree two cards neither share a switch nor meet at the CPU."""
    found = ways(gpus(CARDS))

    assert not found.share_switch(CARDS[0], CARDS[1])
    assert not found.meet_at_cpu(CARDS[0], CARDS[1])
    assert found.pair(CARDS[0], CARDS[1]) == {f"{CARDS[0]}/pcie", f"{CARDS[1]}/pcie"}


def test_a_pair_on_nvswitches_uses_links_and_switches_and_no_pcie() -> None:
    """A narrowed PCIe link does not slow traffic that goes over NVLink."""
    assert ways(four_on_nvswitch()).pair(HGX[0], HGX[3]) == {
        f"{HGX[0]}/nvlink", f"{HGX[3]}/nvlink", f"{NVSWITCH}/nvlink"
    }  # fmt: skip


def test_a_bridged_pair_uses_the_links_between_the_two() -> None:
    """Links to a third GPU are not on its way; pairs without a bridge go over PCIe."""
    ends = {(CARDS[0], "0"): CARDS[1], (CARDS[0], "1"): CARDS[2], (CARDS[1], "4"): CARDS[0], (CARDS[2], "2"): CARDS[0]}
    found = ways(merged(four_cards(), direct_links(ends)))

    assert found.pair(CARDS[0], CARDS[1]) == {f"{CARDS[0]}/nvlink/0", f"{CARDS[1]}/nvlink/4"}
    assert all("nvlink" not in part for part in found.pair(CARDS[1], CARDS[3]))


def test_one_end_is_enough_to_know_a_link() -> None:
    """Whichever of the two it is."""
    found = ways(merged(four_cards(), direct_links({(CARDS[0], "0"): CARDS[1]})))

    assert found.pair(CARDS[0], CARDS[1]) == found.pair(CARDS[1], CARDS[0])
    assert f"{CARDS[0]}/nvlink/0" in found.pair(CARDS[1], CARDS[0])


def test_a_link_whose_far_end_is_not_known_may_lead_anywhere() -> None:
    """The driver does not say what an inactive link leads to, and that is the one to blame."""
    ends = {(CARDS[0], "0"): "", (CARDS[1], "4"): ""}
    found = ways(merged(four_cards(), direct_links(ends)))

    assert {f"{CARDS[0]}/nvlink/0", f"{CARDS[0]}/pcie"} <= found.pair(CARDS[0], CARDS[2])


def test_all_gpus_use_what_every_pair_uses() -> None:
    """A node without GPUs is the whole node; a single GPU talks to the host."""
    assert ways({}).all() == frozenset()
    assert {f"{card}/pcie" for card in (*CARDS, *SWITCHES)} <= ways(four_cards()).all()
    assert ways(gpus(CARDS[:1])).all() == {f"{CARDS[0]}/pcie"}


def test_bridges_in_a_circle_end() -> None:
    """What cannot be in a PCI tree does no harm."""
    assert ways(bridges({"a": "b", "b": "a"})).above("a") == ("b", "a")

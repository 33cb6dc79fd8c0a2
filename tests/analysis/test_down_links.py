"""Links that are down: which of them are one fault."""

from __future__ import annotations

from commwatch.node.down_links import DownLinks, FarEnds, Link, grouped
from support.passes import in_one_pass

GPUS = tuple(f"0000:{number:02x}:00.0" for number in range(4))
SWITCHES = ("0000:a0:00.0", "0000:a1:00.0")
EXPECTED = [(gpu, str(link)) for gpu in GPUS for link in range(4)]
FABRIC = FarEnds(switches={(gpu, link): SWITCHES[int(link) % 2] for gpu, link in EXPECTED})
UNKNOWN = FarEnds()


def links(*numbers: int, gpus: tuple[str, ...] = GPUS) -> list[Link]:
    return [(gpu, str(number)) for gpu in gpus for number in numbers]


def kinds(found: list[DownLinks]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.kind, one.place, one.numbers) for one in found]


ONE, OTHER = GPUS[:1], GPUS[1:2]
CASES = {
    "a link": (links(2, gpus=ONE), FABRIC, [("link", GPUS[0], ("2",))]),
    "half of the links of a GPU": (links(0, 1, gpus=ONE), FABRIC,
                                   [("link", GPUS[0], ("0",)), ("link", GPUS[0], ("1",))]),
    "most of the links of a GPU": (links(0, 1, 2, gpus=ONE), FABRIC, [("gpu", GPUS[0], ("0", "1", "2"))]),
    "all links of a GPU, and one of another": (
        links(0, 1, 2, 3, gpus=ONE) + links(2, gpus=OTHER), FABRIC,
        [("gpu", GPUS[0], ("0", "1", "2", "3")), ("link", GPUS[1], ("2",))]),
    "one number on all GPUs": (links(1), FABRIC, [("switch", SWITCHES[1], ("1",))]),
    "all numbers of an NVSwitch": (links(1, 3), FABRIC, [("switch", SWITCHES[1], ("1", "3"))]),
    "one number on all GPUs but one": (links(1, gpus=GPUS[:3]), FABRIC,
                                       [("link", gpu, ("1",)) for gpu in GPUS[:3]]),
    "an NVSwitch that is not known": (links(1), UNKNOWN, [("switch", "", ("1",))]),
    "a GPU and an NVSwitch": (
        links(1) + links(0, 2, 3, gpus=ONE), FABRIC,
        [("switch", SWITCHES[1], ("1",)), ("gpu", GPUS[0], ("0", "2", "3"))]),
    "all links of all GPUs": (links(0, 1, 2, 3), FABRIC, [("node", "", ("0", "1", "2", "3"))]),
    "nothing": ([], FABRIC, []),
    "what is not expected": ([(GPUS[0], "9")], FABRIC, []),
}  # fmt: skip


@in_one_pass("name", CASES)
def test_links_that_are_down_make_one_fault_of_one_part(name: str) -> None:
    """Of the link, its GPU, the NVSwitch or the node."""
    down, ends, expected = CASES[name]

    assert kinds(grouped(EXPECTED, down, ends)) == expected


def test_both_ends_of_a_link_between_two_gpus_are_one_link() -> None:
    """Also the ends that other GPUs have of the links of a GPU that has lost most of its own."""
    expected = [(GPUS[0], "0"), (GPUS[0], "1"), (GPUS[1], "0"), (GPUS[2], "0")]
    ends = FarEnds(gpus={
        (GPUS[0], "0"): (GPUS[1], "0"), (GPUS[1], "0"): (GPUS[0], "0"),
        (GPUS[0], "1"): (GPUS[2], "0"), (GPUS[2], "0"): (GPUS[0], "1"),
    })  # fmt: skip

    assert kinds(grouped(expected, [(GPUS[0], "0"), (GPUS[1], "0")], ends)) == [("link", GPUS[0], ("0",))]
    assert kinds(grouped(expected, expected, ends)) == [("node", "", ("0", "1"))]
    assert kinds(grouped([*expected, (GPUS[1], "5")], expected, ends)) == [("gpu", GPUS[0], ("0", "1"))]


def test_two_gpus_share_links_and_no_nvswitch() -> None:
    """One number on both is two faults, as long as nothing says that it is one."""
    two = GPUS[:2]

    assert [one.kind for one in grouped(links(0, 1, 2, gpus=two), links(1, gpus=two), UNKNOWN)] == ["link", "link"]


def test_the_switch_of_a_link_is_named() -> None:
    """So that what the switch says of it is known as the same."""
    [fault] = grouped(EXPECTED, links(2, gpus=ONE), FABRIC)

    assert fault.switch == SWITCHES[0]


def test_links_of_a_gpu_that_is_gone_are_its_own_by_what_its_peers_say() -> None:
    """It reads none of its links; each of three peers has lost a third of its own."""
    names = ("a", "b", "c", "d")
    pairs = {frozenset({one, other}) for one in names for other in names if one != other}
    ends: dict[Link, Link] = {}
    for number, pair in enumerate(sorted(map(sorted, pairs))):
        for lane in range(4):
            first, second = (pair[0], f"{number}{lane}"), (pair[1], f"{number}{lane}")
            ends[first], ends[second] = second, first
    down = {link for link, far in ends.items() if far[0] == "a"}

    [fault] = grouped(ends.keys(), down, FarEnds({}, ends))

    assert (fault.kind, fault.place, len(fault.links)) == ("gpu", "a", 12)

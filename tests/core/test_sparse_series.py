"""Series that are there only while something is wrong: links that are down, and rises of the counters of pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, block
from support.fed_daemon import FedDaemon
from support.passes import in_one_pass

LINK = ("0", SLOTS[0], "11")
FATAL: Series = ("commwatch_pcie_aer_errors_total", (SLOTS[0], "gpu", "fatal"))
COLLECTOR_OF = {"nvlink": "nvml_nvlink_errors", "pcie_fatal": "nvml_pcie", "pcie_aer": "pci_aer"}
"""By the beginning of the metric."""
Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Gpu:
    """One whose links were up when it was read first."""

    place: int = 0
    slot: str = SLOTS[0]
    ends: Mapping[int, tuple[str, str, str] | None] = field(default_factory=lambda: {11: None})
    """Kind, address and number of the far end of each link; None where the driver did not give it."""
    uuid: str = ""

    @property
    def identity(self) -> dict[Any, Value]:
        name = self.uuid or f"GPU-{self.place}"
        read: dict[Any, Value] = {("commwatch_gpu_info", (str(self.place), self.slot, name, "1", "H100", "hopper")): 1}
        for link, end in self.ends.items():
            if end is not None:
                read["commwatch_nvlink_info", (str(self.place), self.slot, str(link), "4.0", *end)] = 1
        return read

    @property
    def links(self) -> dict[Labels, Value]:
        """All are up."""
        return {(str(self.place), self.slot, str(link)): 1 for link in self.ends}


class Node:
    """A daemon that has read some GPUs with all their links up, by default one with a link that leads nobody knows
    where."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch, *gpus: Gpu) -> None:
        self.daemon = FedDaemon(folder, patched)
        self.read(*(gpus or (Gpu(),)))

    def read(self, *gpus: Gpu) -> None:
        """The GPUs that are here, with all their links up."""
        self.daemon.feed("nvml_identity", {one.slot: one.identity for one in gpus})
        self.links({labels: state for one in gpus for labels, state in one.links.items()})
        self.daemon.observe()
        # What a link that is down leads to the driver does not say.
        self.daemon.feed("nvml_identity", {one.slot: Gpu(one.place, one.slot, {}, one.uuid).identity for one in gpus})

    def links(self, states: Mapping[Labels, Value], seconds: float = 0.0) -> None:
        """One run over the links, this number of seconds after the last one."""
        read: dict[str, dict[Any, Value]] = {}
        for labels, state in states.items():
            read.setdefault(labels[1], {})["commwatch_nvlink_link_state", labels] = state
        self.daemon.feed("nvml_nvlink", read, seconds)

    def falls(self, labels: Labels, state: int, ago: float) -> None:
        """A link went down and was up again."""
        at = self.daemon.clock.now - ago
        self.daemon.engine.pipeline.link_flaps.add("commwatch_nvlink_link_flaps_recent", labels, "state", state, at)

    def reports(self, events: Mapping[Series, Value]) -> None:
        """Recent events of the driver."""
        self.daemon.engine.store.put("hardware_events", "", block(events), float("inf"))

    def link(self, state: Value, link: Labels = LINK) -> Value:
        """The series of a link after this reading."""
        self.links({link: state})
        return self.daemon.value("nvlink_link_down", *link, "")

    def down(self) -> dict[Labels, Value]:
        """State of what is down or came back, by labels."""
        return self.daemon.series("nvlink_link_down")

    def ends(self, *addresses: str) -> list[Value]:
        return [self.daemon.value("nvlink_end_down", one) for one in addresses]

    def errors(self, seconds: float, series: Series = FATAL, total: Value = 0) -> Value:
        """The recent rise of a counter that shows this, some seconds after the last reading."""
        name = series[0].removeprefix("commwatch_")
        (collector,) = [one for begin, one in COLLECTOR_OF.items() if name.startswith(begin)]
        self.daemon.feed(collector, {SLOTS[0]: {series: total}}, seconds)
        return self.daemon.value(name.replace("_total", "_recent"), *series[1])


Begin: TypeAlias = Callable[..., Node]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Makes a node with some GPUs."""
    return lambda *gpus: Node(tmp_path, monkeypatch, *gpus)


@in_one_pass("state, told", [(0, 0), (1, None), (2, None), (3, 3), (None, None)])
def test_a_link_that_carries_no_traffic_is_down(begin: Begin, state: Value, told: Value) -> None:
    """Inactive or with its traffic disabled; not one that is up or sleeps, and not one that was not read."""
    assert begin().link(state) == told


def test_a_link_that_is_not_expected_is_not_down(begin: Begin) -> None:
    """One that never was up, such as the free slot of a bridge."""
    assert begin().link(0, ("0", SLOTS[0], "12")) is None


def test_a_link_is_down_only_as_long_as_it_is_read_so(begin: Begin) -> None:
    """It is up again, or its GPU is not read any more."""
    node = begin()
    assert [node.link(0), node.link(1), node.link(0)] == [0, None, 0]

    node.links({})
    assert node.down() == {}


GPUS = [Gpu(number, f"0000:{number:x}7:00.0", {link: ("switch", f"0000:a{link}:00.0", "0") for link in range(3)})
        for number in range(3)]  # fmt: skip
"""Three with a link to each of three NVSwitches."""
ALL_LINKS = [labels for one in GPUS for labels in one.links]


@pytest.mark.parametrize(
    ("states", "down"),
    [
        ({("1", "0000:17:00.0", "2"): 0}, ("1", "0000:17:00.0", "2", "0000:a2:00.0")),
        ({("1", "0000:17:00.0", "0"): 0, ("1", "0000:17:00.0", "2"): 3}, ("1", "0000:17:00.0", "several", "")),
        ({link: 0 for link in ALL_LINKS if link[2] == "1"}, ("all", "0000:a1:00.0", "1", "0000:a1:00.0")),
        (dict.fromkeys(ALL_LINKS, 0), ("all", "all", "several", "")),
    ],
    ids=["a link with its NVSwitch", "a GPU that has lost most of its links", "an NVSwitch", "the node"],
)
def test_links_of_one_part_are_one_series(begin: Begin, states: dict[Labels, Value], down: Labels) -> None:
    node = begin(*GPUS)
    node.links({**dict.fromkeys(ALL_LINKS, 1), **states})

    assert set(node.down()) == {down}


@pytest.mark.parametrize(
    ("down", "back", "faults"),
    [
        (["0"], ["1", "2"], {("0", ""): 0, ("several", ""): 1}),
        (["0", "1"], ["2"], {("several", ""): 0, ("2", ""): 1}),
        (["0"], ["1"], {("0", ""): 0, ("1", ""): 1}),
        ([], ["0", "1"], {("several", ""): 1}),
    ],
    ids=["one is down", "most are down", "one of each", "none is down"],
)
def test_a_link_that_is_down_is_a_fault_beside_links_that_came_back(
    begin: Begin, down: Sequence[str], back: Sequence[str], faults: Mapping[tuple[str, str], int]
) -> None:
    """Of one GPU with three links: no page says of links that are up that they are down."""
    gpu = Gpu(ends=dict.fromkeys(range(3)))
    node = begin(gpu)
    for number in back:
        node.falls(("0", SLOTS[0], number), 3, 0.0)
    node.links({one: int(one[2] not in down) for one in gpu.links}, 10.0)

    assert {labels[2:]: value for labels, value in node.down().items()} == faults


@pytest.mark.parametrize("down", [("0", SLOTS[0], "11"), ("1", "0000:c1:00.0", "7")], ids=["near end", "far end"])
def test_a_link_between_gpus_is_one_fault_whichever_end_reads_it_as_down(begin: Begin, down: Labels) -> None:
    """By its first end, as while both ends read that it came back."""
    gpus = (
        Gpu(ends={11: ("gpu", "0000:c1:00.0", "7")}),
        Gpu(1, "0000:c1:00.0", {7: ("gpu", SLOTS[0], "11")}),
    )
    node = begin(*gpus)
    node.falls(LINK, 3, 0.0)
    node.links({one: int(one != down) for gpu in gpus for one in gpu.links}, 10.0)

    assert node.down() == {(*LINK, ""): 0}


def test_both_ends_of_a_link_that_is_down_are_named(begin: Begin) -> None:
    """The GPU and its NVSwitch, while the link is down; none while all links are up.

    An earlier daemon has read where the links lead.
    """
    node = begin(*GPUS)
    node.daemon.save()
    node.daemon.restart()
    node.daemon.observe()
    node.links(dict.fromkeys(ALL_LINKS, 1))
    assert node.daemon.series("nvlink_end_down") == {}
    node.links({**dict.fromkeys(ALL_LINKS, 1), ("1", "0000:17:00.0", "2"): 0})

    assert set(node.daemon.series("nvlink_end_down")) == {("0000:17:00.0",), ("0000:a2:00.0",)}


@pytest.mark.parametrize(
    ("switches", "links", "is_named"),
    [
        pytest.param(["0000:a0:00.0"] * 3, 1, True, id="all others"),
        pytest.param(["0000:a0:00.0"] * 2, 1, False, id="too few"),
        pytest.param(["0000:a0:00.0"] * 2, 4, True, id="two that agree in several links"),
        pytest.param(["0000:a0:00.0"] * 1, 4, False, id="one"),
        pytest.param([*["0000:a0:00.0"] * 3, "0000:a1:00.0"], 1, False, id="not the same"),
        pytest.param(["0000:a0:00.0", "0000:a1:00.0"], 4, False, id="two that do not agree"),
    ],
)
def test_the_nvswitch_of_a_link_that_never_was_up_is_that_of_this_link_on_all_other_gpus(
    begin: Begin, switches: list[str], links: int, *, is_named: bool
) -> None:
    """What the NVSwitch reports of it is no page of its own; the link itself names no NVSwitch."""
    others = [
        Gpu(place, f"0000:c{place}:00.0", dict.fromkeys(range(12 - links, 12), ("switch", switch, "0")))
        for place, switch in enumerate(switches, 1)
    ]
    node = begin(Gpu(), *others)
    node.links({**{labels: 1 for one in others for labels in one.links}, LINK: 0})

    assert node.ends("0000:a0:00.0") == [1 if is_named else None]
    assert node.down() == {(*LINK, ""): 0}


def test_the_gpu_at_the_far_end_of_a_link_is_named(begin: Begin) -> None:
    """Where links lead from GPU to GPU, and only one of the two reads the link as down."""
    node = begin(Gpu(ends={11: ("gpu", "0000:c1:00.0", "7")}))
    node.link(0)

    assert node.ends(SLOTS[0], "0000:c1:00.0") == [1, 1]


SWITCH, PEER = "0000:a0:00.0", "0000:c1:00.0"
XID = ("commwatch_gpu_xid_events_recent", ("0", SLOTS[0], "74"))
NONFATAL = ("commwatch_gpu_xid_nonfatal_events_recent", ("0", SLOTS[0], "74"))
SXID = ("commwatch_nvswitch_sxid_events_recent", (SWITCH, "20034"))


@in_one_pass(
    "falls, events, end, told",
    [
        ([1000], {}, SWITCH, False),
        ([1000], {XID: 1}, SWITCH, True),
        ([1000], {SXID: 1}, SWITCH, True),
        ([1000], {XID: 2, NONFATAL: 1}, SWITCH, True),
        ([1000], {XID: 1, NONFATAL: 1}, SWITCH, False),
        ([1000], {(XID[0], ("0", SLOTS[0], "79")): 1}, SWITCH, False),  # of the bus
        ([1000], {(SXID[0], (SWITCH, "12028")): 1}, SWITCH, False),  # of the switch itself
        ([1000], {(XID[0], ("1", SLOTS[1], "74")): 1}, SWITCH, False),  # of another GPU
        ([1000], {(XID[0], ("1", PEER, "74")): 1}, PEER, True),  # of the GPU at the far end
        ([690], {XID: 1}, SWITCH, False),  # long before
        ([600, 800, 1000], {}, SWITCH, True),
        ([800, 1000], {}, SWITCH, False),
        ([-2700, 800, 1000], {}, SWITCH, False),  # the first is more than an hour ago
        ([400, 500, 600], {}, SWITCH, False),  # it did not go on
    ],
)
def test_a_link_that_is_up_again_is_a_fault_if_it_flaps_or_the_driver_reports_an_error_of_it(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, falls: Sequence[float],
    events: Mapping[Series, Value], end: str, told: bool,
) -> None:  # fmt: skip
    """Three times within an hour or once with an error, and for 5 min after the last time; so it is by both ends."""
    gpu = Gpu(ends={11: ("switch" if end == SWITCH else "gpu", end, "7")})
    node = Node(tmp_path_factory.mktemp("node"), monkeypatch, gpu)
    node.reports(events)
    for when in falls:
        node.falls(LINK, 1, 1000.0 - when)
    node.links({LINK: 1}, 0.5)

    assert node.daemon.value("nvlink_link_down", *LINK, SWITCH if end == SWITCH else "") == (1 if told else None)
    assert node.ends(SLOTS[0], end) == [1 if told else None] * 2


FAILED: Series = ("commwatch_nvlink_recoveries_failed_total", LINK)


@pytest.mark.parametrize(
    ("fails", "state", "told"),
    [((7, 7), 1, None), ((7, 8), 1, 1), ((7, 8), 0, 0), ((7, 8), None, None)],
    ids=["none failed", "up again", "down", "not read"],
)
def test_a_link_that_could_not_be_trained_again_is_a_fault(
    begin: Begin, fails: Sequence[int], state: Value, told: Value
) -> None:
    """Also where it was up again before its state was read; for 5 min after the recovery that failed."""
    node = begin()
    for count in fails:
        node.errors(10.0, FAILED, count)
    shown = []
    for seconds in (1.0, 300.0):
        node.errors(seconds, FAILED, fails[-1])
        node.links({LINK: state})
        shown.append(node.daemon.value("nvlink_link_down", *LINK, ""))

    assert shown == [told, None if state == 1 else told]


@in_one_pass("state, now, told", [(1, 1039.0, [1, 1, 1]), (1, 1041.0, [1, None, None]), (0, 1200.0, [0, 1, 1])])
def test_the_ends_of_a_link_that_is_up_again_are_named_for_40_s(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, state: int, now: float, told: list[Value]
) -> None:
    """The driver reports a fall within this time; what it reports there later is of another link."""
    gpu = Gpu(ends={11: ("switch", SWITCH, "7")})
    node = Node(tmp_path_factory.mktemp("node"), monkeypatch, gpu)
    node.reports({XID: 1})
    node.falls(LINK, 1, 0.0)
    node.links({LINK: state}, now - 1000.0)

    assert [node.daemon.value("nvlink_link_down", *LINK, SWITCH), *node.ends(SLOTS[0], SWITCH)] == told


@pytest.mark.parametrize(
    ("earlier", "far"),
    [([("GPU-0", SLOTS[1], "0000:a0:00.0")], []),
     ([("GPU-0", SLOTS[0], "0000:a0:00.0"), ("GPU-9", SLOTS[0], "0000:a9:00.0")], ["0000:a0:00.0"])],
    ids=["it came from another slot", "another GPU was in its slot meanwhile"],
)  # fmt: skip
def test_a_link_leads_where_that_of_this_gpu_led_here(
    begin: Begin, earlier: list[tuple[str, str, str]], far: list[str]
) -> None:
    """One that was not up here yet leads nowhere that is known."""
    node = begin(*(Gpu(0, slot, {11: ("switch", switch, "0")}, uuid) for uuid, slot, switch in earlier[:1]))
    for uuid, slot, switch in earlier[1:]:
        node.read(Gpu(0, slot, {11: ("switch", switch, "0")}, uuid))
    node.read(Gpu())
    node.link(0)

    assert set(node.daemon.series("nvlink_end_down")) == {(SLOTS[0],), *((switch,) for switch in far)}


def test_a_rise_of_a_counter_of_pages_is_told_for_its_window(begin: Begin) -> None:
    """What was there at the first reading is not told; what rose is, until the window is over."""
    node = begin()
    told = [node.errors(*one) for one in ((0.0, FATAL, 5), (10.0, FATAL, 6), (290.0, FATAL, 6), (10.0, FATAL, 6))]

    assert told == [None, 1, 1, None]


def test_a_counter_that_starts_again_has_not_risen(begin: Begin) -> None:
    """As after a reset of its device, or while it was not read."""
    node = begin()

    assert [node.errors(10.0, FATAL, total) for total in (5, None, 0, 0)] == [None] * 4


@in_one_pass(
    "name, labels, is_told",
    [
        ("nvlink_recoveries_failed", LINK, True),
        ("pcie_fatal_errors", LINK[:2], True),
        ("pcie_aer_root_port_errors", (SLOTS[0], "fatal"), True),
        ("pcie_aer_root_port_errors", (SLOTS[0], "nonfatal"), False),
        ("pcie_aer_errors", (SLOTS[0], "gpu", "correctable"), False),
    ],
)
def test_which_counters_are_told(begin: Begin, name: str, labels: tuple[str, ...], is_told: bool) -> None:
    """Those of which any rise is a page; of AER only what is fatal."""
    node = begin()
    series = (f"commwatch_{name}_total", labels)
    node.errors(0.0, series, 0)

    assert node.errors(10.0, series, 2) == (2 if is_told else None)


@pytest.mark.parametrize(
    ("risen", "told"),
    [
        (("0000:17:00.0", "0000:16:00.0"), {"0000:17:00.0"}),
        (("0000:16:00.0",), {"0000:16:00.0"}),
        (("0000:17:00.0", "0000:26:00.0"), {"0000:17:00.0", "0000:26:00.0"}),
    ],
    ids=["both ends of one link", "the upper end alone", "ends of two links"],
)
def test_a_fatal_error_at_both_ends_of_a_link_is_one_fault(
    begin: Begin, risen: tuple[str, ...], told: set[str]
) -> None:
    """The alert names the lower end."""
    roles = {"0000:17:00.0": "gpu", "0000:16:00.0": "switch_port", "0000:26:00.0": "switch_port"}
    node = begin()
    node.daemon.feed("pci", {
        device: {
            ("commwatch_pcie_device_info", (device, role, "0000:16:00.0" if role == "gpu" else "", "0", "", "")): 1
        }
        for device, role in roles.items()
    })  # fmt: skip

    for total in (0, 1):
        node.daemon.feed("pci_aer", {
            device: {("commwatch_pcie_aer_errors_total", (device, role, "fatal")): total * (device in risen)}
            for device, role in roles.items()
        }, 10.0)  # fmt: skip

    assert {labels[0] for labels in node.daemon.series("pcie_aer_errors_recent")} == told

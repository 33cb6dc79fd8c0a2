"""Series that are there only while something is wrong: links that are down, and rises of the counters of pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from commwatch.node.inventory import Inventory
from commwatch.node.inventory_state import InventoryState
from commwatch.node.link_flaps import NVLINK, FlapsState, LinkFlaps
from commwatch.node.links_down import LinksDown
from commwatch.node.observation import Observation, SeenGpu
from commwatch.node.recent_errors import RecentErrors
from commwatch.node.run import Collected, Outcome
from commwatch.node.store import Store
from commwatch_exporters.snapshot import Block, Series, Value
from support.core import SLOTS, block, collector
from support.passes import in_one_pass

LINKS = "nvml_nvlink"
LINK = ("0", SLOTS[0], "11")
FATAL: Series = ("commwatch_pcie_aer_errors_total", (SLOTS[0], "gpu", "fatal"))


class Node:
    """One GPU with a link that is expected."""

    def __init__(self, *known_before: SeenGpu) -> None:
        self.store = Store()
        self.store.put("inventory", "", block({("commwatch_nvlink_link_expected", LINK): 1}), float("inf"))
        self._inventory = known(*known_before)
        self.flaps = LinkFlaps(FlapsState(), self.store)
        self._links_down = LinksDown(self.store, self._inventory, self.flaps)
        self._recent = RecentErrors(self.store, 300.0, {})

    def observe(self, gpu: SeenGpu) -> None:
        self._inventory.observe(Observation(gpus=(gpu,)), 0.0)

    def run(self, name: str, time: float, one: Block | None = None) -> None:
        """One run of a collector, without a block where it could not read the GPU."""
        if one is None:
            self.store.drop_group(name)
        else:
            self.store.put(name, SLOTS[0], one, float("inf"))
        outcome = Outcome(collector(name), Collected({} if one is None else {SLOTS[0]: one}, [], 0.0), time)
        self._links_down.on_batch(outcome)
        self._recent.on_batch(outcome)

    def link(self, state: Value, link: tuple[str, ...] = LINK) -> Value:
        self.run(LINKS, 0.0, block({("commwatch_nvlink_link_state", link): state}))
        return self.store.snapshot().value("commwatch_nvlink_link_down", *link, "")

    def errors(self, time: float, series: Series = FATAL, total: Value = 0) -> Value:
        self.run("pci", time, block({series: total}, time))
        return self.store.snapshot().value(series[0].replace("_total", "_recent"), *series[1])


@in_one_pass("state, told", [(0, 0), (1, None), (2, None), (3, 3), (None, None)])
def test_a_link_that_carries_no_traffic_is_down(state: Value, told: Value) -> None:
    """Inactive or with its traffic disabled; not one that is up or sleeps, and not one that was not read."""
    assert Node().link(state) == told


def test_a_link_that_is_not_expected_is_not_down() -> None:
    """One that never was up, such as the free slot of a bridge."""
    assert Node().link(0, ("0", SLOTS[0], "12")) is None


def test_a_link_is_down_only_as_long_as_it_is_read_so() -> None:
    """It is up again, or its GPU is not read any more."""
    node = Node()
    assert [node.link(0), node.link(1), node.link(0)] == [0, None, 0]

    node.run(LINKS, 0.0)
    assert node.store.snapshot().value("commwatch_nvlink_link_down", *LINK, "") is None


GPUS = [(f"{number}", f"0000:{number:x}7:00.0") for number in range(3)]


def known(*gpus: SeenGpu) -> Inventory:
    """Of a daemon that was started again after it had read these."""
    before = Inventory(InventoryState(), {}, 600.0)
    before.observe(Observation(gpus=gpus), 0.0)
    return Inventory(msgspec.json.decode(msgspec.json.encode(before.state), type=InventoryState), {}, 600.0)


def down_of(
    states: Mapping[tuple[str, ...], float], family: str = "commwatch_nvlink_link_down"
) -> set[tuple[str, ...]]:  # fmt: skip
    """Labels of what is down on three GPUs with three links each, of which some have other states than up.

    Where the links lead was read before the daemon was started again.
    """
    store = Store()
    links = [(*gpu, f"{link}") for gpu in GPUS for link in range(3)]
    expected: dict[Series, Value] = {("commwatch_nvlink_link_expected", link): 1 for link in links}
    store.put("inventory", "", block(expected), float("inf"))
    for gpu in GPUS:
        own = [link for link in links if link[:2] == gpu]
        read: dict[Series, Value] = {("commwatch_nvlink_link_state", link): states.get(link, 1) for link in own}
        store.put(LINKS, gpu[1], block(read), float("inf"))
    ends = {link: ("switch", f"0000:a{link}:00.0", "0") for link in range(3)}
    inventory = known(*(SeenGpu(f"GPU-{index}", int(index), address, link_ends=ends) for index, address in GPUS))
    flaps = LinkFlaps(FlapsState(), store)
    LinksDown(store, inventory, flaps).on_batch(Outcome(collector(LINKS), Collected({}, [], 0.0), 0.0))
    return {labels for one in store.snapshot().blocks for name, labels in one.layout.series if name == family}


def test_links_of_one_part_are_one_series() -> None:
    """A link with its NVSwitch, a GPU that has lost most of its links, an NVSwitch, the node."""
    gpu1 = ("1", "0000:17:00.0")
    all_links = [(f"{gpu}", f"0000:{gpu:x}7:00.0", f"{link}") for gpu in range(3) for link in range(3)]

    assert down_of({(*gpu1, "2"): 0}) == {(*gpu1, "2", "0000:a2:00.0")}
    assert down_of({(*gpu1, "0"): 0, (*gpu1, "2"): 3}) == {(*gpu1, "several", "")}
    assert down_of({link: 0 for link in all_links if link[2] == "1"}) == {("all", "0000:a1:00.0", "1", "0000:a1:00.0")}
    assert down_of(dict.fromkeys(all_links, 0)) == {("all", "all", "several", "")}


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
    down: Sequence[str], back: Sequence[str], faults: Mapping[tuple[str, str], int]
) -> None:
    """Of one GPU with three links: no page says of links that are up that they are down."""
    node = Node()
    links = [("0", SLOTS[0], f"{number}") for number in range(3)]
    expected: dict[Series, Value] = {("commwatch_nvlink_link_expected", link): 1 for link in links}
    node.store.put("inventory", "", block(expected), float("inf"))
    for number in back:
        node.flaps.add(NVLINK, ("0", SLOTS[0], number), "state", 3, 1000.0)
    node.run(LINKS, 1010.0, block({("commwatch_nvlink_link_state", one): int(one[2] not in down) for one in links}))

    assert {labels[2:]: value for labels, value in shown_of(node.store).items()} == faults


@pytest.mark.parametrize("down", [("0", SLOTS[0], "11"), ("1", "0000:c1:00.0", "7")], ids=["near end", "far end"])
def test_a_link_between_gpus_is_one_fault_whichever_end_reads_it_as_down(down: tuple[str, ...]) -> None:
    """By its first end, as while both ends read that it came back."""
    links = [LINK, ("1", "0000:c1:00.0", "7")]
    node = Node(
        SeenGpu("GPU-0", 0, SLOTS[0], link_ends={11: ("gpu", "0000:c1:00.0", "7")}),
        SeenGpu("GPU-1", 1, "0000:c1:00.0", link_ends={7: ("gpu", SLOTS[0], "11")}),
    )
    expected: dict[Series, Value] = {("commwatch_nvlink_link_expected", link): 1 for link in links}
    node.store.put("inventory", "", block(expected), float("inf"))
    node.flaps.add(NVLINK, LINK, "state", 3, 1000.0)
    node.run(LINKS, 1010.0, block({("commwatch_nvlink_link_state", one): int(one != down) for one in links}))

    assert shown_of(node.store) == {(*LINK, ""): 0}


def shown_of(store: Store) -> dict[tuple[str, ...], Value]:
    """State of what is down or came back, by labels."""
    found = store.get("nvlink_down", "")
    series = {} if found is None else dict(zip(found.layout.series, found.values, strict=True))
    return {labels: value for (name, labels), value in series.items() if name == "commwatch_nvlink_link_down"}


def test_both_ends_of_a_link_that_is_down_are_named() -> None:
    """The GPU and its NVSwitch, while the link is down; none while all links are up."""
    ends = "commwatch_nvlink_end_down"

    assert down_of({("1", "0000:17:00.0", "2"): 0}, ends) == {("0000:17:00.0",), ("0000:a2:00.0",)}
    assert down_of({}, ends) == set()


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
    switches: list[str], links: int, *, is_named: bool
) -> None:
    """What the NVSwitch reports of it is no page of its own; the link itself names no NVSwitch."""
    others = [
        SeenGpu(f"GPU-{place}", place, f"0000:c{place}:00.0",
                link_ends=dict.fromkeys(range(12 - links, 12), ("switch", switch, "0")))
        for place, switch in enumerate(switches, 1)
    ]  # fmt: skip
    node = Node(SeenGpu("GPU-0", 0, SLOTS[0]), *others)
    node.link(0)

    snapshot = node.store.snapshot()
    assert snapshot.value("commwatch_nvlink_end_down", "0000:a0:00.0") == (1 if is_named else None)
    assert snapshot.value("commwatch_nvlink_link_down", *LINK, "") == 0


def test_the_gpu_at_the_far_end_of_a_link_is_named() -> None:
    """Where links lead from GPU to GPU, and only one of the two reads the link as down."""
    node = Node(SeenGpu("GPU-0", 0, SLOTS[0], link_ends={11: ("gpu", "0000:c1:00.0", "7")}))
    node.link(0)

    snapshot = node.store.snapshot()
    assert [snapshot.value("commwatch_nvlink_end_down", one) for one in (SLOTS[0], "0000:c1:00.0")] == [1, 1]


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
    falls: Sequence[float], events: Mapping[Series, Value], end: str, told: bool
) -> None:
    """Three times within an hour or once with an error, and for 5 min after the last time; so it is by both ends."""
    node = Node(SeenGpu("GPU-0", 0, SLOTS[0], link_ends={11: ("switch" if end == SWITCH else "gpu", end, "7")}))
    node.store.put("hardware_events", "", block(events), float("inf"))
    for when in falls:
        node.flaps.add(NVLINK, LINK, "state", 1, when)
    node.run(LINKS, 1000.5, block({("commwatch_nvlink_link_state", LINK): 1}))

    shown = node.store.snapshot()
    assert shown.value("commwatch_nvlink_link_down", *LINK, SWITCH if end == SWITCH else "") == (1 if told else None)
    assert [shown.value("commwatch_nvlink_end_down", one) for one in (SLOTS[0], end)] == [1 if told else None] * 2


FAILED: Series = ("commwatch_nvlink_recoveries_failed_total", LINK)


@pytest.mark.parametrize(
    ("fails", "state", "told"),
    [((7, 7), 1, None), ((7, 8), 1, 1), ((7, 8), 0, 0), ((7, 8), None, None)],
    ids=["none failed", "up again", "down", "not read"],
)
def test_a_link_that_could_not_be_trained_again_is_a_fault(fails: Sequence[int], state: Value, told: Value) -> None:
    """Also where it was up again before its state was read; for 5 min after the recovery that failed."""
    node = Node()
    for place, count in enumerate(fails):
        node.run("nvml_nvlink_errors", 990.0 + 10.0 * place, block({FAILED: count}, 990.0 + 10.0 * place))
    shown = []
    for now in (1001.0, 1301.0):
        node.run("nvml_nvlink_errors", now, block({FAILED: fails[-1]}, now))
        node.run(LINKS, now, block({("commwatch_nvlink_link_state", LINK): state}, now))
        shown.append(node.store.snapshot().value("commwatch_nvlink_link_down", *LINK, ""))

    assert shown == [told, None if state == 1 else told]


@in_one_pass("state, now, told", [(1, 1039.0, [1, 1, 1]), (1, 1041.0, [1, None, None]), (0, 1200.0, [0, 1, 1])])
def test_the_ends_of_a_link_that_is_up_again_are_named_for_40_s(state: int, now: float, told: list[Value]) -> None:
    """The driver reports a fall within this time; what it reports there later is of another link."""
    node = Node(SeenGpu("GPU-0", 0, SLOTS[0], link_ends={11: ("switch", SWITCH, "7")}))
    node.store.put("hardware_events", "", block({XID: 1}), float("inf"))
    node.flaps.add(NVLINK, LINK, "state", 1, 1000.0)
    node.run(LINKS, now, block({("commwatch_nvlink_link_state", LINK): state}))

    shown = node.store.snapshot()
    ends = [shown.value("commwatch_nvlink_end_down", one) for one in (SLOTS[0], SWITCH)]
    assert [shown.value("commwatch_nvlink_link_down", *LINK, SWITCH), *ends] == told


@pytest.mark.parametrize(
    ("earlier", "far"),
    [([("GPU-0", SLOTS[1], "0000:a0:00.0")], []),
     ([("GPU-0", SLOTS[0], "0000:a0:00.0"), ("GPU-9", SLOTS[0], "0000:a9:00.0")], ["0000:a0:00.0"])],
    ids=["it came from another slot", "another GPU was in its slot meanwhile"],
)  # fmt: skip
def test_a_link_leads_where_that_of_this_gpu_led_here(earlier: list[tuple[str, str, str]], far: list[str]) -> None:
    """One that was not up here yet leads nowhere that is known."""
    node = Node()
    for uuid, slot, switch in earlier:
        node.observe(SeenGpu(uuid, 0, slot, link_ends={11: ("switch", switch, "0")}))
    node.observe(SeenGpu("GPU-0", 0, SLOTS[0]))
    node.run(LINKS, 0.0, block({("commwatch_nvlink_link_state", LINK): 0}))

    ends = {labels for one in node.store.snapshot().blocks for name, labels in one.layout.series if "end_down" in name}
    assert ends == {(SLOTS[0],), *((switch,) for switch in far)}


def test_a_rise_of_a_counter_of_pages_is_told_for_its_window() -> None:
    """What was there at the first reading is not told; what rose is, until the window is over."""
    node = Node()
    told = [node.errors(*one) for one in ((0.0, FATAL, 5), (10.0, FATAL, 6), (300.0, FATAL, 6), (310.0, FATAL, 6))]

    assert told == [None, 1, 1, None]


def test_a_counter_that_starts_again_has_not_risen() -> None:
    """As after a reset of its device, or while it was not read."""
    node = Node()

    assert [node.errors(10.0 * number, FATAL, total) for number, total in enumerate((5, None, 0, 0))] == [None] * 4


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
def test_which_counters_are_told(name: str, labels: tuple[str, ...], is_told: bool) -> None:
    """Those of which any rise is a page; of AER only what is fatal."""
    node = Node()
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
def test_a_fatal_error_at_both_ends_of_a_link_is_one_fault(risen: tuple[str, ...], told: set[str]) -> None:
    """The alert names the lower end."""
    roles = {"0000:17:00.0": "gpu", "0000:16:00.0": "switch_port", "0000:26:00.0": "switch_port"}
    node = Node()
    infos: dict[Series, Value] = {
        ("commwatch_pcie_device_info", (device, role, "0000:16:00.0" if role == "gpu" else "", "0", "", "")): 1
        for device, role in roles.items()
    }
    node.store.put("pci", "", block(infos), float("inf"))

    for total in (0, 1):
        counts: dict[Series, Value] = {
            ("commwatch_pcie_aer_errors_total", (device, role, "fatal")): total * (device in risen)
            for device, role in roles.items()
        }
        node.run("pci_aer", 10.0 * total, block(counts, 10.0 * total))

    shown = {
        labels[0] for one in node.store.snapshot().blocks for name, labels in one.layout.series if "_recent" in name
    }
    assert shown == told

"""Links that go down and come back: what is counted, for how long, and what is meant and so is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.readings import Absence, Reason
from commwatch_exporters.snapshot import Value
from support.core import collected
from support.examples import examples
from support.facts import Numbers, codes_of, facts_of, seen_by
from support.fed_daemon import FedDaemon, Values
from support.passes import in_one_pass

GPU, LINK = "0000:17:00.0", ("0", "0000:17:00.0", "3")
PORT, NAME = ("mlx5_0", "1"), ("eth0",)
NVLINK, RDMA, ETHERNET = (f"commwatch_{kind}_flaps_recent" for kind in ("nvlink_link", "rdma_port", "ethernet"))
STATE, DOWNED = "commwatch_rdma_port_state", "commwatch_rdma_port_link_downed_total"
CARRIER, DOWNS = "commwatch_ethernet_carrier", "commwatch_ethernet_carrier_downs_total"
PHY = "commwatch_ethernet_phy_link_down_total"
HOUR = 3600.0
DOWN, INIT, ARMED, ACTIVE, DEFERRED = range(1, 6)


class Links:
    """A daemon to which a test says what one link of each kind shows."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self.node = FedDaemon(folder, patched)

    def read(self, collector: str, device: str, values: Values, step: float) -> None:
        """One run of a collector that gave one device, this number of seconds after the run before."""
        self.node.feed(collector, {device: values}, step)

    def miss(self, *absences: Absence) -> None:
        """One run over the RDMA ports that gave none."""
        self.node.feed("rdma", collected({}, *absences), 5.0)

    def nvlink(self, *states: Value, step: float = 1.0) -> None:
        """Readings of the state of one NVLink."""
        for state in states:
            self.read("nvml_nvlink", GPU, {("commwatch_nvlink_link_state", LINK): state}, step)

    def port(self, state: Value, downed: Value = 0, physical: Value = 5, netdev: str = "", step: float = 5.0) -> None:
        """One reading of an RDMA port."""
        info = (*PORT, "Ethernet" if netdev else "InfiniBand", "", "", "", "", "", netdev)
        values: Values = {
            (STATE, PORT): state, (DOWNED, PORT): downed, ("commwatch_rdma_port_phys_state", PORT): physical,
            ("commwatch_rdma_port_info", info): 1,
        }  # fmt: skip
        self.read("rdma", "mlx5_0:1", values, step)

    def interface(self, downs: Value, carrier: Value = 1, address: str = "0000:18:00.0", driver: str = "ice") -> None:
        """One reading of an interface by the kernel."""
        info = ("commwatch_ethernet_info", ("eth0", address, driver, ""))
        self.read("network", "eth0", {(DOWNS, NAME): downs, (CARRIER, NAME): carrier, info: 1}, 5.0)

    def adapter(self, downs: Value) -> None:
        """One reading of the adapter's own counter."""
        self.read("ethtool", "eth0", {(PHY, NAME): downs}, 15.0)

    def recent(self, metric: str) -> Value:
        """Flaps within the last hour."""
        self.node.observe()
        labels = {NVLINK: LINK, RDMA: PORT, ETHERNET: NAME}[metric]
        return self.node.value(metric.removeprefix("commwatch_"), *labels)

    @property
    def total(self) -> Value:
        """Flaps of the NVLink."""
        return self.node.value("nvlink_link_flaps_total", *LINK)

    @property
    def drops(self) -> tuple[Value, Value]:
        """Of the RDMA port since the daemon started, and the seconds that they took."""
        return self.node.value("rdma_port_flaps_total", *PORT), self.node.value("rdma_port_down_seconds_total", *PORT)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Links:
    return Links(tmp_path, monkeypatch)


def test_a_link_that_is_down_for_five_of_35_seconds_is_counted_each_time(links: Links) -> None:
    """At 1 Hz none is missed; nothing is shown before the first."""
    links.nvlink(*[1] * 30)
    assert (links.total, links.recent(NVLINK)) == (0, None)

    for number in range(1, 4):
        links.nvlink(0, 0, 0, 0, 0, *[1] * 30)
        assert (links.total, links.recent(NVLINK)) == (number, number)


@pytest.mark.parametrize(
    ("states", "flaps"),
    [
        ([1, 0, 0, 1], 1),
        ([1, 2, 1], 0),  # it sleeps
        ([1, 3, 1], 1),  # active with its traffic disabled
        ([0, 0, 1, 1], 0),  # it trains
        ([1, None, 1], 0),
        ([1, None, 0], 1),
        ([1, *[None] * 178, 0], 1),
        ([1, *[None] * 180, 0], 0),  # nothing is known of so long a gap, though the GPU was read
        ([1, *[None] * 200, 1, 0], 1),
        ([None, None], 0),
        ([1, *[0] * 600, 1], 1),
    ],
)
def test_a_link_flaps_where_it_was_up_and_is_not(links: Links, states: list[Value], flaps: int) -> None:
    """One outage counts once, however long; what was not read is neither up nor down."""
    links.nvlink(*states)

    assert links.total == flaps


def test_nothing_is_known_of_what_lies_in_a_gap(links: Links) -> None:
    """As while a driver is loaded again: the links train after it. A counter knows what happened meanwhile."""
    links.nvlink(1, 1)
    links.nvlink(0, 1, step=200.0)
    links.port(4, downed=1)
    links.port(4, downed=2, step=200.0)
    assert links.recent(RDMA) == 1

    assert (links.total, links.recent(NVLINK)) == (0, None)


def test_flaps_are_recent_for_an_hour_and_counted_for_good(links: Links) -> None:
    links.nvlink(1, 0, 1)
    links.node.clock.now += HOUR - 5
    assert links.recent(NVLINK) == 1

    links.node.clock.now += 5
    assert (links.total, links.recent(NVLINK)) == (1, None)


def test_flaps_of_an_hour_ago_are_gone_whoever_reads_the_links_first(links: Links) -> None:
    """A reading of the links looks for recent flaps, too, and comes before the next look at the node."""
    links.nvlink(1, 0)
    assert links.recent(NVLINK) == 1
    links.nvlink(1, step=HOUR + 1)
    assert links.recent(NVLINK) is None


def test_counts_survive_a_restart_of_the_daemon(links: Links) -> None:
    """Two before it and one after it are three within the hour."""
    links.nvlink(1, 0, 1, 0, 1)
    links.node.save()
    links.node.restart()
    assert links.recent(NVLINK) == 2
    links.nvlink(1, 0)

    assert (links.total, links.recent(NVLINK)) == (3, 3)


def test_what_happens_in_maintenance_is_meant(links: Links) -> None:
    """Neither what was counted before it, nor what counters rose by during it, is shown after it."""
    links.nvlink(1, 0, 1)
    links.port(4, downed=1)
    links.port(1, downed=2)
    links.port(4, downed=2)
    links.interface(0)
    links.interface(3)
    assert [links.recent(metric) for metric in (NVLINK, RDMA, ETHERNET)] == [1, 1, 3]

    links.node.pause()
    assert [links.recent(metric) for metric in (NVLINK, RDMA, ETHERNET)] == [None, None, None]
    links.port(1, downed=9)
    links.port(4, downed=9)
    links.interface(9)
    links.node.resume()
    links.nvlink(1)
    links.port(4, downed=10)
    links.interface(10)
    assert [links.recent(metric) for metric in (NVLINK, RDMA, ETHERNET)] == [None, None, None]

    links.port(4, downed=11)
    assert links.recent(RDMA) == 1


def test_a_drop_of_a_port_that_state_and_adapter_saw_is_one(links: Links) -> None:
    """The adapter sees short drops, the readings those of which its counter is full."""
    links.port(4, downed=5)
    links.port(1, downed=6)
    links.port(4, downed=6)
    assert links.recent(RDMA) == 1
    links.port(4, downed=8)  # twice between two readings
    assert links.recent(RDMA) == 3
    links.port(4, downed=0)  # somebody has cleared the counters
    assert links.recent(RDMA) == 3


def test_a_full_counter_of_the_adapter_does_not_hide_drops(links: Links) -> None:
    links.port(4, downed=255)
    for _ in range(3):
        links.port(1, downed=255)
        links.port(4, downed=255)

    assert links.recent(RDMA) == 3


def test_a_port_or_interface_that_is_switched_off_does_not_flap(links: Links) -> None:
    """Somebody has done so: physical state 3 of InfiniBand, or no carrier that can be read, whoever saw it first."""
    links.port(4)
    links.port(1, downed=1, physical=3)
    links.port(4, downed=1)
    links.interface(0)
    links.interface(1, carrier=None)
    links.interface(1)
    assert (links.recent(RDMA), links.recent(ETHERNET)) == (None, None)


def test_a_port_is_switched_off_whose_interface_is(links: Links) -> None:
    """Also where that is read after the port."""
    links.port(4, netdev="eth0")
    links.interface(0)
    links.port(1, downed=1, physical=3, netdev="eth0")
    assert links.recent(RDMA) == 1
    links.interface(1, carrier=None)
    assert links.recent(RDMA) is None


def test_a_roce_port_without_a_link_is_not_switched_off(links: Links) -> None:
    """The kernel says physical state 3 of it all the same."""
    links.interface(0)
    links.port(4, netdev="eth0")
    links.port(1, downed=1, physical=3, netdev="eth0")
    links.interface(1, carrier=0)

    assert links.recent(RDMA) == 1


def test_an_adapter_whose_driver_is_loaded_again_begins_again(links: Links) -> None:
    """It is gone for a run, and what its counter shows after that is no flap of now."""
    links.port(4, downed=1)
    links.read("rdma", "mlx5_9:1", {(STATE, ("mlx5_9", "1")): 4}, 5.0)
    links.port(4, downed=3)

    assert links.recent(RDMA) is None


def test_a_port_that_comes_up_after_its_driver_was_loaded_again_has_not_dropped(links: Links) -> None:
    """It was active, was gone, and is down until it has trained; a drop after that is one."""
    links.port(4)
    links.miss()
    links.port(1)
    links.port(4)
    assert links.recent(RDMA) is None

    links.port(1)
    assert links.recent(RDMA) == 1


@pytest.mark.parametrize(
    "absence",
    [Absence("mlx5_0:1", "unreadable", "EIO"), Absence("", "deadline", "no answer"), Absence("", "crashed", "")],
)
@pytest.mark.parametrize("after", [(1, 0), (4, 1)], ids=["state", "counter"])
def test_a_drop_that_one_missed_reading_hides_is_counted(
    links: Links, absence: Absence, after: tuple[int, int]
) -> None:
    """A device or a whole run that could not be read once is not gone: state and counter before it still count."""
    links.port(4)
    links.miss(absence)
    links.port(*after)

    assert links.recent(RDMA) == 1


@pytest.mark.parametrize(
    ("reason", "is_part", "counted"),
    [
        ("deadline", False, 2), ("starved", False, 2), ("crashed", False, 2), ("unreadable", False, None),
        ("not_found", False, None), (None, False, None), (None, True, 2),
    ],
)  # fmt: skip
def test_a_port_is_gone_only_after_a_run_that_was_not_cut_short(
    links: Links, reason: Reason | None, is_part: bool, counted: int | None
) -> None:
    """A worker that gave no answer at another port says nothing of those that it did not come to, nor does a part."""
    links.port(4, downed=1)
    absences = () if reason is None else (Absence("mlx5_1:1", reason, ""),)
    read = {"mlx5_2:1": links.node.block({(STATE, ("mlx5_2", "1")): 4})}
    links.node.feed("rdma", replace(collected(read, *absences), is_part=is_part), 5.0)
    links.port(4, downed=3)

    assert links.recent(RDMA) == counted


def test_a_port_whose_whole_source_was_away_has_not_dropped(links: Links) -> None:
    """As while all RDMA drivers are loaded again: no run says anything then, and the port trains after it."""
    links.port(4)
    links.port(1, step=20.0)
    links.port(4)

    assert links.recent(RDMA) is None


def test_a_port_that_is_not_found_is_gone(links: Links) -> None:
    """As of a driver that is being unloaded while its files are read."""
    links.port(4, downed=1)
    links.miss(Absence("mlx5_0:1", "not_found", "no such file"))
    links.port(1, downed=2)

    assert links.recent(RDMA) is None


def test_the_interface_of_a_port_is_the_same_link(links: Links) -> None:
    """What its adapter counted stands at the port, and not at both."""
    links.port(4, netdev="eth0")
    links.interface(0)
    links.adapter(0)
    links.adapter(2)

    assert (links.recent(RDMA), links.recent(ETHERNET)) == (2, None)


def test_the_adapters_own_counter_goes_before_that_of_the_kernel(links: Links) -> None:
    """Drivers drop the carrier when a ring or the MTU is changed, and the link stays up."""
    links.interface(0)
    links.adapter(0)
    links.interface(5)
    links.adapter(0)
    assert links.recent(ETHERNET) is None

    links.adapter(1)
    assert links.recent(ETHERNET) == 1


@pytest.mark.parametrize(("address", "driver"), [("", ""), ("0000:00:14.0", "cdc_ether")])
def test_an_interface_that_is_no_adapter_does_not_count(links: Links, address: str, driver: str) -> None:
    """A virtual one, and that of the BMC, which goes down with each restart of the BMC."""
    links.interface(0, address=address, driver=driver)
    links.interface(3, address=address, driver=driver)

    assert links.recent(ETHERNET) is None


@pytest.mark.parametrize(
    ("states", "flaps", "seconds"),
    [
        ([ACTIVE, ACTIVE], 0, 0),
        ([DOWN, DOWN, INIT], 0, 0),
        ([DOWN, INIT, ARMED, ACTIVE], 0, 0),
        ([ACTIVE, DOWN], 1, 0),
        ([ACTIVE, DOWN, DOWN, ACTIVE], 1, 10),
        ([ACTIVE, DOWN, INIT, ARMED, ACTIVE, ACTIVE], 1, 15),
        ([ACTIVE, INIT, ACTIVE, DOWN, ACTIVE], 2, 10),
        ([ACTIVE, DEFERRED], 1, 0),
        ([ACTIVE, *[DOWN] * 721, ACTIVE], 1, 721 * 5),
        ([ACTIVE, None, ACTIVE], 0, 0),
        ([ACTIVE, None, DOWN], 1, 0),
        ([ACTIVE, DOWN, None, DOWN], 1, 10),
        ([ACTIVE, DOWN, None, None, None, DOWN], 1, 0),  # a gap that is too long adds no time
        ([None], 0, 0),
    ],
)
def test_the_drops_of_a_port_and_their_time(links: Links, states: list[Value], flaps: int, seconds: float) -> None:
    """One drop counts once, whatever states it goes through; what was not read is neither up nor down."""
    for state in states:
        links.port(state)

    assert links.drops == (flaps, seconds)


@examples(30, one_fixture=True)
@given(st.lists(st.sampled_from([None, DOWN, INIT, ARMED, ACTIVE, DEFERRED]), max_size=30))
def test_totals_of_drops_only_grow(tmp_path_factory: pytest.TempPathFactory, states: list[Value]) -> None:
    """Whatever the port does, neither total falls, and no more time is counted than went by."""
    with pytest.MonkeyPatch.context() as patched:
        links, before = Links(tmp_path_factory.mktemp("node"), patched), (0.0, 0.0)
        for number, state in enumerate(states):
            links.port(state)
            flaps, seconds = links.drops
            assert flaps is not None
            assert seconds is not None
            assert before[0] <= flaps
            assert before[1] <= seconds <= 5 * number
            before = flaps, seconds


_RULES = {
    "nvlink": ("nvlink_flapping", NVLINK, LINK, "commwatch_nvlink_link_state", 1.0, 0.0, "nvlink/0000:17:00.0/3"),
    "rdma_port": ("rdma_port_flapping", RDMA, PORT, STATE, 4.0, 1.0, "rdma_port/mlx5_0/1"),
    "ethernet": ("ethernet_flapping", ETHERNET, NAME, CARRIER, 1.0, 0.0, "interface/eth0"),
}


@in_one_pass("kind", _RULES)
def test_three_times_in_an_hour_is_flapping_and_less_is_information(kind: str) -> None:
    """A link that stays down after one or two is reported as down; of none nothing is said."""
    rule, metric, labels, state, up, down, identity = _RULES[kind]

    def found(count: float | None, at: float) -> list[tuple[str, str]]:
        now: Numbers = {state: {labels: at}, **({} if count is None else {metric: {labels: count}})}
        return codes_of(seen_by(rule, facts_of(now)))

    assert found(3.0, up) == found(3.0, down) == [(f"{kind}_flapping", identity)]
    assert found(1.0, up) == found(2.0, up) == [(f"{kind}_flapped", identity)]
    assert found(2.0, down) == found(None, up) == found(None, down) == []


LOWER, HIGHER = "nvlink/0000:17:00.0/3", "nvlink/0000:2a:00.0/7"


@pytest.mark.parametrize(
    ("counts", "states", "told"),
    [
        ((3, 3), (1, 1), ("nvlink_flapping", LOWER)),
        ((2, 3), (1, 1), ("nvlink_flapping", HIGHER)),
        ((3, 2), (1, 1), ("nvlink_flapping", LOWER)),
        ((1, 3), (None, 1), ("nvlink_flapping", HIGHER)),
        ((1, 2), (1, 1), ("nvlink_flapped", HIGHER)),
        ((2, 1), (None, 1), ("nvlink_flapped", LOWER)),
        ((1, 1), (None, 1), ("nvlink_flapped", LOWER)),
        ((1, 1), (None, None), None),
        ((1, 1), (1, 0), None),
        ((1, 2), (0, 1), None),
    ],
)
@pytest.mark.parametrize("known", [(0, 1), (0,), (1,)], ids=["both say where it leads", "the lower", "the higher"])
def test_a_link_between_two_gpus_that_flaps_is_one_finding(
    counts: tuple[float, float], states: tuple[float | None, float | None], told: tuple[str, str] | None,
    known: tuple[int, ...],
) -> None:  # fmt: skip
    """Of the end that fell more often, as that one pages; of the lower one where both fell alike."""
    ends = (("0", GPU, "3"), ("1", "0000:2a:00.0", "7"))
    infos = [(*ends[end], "4", "gpu", *ends[1 - end][1:]) for end in known]
    read = {end: state for end, state in zip(ends, states, strict=True) if state is not None}
    now: Numbers = {
        NVLINK: dict(zip(ends, counts, strict=True)),
        "commwatch_nvlink_link_state": read,
        "commwatch_nvlink_info": dict.fromkeys(infos, 1.0),
    }

    assert codes_of(seen_by("nvlink_flapping", facts_of(now))) == ([told] if told else [])


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({0: 1, 1: 1, 2: 1}, [("nvlink_flapped", "gpu/0000:17:00.0")]),
        ({0: 3, 1: 3, 2: 4, 3: 1}, [("nvlink_flapping", "gpu/0000:17:00.0"), ("nvlink_flapped", LOWER)]),
        ({2: 1, 3: 1}, [("nvlink_flapped", LOWER.replace("/3", "/2")), ("nvlink_flapped", LOWER)]),
    ],
    ids=["most", "most of them often", "half"],
)  # fmt: skip
def test_most_links_of_a_gpu_that_go_down_and_come_back_are_the_gpu(
    counts: dict[int, float], told: list[tuple[str, str]]
) -> None:
    """As they are while they are down: a reset of the GPU is one finding."""
    links = {number: ("0", GPU, str(number)) for number in range(4)}
    now: Numbers = {
        NVLINK: {links[number]: count for number, count in counts.items()},
        "commwatch_nvlink_link_state": dict.fromkeys(links.values(), 1.0),
        "commwatch_nvlink_link_expected": dict.fromkeys(links.values(), 1.0),
    }

    assert codes_of(seen_by("nvlink_flapping", facts_of(now))) == told


@pytest.mark.parametrize(("remote", "parts"), [("switch", {GPU, "0000:08:00.0"}), ("gpu", {GPU})])
def test_a_link_that_flaps_has_its_nvswitch(remote: str, parts: set[str]) -> None:
    """As one that is down: an SXid of that switch is about it."""
    now: Numbers = {
        NVLINK: {LINK: 3.0},
        "commwatch_nvlink_link_state": {LINK: 1.0},
        "commwatch_nvlink_info": {(*LINK, "4", remote, "0000:08:00.0", "7"): 1.0},
    }

    [found] = seen_by("nvlink_flapping", facts_of(now))
    assert found.component.parts == parts

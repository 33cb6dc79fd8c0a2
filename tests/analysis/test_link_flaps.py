"""Links that go down and come back: what is counted, for how long, and what is meant and so is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from commwatch.node.link_flaps import ETHERNET, NVLINK, RDMA, WINDOW_SECONDS, FlapsState, LinkFlaps
from commwatch.node.port_flaps import Flaps
from commwatch.node.run import Outcome
from commwatch.node.store import Store
from commwatch.readings import Absence
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from support.core import collected, collector
from support.facts import Numbers, codes_of, facts_of, seen_by

GPU, LINK = "0000:17:00.0", ("0", "0000:17:00.0", "3")
PORT, NAME = ("mlx5_0", "1"), ("eth0",)
TOTAL = "commwatch_nvlink_link_flaps_total"
STATE, DOWNED = "commwatch_rdma_port_state", "commwatch_rdma_port_link_downed_total"
CARRIER, DOWNS = "commwatch_ethernet_carrier", "commwatch_ethernet_carrier_downs_total"
PHY = "commwatch_ethernet_phy_link_down_total"
BOOT = 1_700_000_000.0
"""Seconds since 1970 at the zero of the monotonic clock."""


class Links:
    """The counting of flaps behind the collectors, by a clock that the test sets."""

    def __init__(self, state: FlapsState | None = None, now: float = 1000.0) -> None:
        self.store, self.now = Store(), now
        self.flaps = LinkFlaps(state or FlapsState(), self.store, self)
        self.port_flaps = Flaps(self.store, self.flaps)
        self.collectors = {
            name: collector(name, interval=interval)
            for name, interval in (("nvml_nvlink", 1.0), ("rdma", 5.0), ("network", 5.0), ("ethtool", 15.0))
        }

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return BOOT + self.now

    def read(self, name: str, device: str, values: Mapping[Series, Value]) -> None:
        """One run of a collector that gave one device."""
        block = Block(Layout(values), list(values.values()), self.now)
        self.store.put(name, device, block, float("inf"))
        for follower in (self.port_flaps, self.flaps):
            if name in follower.collectors:
                follower.on_batch(Outcome(self.collectors[name], collected({device: block})))

    def miss(self, name: str, *absences: Absence) -> None:
        """One run of a collector that gave no device."""
        self.now += self.collectors[name].interval
        for follower in (self.port_flaps, self.flaps):
            if name in follower.collectors:
                follower.on_batch(Outcome(self.collectors[name], collected({}, *absences)))

    def nvlink(self, *states: Value, step: float = 1.0) -> None:
        """Readings of the state of one NVLink."""
        for state in states:
            self.now += step
            self.read("nvml_nvlink", GPU, {("commwatch_nvlink_link_state", LINK): state})

    def port(self, state: Value, downed: Value = 0, physical: Value = 5, netdev: str = "", step: float = 5.0) -> None:
        """One reading of an RDMA port."""
        self.now += step
        info = (*PORT, "Ethernet" if netdev else "InfiniBand", "", "", "", "", "", netdev)
        self.read("rdma", "mlx5_0:1", {
            (STATE, PORT): state, (DOWNED, PORT): downed, ("commwatch_rdma_port_phys_state", PORT): physical,
            ("commwatch_rdma_port_info", info): 1,
        })  # fmt: skip

    def interface(self, downs: Value, carrier: Value = 1, address: str = "0000:18:00.0", driver: str = "ice") -> None:
        """One reading of an interface by the kernel."""
        self.now += 5.0
        info = ("commwatch_ethernet_info", ("eth0", address, driver, ""))
        self.read("network", "eth0", {(DOWNS, NAME): downs, (CARRIER, NAME): carrier, info: 1})

    def adapter(self, downs: Value) -> None:
        """One reading of the adapter's own counter."""
        self.now += 15.0
        self.read("ethtool", "eth0", {(PHY, NAME): downs})

    def recent(self, metric: str) -> Value:
        self.flaps.on_tick(self.now)
        labels = {NVLINK: LINK, RDMA: PORT, ETHERNET: NAME}[metric]
        return self.store.snapshot().value(metric, *labels)

    @property
    def total(self) -> Value:
        return self.store.snapshot().value(TOTAL, *LINK)


def test_a_link_that_is_down_for_five_of_35_seconds_is_counted_each_time() -> None:
    """At 1 Hz none is missed; nothing is shown before the first."""
    links = Links()
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
        ([None, None], 0),
        ([1, *[0] * 600, 1], 1),
    ],
)
def test_a_link_flaps_where_it_was_up_and_is_not(states: list[Value], flaps: int) -> None:
    """One outage counts once, however long; what was not read is neither up nor down."""
    links = Links()
    links.nvlink(*states)

    assert links.total == flaps


def test_nothing_is_known_of_what_lies_in_a_gap() -> None:
    """As while a driver is loaded again: the links train after it. A counter knows what happened meanwhile."""
    links = Links()
    links.nvlink(1, 1)
    links.nvlink(0, 1, step=200.0)
    links.port(4, downed=1)
    links.port(4, downed=2, step=200.0)
    assert links.recent(RDMA) == 1

    assert (links.total, links.recent(NVLINK)) == (0, None)


def test_flaps_are_recent_for_an_hour_and_counted_for_good() -> None:
    links = Links()
    links.nvlink(1, 0, 1)
    links.now += WINDOW_SECONDS - 5
    assert links.recent(NVLINK) == 1

    links.now += 5
    assert (links.total, links.recent(NVLINK)) == (1, None)


def test_counts_survive_a_restart_of_the_daemon() -> None:
    """Two before it and one after it are three within the hour."""
    links = Links()
    links.nvlink(1, 0, 1, 0, 1)
    later = Links(links.flaps.state, links.now + 10)
    later.nvlink(1, 0)

    assert (later.total, later.recent(NVLINK)) == (3, 3)


def test_what_happens_in_maintenance_is_meant() -> None:
    """Neither what was counted before it, nor what counters rose by during it, is shown after it."""
    links = Links()
    links.nvlink(1, 0, 1)
    links.port(4, downed=1)
    links.port(1, downed=2)
    links.port(4, downed=2)
    links.interface(0)
    links.interface(3)
    assert [links.recent(metric) for metric in (NVLINK, RDMA, ETHERNET)] == [1, 1, 3]

    links.flaps.pause()
    assert [links.recent(metric) for metric in (NVLINK, RDMA, ETHERNET)] == [None, None, None]
    links.port(1, downed=9)
    links.port(4, downed=9)
    links.interface(9)
    links.flaps.resume()
    links.nvlink(1)
    links.port(4, downed=10)
    links.interface(10)
    assert [links.recent(metric) for metric in (NVLINK, RDMA, ETHERNET)] == [None, None, None]

    links.port(4, downed=11)
    assert links.recent(RDMA) == 1


def test_a_drop_of_a_port_that_state_and_adapter_saw_is_one() -> None:
    """The adapter sees short drops, the readings those of which its counter is full."""
    links = Links()
    links.port(4, downed=5)
    links.port(1, downed=6)
    links.port(4, downed=6)
    assert links.recent(RDMA) == 1
    links.port(4, downed=8)  # twice between two readings
    assert links.recent(RDMA) == 3
    links.port(4, downed=0)  # somebody has cleared the counters
    assert links.recent(RDMA) == 3


def test_a_full_counter_of_the_adapter_does_not_hide_drops() -> None:
    links = Links()
    links.port(4, downed=255)
    for _ in range(3):
        links.port(1, downed=255)
        links.port(4, downed=255)

    assert links.recent(RDMA) == 3


def test_a_port_or_interface_that_is_switched_off_does_not_flap() -> None:
    """Somebody has done so: physical state 3 of InfiniBand, or no carrier that can be read, whoever saw it first."""
    links = Links()
    links.port(4)
    links.port(1, downed=1, physical=3)
    links.port(4, downed=1)
    links.interface(0)
    links.interface(1, carrier=None)
    links.interface(1)
    assert (links.recent(RDMA), links.recent(ETHERNET)) == (None, None)

    links = Links()
    links.port(4, netdev="eth0")
    links.interface(0)
    links.port(1, downed=1, physical=3, netdev="eth0")
    assert links.recent(RDMA) == 1
    links.interface(1, carrier=None)
    assert links.recent(RDMA) is None


def test_a_roce_port_without_a_link_is_not_switched_off() -> None:
    """The kernel says physical state 3 of it all the same."""
    links = Links()
    links.interface(0)
    links.port(4, netdev="eth0")
    links.port(1, downed=1, physical=3, netdev="eth0")
    links.interface(1, carrier=0)

    assert links.recent(RDMA) == 1


def test_an_adapter_whose_driver_is_loaded_again_begins_anew() -> None:
    """It is gone for a run, and what its counter shows after that is no flap of now."""
    links = Links()
    links.port(4, downed=1)
    links.now += 5
    links.read("rdma", "mlx5_9:1", {(STATE, ("mlx5_9", "1")): 4})
    links.port(4, downed=3)

    assert links.recent(RDMA) is None


def test_a_port_that_comes_up_after_its_driver_was_loaded_again_has_not_dropped() -> None:
    """It was active, was gone, and is down until it has trained; a drop after that is one."""
    links = Links()
    links.port(4)
    links.miss("rdma")
    links.port(1)
    links.port(4)
    assert links.recent(RDMA) is None

    links.port(1)
    assert links.recent(RDMA) == 1


@pytest.mark.parametrize(
    "absence",
    [Absence("mlx5_0:1", "unreadable", "EIO"), Absence("", "deadline", "no answer"), Absence("", "crashed", "")],
)
def test_a_drop_that_one_missed_reading_hides_is_counted(absence: Absence) -> None:
    """A device or a whole run that could not be read once is not gone: state and counter before it still count."""
    by_state, by_counter = Links(), Links()
    for links, after in ((by_state, (1, 0)), (by_counter, (4, 1))):
        links.port(4)
        links.miss("rdma", absence)
        links.port(*after)

    assert (by_state.recent(RDMA), by_counter.recent(RDMA)) == (1, 1)


def test_a_port_whose_whole_source_was_away_has_not_dropped() -> None:
    """As while all RDMA drivers are loaded again: no run says anything then, and the port trains after it."""
    links = Links()
    links.port(4)
    links.port(1, step=20.0)
    links.port(4)

    assert links.recent(RDMA) is None


def test_a_port_that_is_not_found_is_gone() -> None:
    """As of a driver that is being unloaded while its files are read."""
    links = Links()
    links.port(4, downed=1)
    links.miss("rdma", Absence("mlx5_0:1", "not_found", "no such file"))
    links.port(1, downed=2)

    assert links.recent(RDMA) is None


def test_the_interface_of_a_port_is_the_same_link() -> None:
    """What its adapter counted stands at the port, and not at both."""
    links = Links()
    links.port(4, netdev="eth0")
    links.interface(0)
    links.adapter(0)
    links.adapter(2)

    assert (links.recent(RDMA), links.recent(ETHERNET)) == (2, None)


def test_the_adapters_own_counter_goes_before_that_of_the_kernel() -> None:
    """Drivers drop the carrier when a ring or the MTU is changed, and the link stays up."""
    links = Links()
    links.interface(0)
    links.adapter(0)
    links.interface(5)
    links.adapter(0)
    assert links.recent(ETHERNET) is None

    links.adapter(1)
    assert links.recent(ETHERNET) == 1


@pytest.mark.parametrize(("address", "driver"), [("", ""), ("0000:00:14.0", "cdc_ether")])
def test_an_interface_that_is_no_adapter_does_not_count(address: str, driver: str) -> None:
    """A virtual one, and that of the BMC, which goes down with each restart of the BMC."""
    links = Links()
    links.interface(0, address=address, driver=driver)
    links.interface(3, address=address, driver=driver)

    assert links.recent(ETHERNET) is None


_RULES = {
    "nvlink": ("nvlink_flapping", NVLINK, LINK, "commwatch_nvlink_link_state", 1.0, 0.0, "nvlink/0000:17:00.0/3"),
    "rdma_port": ("rdma_port_flapping", RDMA, PORT, STATE, 4.0, 1.0, "rdma_port/mlx5_0/1"),
    "ethernet": ("ethernet_flapping", ETHERNET, NAME, CARRIER, 1.0, 0.0, "interface/eth0"),
}


@pytest.mark.parametrize("kind", _RULES)
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

"""The analysis after each run: resets, use, inventory and the state of the GPUs, from run to run and over a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from structlog.testing import capture_logs

from commwatch.config.settings import Config, Duration, Inventory, Jobs
from commwatch.errors import CommwatchError
from commwatch.node.run import Collected
from commwatch.readings import Absence, HardwareEvent, Reason, SourceUnavailable
from commwatch_exporters.snapshot import Block, Layout, Series, Value
from support.core import SLOTS, block, collected
from support.fed_daemon import FedDaemon

PULSE = "nvml_gpu"
IDENTITY, LINKS, PCIE, NETWORK, PCI = "nvml_identity", "nvml_nvlink", "nvml_pcie", "network", "pci"
ETHTOOL, LOG = "ethtool", "kernel_log"
LEARN_SECONDS = 15.0
NVLINK_USE = "nvlink_transmit_utilization_ratio"
ETHERNET_USE = "ethernet_transmit_utilization_ratio"
LABELS = {slot: (str(index), slot) for index, slot in enumerate(SLOTS)}


class Node(FedDaemon):
    """A node with two GPUs of one NVLink each."""

    def __init__(
        self, folder: Path, patched: pytest.MonkeyPatch, expected: Mapping[str, int] | None = None,
        learn_after: float = LEARN_SECONDS,
    ) -> None:  # fmt: skip
        settings = Inventory(expected=dict(expected or {}), learn_after=Duration(learn_after))  # type: ignore[arg-type]  # names of kinds
        super().__init__(folder, patched, Config(inventory=settings))

    def identify(self, *slots: str, absences: tuple[Absence, ...] = ()) -> None:
        """The driver lists the GPUs of these slots."""
        driver = {"": block({("commwatch_software_info", ("580", "13", "13.0")): 1}, self.clock.now)}
        infos: dict[str, Block] = {
            slot: self.block({("commwatch_gpu_info", (*LABELS[slot], f"GPU-{slot}", "1", "H100", "hopper")): 1})
            for slot in slots
        }
        self.feed(IDENTITY, collected(driver | infos, *absences))

    def links(
        self, sent: int | None, *slots: str, received: int | None = None, absences: tuple[Absence, ...] = ()
    ) -> None:
        """One active NVLink of 25 GB/s on each GPU, which has sent so many bytes."""
        blocks = {}
        for slot in slots:
            link = (*LABELS[slot], "0")
            blocks[slot] = self.block({
                ("commwatch_nvlink_link_state", link): 1,
                ("commwatch_nvlink_link_speed_bytes_per_second", link): 26_562_000_000,
                ("commwatch_nvlink_transmit_bytes_total", link): sent,
                ("commwatch_nvlink_receive_bytes_total", link): received,
            })  # fmt: skip
        self.feed(LINKS, collected(blocks, *absences))

    def use(self, *slots: str, failing: Mapping[str, Reason] = MappingProxyType({})) -> None:
        """The temperature of the GPUs in these slots is read, and every call about others fails with a reason."""
        heat = "commwatch_gpu_temperature_celsius"
        read = {slot: self.block({(heat, LABELS[slot]): 40}) for slot in slots}
        empty = {
            slot: self.block({(heat, LABELS[slot]): None}) for slot in failing if slot in LABELS and slot not in slots
        }
        absences = [Absence(device, reason, "Unknown Error") for device, reason in failing.items()]
        self.feed(PULSE, collected(read | empty, *absences))

    def port(self, sent: int, speed: float | None = 1.25e9, driver: str = "mlx5_core") -> None:
        """One interface that is up and has sent so many bytes."""
        values: dict[Series, Value] = {
            ("commwatch_ethernet_info", ("eth0", "0000:5e:00.0", driver, "")): 1,
            ("commwatch_ethernet_carrier", ("eth0",)): 1,
            ("commwatch_ethernet_speed_bytes_per_second", ("eth0",)): speed,
            ("commwatch_ethernet_transmit_bytes_total", ("eth0",)): sent,
            ("commwatch_ethernet_receive_bytes_total", ("eth0",)): 0,
        }
        self.feed(NETWORK, collected({"eth0": self.block(values)}))

    def learn(self) -> None:
        """Both GPUs with their links are there for the learning time."""
        for _ in range(3):
            self.links(0, *SLOTS, received=0)
            self.identify(*SLOTS)
            self.clock.now += LEARN_SECONDS / 2

    def reset_count(self, source: str, device: str) -> float | None:
        return self.resets().get((source, device))

    def gpu_states(self) -> dict[tuple[str, ...], Value]:
        return self.series("gpu_state")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node of which nothing is known."""
    return Node(tmp_path, monkeypatch)


def test_resets_are_counted_by_source_and_device(node: Node) -> None:
    """A counter that fell is one reset, of its device alone; the series is there from the first reading."""
    node.links(100, *SLOTS)
    assert [node.reset_count("nvml", slot) for slot in SLOTS] == [0, 0]
    node.links(200, *SLOTS)
    node.links(50, SLOTS[0])
    node.links(60, *SLOTS)
    node.links(70, *SLOTS)

    assert [node.reset_count("nvml", slot) for slot in SLOTS] == [1, 1]
    assert node.reset_count("network", "eth0") is None


def test_each_tracker_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is made and not listed follows nothing."""
    daemon = FedDaemon(tmp_path, monkeypatch, Config(jobs=Jobs(identity=True)))

    trackers = daemon.engine.pipeline.trackers
    (base,) = {type(one).__base__ for one in trackers}
    assert base is not None
    assert Counter(map(type, trackers)) == Counter(base.__subclasses__())


def test_what_a_worker_counts_itself_is_no_hardware(node: Node) -> None:
    """The losses of the kernel log begin again with each worker."""
    for losses in (3, 0):
        node.feed(LOG, collected({"": node.block({("commwatch_kernel_log_losses_total", ()): losses})}))

    assert node.reset_count("kernel", "") is None


def test_use_goes_with_its_device(node: Node) -> None:
    """A GPU whose links cannot be read has no use, at once."""
    for sent in (0, 10**9):
        node.links(sent, *SLOTS)
        node.identify(*SLOTS)
        node.clock.now += 1
    assert [used(node, slot) for slot in SLOTS] == [True, True]

    node.links(2 * 10**9, SLOTS[0], absences=(Absence(SLOTS[1], "lost", "GPU is lost"),))

    assert [used(node, slot) for slot in SLOTS] == [True, False]


def test_use_goes_with_a_device_that_another_collector_misses(node: Node) -> None:
    """At once, and that of the others stays as it was; with the last of them nothing is left."""
    for sent in (0, 10**9):
        node.links(sent, *SLOTS)
        node.identify(*SLOTS)
        node.clock.now += 1
    before = node.value(NVLINK_USE, *LABELS[SLOTS[1]])

    node.engine.store.drop(LINKS, SLOTS[0])
    node.observe()
    assert [used(node, slot) for slot in SLOTS] == [False, True]
    assert node.value(NVLINK_USE, *LABELS[SLOTS[1]]) == before

    node.engine.store.drop(LINKS, SLOTS[1])
    node.observe()
    assert node.engine.store.group("nvlink_use") == {}


def used(node: Node, slot: str) -> bool:
    """Whether the page has the use of the NVLinks of a GPU."""
    return LABELS[slot] in node.series(NVLINK_USE)


def test_an_interface_without_a_device_has_use_and_is_never_missed(node: Node) -> None:
    """The end of a container or a bond: its own speed is what it can do, and it goes as it came."""
    for sent in (0, 10**9, 2 * 10**9):
        node.port(sent, driver="")
        node.clock.now += LEARN_SECONDS
    assert node.value(ETHERNET_USE, "eth0") == pytest.approx(10**9 / LEARN_SECONDS / 1.25e9)

    node.feed(NETWORK, collected({"": Block(Layout(()), [], node.clock.now)}))
    node.observe()
    assert node.inventory()["kinds"]["ethernet_port"] == {
        "expected": None,
        "present": 0,
        "source": None,
        "learning_seconds": 0,
    }


def test_an_interface_that_is_gone_leaves_no_count_of_resets(node: Node) -> None:
    """Also the resets of what its driver counted go."""
    node.port(10)
    node.feed(ETHTOOL, collected({"eth0": node.block({("commwatch_ethernet_phy_crc_errors_total", ("eth0",)): 1})}))
    assert [node.reset_count(source, "eth0") for source in (NETWORK, ETHTOOL)] == [0, 0]

    for name in (NETWORK, ETHTOOL):
        node.feed(name, collected({}))
    node.observe()

    assert [node.reset_count(source, "eth0") for source in (NETWORK, ETHTOOL)] == [None, None]


def test_what_is_there_for_the_learning_time_is_expected(node: Node) -> None:
    """As from the first reading on; the log says what was learned."""
    node.links(0, *SLOTS)
    node.identify(*SLOTS)
    assert (node.value("expected", "gpu"), node.value("present", "gpu")) == (2, 2)
    assert node.engine.pipeline.inventory.expects("gpu") == 2

    node.learn()

    assert (node.value("expected", "gpu"), node.value("expected", "nvlink")) == (2, 2)
    assert node.engine.pipeline.inventory.expects("gpu") == 2
    learned = [text for event in node.log if event["event"] == "learned what to expect" for text in event["what"]]
    assert len([text for text in learned if "it is expected" in text]) == 2
    nothing = {"expected": None, "present": None, "source": None, "learning_seconds": 0}
    assert node.inventory() == {
        "kinds": {
            "gpu": {"expected": 2, "present": 2, "source": "learned", "learning_seconds": 0},
            "nvlink": {"expected": 2, "present": 2, "source": "learned", "learning_seconds": 0},
            "pcie_lane": nothing,
            "rdma_port": nothing,
            "ethernet_port": nothing,
        },
        "missing": [],
    }


def test_what_was_learned_survives_a_restart(node: Node) -> None:
    """A card that is gone after a reboot is missing, by name and in the count of its parts."""
    node.learn()
    node.save()

    node.restart()
    assert node.gpu_states() == {}  # the driver has not been asked yet
    node.links(0, SLOTS[0])
    node.identify(SLOTS[0])

    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0, LABELS[SLOTS[1]]: 4}
    assert (node.value("expected", "gpu"), node.value("present", "gpu")) == (2, 1)
    assert node.inventory()["missing"] == [
        f"GPU1 ({SLOTS[1]}): missing", "nvlink: 1 of 2 expected",
    ]  # fmt: skip


def test_what_was_not_saved_is_learned_anew(node: Node) -> None:
    """The state directory is the memory, and nothing else."""
    node.learn()

    node.restart()
    node.identify(SLOTS[0])

    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0}


def test_accepting_forgets_what_is_gone(node: Node) -> None:
    """The missing card is no longer expected, at once and after a restart; what is given up is logged."""
    node.learn()
    node.links(0, SLOTS[0])
    node.identify(SLOTS[0])
    assert node.gpu_states()[LABELS[SLOTS[1]]] == 4

    with capture_logs() as events:
        given_up = node.accept()

    assert [("is no longer expected" in text, SLOTS[1] in text) for text in given_up] == [(True, True)]
    assert [event["what"] for event in events if event["event"] == "accepted"] == given_up
    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0}
    assert node.inventory()["missing"] == []
    node.save()
    node.restart()
    assert node.engine.pipeline.inventory.expects("gpu") == 1


def test_a_stuck_worker_makes_its_gpu_not_answering(node: Node) -> None:
    """The state holds while the process is stuck, also where no reading says so, and ends with it."""
    node.learn()
    hang = Absence(SLOTS[1], "deadline", "no answer within 2 s")
    node.suspects = frozenset({SLOTS[1]})
    node.links(0, SLOTS[0], absences=(hang,))
    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0, LABELS[SLOTS[1]]: 1}

    node.links(0, SLOTS[0])
    node.identify(SLOTS[0])
    assert node.gpu_states()[LABELS[SLOTS[1]]] == 1

    node.suspects = frozenset()
    node.links(0, *SLOTS)
    node.identify(*SLOTS)
    assert node.gpu_states() == {LABELS[slot]: 0 for slot in SLOTS}


def test_nvswitches_that_show_on_the_bus_are_left_to_the_reader_of_the_services(node: Node) -> None:
    """It knows whether a virtual machine has them, in which their fabric manager runs; the driver lists no GPU then."""
    switches = [f"0000:0{place}:00.0" for place in range(4)]
    node.feed(PCI, {one: {("commwatch_pcie_device_info", (one, "nvswitch", *[""] * 4)): 1} for one in switches})
    node.observe()
    node.feed("services", {"": {("commwatch_service_running", ("nvidia-persistenced",)): 1}})

    assert node.series("service_running") == {("nvidia-persistenced",): 1}


@pytest.mark.parametrize(
    ("reader", "device", "states"),
    [
        ("jobs", "/mnt/nfs/logs", {SLOTS[0]: 0, SLOTS[1]: 0}),
        ("rdma", "mlx5_0:1", {SLOTS[0]: 0, SLOTS[1]: 0}),
        ("host", "nvidia-persistenced", {SLOTS[0]: 0, SLOTS[1]: 0}),
        ("host", "0000:5e:00.0", {SLOTS[0]: 0, SLOTS[1]: 0}),
        ("host", SLOTS[1], {SLOTS[0]: 0, SLOTS[1]: 1}),
    ],
    ids=["a path on a file server", "a port", "a service", "an adapter", "a GPU on the bus"],
)
def test_a_reader_that_hangs_makes_only_gpus_not_answering(
    node: Node, reader: str, device: str, states: Mapping[str, int]
) -> None:
    """Nothing else that a reader touches is a GPU, and no path of a job shows on the open endpoint."""
    node.learn()
    node.hung_reader, node.suspects = reader, frozenset({device})
    node.identify(*SLOTS)

    assert node.gpu_states() == {LABELS[slot]: state for slot, state in states.items()}


@pytest.mark.parametrize(
    ("second", "others", "state"),
    [
        (10.0, {}, 1),
        (8.0, {}, 0),  # asked twice within one interval
        (10.0, {"answers": True}, 0),
        (10.0, {"reason": "no_permission"}, 0),  # perhaps commwatch alone lacks a right
        (10.0, {"between": LINKS}, 0),  # its links are read
        (10.0, {"between": IDENTITY}, 1),  # the driver may have kept its name
        (10.0, {"starved": True}, None),  # its worker has read nothing, of any GPU
        (10.0, {"alone": True}, None),  # one fault of the driver, and not one of each GPU
    ],
)
def test_a_gpu_of_which_two_runs_read_nothing_does_not_answer(
    second: float, others: Mapping[str, Any], state: int | None, node: Node
) -> None:
    """While other GPUs are read; what was read of it in between, or a run that was starved, begins the wait again."""
    node.learn()
    node.use(*SLOTS)
    read = node.clock.time()
    node.clock.now += 10.0
    fails = () if others.get("alone") else SLOTS[:1]

    node.use(*fails, failing={slot: others.get("reason", "unreadable") for slot in SLOTS if slot not in fails})
    assert node.gpu_states().get(LABELS[SLOTS[1]]) == (None if others.get("alone") else 0)
    node.clock.now += second / 2
    if others.get("between") == LINKS:
        node.links(0, *SLOTS)
    if others.get("between") == IDENTITY:
        node.identify(*SLOTS)
    if others.get("starved"):
        node.feed(PULSE, collected({}, Absence("", "starved", "no answer in time")))
    node.clock.now += second / 2
    reads = (*fails, SLOTS[1]) if others.get("answers") else fails
    node.use(*reads, failing={slot: others.get("reason", "unreadable") for slot in SLOTS if slot not in fails})

    assert node.gpu_states().get(LABELS[SLOTS[1]]) == state
    since = node.value("gpu_calls_failing_timestamp_seconds", *LABELS[SLOTS[1]])
    assert since == (pytest.approx(read, abs=0.001) if state == 1 else None)


def test_a_gpu_that_is_not_listed_is_known_by_the_reading_of_the_others(node: Node) -> None:
    """Within the 10 s of its interval, and as soon as it is listed, or is bound no more."""
    node.learn()
    unlisted = "0000:99:00.0"

    node.use(*SLOTS, failing={unlisted: "not_listed"})
    assert node.gpu_states() == {**{LABELS[slot]: 0 for slot in SLOTS}, ("", unlisted): 5}
    node.use(*SLOTS)
    assert node.gpu_states() == {LABELS[slot]: 0 for slot in SLOTS}


def test_a_gpu_that_fails_every_call_is_named_until_it_answers(node: Node) -> None:
    """Also when its identity could not be read, and without an address where it never had one; not over a pause."""
    node.learn()
    for _ in range(2):
        node.use(SLOTS[0], failing={SLOTS[1]: "unreadable", "index:7": "unreadable"})
        node.clock.now += 10.0
    failing = Absence(SLOTS[1], "unreadable", "Unknown Error"), Absence("index:7", "unreadable", "Unknown Error")
    node.identify(SLOTS[0], absences=failing)
    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0, LABELS[SLOTS[1]]: 1, ("7", ""): 1}
    assert node.value("gpu_info", *LABELS[SLOTS[1]], f"GPU-{SLOTS[1]}", "1", "H100", "hopper") == 1

    node.pause()
    assert node.gpu_states() == {}
    node.resume()
    node.use(SLOTS[0], failing={SLOTS[1]: "unreadable"})
    node.identify(SLOTS[0], absences=failing)
    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0}  # not missing, as the driver still counts it
    node.clock.now += 10.0
    node.use(SLOTS[0], failing={SLOTS[1]: "unreadable"})
    assert node.gpu_states()[LABELS[SLOTS[1]]] == 1

    node.use(*SLOTS)
    node.identify(*SLOTS)
    assert node.gpu_states() == {LABELS[slot]: 0 for slot in SLOTS}


def test_a_gpu_that_hangs_in_the_first_minute_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not answer, and is neither never seen nor in need of an acceptance; also after the worker is replaced."""
    node = Node(tmp_path, monkeypatch, {"gpu": 2, "nvlink": 2})
    node.links(0, *SLOTS)
    node.identify(*SLOTS)
    assert set(node.gpu_states().values()) == {0}
    hang = Absence(SLOTS[1], "deadline", "no answer within 2 s")
    node.suspects = frozenset({SLOTS[1]})
    for _ in range(3):
        node.clock.now += 1.0
        node.links(0, SLOTS[0], absences=(hang,))
        node.identify(SLOTS[0], absences=(hang,))

        assert node.gpu_states()["1", SLOTS[1]] == 1
        assert (node.value("never_seen", "gpu"), node.value("never_seen", "nvlink")) == (0, 0)


def test_a_gpu_that_falls_off_the_list_in_the_first_minute_is_missing(node: Node) -> None:
    """One reading of this boot has shown it; after a restart of the daemon too."""
    node.links(0, *SLOTS)
    node.identify(*SLOTS)
    node.clock.now += 10.0
    node.links(0, SLOTS[0])
    node.identify(SLOTS[0])
    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0, LABELS[SLOTS[1]]: 4}
    assert (node.value("expected", "gpu"), node.value("present", "gpu")) == (2, 1)

    node.save()
    node.restart()
    node.links(0, SLOTS[0])
    node.identify(SLOTS[0])
    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0, LABELS[SLOTS[1]]: 4}


def test_a_gpu_that_answers_again_is_not_missing_before_its_identity_is_read(node: Node) -> None:
    """Its identity was dropped with all else when it hung: that it is not here is not what the driver said."""
    node.learn()
    node.links(0, SLOTS[0], absences=(Absence(SLOTS[1], "deadline", "no answer within 2 s"),))

    node.links(0, *SLOTS)
    assert node.gpu_states()[LABELS[SLOTS[1]]] == 1
    node.identify(*SLOTS)
    assert node.gpu_states() == {LABELS[slot]: 0 for slot in SLOTS}


def test_a_lost_gpu_is_not_present_although_the_driver_lists_it(node: Node) -> None:
    """Its state is lost, its parts do not count, and the sentence for the operator names it."""
    node.learn()

    node.links(0, SLOTS[0], absences=(Absence(SLOTS[1], "lost", "GPU is lost"),))

    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0, LABELS[SLOTS[1]]: 2}
    assert node.value("present", "gpu") == 1
    assert node.inventory()["missing"][0] == f"GPU1 ({SLOTS[1]}): lost"


def test_evidence_of_one_collector_stands_until_that_collector_succeeds(node: Node) -> None:
    """Another collector's good run does not wipe out what this one could not read."""
    node.learn()
    node.links(0, SLOTS[0], absences=(Absence(SLOTS[1], "reset_required", "GPU requires reset"),))

    node.identify(*SLOTS)
    assert node.gpu_states()[LABELS[SLOTS[1]]] == 3
    node.links(0, *SLOTS)
    assert node.gpu_states()[LABELS[SLOTS[1]]] == 0


def test_a_driver_that_is_away_is_not_eight_missing_gpus(node: Node) -> None:
    """Without the driver's list no GPU has a state, and none is counted as absent."""
    node.learn()
    gone = SourceUnavailable("no_driver", "driver not loaded")

    node.feed(LINKS, gone)
    node.feed(IDENTITY, gone)

    assert node.gpu_states() == {}
    assert node.value("present", "gpu") is None
    assert node.value("expected", "gpu") == 2
    assert node.inventory()["missing"] == []


def test_a_driver_that_lists_nothing_misses_every_expected_gpu(node: Node) -> None:
    """An empty list is an answer."""
    node.learn()

    node.links(0)
    node.identify()

    assert node.gpu_states() == {LABELS[slot]: 4 for slot in SLOTS}
    assert node.value("present", "gpu") == 0


def test_during_a_pause_nothing_is_said_of_the_gpus(node: Node) -> None:
    """Resting forgets the evidence of before; what is expected stays, and use starts again."""
    node.learn()
    node.links(0, SLOTS[0], absences=(Absence(SLOTS[1], "lost", "GPU is lost"),))

    node.pause()

    assert node.gpu_states() == {}
    assert node.value("expected", "gpu") == 2
    assert node.value("present", "gpu") is None
    assert node.engine.store.group("nvlink_use") == {}
    node.clock.now += 1
    node.links(10**9, *SLOTS)
    assert node.value(NVLINK_USE, *LABELS[SLOTS[0]]) is None  # no rate over the pause


def test_events_of_a_pause_are_counted_and_are_no_news_after_it(node: Node) -> None:
    """A driver that is loaded again reports Xids; what comes after the pause is news."""
    node.learn()
    recent = ("gpu_xid_events_recent", *LABELS[SLOTS[0]], "79")

    def report(sequence: int) -> None:
        event = HardwareEvent("xid", SLOTS[0], "79", "kernel_log", node.clock.time(), "", "boot", sequence)
        node.feed(LOG, Collected({}, [], 0.0, [event]))

    node.pause()
    report(1)
    node.resume()
    node.links(0, *SLOTS)
    node.identify(*SLOTS)
    assert node.value(*recent) is None
    assert node.value("gpu_xid_events_total", *LABELS[SLOTS[0]], "79") == 1

    report(2)
    assert node.value(*recent) == 1


@pytest.mark.parametrize(("learn_after", "every"), [(LEARN_SECONDS, LEARN_SECONDS / 3), (60.0, 10.0)])
def test_the_inventory_is_looked_at_now_and_then_and_at_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learn_after: float, every: float
) -> None:
    """Each 10 s, or what learns faster more often: a collector that runs each second does not cost a comparison."""
    node = Node(tmp_path, monkeypatch, learn_after=learn_after)
    node.learn()

    def is_looked_at(seconds: float, *slots: str) -> bool:
        """Whether a run of a collector some seconds later, which misses the GPUs of all other slots, is a look."""
        before = node.engine.store.get("inventory", "")
        node.clock.now += seconds
        node.links(0, *slots, absences=tuple(Absence(one, "lost", "GPU is lost") for one in SLOTS if one not in slots))
        return node.engine.store.get("inventory", "") is not before

    node.observe()
    assert not is_looked_at(every - 0.1, *SLOTS)
    assert is_looked_at(0.1, *SLOTS)
    assert not is_looked_at(1.0, *SLOTS)
    assert is_looked_at(1.0, SLOTS[0]), "one is missed"
    assert not is_looked_at(1.0, SLOTS[0])
    assert is_looked_at(1.0, *SLOTS), "it is back"


def test_an_inventory_that_cannot_be_saved_is_an_error(node: Node, tmp_path: Path) -> None:
    """Whoever accepted something must hear that it would be lost."""
    (tmp_path / "inventory.json").mkdir()  # nothing can be written under this name

    node.learn()
    with pytest.raises(CommwatchError, match="the state is not saved"):
        node.accept()


def test_a_gpu_that_does_not_answer_is_not_given_up(node: Node) -> None:
    """Unknown is not gone: accepting is refused until it answers or is gone, and nothing changes."""
    node.learn()
    node.links(0, SLOTS[0], absences=(Absence(SLOTS[1], "deadline", "no answer in time"),))
    assert node.gpu_states()[LABELS[SLOTS[1]]] == 1

    with pytest.raises(CommwatchError, match="does not answer, which is not gone: nothing was accepted"):
        node.accept()

    assert node.value("expected", "gpu") == 2


def test_nothing_is_accepted_while_the_gpus_are_not_read(node: Node) -> None:
    """During a pause the driver lists nothing, which says nothing."""
    node.learn()
    node.pause()

    with pytest.raises(CommwatchError, match="not read now"):
        node.accept()

    assert node.value("expected", "gpu") == 2


def test_a_driver_that_lists_no_gpu_is_one_fault_and_not_one_of_each_gpu(node: Node, tmp_path: Path) -> None:
    """While GPUs are on the bus for it; the GPUs have no state and are not counted as missing until it lists some."""
    gpu = tmp_path / "sysfs/bus/pci/devices/0000:17:00.0"
    gpu.mkdir(parents=True)
    (gpu / "class").write_text("0x030200\n")
    (gpu / "vendor").write_text("0x10de\n")
    node.restart()
    node.learn()

    node.identify()

    assert node.gpu_states() == {}
    assert node.value("present", "gpu") is None

    node.identify(SLOTS[0])
    assert node.gpu_states() == {LABELS[SLOTS[0]]: 0, LABELS[SLOTS[1]]: 4}

"""RDMA ports from the collector through analysis into the store, and nodes that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.config.settings import Config, Duration, Inventory, Paths
from commwatch.config.thresholds import load_thresholds
from commwatch.node.port_flaps import FORGOTTEN_SECONDS
from commwatch.node.starvation import Starvation
from commwatch.node.store import Store
from commwatch.node.wrap import Wraps, WrapsState
from commwatch.readings import Absence
from commwatch.service.collection import Collection
from commwatch.service.engine import Engine
from commwatch.service.instruments import Instruments
from commwatch.service.pipeline import Pipeline
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Block, Layout, Value
from support.core import PlannedJobs, ScriptedReader, collected, collector, in_loop
from support.infiniband import add_device, add_port

PORT = ("mlx5_0", "1")
KEY = "mlx5_0:1"
LAYOUT = Layout((
    ("commwatch_rdma_port_state", PORT),
    ("commwatch_rdma_port_speed_bytes_per_second", PORT),
    ("commwatch_rdma_port_transmit_bytes_total", PORT),
    ("commwatch_rdma_port_receive_bytes_total", PORT),
    ("commwatch_rdma_out_of_sequence_total", PORT),
    ("commwatch_rdma_port_info", (*PORT, "InfiniBand", "0x1", "0x1", "28", "MT4129", "0000:18:00.0", "")),
))  # fmt: skip


class Node:
    """A collector of RDMA ports with the analysis behind it; learns within 10 s."""

    def __init__(self, folder: Path, boot: str = "boot") -> None:
        self.state = StateDirectory(folder)
        self.wraps = Wraps(self.state.load("wraps", WrapsState) or WrapsState(), boot)
        self.store, self.instruments, self.reader = Store(), Instruments(), ScriptedReader("rdma")
        config = Config(inventory=Inventory(learn_after=Duration(10)))
        self.pipeline = Pipeline(config, StateDirectory(folder), self.store, self.instruments)
        self.collector = collector("rdma", self.reader, interval=5.0, needs_release=False)
        self.collection = Collection(
            [self.collector], self.store, self.instruments, self.pipeline.on_batch, lambda source: None,
            self.wraps.correct,
        )  # fmt: skip
        self.now = 1e9
        """Far in the future, so that nothing grows old."""

    def run(self, state: Value, sent: Value = 0, lost: Value = 0, *absences: Absence, here: bool = True) -> None:
        """Five seconds later the port has this state and these counters."""
        self.now += 5
        speed = 50e9 if state == 4 else None
        blocks = {KEY: Block(LAYOUT, [state, speed, sent, sent, lost, 1], self.now)} if here else {}
        self.reader.answers.append(collected(blocks, *absences))
        in_loop(lambda: self.collection.run(self.collector))
        self.pipeline.observe(self.now)

    def value(self, name: str, *labels: str) -> Value:
        return self.store.snapshot().value(f"commwatch_{name}", *(labels or PORT))

    @property
    def resets(self) -> dict[tuple[str, ...], float]:
        """By source and device, as they are shown."""
        samples = [one for family in self.instruments.counter_resets.collect() for one in family.samples]
        return {tuple(one.labels.values()): one.value for one in samples}


def test_a_port_is_learned_used_and_missed(tmp_path: Path) -> None:
    """Active for the learning time it is expected; its use shows; when it drops the flap and the time are counted."""
    node = Node(tmp_path)
    for number in range(4):
        node.run(4, number * 100_000_000_000)
    assert node.value("rdma_port_transmit_utilization_ratio") == pytest.approx(0.4)
    assert (node.value("rdma_port_expected"), node.value("expected", "rdma_port")) == (1, 1)
    assert (node.value("rdma_port_flaps_total"), node.value("rdma_port_down_seconds_total")) == (0, 0)

    node.run(1, 400_000_000_000)
    node.run(1, 400_000_000_000)

    assert (node.value("rdma_port_flaps_total"), node.value("rdma_port_down_seconds_total")) == (1, 5)
    assert (node.value("expected", "rdma_port"), node.value("present", "rdma_port")) == (1, 0)
    assert node.value("rdma_port_expected") == 1


def test_a_port_that_is_reset_in_maintenance_has_not_flapped(tmp_path: Path) -> None:
    """Its drops are counted all the same, and after the maintenance they are of interest again."""
    node = Node(tmp_path)
    node.run(4)
    node.pipeline.pause()
    for state in (1, 4):
        node.run(state)
    node.pipeline.resume()
    node.run(4)
    assert (node.value("rdma_port_flaps_total"), node.value("rdma_port_flaps_recent")) == (1, None)

    node.run(1)
    assert (node.value("rdma_port_flaps_total"), node.value("rdma_port_flaps_recent")) == (2, 1)


def test_a_device_that_goes_leaves_only_what_is_expected(tmp_path: Path) -> None:
    """Its values, its use and its drops are gone; that it should be here stays."""
    node = Node(tmp_path)
    for number in range(4):
        node.run(4, number)
    node.run(None, here=False)

    assert node.value("rdma_port_state") is None
    assert node.value("rdma_port_transmit_utilization_peak_ratio") is None
    assert node.value("rdma_port_flaps_total") is None
    assert node.value("rdma_port_expected") == 1


def test_a_port_that_comes_back_goes_on_counting_within_an_hour(tmp_path: Path) -> None:
    """A driver that is loaded again is no new port; one of a pod that ended an hour ago is."""
    node = Node(tmp_path)
    for state in (4, 1, 4):
        node.run(state)
    node.run(None, here=False)
    node.run(4)
    assert (node.value("rdma_port_flaps_total"), len(node.resets)) == (1, 1)

    node.now += FORGOTTEN_SECONDS
    node.run(None, here=False)
    assert node.resets == {}
    node.run(4)

    assert node.value("rdma_port_flaps_total") == 0


def test_the_use_of_a_port_begins_again_when_it_comes_back(tmp_path: Path) -> None:
    """What it had sent when it went says nothing of what it sends now."""
    node = Node(tmp_path)
    node.run(4, 0)
    node.run(None, here=False)
    node.run(4, 10**9)
    assert node.value("rdma_port_transmit_utilization_ratio") is None

    node.run(4, 2 * 10**9)
    assert node.value("rdma_port_transmit_utilization_ratio") == pytest.approx(0.2e9 / 50e9)


def test_when_the_last_port_goes_none_is_present(tmp_path: Path) -> None:
    """The source looked for ports and found none, which is not the same as not having looked."""
    node = Node(tmp_path)
    for number in range(4):
        node.run(4, number)
    node.reader.answers.append(collected({"": Block(Layout(()), [], node.now + 5)}))
    in_loop(lambda: node.collection.run(node.collector))
    node.pipeline.observe(node.now + 5)

    assert node.value("expected", "rdma_port") == 1
    assert node.value("present", "rdma_port") == 0


def test_a_wrap_is_exposed_as_growth(tmp_path: Path) -> None:
    """A counter of 32 bits that wraps goes on growing and is no reset; a driver that is loaded again is one."""
    node = Node(tmp_path)
    node.run(4, 1000, 2**32 - 1)
    node.run(4, 1001, 4)
    assert (node.value("rdma_out_of_sequence_total"), node.resets) == (2**32 + 4, {("rdma", KEY): 0})

    node.run(4, 0, 0)
    assert (node.value("rdma_out_of_sequence_total"), node.resets) == (0, {("rdma", KEY): 1})


@pytest.mark.parametrize(
    ("boot", "after", "exposed"),
    [("boot", 5, 2**32 + 5), ("boot", 3, 3), ("another boot", 5, 5), ("", 5, 5)],
)
def test_a_wrap_outlives_the_daemon(tmp_path: Path, boot: str, after: int, exposed: int) -> None:
    """After a restart the number goes on; not after a boot, and not where the counter is lower than it was."""
    node = Node(tmp_path)
    node.run(4, 1000, 2**32 - 1)
    node.run(4, 1001, 4)
    node.state.save("wraps", node.wraps.state)

    node = Node(tmp_path, boot)
    node.run(4, 1002, after)
    assert node.value("rdma_out_of_sequence_total") == exposed
    node.run(4, 1003, after + 1)
    assert node.value("rdma_out_of_sequence_total") == exposed + 1


def test_a_reset_is_not_kept(tmp_path: Path) -> None:
    """Counters that began again before the daemon ended have lost nothing any more."""
    node = Node(tmp_path)
    for sent, lost in ((1000, 2**32 - 1), (1001, 4)):
        node.run(4, sent, lost)
    node.state.save("wraps", node.wraps.state)
    node.run(4, 0, 0)
    node.state.save("wraps", node.wraps.state)

    node = Node(tmp_path)
    node.run(4, 1000, 10)
    assert node.value("rdma_out_of_sequence_total") == 10


def test_devices_that_are_gone_leave_nothing_behind(tmp_path: Path) -> None:
    """Unless a counter of theirs has wrapped: it goes on when the device is read again."""
    node = Node(tmp_path)

    def run(*devices: str, lost: int) -> list[Value]:
        node.now += 5
        blocks = {one: Block(LAYOUT, [4, 5e10, 0, 0, lost, 1], node.now) for one in devices}
        return [one.values[4] for one in node.wraps.correct(node.collector, blocks).values()]

    run("a", "b", lost=2**32 - 1)
    run("a", lost=4)
    assert set(node.wraps._known["rdma"]) == {"a"}
    run("c", lost=1)
    assert set(node.wraps._known["rdma"]) == {"a", "c"}
    assert run("a", lost=6) == [2**32 + 6]


def test_a_cleared_counter_is_a_reset(tmp_path: Path) -> None:
    """Someone cleared the counters of the port: seen once."""
    node = Node(tmp_path)
    for sent in (1000, 2000, 5, 6):
        node.run(4, sent)

    assert node.resets == {("rdma", KEY): 1}
    assert node.value("rdma_port_transmit_bytes_total") == 6


def engine(tmp_path: Path, state: str = "state") -> Engine:
    paths = Paths(sysfs=str(tmp_path / "sys"), procfs="/nonexistent")
    return Engine(
        Config(paths=paths),
        load_thresholds(None),
        StateDirectory(tmp_path / state),
        None,
        Instruments(),
        PlannedJobs(),
        Starvation(Path("/nonexistent")),
    )


def test_a_node_without_rdma_starts_no_process(tmp_path: Path) -> None:
    """The reader has nothing to read, so that there is none; with a device there is something to do."""
    subject = engine(tmp_path)
    rdma = subject.collection.collectors["rdma"]

    async def run() -> None:
        await subject.collection.run(rdma)
        assert rdma.reader.pids() == []

    in_loop(run)
    assert "rdma" in subject.collection.absent_sources

    add_port(add_device(tmp_path / "sys"))
    assert subject._origin_absent("rdma") is None


def test_ports_that_should_be_here_are_missed(tmp_path: Path) -> None:
    """Where ports were learned, a class that is gone is a fault of the node, not an absent source."""
    (tmp_path / "state").mkdir()
    node = Node(tmp_path / "state")
    for _ in range(4):
        node.run(4)
    node.state.save("inventory", node.pipeline.inventory.state)

    assert engine(tmp_path)._origin_absent("rdma") is None
    assert engine(tmp_path, "other")._origin_absent("rdma") == "no RDMA device"


def test_what_must_not_be_lost_is_told_from_what_goes_on(tmp_path: Path) -> None:
    """A port that is seen first, expected or dropped is to be saved at once; while it stays as it is, nothing is."""
    node = Node(tmp_path)
    changed, version = [], node.pipeline.version
    for state in (4, 4, 4, 4, 1, 1, 4):
        node.run(state)
        changed.append(node.pipeline.version != version)
        version = node.pipeline.version

    assert changed == [True, False, True, False, True, False, False]

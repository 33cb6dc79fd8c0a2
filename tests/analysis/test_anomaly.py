"""Counters that cannot be trusted: each sign at its edge, looked at each ten seconds, whatever else fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.readings import Absence
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, collected
from support.examples import examples
from support.fed_daemon import FedDaemon

BLANK, STALE, SATURATED = 2, 3, 4
TWIN_SECONDS, BUSY_SECONDS, LOOK_SECONDS = 30.0, 60.0, 10.0
MIB = 2**20
START = 20_000.0
PORT, LINK = ("mlx5_0", "1"), ("0", SLOTS[0], "3")
SYMBOLS = "rdma_port_symbol_errors_total"
SENT, PACKETS = "rdma_port_transmit_bytes_total", "rdma_port_transmit_packets_total"
LANE_ERRORS, LINK_ERRORS, REPLAYS = "nvlink_raw_errors_total", "nvlink_crc_flit_errors_total", "pcie_replays_total"
Found: TypeAlias = dict[tuple[str, str], Value]
"""How a counter is to be called, by device and counter."""


class Node(FedDaemon):
    """A node that is read at times that a test says."""

    def read(
        self,
        time: float,
        values: Mapping[tuple[str, tuple[str, ...]], Value],
        collector: str = "rdma",
        device: str = "mlx5_0",
    ) -> Found:
        """What cannot be trusted after a reading of these counters, by their names without prefix and their labels."""
        self.clock.now = START + time
        self.feed(collector, {device: {(f"commwatch_{name}", labels): one for (name, labels), one in values.items()}})
        return {labels[1:]: value for labels, value in self.series("counters_anomaly").items()}  # type: ignore[misc]  # two labels

    def port(self, *readings: tuple[float, Value, Value]) -> Found:
        """The same of a port, after readings at times of what it sent, in bytes and in packets."""
        found: Found = {}
        for time, sent, packets in readings:
            found = self.read(time, {(SENT, PORT): sent, (PACKETS, PORT): packets})
        return found

    def gpu(self, time: float, errors: Value, replays: Value = 0, lane: str = "") -> Found:
        """The same of a GPU, by the errors of a link or of one of its lanes, and its replays."""
        counter = (LANE_ERRORS, (*LINK, lane)) if lane else (LINK_ERRORS, LINK)
        return self.read(time, {counter: errors, (REPLAYS, LINK[:2]): replays}, "nvml_nvlink_errors", SLOTS[0])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_a_counter_at_its_end_is_saturated(node: Node) -> None:
    """16 bits end at 65,535: one less is sound, and a counter that was cleared is sound again."""
    found = [node.read(10.0 * step, {(SYMBOLS, PORT): value}) for step, value in enumerate((65_534, 65_535, None, 0))]

    assert found == [{}, {("mlx5_0/1", SYMBOLS): SATURATED}, {}, {}]


@pytest.mark.parametrize("lane", ["", "1"], ids=["link", "lane"])
def test_a_counter_of_a_device_that_answers_is_blank_while_it_has_no_number(node: Node, lane: str) -> None:
    """Not where it has a reason: its link is down, or the device gave nothing at all."""
    device = f"{SLOTS[0]}/3{lane and f'/{lane}'}"
    blank = {(device, LANE_ERRORS if lane else LINK_ERRORS): BLANK}
    assert [node.gpu(0, 0, 0, lane), node.gpu(10, None, 0, lane), node.gpu(20, 5, 0, lane)] == [{}, blank, {}]
    assert [node.gpu(30, None, 0, lane), node.gpu(40, None, None, lane)] == [blank, {}]

    node.feed("nvml_nvlink", {SLOTS[0]: {("commwatch_nvlink_link_state", LINK): 0}})
    assert node.gpu(50, None, 0, lane) == {}


def test_a_place_that_a_source_keeps_for_what_a_device_lacks_is_no_blank(node: Node) -> None:
    """As that of RDMA does."""
    assert node.read(0, {(SENT, PORT): None, (SYMBOLS, PORT): 0}) == {}


def test_blanks_are_looked_for_each_ten_seconds(node: Node) -> None:
    """Not at a run between two looks; a run that comes a little early is one."""
    assert [node.gpu(time, value) for time, value in ((0, 1), (1, None))] == [{}, {}]
    assert len(node.gpu(LOOK_SECONDS - 0.1, None)) == 1
    assert node.gpu(2 * LOOK_SECONDS, 2) == {}


def test_a_gpu_that_fails_is_not_looked_at_and_hastens_nothing(node: Node) -> None:
    """A number that it lacks is no blank, and the other GPU is looked at no more often for it."""
    found = []
    for time, value, absences in ((0.0, 1, True), (1.0, None, True), (10.0, None, True)):
        node.clock.now = START + time
        blocks = {
            slot: node.block({
                ("commwatch_nvlink_crc_flit_errors_total", (str(gpu), slot, "3")): None if gpu == 0 else value,
                ("commwatch_pcie_replays_total", (str(gpu), slot)): 0,
            })
            for gpu, slot in enumerate(SLOTS)
        }  # fmt: skip
        node.feed("nvml_nvlink_errors", collected(blocks, *[Absence(SLOTS[0], "unreadable", "x")] * absences))
        found.append(len(node.series("counters_anomaly")))

    assert found == [0, 0, 1]


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        pytest.param([(0, 0, 0), (29, 2 * MIB, 0)], {}, id="not long enough"),
        pytest.param([(0, 0, 0), (30, 3 * MIB, 0)], {PACKETS: BLANK}, id="it never counted"),
        pytest.param([(0, 0, 7), (30, 3 * MIB, 7)], {PACKETS: STALE}, id="it stands"),
        pytest.param([(0, 0, 7), (30, 3 * MIB, 7), (40, 4 * MIB, 8)], {}, id="it moves again"),
        pytest.param([(0, 0, 0), (1000, MIB - 1, 0)], {}, id="little traffic may be less than the twin's unit"),
        pytest.param([(0, 0, 0), (1000, MIB - 1, 0), (1010, MIB, 0)], {PACKETS: BLANK}, id="enough of it"),
        pytest.param([(0, 500, 0), (60, 500, 9_999)], {}, id="few packets"),
        pytest.param([(0, 500, 0), (60, 500, 10_000)], {SENT: STALE}, id="bytes stand while packets count"),
        pytest.param([(0, 0, 0), (1000, 0, 0), (1010, 5 * MIB, 0)], {}, id="idle time does not count"),
        pytest.param(
            [(0, 0, 0), (10, 1, 1), (50, 1, 20_000)], {SENT: STALE}, id="one byte and one packet are together"
        ),
        pytest.param([(0, 9 * MIB, 5), (60, 2 * MIB, 5)], {}, id="one began again"),
        pytest.param([(0, 9 * MIB, 5), (60, 2 * MIB, 5), (70, None, 5), (80, 8 * MIB, 5)], {}, id="a hole"),
        pytest.param(
            [(0, 9 * MIB, 5), (60, None, 5), (80, 8 * MIB, 5), (110, 9 * MIB, 5)], {PACKETS: STALE}, id="after a hole"
        ),
    ],
)
def test_a_counter_that_stands_still_while_its_twin_counts(
    node: Node, readings: list[tuple[float, Value, Value]], found: Mapping[str, int]
) -> None:
    """After 30 s and 1 MiB or 10,000 packets of its twin; the wait begins when both stood still, or moved together."""
    assert node.port(*readings) == {("mlx5_0/1", counter): code for counter, code in found.items()}


def test_one_byte_and_one_packet_move_together_whatever_the_port_beside_does(node: Node) -> None:
    """From then on the wait of the port's bytes counts."""
    other = ("mlx5_0", "2")
    for time, sent, packets, others in ((0, 0, 0, 0), (10, 1, 1, 5), (50, 1, 20_000, 5)):
        counters: dict[Series, Value] = {(SENT, PORT): sent, (PACKETS, PORT): packets}
        found = node.read(time, {**counters, (SENT, other): others, (PACKETS, other): 0})

    assert found == {("mlx5_0/1", SENT): STALE}


@pytest.mark.parametrize(
    ("collector", "family", "labels", "device"),
    [
        ("nvml_nvlink", "nvlink", LINK, f"{SLOTS[0]}/3"),
        ("rdma", "rdma_port", PORT, "mlx5_0/1"),
        ("ethtool", "ethernet_phy", ("eth0",), "eth0"),
    ],
)
@pytest.mark.parametrize("direction", ["transmit", "receive"])
def test_what_one_transfer_moves_together(
    node: Node, collector: str, family: str, labels: tuple[str, ...], device: str, direction: str
) -> None:
    """Bytes and packets of each kind of device, and of NVLinks raw bytes too; a device is named without its index."""
    twins = [
        f"{family}_{direction}_{one}_total" for one in ("packets", *(("raw_bytes",) if family == "nvlink" else ()))
    ]
    sent = f"{family}_{direction}_bytes_total"
    for time in (0, TWIN_SECONDS):
        counters = {(sent, labels): time * MIB, **{(name, labels): 7 for name in twins}}
        found = node.read(time, counters, collector, device.partition("/")[0])

    assert found == {(device, name): STALE for name in twins}


@examples(30, one_fixture=True)
@given(
    st.lists(
        st.tuples(st.floats(10, 100), st.integers(1, 2**40), st.integers(1, 2**30)),
        max_size=15,
    )
)
def test_counters_that_move_together_are_sound(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, int, int]]
) -> None:
    """However fast both count."""
    with pytest.MonkeyPatch.context() as patched:
        node, time, sent, packets = Node(tmp_path_factory.mktemp("node"), patched), 0.0, 0, 0
        for seconds, more_bytes, more_packets in steps:
            time, sent, packets = time + seconds, sent + more_bytes, packets + more_packets
            assert node.port((time, sent, packets)) == {}


Stands: TypeAlias = "tuple[float, int, int] | None"
"""Time and numbers at which two twins moved together last."""


def one_by_one(earlier: Stands, now: tuple[float, Value, Value]) -> tuple[Stands, int | None]:
    """How two twins stand after a reading, and the place of the one that does not move; each link by itself."""
    time, first, second = now
    if first is None or second is None:
        return None, None
    if earlier is None:
        return (time, int(first), int(second)), None
    moved = first - earlier[1], second - earlier[2]
    if (moved[0] > 0) == (moved[1] > 0) or min(moved) < 0:
        return (time, int(first), int(second)), None
    mover = 0 if moved[0] > 0 else 1
    is_told = moved[mover] >= (MIB, 10_000)[mover] and time - earlier[0] >= TWIN_SECONDS
    return earlier, 1 - mover if is_told else None


STEPS = st.tuples(st.sampled_from([10.0, 20.0, 30.0]), st.lists(
    st.tuples(*[st.sampled_from([0, 0, 1, 5_000, 2 * MIB, 2 * MIB, -7, None])] * 2), min_size=3, max_size=3
))  # fmt: skip


@examples(60, one_fixture=True)
@given(st.lists(STEPS, max_size=12))
def test_twins_of_many_ports_are_judged_each_by_itself(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, list[tuple[Value, Value]]]]
) -> None:
    """Whatever the others do: ports that move together, apart, that begin again or are not read."""
    ports = [("mlx5_0", number) for number in "123"]
    counts, now = [[0.0, 0.0] for _ in ports], 0.0
    stands: list[Stands] = [None] * len(ports)
    with pytest.MonkeyPatch.context() as patched:
        node = Node(tmp_path_factory.mktemp("node"), patched)
        for seconds, rises in steps:
            now += seconds
            told: Found = {}
            shown: dict[Series, Value] = {}
            for at, pair in enumerate(rises):
                counts[at] = [count + (rise or 0) for count, rise in zip(counts[at], pair, strict=True)]
                first, second = (None if rise is None else count for count, rise in zip(counts[at], pair, strict=True))
                shown |= {(SENT, ports[at]): first, (PACKETS, ports[at]): second}
                stands[at], still = one_by_one(stands[at], (now, first, second))
                if still is not None:
                    code = STALE if stands[at][1 + still] else BLANK  # type: ignore[index]  # it stands
                    told["/".join(ports[at]), (SENT, PACKETS)[still]] = code
            assert node.read(now, shown) == told


Fed: TypeAlias = "list[tuple[float, Value, Value]]"
"""Times, each with the share in which the GPU worked, and the bytes that it got over PCIe."""


def fed(node: Node, *readings: tuple[float, Value, Value], more: float = 0.0, job: int = 7, nvlink: float = 0.0) -> int:
    """How many counters cannot be trusted after readings of a GPU.

    Args:
        node: with two GPUs.
        readings: of the first.
        more: bytes per second that the other GPU gets.
        job: of the other GPU; the first one's is 7.
        nvlink: use of the first one's NVLinks.
    """
    for time, share, got in readings:
        node.clock.now = START + time
        node.engine.store.occupants = {SLOTS[0]: (7,), SLOTS[1]: (job,)}
        node.feed("nvml_gpu", {
            slot: {("commwatch_gpu_utilization_ratio", (str(gpu), slot)): share if gpu == 0 else 1.0}
            for gpu, slot in enumerate(SLOTS)
        })  # fmt: skip
        use: dict[Series, Value] = {("commwatch_nvlink_transmit_utilization_ratio", ("0", SLOTS[0])): nvlink}
        node.engine.store.put("nvlink_use", SLOTS[0], node.block(use), float("inf"))
        node.feed("nvml_gpm", {
            slot: {(f"commwatch_pcie_{way}_bytes_total", (str(gpu), slot)): got if gpu == 0 else more * time
                   for way in ("transmit", "receive")}
            for gpu, slot in enumerate(SLOTS)
        })  # fmt: skip
    return len([labels for labels in node.series("counters_anomaly") if labels[1] == SLOTS[0]])


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        ([(0, 0.97, 5), (BUSY_SECONDS - 1, 0.9, 5)], 0),
        ([(0, 0.97, 5), (30, 0.9, 5), (BUSY_SECONDS, 1.0, 5)], 2),
        ([(0, 0.97, 5), (BUSY_SECONDS, 1.0, 5), (70, 1.0, 6)], 0),  # one byte proves them sound
        *(([(0, 1.0, 5), (30, share, 5)], 0) for share in (0.89, None)),
        *(([(0, 1.0, 5), (30, share, got), (60, 1.0, 5), (119, 1.0, 5)], 0)
          for share, got in ((0.89, 5), (None, 5), (1.0, None))),
        *(([(0, 1.0, 5), (30, share, got), (60, 1.0, 5), (120, 1.0, 5)], 2)
          for share, got in ((0.89, 5), (None, 5), (1.0, None))),
    ],
)  # fmt: skip
def test_a_working_gpu_whose_pcie_counters_stand_still(node: Node, readings: Fed, found: int) -> None:
    """After a minute at 90 % without one byte either way they are blank; a pause starts the minute again."""
    assert fed(node, *readings, nvlink=0.2) == found


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, 0),  # a job that hangs in one call feeds none of them
        ({"more": 1000.0, "job": 8}, 0),  # another job's GPU says nothing of it
        ({"more": 1000.0}, 2),  # it feeds another GPU
        ({"nvlink": 0.2}, 2),  # it sends over the NVLinks of this one
    ],
)
def test_counters_that_stand_still_while_their_job_goes_on_are_blank(
    node: Node, more: Mapping[str, Any], found: int
) -> None:
    """Where all GPUs of the job stand still they may be right."""
    assert fed(node, *((10.0 * step, 1.0, 0.0) for step in range(13)), **more) == found

"""Counters that cannot be trusted: each sign at its edge."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.anomaly import (
    BLANK,
    BUSY_SECONDS,
    SATURATED,
    STALE,
    TWIN_SECONDS,
    TWINS,
    CounterWatch,
    FedWatch,
    device_of,
)
from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Block, Layout, Value

PORT = ("mlx5_0", "1")
SYMBOL = ("commwatch_rdma_port_symbol_errors_total", PORT)
SENT = ("commwatch_rdma_port_transmit_bytes_total", PORT)
PACKETS = ("commwatch_rdma_port_transmit_packets_total", PORT)
SLOT = ("0", "0000:17:00.0")
LANE_ERRORS = ("commwatch_nvlink_raw_errors_total", (*SLOT, "3", "1"))
LINK_ERRORS = ("commwatch_nvlink_crc_flit_errors_total", (*SLOT, "3"))
REPLAYS = ("commwatch_pcie_replays_total", SLOT)
MIB = 2**20


class Watched:
    """A watch over a few series, given readings by hand."""

    def __init__(self, *series: tuple[str, tuple[str, ...]], blanks: bool = False) -> None:
        self.layout = Layout(series)
        self.watch = CounterWatch(self.layout, blanks=blanks)

    def see(self, time: float, *values: Value, silent: tuple[str, ...] = ()) -> dict[tuple[str, str], int]:
        return self.watch.update(Block(self.layout, values, time), silent)


def test_twins_are_counters_of_one_thing() -> None:
    """Every pair is in the catalogue, with the same labels."""
    for first, second in TWINS:
        assert CATALOGUE[first].type == CATALOGUE[second].type == "counter"
        assert CATALOGUE[first].labels == CATALOGUE[second].labels


@pytest.mark.parametrize(
    ("labels", "device"),
    [
        (("0", "0000:17:00.0"), "0000:17:00.0"),
        (("0", "0000:17:00.0", "3"), "0000:17:00.0/3"),
        (("mlx5_0", "1"), "mlx5_0/1"),
        (("eth0",), "eth0"),
        ((), ""),
    ],
)
def test_a_device_is_named_without_its_index(labels: tuple[str, ...], device: str) -> None:
    """An index moves when a card is lost, so the name of a device is without it."""
    assert device_of(labels) == device


def test_a_counter_at_its_end_is_saturated() -> None:
    """16 bits end at 65,535: one less is sound, and a counter that was cleared is sound again."""
    watched = Watched(SYMBOL)

    assert watched.see(0, 65_534) == {}
    assert watched.see(10, 65_535) == {("mlx5_0/1", "rdma_port_symbol_errors_total"): SATURATED}
    assert watched.see(20, None) == {}
    assert watched.see(30, 0) == {}


def test_a_counter_without_a_number_is_blank() -> None:
    """A supported counter of a device that answers is blank while it has no number."""
    watched = Watched(LINK_ERRORS, REPLAYS, blanks=True)

    assert watched.see(0, 0, 0) == {}
    assert watched.see(10, None, 0) == {("0000:17:00.0/3", "nvlink_crc_flit_errors_total"): BLANK}
    assert watched.see(20, 5, 0) == {}


def test_what_has_a_reason_is_not_blank() -> None:
    """A link that is down, and a device that gave nothing at all, have no blanks."""
    watched = Watched(LINK_ERRORS, REPLAYS, blanks=True)

    assert watched.see(0, None, 0, silent=("0000:17:00.0/3",)) == {}


def test_the_lanes_of_a_silent_link_are_silent() -> None:
    """A counter of one lane has no number while its link is down, which is no blank."""
    watched = Watched(LANE_ERRORS, REPLAYS, blanks=True)

    assert watched.see(0, None, 0) == {("0000:17:00.0/3/1", "nvlink_raw_errors_total"): BLANK}
    assert watched.see(10, None, 0, silent=("0000:17:00.0/3",)) == {}
    assert watched.see(10, None, None) == {}
    assert Watched(SENT).see(0, None) == {}, "a source that keeps places for what a device lacks"


@pytest.mark.parametrize(("start", "code"), [(0, BLANK), (7, STALE)])
def test_a_counter_that_stands_still_while_its_twin_counts(start: int, code: int) -> None:
    """After 30 s and 1 MiB of its twin it is stale, or blank if it never counted; it resolves when it moves."""
    watched = Watched(SENT, PACKETS)

    assert watched.see(0, 0, start) == {}
    assert watched.see(TWIN_SECONDS - 1, 2 * MIB, start) == {}
    assert watched.see(TWIN_SECONDS, 3 * MIB, start) == {("mlx5_0/1", "rdma_port_transmit_packets_total"): code}
    assert watched.see(TWIN_SECONDS + 10, 4 * MIB, start + 1) == {}


def test_little_traffic_proves_nothing() -> None:
    """Less than 1 MiB may be less than the twin's unit; the time alone is no sign."""
    watched = Watched(SENT, PACKETS)
    watched.see(0, 0, 0)

    assert watched.see(1000, MIB - 1, 0) == {}
    assert watched.see(1010, MIB, 0) == {("mlx5_0/1", "rdma_port_transmit_packets_total"): BLANK}


def test_bytes_that_stand_still_while_packets_count() -> None:
    """The twins judge each other."""
    watched = Watched(SENT, PACKETS)
    watched.see(0, 500, 0)

    assert watched.see(60, 500, 9_999) == {}
    assert watched.see(70, 500, 10_000) == {("mlx5_0/1", "rdma_port_transmit_bytes_total"): STALE}


def test_an_idle_time_does_not_count() -> None:
    """The wait begins with the last moment at which both stood still."""
    watched = Watched(SENT, PACKETS)
    watched.see(0, 0, 0)
    watched.see(1000, 0, 0)

    assert watched.see(1001, 5 * MIB, 0) == {}


def test_a_reset_or_a_hole_begins_anew() -> None:
    """Counters that fell, or were not read for a time, say nothing of each other."""
    watched = Watched(SENT, PACKETS)
    watched.see(0, 9 * MIB, 5)

    assert watched.see(60, 2 * MIB, 5) == {}
    assert watched.see(70, None, 5) == {}
    assert watched.see(80, 8 * MIB, 5) == {}
    assert watched.see(80 + TWIN_SECONDS, 9 * MIB, 5) == {("mlx5_0/1", "rdma_port_transmit_packets_total"): STALE}


@given(
    st.lists(
        st.tuples(
            st.floats(min_value=0.1, max_value=100),
            st.integers(min_value=1, max_value=2**40),
            st.integers(min_value=1, max_value=2**30),
        ),
        max_size=30,
    )
)
def test_counters_that_move_together_are_sound(steps: list[tuple[float, int, int]]) -> None:
    """However fast both count, neither is called stale."""
    watched = Watched(SENT, PACKETS)
    time = sent = packets = 0.0
    for seconds, more_bytes, more_packets in steps:
        time, sent, packets = time + seconds, sent + more_bytes, packets + more_packets
        assert watched.see(time, sent, packets) == {}


def test_a_working_gpu_whose_pcie_counters_stand_still() -> None:
    """After a minute at 90 % without one byte either way they are blank; one byte proves them sound."""
    watch = FedWatch()

    assert not watch.update(0, 0.97, 5, 5)
    assert not watch.update(BUSY_SECONDS - 1, 0.9, 5, 5)
    assert watch.update(BUSY_SECONDS, 1.0, 5, 5)
    assert not watch.update(BUSY_SECONDS + 10, 1.0, 6, 5)


@pytest.mark.parametrize(("utilisation", "sent"), [(0.89, 5), (None, 5), (1.0, None)])
def test_an_idle_gpu_or_an_unread_one_proves_nothing(utilisation: float | None, sent: int | None) -> None:
    """A GPU with pauses, or a number that was not read, starts the minute again."""
    watch = FedWatch()
    watch.update(0, 1.0, 5, 5)

    assert not watch.update(30, utilisation, sent, 5)
    assert not watch.update(BUSY_SECONDS, 1.0, 5, 5)
    assert not watch.update(BUSY_SECONDS + 59, 1.0, 5, 5)
    assert watch.update(2 * BUSY_SECONDS, 1.0, 5, 5)


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


@given(st.lists(STEPS, max_size=12))
def test_twins_of_many_ports_are_judged_each_by_itself(steps: list[tuple[float, list[tuple[Value, Value]]]]) -> None:
    """Whatever the others do: ports that move together, apart, that begin again or are not read."""
    ports = [("mlx5_0", number) for number in "123"]
    series = [(metric, port) for metric in (SENT[0], PACKETS[0]) for port in ports]
    watched, counts, now = Watched(*series), [[0.0, 0.0] for _ in ports], 0.0
    stands: list[Stands] = [None] * len(ports)
    for seconds, rises in steps:
        now += seconds
        told: dict[tuple[str, str], int] = {}
        shown: list[tuple[Value, Value]] = []
        for at, pair in enumerate(rises):
            counts[at] = [count + (rise or 0) for count, rise in zip(counts[at], pair, strict=True)]
            first, second = (None if rise is None else count for count, rise in zip(counts[at], pair, strict=True))
            shown.append((first, second))
            stands[at], still = one_by_one(stands[at], (now, first, second))
            if still is not None:
                counter = (SENT[0], PACKETS[0])[still].removeprefix("commwatch_")
                code = STALE if stands[at][1 + still] else BLANK  # type: ignore[index]  # it stands
                told["/".join(ports[at]), counter] = code
        assert watched.see(now, *(one for one, _ in shown), *(one for _, one in shown)) == told

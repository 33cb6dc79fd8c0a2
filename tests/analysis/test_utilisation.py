"""How much of its expected capacity each device uses, and counters that start again, from reading to reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.run import Collected
from commwatch.readings import Absence
from commwatch_exporters.snapshot import Series, Value
from support.examples import examples
from support.fed_daemon import FedDaemon

SLOT = "0000:17:00.0"
GPU = ("0", SLOT)
LINKS = ("0", "1")
UP, DOWN = 1, 0
NOTHING = (None, None)
Reading = Sequence[Value]
"""State, transmitted and received bytes of links 0 and 1."""


def links(reading: Reading) -> dict[Series, Value]:
    names = ("link_state", "transmit_bytes_total", "receive_bytes_total")
    series = [(f"commwatch_nvlink_{name}", (*GPU, link)) for link in LINKS for name in names]
    return dict(zip(series, reading, strict=False))


def identity(speeds: Mapping[str, Value]) -> dict[Series, Value]:
    """A GPU with the speeds of its links, in bytes per second."""
    info: dict[Series, Value] = {("commwatch_gpu_info", (*GPU, "GPU-1", "1", "H100", "Hopper")): 1}
    return info | {("commwatch_nvlink_link_speed_bytes_per_second", (*GPU, link)): speed
                   for link, speed in speeds.items()}  # fmt: skip


class Gpu:
    """A GPU with two links of 25 GB/s each, both of which were seen up; read each second, a gap spans 3 s."""

    def __init__(self, node: FedDaemon, speeds: Mapping[str, Value] | None = None) -> None:
        self.node = node
        self.node.feed("nvml_nvlink", {SLOT: links([UP, None, None] * 2)})
        if speeds != {}:
            self.node.feed("nvml_identity", {SLOT: identity(speeds or dict.fromkeys(LINKS, 26_562_000_000))})

    def read(self, *readings: Reading, step: float = 1.0) -> None:
        for reading in readings:
            self.node.clock.now += step
            self.node.feed("nvml_nvlink", {SLOT: links(reading)})

    def use(self, kind: str = "ratio") -> tuple[Value, Value]:
        return (
            self.node.value(f"nvlink_transmit_utilization_{kind}", *GPU),
            self.node.value(f"nvlink_receive_utilization_{kind}", *GPU),
        )


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FedDaemon:
    return FedDaemon(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("readings", "ratios"),
    [
        pytest.param([[UP, 0, 0] * 2, [UP, 10e9, 1e9, UP, 15e9, 4e9]], (0.5, 0.1), id="the links count together"),
        pytest.param([[UP, 0, 0] * 2], NOTHING, id="one reading has no rate"),
        pytest.param(
            [[UP, 0, 0] * 2, [UP, 10e9, 5e9, DOWN, None, None]], (0.2, 0.1), id="a link that is down carries nothing"
        ),
        pytest.param([[UP, 0, 0] * 2, [UP, 10e9, 5e9, UP, None, 5e9]], (None, 0.2), id="one was not read one way"),
        pytest.param([[UP, 0, 0] * 2, [UP, 10e9, 5e9, None, None, 5e9]], (None, 0.2), id="nor was its state"),
        pytest.param([[UP, 0, 0] * 2, [UP, 5e9, 5e9, DOWN, 5e9, 5e9]], (0.1, 0.1), id="one went down"),
        pytest.param([[UP, 0, 0, DOWN, 0, 0], [UP, 5e9, 5e9] * 2], (0.2, 0.2), id="one came up"),
        pytest.param(
            [[UP, 9e9, 0, DOWN, 0, 0], [UP, 5e9, 5e9] * 2], (None, 0.2), id="one came up, the other was reset"
        ),
        pytest.param([[UP, 0, 0], [UP, 1e9, 1e9]], NOTHING, id="an expected link is not among the readings"),
        pytest.param([[UP, 9e9, 9e9] * 2, [UP, 0, 9e9] * 2], (None, 0.0), id="a counter that fell has no rate"),
        pytest.param(
            [[UP, 9e9, 9e9] * 2, [UP, 0, 9e9] * 2, [UP, 25e9, 9e9] * 2], (1.0, 0.0), id="then it has one again"
        ),
    ],
)
def test_the_use_of_nvlinks(node: FedDaemon, readings: list[Reading], ratios: tuple[Value, Value]) -> None:
    """The rates of all expected links together over their nominal capacity, each way; never of a part of them."""
    gpu = Gpu(node)
    gpu.read(*readings)

    assert gpu.use() == ratios


def test_a_link_beyond_the_expected_ones_does_not_count(node: FedDaemon) -> None:
    """Numerator and denominator are of the same links."""
    node.feed("nvml_nvlink", {SLOT: links([UP, None, None, DOWN, None, None])})
    node.feed("nvml_identity", {SLOT: identity({"0": 26_562_000_000})})
    gpu = Gpu(node, speeds={})
    gpu.read([UP, 0, 0, None, 0, 0], [UP, 5e9, 5e9, None, 9e9, 9e9])

    assert gpu.use() == (0.2, 0.2)


@pytest.mark.parametrize("speeds", [{}, dict.fromkeys(LINKS)])
def test_without_a_capacity_there_is_no_ratio(node: FedDaemon, speeds: Mapping[str, Value]) -> None:
    """A GPU of which nothing is expected, or whose links have no known rate."""
    gpu = Gpu(node, speeds)
    gpu.read([UP, 0, 0] * 2, [UP, 5e9, 5e9] * 2)

    assert gpu.use() == NOTHING


@pytest.mark.parametrize(("step", "ratio"), [(3.0, 0.4), (3.1, None), (0.0, None), (-1.0, None)])
def test_no_ratio_spans_a_gap(node: FedDaemon, step: float, ratio: float | None) -> None:
    """Readings more than three intervals apart, or in time that stood still, give no ratio."""
    gpu = Gpu(node)
    gpu.read([UP, 0, 0] * 2)
    gpu.read([UP, 30e9, 30e9] * 2, step=step)

    assert gpu.use() == (ratio, ratio)


def test_the_peak_is_the_highest_of_a_minute(node: FedDaemon) -> None:
    """The peak stays for 60 s after its sample and then gives way to the next highest."""
    gpu = Gpu(node)
    traffic = [0, 25e9, 30e9] + [30e9 + second * 1e9 for second in range(1, 62)]
    peaks = []
    for total in traffic:
        gpu.read([UP, total, 0] * 2)
        peaks.append(gpu.use("peak_ratio"))

    assert peaks[0] == NOTHING
    assert [peaks[place] for place in (1, 61, 62, 63)] == [(1.0, 0.0), (1.0, 0.0), (0.2, 0.0), (0.04, 0.0)]


def test_one_missed_reading_keeps_the_peak_and_the_rate(node: FedDaemon) -> None:
    """While it lasts there is no value; the next rate spans it, and a pause ends both."""
    gpu = Gpu(node)
    gpu.read([UP, 0, 0] * 2, [UP, 25e9, 0] * 2)
    node.clock.now += 1.0
    node.feed("nvml_nvlink", Collected({}, [Absence(SLOT, "unreadable", "x")], 0.01))
    node.observe()
    assert gpu.use() == gpu.use("peak_ratio") == NOTHING

    gpu.read([UP, 35e9, 0] * 2)
    assert gpu.use() == (0.2, 0.0)
    assert gpu.use("peak_ratio") == (1.0, 0.0)

    node.pause()
    node.resume()
    gpu.read([UP, 45e9, 0] * 2)
    assert gpu.use() == gpu.use("peak_ratio") == NOTHING


COUNTS = st.none() | st.integers(min_value=0, max_value=2**63)
STATES = st.sampled_from([None, 0, 1, 2])


@examples(30, one_fixture=True)
@given(st.lists(st.tuples(st.floats(-2, 8), st.tuples(STATES, COUNTS, COUNTS, STATES, COUNTS, COUNTS))))
def test_ratios_are_never_negative_and_never_span_a_gap(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, tuple[Value, ...]]]
) -> None:
    """Whatever was read, a ratio is at least 0, and absent where the readings are too far apart."""
    with pytest.MonkeyPatch.context() as patched:
        gpu = Gpu(FedDaemon(tmp_path_factory.mktemp("node"), patched))
        gpu.read([UP, 0, 0] * 2)
        for step, reading in steps:
            gpu.read(reading, step=step)

            assert all(ratio is None or ratio >= 0 for ratio in (*gpu.use(), *gpu.use("peak_ratio")))
            if not 0 < step <= 3:
                assert gpu.use() == NOTHING


def ethernet(sent: Value, received: Value, speed: Value) -> dict[Series, Value]:
    return {
        ("commwatch_ethernet_info", ("eth0", "0000:5e:00.0", "mlx5_core", "")): 1,
        ("commwatch_ethernet_carrier", ("eth0",)): 1,
        ("commwatch_ethernet_speed_bytes_per_second", ("eth0",)): speed,
        ("commwatch_ethernet_transmit_bytes_total", ("eth0",)): sent,
        ("commwatch_ethernet_receive_bytes_total", ("eth0",)): received,
    }


def rdma(sent: Value, received: Value, speed: Value, prefix: str = "rdma_port") -> dict[Series, Value]:
    port = ("mlx5_0", "1")
    return {
        ("commwatch_rdma_port_state", port): 4,
        ("commwatch_rdma_port_speed_bytes_per_second", port): speed,
        (f"commwatch_{prefix}_transmit_bytes_total", port): sent,
        (f"commwatch_{prefix}_receive_bytes_total", port): received,
        ("commwatch_rdma_port_info", (*port, "InfiniBand", "0x1", "0x1", "28", "MT4129", "0000:18:00.0", "")): 1,
    }


def efa(sent: Value, received: Value, speed: Value) -> dict[Series, Value]:
    """An adapter without counters of its port."""
    return rdma(sent, received, speed, "rdma")


@pytest.mark.parametrize(
    ("collector", "device", "values", "family", "labels"),
    [
        ("network", "eth0", ethernet, "ethernet", ("eth0",)),
        ("rdma", "mlx5_0:1", rdma, "rdma_port", ("mlx5_0", "1")),
        ("rdma", "mlx5_0:1", efa, "rdma_port", ("mlx5_0", "1")),
    ],
)
def test_the_use_of_a_port_is_of_its_expected_speed(
    node: FedDaemon, collector: str, device: str, values: Callable[[Value, Value, Value], dict[Series, Value]],
    family: str, labels: tuple[str, ...],
) -> None:  # fmt: skip
    """Its byte rate each way, with the peak; without a known speed there is none, nor of what was not read."""

    def use(kind: str = "ratio") -> tuple[Value, Value]:
        return (node.value(f"{family}_transmit_utilization_{kind}", *labels),
                node.value(f"{family}_receive_utilization_{kind}", *labels))  # fmt: skip

    found = []
    for sent, received in ((0, 0), (10e9, 5e9), (10e9, None)):
        node.feed(collector, {device: values(sent, received, 12.5e9)})
        found.append((use(), use("peak_ratio")))
        node.clock.now += 1.0

    assert found == [(NOTHING, NOTHING), ((0.8, 0.4), (0.8, 0.4)), ((0.0, None), (0.8, 0.4))]


PCIE = "0000:18:00.0"
RATES = tuple(f"commwatch_pcie_{way}_rate_bytes_per_second" for way in ("transmit", "receive"))


def test_the_use_of_a_pcie_link_by_samples(node: FedDaemon) -> None:
    """Each sample alone, however long after the one before; absent where it was not read or no capacity is known."""
    labels, found = ("1", PCIE), []

    def sampled(sent: Value, received: Value) -> None:
        node.feed("nvml_pcie_sampled", {PCIE: dict(zip([(name, labels) for name in RATES], (sent, received),
                                                        strict=True))})  # fmt: skip
        found.append(tuple(node.value(f"pcie_{way}_utilization_{kind}", *labels) for kind in ("ratio", "peak_ratio")
                           for way in ("transmit", "receive")))  # fmt: skip
        node.clock.now += 20.0

    sampled(1e9, 1e9)
    node.feed("nvml_identity", {PCIE: {("commwatch_gpu_info", (*labels, "GPU-2", "2", "A10", "Ampere")): 1}})
    node.feed("nvml_pcie", {PCIE: {
        (f"commwatch_pcie_{name}", labels): number
        for name, number in (("link_generation_max", 4), ("link_width_lanes", 16), ("link_width_max_lanes", 16))
    }})  # fmt: skip
    node.observe()
    capacity = node.value("pcie_capacity_bytes_per_second", *labels) or 0.0
    sampled(0.5 * capacity, 0)
    sampled(None, 0.25 * capacity)
    node.clock.now += 60.0
    sampled(None, None)

    assert found == [(None,) * 4, (0.5, 0.0, 0.5, 0.0), (None, 0.25, 0.5, 0.25), (None,) * 4]


def test_a_port_of_unknown_speed_has_no_use(node: FedDaemon) -> None:
    """Nothing is expected of it."""
    for sent in (0, 10e9):
        node.feed("network", {"eth0": ethernet(sent, 0, None)})
        node.clock.now += 1.0

    assert node.value("ethernet_transmit_utilization_ratio", "eth0") is None


def counted(node: FedDaemon, *readings: Mapping[str, Value]) -> list[Value]:
    """Resets after each reading of some counters of an interface."""
    found = []
    for reading in readings:
        values: dict[Series, Value] = {
            (f"commwatch_ethernet_{name}", ("eth0",)): value for name, value in reading.items()
        }
        node.feed("network", {"eth0": values})
        node.clock.now += 1.0
        found.append(node.resets().get(("network", "eth0")))
    return found


SENT, GOT, CARRIER = "transmit_bytes_total", "receive_bytes_total", "carrier"


@pytest.mark.parametrize(
    ("readings", "resets"),
    [
        pytest.param(
            [{SENT: 5, GOT: 5, CARRIER: 1}, {SENT: 6, GOT: 6, CARRIER: 0}, {SENT: 0, GOT: 0, CARRIER: 1},
             {SENT: 1, GOT: 1, CARRIER: 1}, {SENT: 1, GOT: 0, CARRIER: 1}],
            [0, 0, 1, 1, 2], id="those that fall together are one, and a gauge that falls is none",
        ),
        pytest.param(
            [{SENT: 100, GOT: 50}, {SENT: None, GOT: 60}, {GOT: 60, SENT: 99}], [0, 0, 1],
            id="one that vanishes is compared with its last number, also in another order",
        ),
        pytest.param(
            [{SENT: 100, GOT: 50}, {SENT: None, GOT: None}, {SENT: 100, GOT: 51}], [0, 0, 0], id="a hole is none"
        ),
    ],
)  # fmt: skip
def test_counters_that_start_again_are_counted(
    node: FedDaemon, readings: list[Mapping[str, Value]], resets: list[Value]
) -> None:
    """By reading, so that the reset of a device counts although it gave nothing in between."""
    assert counted(node, *readings) == resets

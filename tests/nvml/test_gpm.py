"""GPM: bytes over PCIe between two samples, and the counters that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import TypeAlias

import pytest

from commwatch_exporters.snapshot import Value
from nvml.harness import Opened, values_of
from nvml.library import LOST, NOT_SUPPORTED, FakeGpu, Gpm, hopper

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")
MIB = 2**20
UNKNOWN, NO_PERMISSION = 999, 4
STATES = ("gpm_metric_pcie_tx_per_sec", "gpm_metric_pcie_rx_per_sec", "gpm_metric_pcie_tx", "gpm_metric_pcie_rx")


def _gpu(**settings: int) -> FakeGpu:
    gpu = FakeGpu(**settings)  # type: ignore[arg-type]  # settings are of whole numbers
    gpu.gpm = Gpm(metrics={20: 100.0, 21: 10.0})
    return gpu


def _metrics(gpu: FakeGpu) -> dict[int, float | int]:
    assert gpu.gpm is not None
    return gpu.gpm.metrics


def _read(opened: Opened, after: float = 10.0) -> dict[str, Value]:
    opened.now += after
    return {key[0]: value for key, value in opened.read("gpm").items()}


def _states(opened: Opened) -> set[Value]:
    identity = opened.read("identity")
    return {identity["counters_state", "nvml", name] for name in STATES}


def test_rates_are_between_two_samples_and_bytes_are_their_sum(driver: Driver) -> None:
    """MiB per second at the driver; nothing is known before the second sample."""
    gpu = _gpu()
    opened = driver(gpu).open()

    assert set(_read(opened).values()) == {None}
    assert _read(opened) == {
        "pcie_transmit_rate_bytes_per_second": 100 * MIB, "pcie_receive_rate_bytes_per_second": 10 * MIB,
        "pcie_transmit_bytes_total": 1000 * MIB, "pcie_receive_bytes_total": 100 * MIB,
    }  # fmt: skip
    _metrics(gpu)[20] = 50.0
    assert _read(opened, after=4.0)["pcie_transmit_bytes_total"] == 1200 * MIB


def test_the_drivers_own_count_goes_before_the_sum(driver: Driver) -> None:
    """Bytes since boot, from the first metrics on."""
    gpu = _gpu()
    _metrics(gpu).update({255: 5e12, 256: 6e12})
    opened = driver(gpu).open()
    _read(opened)

    values = _read(opened)

    assert values["pcie_transmit_bytes_total"] == 5 * 10**12
    assert values["pcie_receive_bytes_total"] == 6 * 10**12
    assert values["pcie_transmit_rate_bytes_per_second"] == 100 * MIB


def test_the_way_of_counting_never_changes(driver: Driver) -> None:
    """A count that begins or stops to answer later would make the counter jump: it is ignored, or absent."""
    gpu = _gpu()
    _metrics(gpu).update({255: 5e12})
    opened = driver(gpu).open()
    _read(opened)
    _read(opened)
    _metrics(gpu)[256] = 6e12
    _metrics(gpu)[255] = NOT_SUPPORTED

    values = _read(opened)

    assert values["pcie_receive_bytes_total"] == 200 * MIB
    assert values["pcie_transmit_bytes_total"] is None


@pytest.mark.parametrize("answer", [nan, inf, -1.0, NOT_SUPPORTED])
def test_what_is_no_number_is_absent_and_not_counted(driver: Driver, answer: float | int) -> None:
    """GPM gives NaN where it could not measure; the sum stays as it is, unseen."""
    gpu = _gpu()
    opened = driver(gpu).open()
    _read(opened)
    _read(opened)
    _metrics(gpu)[20] = answer
    values = _read(opened)

    assert values["pcie_transmit_rate_bytes_per_second"] is None
    assert values["pcie_transmit_bytes_total"] is None
    assert values["pcie_receive_bytes_total"] == 200 * MIB
    _metrics(gpu)[20] = 100.0
    assert _read(opened)["pcie_transmit_bytes_total"] == 2000 * MIB


def test_a_sample_that_fails_costs_no_bytes(driver: Driver) -> None:
    """The next one reaches back to the last that was good."""
    gpu = _gpu()
    opened = driver(gpu).open()
    _read(opened)
    assert gpu.gpm is not None
    gpu.gpm.sample_code = UNKNOWN
    opened.now += 10
    batch = opened.collect("gpm")
    assert set(values_of(batch).values()) == {None}
    assert [one.reason for one in batch.absences] == ["unreadable"]
    gpu.gpm.sample_code = 0

    assert _read(opened)["pcie_transmit_bytes_total"] == 2000 * MIB


def test_metrics_that_fail_are_an_absence(driver: Driver) -> None:
    """The call as a whole, whatever its entries hold."""
    gpu = _gpu()
    opened = driver(gpu).open()
    _read(opened)
    assert gpu.gpm is not None
    gpu.gpm.metrics_code = UNKNOWN
    opened.now += 10

    batch = opened.collect("gpm")

    assert set(values_of(batch).values()) == {None}
    assert [one.reason for one in batch.absences] == ["unreadable"]


def test_a_library_that_refuses_unknown_metrics_as_a_whole_gives_rates(driver: Driver) -> None:
    """The counts since boot came later than GPM: without them the bytes are summed, from the first pair on."""
    gpu = _gpu()
    assert gpu.gpm is not None
    gpu.gpm.knows = frozenset({20, 21})
    opened = driver(gpu).open()
    _read(opened)

    values = _read(opened)

    assert values["pcie_transmit_rate_bytes_per_second"] == 100 * MIB
    assert values["pcie_transmit_bytes_total"] == 1000 * MIB
    assert opened.read("identity")["counters_state", "nvml", "gpm_metric_pcie_tx"] == 1


def test_two_runs_too_close_together_take_no_sample(driver: Driver) -> None:
    """The driver wants more than 100 ms between them; the next run measures from the first on."""
    opened = driver(_gpu()).open()
    _read(opened)
    opened.library.calls.clear()

    assert set(_read(opened, after=0.1).values()) == {None}
    assert opened.library.calls == []
    assert _read(opened, after=9.9)["pcie_transmit_bytes_total"] == 1000 * MIB


def test_each_pair_is_the_last_sample_and_the_new_one(driver: Driver) -> None:
    """Two samples are enough forever, and change places."""
    opened = driver(_gpu()).open()
    for _ in range(4):
        _read(opened)

    pairs = opened.library.pairs
    assert pairs == [pairs[0], pairs[0][::-1], pairs[0]]
    assert opened.library.samples == 2
    opened.source.close()
    assert opened.library.samples == 0


def test_a_new_trial_goes_on_with_samples_and_sums(driver: Driver) -> None:
    """After an hour what a GPU has is tried again: that is no gap."""
    opened = driver(_gpu()).open()
    _read(opened)
    first = opened.collect("gpm").readings[0].series
    opened.now += 3600
    opened.collect("identity")

    assert _read(opened, after=0)["pcie_transmit_bytes_total"] == 3600 * 100 * MIB
    assert opened.collect("gpm").readings[0].series == first


def _without(gpu: FakeGpu, opened: Opened) -> None:
    opened.library.replace("nvmlGpmQueryDeviceSupport", None)


def _unsupported(gpu: FakeGpu, opened: Opened) -> None:
    assert gpu.gpm is not None
    gpu.gpm.supported = 0


def _not_known(gpu: FakeGpu, opened: Opened) -> None:
    gpu.gpm = None


def _split(gpu: FakeGpu, opened: Opened) -> None:
    gpu.mig = 1


def _confidential(gpu: FakeGpu, opened: Opened) -> None:
    opened.library.confidential = (1, 0)


@pytest.mark.parametrize("without", [_without, _unsupported, _not_known, _split, _confidential])
def test_where_there_is_no_gpm_nothing_is_sampled(driver: Driver, without: Callable[..., None]) -> None:
    """Old drivers, older GPUs, MIG, confidential computing: absent, unsupported, and no failure."""
    gpu = _gpu()
    opened = driver(gpu)
    without(gpu, opened)
    opened.open()

    batch = opened.collect("gpm")

    assert (batch.readings, batch.absences) == ([], [])
    assert _states(opened) == {1}
    assert "nvmlGpmSampleGet" not in {name for name, _ in opened.library.calls}


def test_developer_tools_lift_the_ban_of_confidential_computing(driver: Driver) -> None:
    """In that mode the performance counters work."""
    opened = driver(_gpu())
    opened.library.confidential = (1, 1)
    opened.open()
    _read(opened)

    assert _read(opened)["pcie_transmit_rate_bytes_per_second"] == 100 * MIB


def test_mig_that_is_enabled_later_is_no_failure(driver: Driver) -> None:
    """The samples fail then, and nothing is wrong."""
    gpu = _gpu()
    opened = driver(gpu).open()
    _read(opened)
    assert gpu.gpm is not None
    gpu.mig, gpu.gpm.sample_code = 1, UNKNOWN
    opened.now += 10

    batch = opened.collect("gpm")

    assert set(values_of(batch).values()) == {None}
    assert batch.absences == []


def test_what_gpm_has_is_known_after_the_first_metrics(driver: Driver) -> None:
    """Until then it cannot be known."""
    opened = driver(_gpu()).open()
    assert _states(opened) == {None}
    _read(opened)
    _read(opened)

    identity = opened.read("identity")

    assert [identity["counters_state", "nvml", name] for name in STATES] == [0, 0, 1, 1]


def test_a_privilege_that_is_missing_is_an_absence(driver: Driver) -> None:
    """Profiling can be kept to administrators."""
    gpu = _gpu()
    assert gpu.gpm is not None
    gpu.gpm.sample_code = NO_PERMISSION
    opened = driver(gpu).open()

    assert [one.reason for one in opened.collect("gpm").absences] == ["no_permission"]


def test_a_gpu_that_is_lost_ends_its_gpm(driver: Driver) -> None:
    """No further call is made on its handle; the other is measured."""
    gpu, other = _gpu(), _gpu()
    opened = driver(gpu, other).open()
    _read(opened)
    assert gpu.gpm is not None
    gpu.gpm.sample_code = LOST
    opened.now += 10

    batch = opened.collect("gpm")

    assert [(one.device, one.reason) for one in batch.absences] == [("0000:17:00.0", "lost")]
    assert [one.device for one in batch.readings] == ["0000:18:00.0"]


def test_a_gpu_without_gpm_is_asked_for_nothing(driver: Driver) -> None:
    """Its batch is empty."""
    opened = driver(hopper()).open()
    opened.library.calls.clear()

    assert opened.read("gpm") == {}
    assert opened.library.calls == []

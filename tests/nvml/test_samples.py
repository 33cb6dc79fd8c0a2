"""PCIe traffic of GPUs without GPM: sampled by a source of its own, and absent where the driver does not give it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from commwatch.sources.nvml.samples import PcieSamples
from commwatch_exporters.snapshot import Value
from nvml.harness import Opened, values_of
from nvml.library import LOST, NOT_SUPPORTED, FakeGpu, Gpm

Driver: TypeAlias = "Callable[..., Opened]"
CALL = "nvmlDeviceGetPcieThroughput"
A, B = ("0", "0000:17:00.0"), ("1", "0000:18:00.0")
NOT_AVAILABLE = 0xFFFFFFFF
NO_PERMISSION, NO_DATA = 4, 21
RATES = ("pcie_transmit_rate_bytes_per_second", "pcie_receive_rate_bytes_per_second")
STATES = ("pcie_throughput_transmit", "pcie_throughput_receive")


def ampere(sent: int | None = 7, received: int | None = 8, **more: int) -> FakeGpu:
    """A GPU without GPM; KB/s."""
    numbers = {(CALL, way): number for way, number in enumerate((sent, received)) if number is not None}
    return FakeGpu(architecture=7, numbers=numbers, **more)  # type: ignore[arg-type]  # settings are of whole numbers


def hopper() -> FakeGpu:
    gpu = ampere()
    gpu.architecture, gpu.gpm = 9, Gpm()
    return gpu


def failing(code: int) -> FakeGpu:
    gpu = ampere()
    gpu.codes[CALL] = code
    return gpu


def rates(opened: Opened, gpu: tuple[str, str] = A) -> tuple[Value, ...]:
    values = opened.read("pcie_sampled")
    return tuple(values[(name, *gpu)] for name in RATES)


@pytest.mark.parametrize(
    ("gpu", "sent_and_received", "state"),
    [
        pytest.param(ampere(), (7000, 8000), 0, id="KB/s become bytes per second"),
        pytest.param(ampere(0, 0), (0, 0), 0, id="nothing was moved"),
        pytest.param(ampere(NOT_AVAILABLE, NOT_AVAILABLE), (None, None), 0, id="the driver has no number now"),
        pytest.param(failing(NOT_SUPPORTED), (None, None), 1, id="a driver without the call, as in a vGPU"),
        pytest.param(failing(NO_DATA), (None, None), 1, id="a GPU that never has a number"),
        pytest.param(hopper(), (None, None), None, id="a GPU with GPM is not sampled"),
    ],
)
def test_what_is_sampled_of_a_gpu(
    driver: Driver, gpu: FakeGpu, sent_and_received: tuple[Value, Value], state: Value
) -> None:
    """Absent is never 0; a series shows whether the driver has the call, and none of this is a failure."""
    opened = driver(gpu, kind=PcieSamples).open()

    batch = opened.collect("pcie_sampled")
    values = values_of(batch)

    assert tuple(values[(name, *A)] for name in RATES) == sent_and_received
    assert {values["counters_state", "nvml", name] for name in STATES} == {state}
    assert batch.absences == []


def test_of_a_mixed_node_only_the_gpus_without_gpm_are_sampled(driver: Driver) -> None:
    """The call blocks, so a GPU that measures by itself is not asked; the order of the series stays."""
    opened = driver(hopper(), ampere(), kind=PcieSamples).open()

    batches = [opened.collect("pcie_sampled") for _ in range(8)]

    assert {(values_of(one)[(RATES[0], *A)], values_of(one)[(RATES[0], *B)]) for one in batches} == {(None, 7000)}
    assert {gpu for name, gpu in opened.library.calls if name == CALL} == {1}
    assert {tuple(one.device for one in batch.readings) for batch in batches} == {("", A[1], B[1])}


def test_a_gpu_is_sampled_from_when_it_loses_gpm(driver: Driver) -> None:
    """As with MIG, under which its metrics are of instances; and no longer once it has it again."""
    gpu = hopper()
    gpu.mig = 0
    opened = driver(gpu, kind=PcieSamples).open()

    assert rates(opened) == (None, None)
    gpu.mig = 1
    assert rates(opened) == (7000, 8000)
    gpu.mig = 0
    assert rates(opened) == (None, None)


def test_the_reader_of_the_driver_never_makes_the_call_that_blocks(driver: Driver) -> None:
    """Neither to try whether the driver has it nor to read it."""
    opened = driver(ampere()).open()
    for opened.now in (0.0, 3601.0):
        for collector in opened.source.collectors:
            values = opened.read(collector)
            assert not {name for name, *_ in values} & set(RATES)

    assert CALL not in {name for name, _ in opened.library.calls}


def test_no_gpu_is_blamed_for_a_call_that_hangs(driver: Driver) -> None:
    """Whether a GPU answers is for the reader of the driver to say."""
    opened = driver(ampere(), kind=PcieSamples).open()
    opened.collect("pcie_sampled")

    assert set(opened.reports) == set()


def test_a_gpu_that_fails_has_no_sample_and_the_others_have(driver: Driver) -> None:
    """A failure has its reason; a lost GPU is not touched again."""
    opened = driver(failing(NO_PERMISSION), ampere(), kind=PcieSamples).open()

    batch = opened.collect("pcie_sampled")

    assert [(one.device, one.reason) for one in batch.absences] == [(A[1], "no_permission")]
    assert rates(opened, B) == (7000, 8000)
    opened.library.gpus[0].code = LOST
    assert [one.reason for one in opened.collect("pcie_sampled").absences] == ["lost"]
    opened.library.calls.clear()
    opened.collect("pcie_sampled")
    assert {gpu for _, gpu in opened.library.calls} == {1}

"""GPM of the simulated library through the real binding."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import pynvml
import pytest

from simulation.asking import code_of, handle
from simulation.harness import Rehearsal

Drive: TypeAlias = Callable[..., Rehearsal]

REFUSED = pynvml.NVML_ERROR_NOT_SUPPORTED
MIB = 2**20


def metrics(first: object, second: object, *numbers: int) -> dict[int, tuple[int, float]]:
    """Return code and value of metrics between two samples."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(numbers)
    request.sample1, request.sample2 = first, second
    for place, number in enumerate(numbers):
        request.metrics[place].metricId = number
    pynvml.nvmlGpmMetricsGet(request)
    return {
        number: (request.metrics[place].nvmlReturn, request.metrics[place].value)
        for place, number in enumerate(numbers)
    }


def sample(index: int = 0) -> Any:  # the binding has no types
    return pynvml.nvmlGpmSampleGet(handle(index), pynvml.nvmlGpmSampleAlloc())


def test_a_metric_is_the_mean_between_two_samples(driver: Drive) -> None:
    """MiB/s over PCIe and NVLink, per link and in all, as the counters moved."""
    rehearsal = driver("h100x8", "- {fault: job, gpu: 0, nvlink_utilization: 0.2, pcie_utilization: 0.1, at: 0s}")
    assert pynvml.nvmlGpmQueryDeviceSupport(handle()).isSupportedDevice == 1
    first = sample()
    rehearsal.now += 37.0  # a whole period of the noise
    found = metrics(first, sample(), 20, 21, 60, 61, 62, 97, 98)

    assert {code for code, _ in list(found.values())[:-1]} == {0}
    assert found[20][1] == pytest.approx(0.1 * 16 * 3.938e9 / MIB, rel=0.001)
    assert found[62][1] == pytest.approx(0.2 * 25e9 / MIB, rel=0.001)
    assert found[61][1] == pytest.approx(18 * found[97][1], rel=0.001)
    assert found[98][0] == REFUSED


def test_structures_of_an_unknown_version_are_refused(driver: Drive) -> None:
    """As the driver does, so that a reader which forgets the version is found out here."""
    driver("b200x8")
    call = pynvml._nvmlGetFunctionPointer
    structures = {
        "nvmlDeviceGetMemoryInfo_v2": pynvml.c_nvmlMemory_v2_t(),
        "nvmlDeviceGetNvlinkBwMode": pynvml.c_nvmlNvlinkGetBwMode_v1_t(),
        "nvmlDeviceGetTemperatureV": pynvml.c_nvmlTemperature_v1_t(),
        "nvmlGpmQueryDeviceSupport": pynvml.c_nvmlGpmSupport_t(),
    }
    for name, filled in structures.items():
        filled.version = 0
        assert call(name)(handle(), ctypes.byref(filled)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    request = ctypes.byref(pynvml.c_nvmlGpmMetricsGet_t())
    assert call("nvmlGpmMetricsGet")(request) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_bytes_since_boot_came_with_a_later_driver(driver: Drive) -> None:
    """Metric 255 gives the count itself on R595 and is refused on R580."""
    driver("h100x8")
    assert metrics(sample(), sample(), 255, 256)[255][0] == REFUSED

    rehearsal = driver("b200x8", now=370.0)
    first = sample()
    rehearsal.now += 1
    code, value = metrics(first, sample(), 255)[255]
    assert code == 0
    assert value == pytest.approx(371 * 2e5, rel=0.01)


def test_samples_of_one_moment_give_no_rate(driver: Drive) -> None:
    """NaN, as a real driver gives."""
    driver("h100x8")

    assert math.isnan(metrics(sample(), sample(), 20)[20][1])


def test_samples_must_be_of_one_gpu_and_taken(driver: Drive) -> None:
    """Anything else is an invalid argument, and so is a sample that was freed."""
    driver("h100x8")
    first = sample()

    for second in (sample(1), pynvml.nvmlGpmSampleAlloc()):
        assert code_of(metrics, first, second, 20) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    pynvml.nvmlGpmSampleFree(first)
    assert code_of(pynvml.nvmlGpmSampleFree, first) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert code_of(pynvml.nvmlGpmSampleGet, handle(), first) == pynvml.NVML_ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("preset", "faults"),
    [
        ("a100x4", ""),
        ("rtx3090x4", ""),
        ("h100x8", "- {fault: confidential_computing, at: 0s}"),
    ],
)
def test_a_gpu_without_gpm_says_so(driver: Drive, preset: str, faults: str) -> None:
    """Before Hopper, and with confidential computing on."""
    driver(preset, faults)

    assert pynvml.nvmlGpmQueryDeviceSupport(handle()).isSupportedDevice == 0
    assert code_of(pynvml.nvmlGpmSampleGet, handle(), pynvml.nvmlGpmSampleAlloc()) == REFUSED

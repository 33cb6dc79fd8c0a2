"""What surrounds the counters: clocks and why they are where they are, temperature, power, modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from nvml.harness import Opened, values_of
from nvml.library import NOT_SUPPORTED, FakeGpu, hopper

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")
EVENT, THROTTLE = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"


def _reasons(opened: Opened) -> dict[str, object]:
    values = opened.read("gpu")
    return {key[3]: value for key, value in values.items() if key[0] == "gpu_clocks_event_reason"}


@pytest.mark.parametrize(("lacks", "supported"), [(None, EVENT), (EVENT, THROTTLE), (THROTTLE, EVENT)])
def test_the_old_name_of_the_reasons_stands_in_for_the_new(driver: Driver, lacks: str | None, supported: str) -> None:
    """The first that the library has is read, and only that."""
    opened = driver(FakeGpu(numbers={(EVENT,): 0x80, (THROTTLE,): 0x80}))
    if lacks:
        opened.library.replace(lacks, None)
    opened.open()
    opened.library.calls.clear()

    assert _reasons(opened)["hw_power_brake_slowdown"] == 1
    assert {name for name, _ in opened.library.calls} & {EVENT, THROTTLE} == {supported}


def test_what_a_gpu_does_not_tell_has_no_series(driver: Driver) -> None:
    """None of it is 0, none of it is a failure, and it is known to be unsupported."""
    opened = driver(FakeGpu(utilization=None, processes=None)).open()

    batch = opened.collect("gpu")

    assert values_of(batch) == {("gpu_busy", *A): None}
    assert batch.absences == []
    states = {key[2]: value for key, value in opened.read("identity").items() if key[0] == "counters_state"}
    assert states["power_usage"] == states["current_clocks_event_reasons"] == states["get_gpu_recovery_action"] == 1


def test_the_list_of_processes_is_left_alone_while_a_gpu_works(driver: Driver) -> None:
    """It is slow, and a GPU that did work is busy whatever it says."""
    gpu = FakeGpu(utilization=40, processes=3)
    opened = driver(gpu).open()
    opened.library.calls.clear()

    assert opened.read("gpu")[("gpu_busy", *A)] == 1
    assert "nvmlDeviceGetComputeRunningProcesses_v3" not in {name for name, _ in opened.library.calls}
    gpu.utilization = 0
    assert opened.read("gpu")[("gpu_busy", *A)] == 1


@pytest.mark.parametrize(
    ("state", "mode", "supported"), [((0, 0), 0, 0), ((1, 0), 1, 0), ((1, 1), 2, 0), ((0, 1), 0, 0), (None, None, 1)]
)
def test_confidential_computing_is_a_mode_of_the_node(
    driver: Driver, state: tuple[int, int] | None, mode: int | None, supported: int
) -> None:
    """Off, on, on with developer tools; absent where the driver does not know of it."""
    opened = driver(hopper(1))
    opened.library.confidential = state

    values = opened.open().read("identity")

    assert values[("gpu_confidential_computing_mode",)] == mode
    assert values["counters_state", "nvml", "system_conf_compute_state"] == supported


def test_a_single_call_that_fails_leaves_the_others_alone(driver: Driver) -> None:
    """Its values are absent for a reason; NOT_SUPPORTED after the trial is absent without one."""
    gpu = FakeGpu(numbers={("nvmlDeviceGetPowerUsage",): 1000, (EVENT,): 0, ("nvmlDeviceGetTemperatureV",): 50})
    opened = driver(gpu).open()
    gpu.codes |= {EVENT: 999, "nvmlDeviceGetTemperatureV": NOT_SUPPORTED}

    batch = opened.collect("gpu")

    values = values_of(batch)
    assert values[("gpu_power_watts", *A)] == 1
    assert values[("gpu_temperature_celsius", *A)] is None
    assert {value for key, value in values.items() if key[0] == "gpu_clocks_event_reason"} == {None}
    assert [(one.reason, EVENT in one.detail) for one in batch.absences] == [("unreadable", True)]

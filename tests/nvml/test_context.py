"""What surrounds the counters: clocks and why they are where they are, temperature, power, modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from nvml.harness import Opened, values_of
from nvml.library import NOT_SUPPORTED, UINT, ULONGLONG, FakeGpu, hopper, packed

Driver: TypeAlias = "Callable[..., Opened]"
A = ("0", "0000:17:00.0")
EVENT, THROTTLE = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"


def _reasons(opened: Opened) -> dict[str, object]:
    values = opened.read("gpu")
    return {key[3]: value for key, value in values.items() if key[0] == "gpu_clocks_event_reason"}


def test_each_reason_for_the_clocks_is_a_series(driver: Driver) -> None:
    """Bits are named as NVML names them: here idle, hardware slowdown and hardware thermal slowdown."""
    assert _reasons(driver(FakeGpu(numbers={(EVENT,): 0x1 | 0x8 | 0x40})).open()) == {
        "gpu_idle": 1, "applications_clocks_setting": 0, "sw_power_cap": 0, "hw_slowdown": 1, "sync_boost": 0,
        "sw_thermal_slowdown": 0, "hw_thermal_slowdown": 1, "hw_power_brake_slowdown": 0, "display_clock_setting": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bit", "reason"),
    list(enumerate((
        "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
        "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting",
    ))),
)  # fmt: skip
def test_reasons_are_the_bits_of_the_mask(driver: Driver, bit: int, reason: str) -> None:
    """Whatever other bits a driver sets."""
    reasons = _reasons(driver(FakeGpu(numbers={(EVENT,): 1 << 40 | 1 << 9 | 1 << bit})).open())

    assert [name for name, value in reasons.items() if value] == [reason]


@pytest.mark.parametrize(("lacks", "supported"), [(None, EVENT), (EVENT, THROTTLE), (THROTTLE, EVENT)])
def test_the_old_name_of_the_reasons_stands_in_for_the_new(driver: Driver, lacks: str | None, supported: str) -> None:
    """The first that the library has is read, and only that."""
    opened = driver(FakeGpu(numbers={(EVENT,): 0x80, (THROTTLE,): 0x80}))
    if lacks:
        del opened.library.functions[lacks]
    opened.open()
    opened.library.calls.clear()

    assert _reasons(opened)["hw_power_brake_slowdown"] == 1
    assert {name for name, _ in opened.library.calls} & {EVENT, THROTTLE} == {supported}


def test_clocks_temperature_power_and_energy_are_in_base_units(driver: Driver) -> None:
    """MHz, degrees, milliwatts and millijoules at the driver."""
    gpu = FakeGpu(
        memory=(5 * 2**30, 80 * 2**30),
        numbers={
            ("nvmlDeviceGetClockInfo", 1): 1980, ("nvmlDeviceGetClockInfo", 2): 2619,
            ("nvmlDeviceGetTemperatureV",): 61, ("nvmlDeviceGetPowerUsage",): 700_001,
            ("nvmlDeviceGetEnforcedPowerLimit",): 700_000, ("nvmlDeviceGetPerformanceState",): 2,
        },
    )  # fmt: skip
    gpu.fields |= {(83, 0): packed(ULONGLONG, 123_456_789), (230, 0): packed(UINT, 2)}

    values = {key[0]: value for key, value in driver(gpu).open().read("gpu").items()}

    assert values == {
        "gpu_utilization_ratio": 0, "gpu_busy": 0, "gpu_memory_used_bytes": 5 * 2**30,
        "gpu_memory_size_bytes": 80 * 2**30, "gpu_sm_clock_hertz": 1_980_000_000,
        "gpu_memory_clock_hertz": 2_619_000_000,
        "gpu_temperature_celsius": 61, "gpu_power_watts": 700.001, "gpu_power_limit_watts": 700.0,
        "gpu_energy_joules_total": 123_456.789, "gpu_recovery_action": 2, "gpu_performance_state": 2,
    }  # fmt: skip


@pytest.mark.parametrize(("told", "state"), [(0, 0), (15, 15), (32, None)])
def test_an_unknown_performance_state_is_absent(driver: Driver, told: int, state: int | None) -> None:
    """0 is the highest state; the driver spells unknown as 32."""
    gpu = FakeGpu(numbers={("nvmlDeviceGetPerformanceState",): told})

    assert driver(gpu).open().read("gpu")[("gpu_performance_state", *A)] == state


def test_the_old_temperature_function_stands_in(driver: Driver) -> None:
    """It is going away, and older drivers have nothing else."""
    gpu = FakeGpu(numbers={("nvmlDeviceGetTemperature", 0): 44})

    assert driver(gpu).open().read("gpu")[("gpu_temperature_celsius", *A)] == 44


def test_time_under_a_limit_is_in_seconds(driver: Driver) -> None:
    """Nanoseconds at the driver; only policies that accuse somebody are read."""
    gpu = FakeGpu(fields={(field, 0): packed(ULONGLONG, field * 10**9 + 1) for field in range(74, 82)})

    values = driver(gpu).open().read("gpu")

    found = {key[3]: value for key, value in values.items() if key[0] == "gpu_performance_limited_seconds_total"}
    assert found == {
        "power": 74.000000001, "thermal": 75.000000001, "sync_boost": 76.000000001, "board_limit": 77.000000001,
        "reliability": 79.000000001,
    }  # fmt: skip


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


def test_who_may_use_a_gpu_is_read_with_its_processes(driver: Driver) -> None:
    """Processes, compute mode and MIG, which a probe's gate asks for together."""
    gpu = FakeGpu(processes=2, mig=0, numbers={("nvmlDeviceGetComputeMode",): 3})

    values = {key[0]: value for key, value in driver(gpu).open().read("processes").items()}

    assert values == {"gpu_compute_processes": 2, "gpu_compute_mode": 3, "gpu_mig_mode": 0}


def test_persistence_mode_is_part_of_the_identity(driver: Driver) -> None:
    """1 while the driver keeps the GPU set up."""
    gpu = FakeGpu(numbers={("nvmlDeviceGetPersistenceMode",): 1})

    assert driver(gpu).open().read("identity")[("gpu_persistence_mode", *A)] == 1


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
